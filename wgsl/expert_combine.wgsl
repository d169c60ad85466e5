// The experts of each token put together: y = fma(weight, out, y) from 0, in the router's order, shared experts last.
//
// Shapes: experts and weights [tokens][used], slots [experts], outs [tokens * used][n_embd], shared [tokens][n_embd],
// y [tokens][n_embd].
// binding 0  uniform  Params
// binding 1  read     expert of each entry
// binding 2  read     weight of each entry
// binding 3  read     slot of each expert's weights; NONE where they are not on the device
// binding 4  read     outs
// binding 5  read     shared (when params.has_shared)
// binding 6  write    y
// workgroups: x = 256 values, y and z = token
//
// Order: serial over the token's entries with fma from 0; the shared experts' value is the last addition.
// An entry whose expert is not there makes the token's values NaN: the mistake is seen.

struct Params {
    zero: u32,       // the guarded lowering's run-time zero
    used: u32,
    experts: u32,
    n_embd: u32,
    has_shared: u32,
    tokens: u32,
    spare0: u32,
    spare1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> experts: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> slots: array<u32>;
@group(0) @binding(4) var<storage, read> outs: array<f32>;
@group(0) @binding(5) var<storage, read> shared_out: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

const NONE = 0xffffffffu;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group.x * 256u + thread;
    let token = group.z * count.y + group.y;
    if (i >= params.n_embd || token >= params.tokens) {
        return;
    }
    var sum = 0.0;
    var missing = false;
    for (var s = 0u; s < params.used; s++) {
        let entry = token * params.used + s;
        let expert = experts[entry];
        var slot = NONE;
        if (expert < params.experts) {
            slot = slots[expert];
        }
        missing = missing || slot == NONE;
        sum = f_fma(weights[entry], outs[entry * params.n_embd + i], sum);
    }
    if (params.has_shared == 1u) {
        sum = f_add(shared_out[token * params.n_embd + i], sum);
    }
    y[token * params.n_embd + i] = bitcast<f32>(select(bitcast<u32>(sum), 0x7fc00000u | params.zero, missing));
}
