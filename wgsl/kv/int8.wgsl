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

// A lane's part of a key and a thread's part of a value, as they lie in memory, each with the word of its scale.
struct RawKey { lo: u32, hi: u32, scale: u32 }
struct RawValue { codes: u32, scale: u32 }

// Groups of 64 values before a row; even, so that a row's scales begin with a word.
fn row_groups(row: u32) -> u32 {
    return row * (HEAD_DIM / 64u);
}

fn load_key(row: u32, lane: u32) -> RawKey {
    if (HEAD_DIM == 256u) {
        let at = row * QUADS + lane * 2u;
        return RawKey(keys[at], keys[at + 1u], key_scales[(row_groups(row) + lane / 8u) / 2u]);
    }
    return RawKey(keys[row * QUADS + lane], 0u, key_scales[row_groups(row) / 2u]);
}

// The dims of the lane: 8 when HEAD_DIM is 256, else 4 in `lo`.
fn key_values(raw: RawKey, lane: u32) -> Eight {
    let group = select(lane / 16u, lane / 8u, HEAD_DIM == 256u);
    let scale = half_at(raw.scale, group);
    return Eight(four_codes(raw.lo, scale), four_codes(raw.hi, scale));
}

// Dims 4*quad .. 4*quad+3 of a value.
fn load_value(row: u32, quad: u32) -> RawValue {
    return RawValue(values[row * QUADS + quad], value_scales[(row_groups(row) + quad / 16u) / 2u]);
}

fn value_of(raw: RawValue, quad: u32) -> vec4<f32> {
    return four_codes(raw.codes, half_at(raw.scale, quad / 16u));
}
