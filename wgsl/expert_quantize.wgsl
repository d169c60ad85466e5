// Activations as q8_1: blocks of 32 codes with a scale and a sum.
//
// Shapes: x [blocks][32], codes [blocks][8] words, scales [blocks].
// binding 0  uniform  Params
// binding 1  read     x
// binding 2  write    codes, four a word
// binding 3  write    scale and sum of each block, f16 values
// workgroups: x = eight blocks
//
// Order: expert/q8_1.wgsl.

struct Params {
    zero: u32,   // the guarded lowering's run-time zero
    blocks: u32,
    spare0: u32,
    spare1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
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
    write_block(thread, x[32u * at + (thread & 31u)], block, live);
}
