// Keys and values as 8-bit codes, four to a word, with an f16 scale for each 64 values:
// codes [slot][kv_head][HEAD_DIM], scales [slot][kv_head][HEAD_DIM / 64]. A value is f32(code) * f32(scale), rounded.

@group(0) @binding(5) var<storage, read> keys: array<u32>;
@group(0) @binding(6) var<storage, read> key_scales: array<u32>;
@group(0) @binding(7) var<storage, read> values: array<u32>;
@group(0) @binding(8) var<storage, read> value_scales: array<u32>;

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn four_codes(w: u32, scale: f32) -> vec4<f32> {
    let codes = vec4<i32>(vec4<u32>(w << 24u, w << 16u, w << 8u, w)) >> vec4<u32>(24u);
    return v_mul(vec4<f32>(codes), vec4<f32>(scale));
}

// Half `i` of an array of halves packed in words.
fn half_at(word: u32, i: u32) -> f32 {
    return f16_to_f32((word >> ((i & 1u) * 16u)) & 0xffffu);
}

// The dims of one lane of a key: 8 when HEAD_DIM is 256, else 4 in `lo`.
fn load_key(row: u32, lane: u32) -> Eight {
    if (HEAD_DIM == 256u) {
        let group = row * 4u + lane / 8u;
        let scale = half_at(key_scales[group / 2u], group);
        let at = row * QUADS + lane * 2u;
        return Eight(four_codes(keys[at], scale), four_codes(keys[at + 1u], scale));
    }
    let group = row * 2u + lane / 16u;
    let scale = half_at(key_scales[group / 2u], group);
    return Eight(four_codes(keys[row * QUADS + lane], scale), vec4<f32>(0.0));
}

// Dims 4*quad .. 4*quad+3 of a value.
fn load_value(row: u32, quad: u32) -> vec4<f32> {
    let group = row * (HEAD_DIM / 64u) + quad / 16u;
    return four_codes(values[row * QUADS + quad], half_at(value_scales[group / 2u], group));
}
