// The gated activation of each entry as q8_1: h = (g / (1 + e^-g)) * u, in blocks of 32 codes.
//
// Shapes: gate_up [entries][2][32 * row_blocks], codes [entries][row_blocks][8] words, scales [entries][row_blocks].
// binding 0  uniform  Params
// binding 1  read     gate_up
// binding 2  write    codes, four a word
// binding 3  write    scale and sum of each block, f16 values
// workgroups: x = eight blocks
//
// Order: one sum and two products a value; the block's in expert/q8_1.wgsl.

struct Params {
    zero: u32,       // the guarded lowering's run-time zero
    blocks: u32,
    row_blocks: u32,
    spare: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<f32>;
@group(0) @binding(2) var<storage, read_write> q_codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> q_scales: array<vec2<f32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let block = 8u * (group.y * count.x + group.x) + thread / 32u;
    let live = block < params.blocks;
    let at = min(block, params.blocks - 1u);
    let entry = at / params.row_blocks;
    let i = 32u * (at + entry * params.row_blocks) + (thread & 31u);
    let g = gate_up[i];
    let u = gate_up[i + 32u * params.row_blocks];
    write_block(thread, f_mul(f_div(g, f_add(1.0, f_exp(f_neg(g)))), u), block, live);
}
