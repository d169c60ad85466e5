// Keys and values as binary16, two to a word: [slot][kv_head][HEAD_DIM].

@group(0) @binding(5) var<storage, read> keys: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> key_scales: array<u32>;   // not used
@group(0) @binding(7) var<storage, read> values: array<vec2<u32>>;
@group(0) @binding(8) var<storage, read> value_scales: array<u32>; // not used

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn four_halves(w: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(f16_to_f32(w.x & 0xffffu), f16_to_f32(w.x >> 16u), f16_to_f32(w.y & 0xffffu), f16_to_f32(w.y >> 16u));
}

// The dims of one lane of a key: 8 when HEAD_DIM is 256, else 4 in `lo`.
fn load_key(row: u32, lane: u32) -> Eight {
    if (HEAD_DIM == 256u) {
        let at = row * QUADS + lane * 2u;
        return Eight(four_halves(keys[at]), four_halves(keys[at + 1u]));
    }
    return Eight(four_halves(keys[row * QUADS + lane]), vec4<f32>(0.0));
}

// Dims 4*quad .. 4*quad+3 of a value.
fn load_value(row: u32, quad: u32) -> vec4<f32> {
    return four_halves(values[row * QUADS + quad]);
}
