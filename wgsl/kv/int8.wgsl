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

// The scales of a row: one a group of 64 values, 4 when HEAD_DIM is 256, else 2 and two that are not used.
fn key_scales_of(row: u32) -> vec4<f32> {
    let word = row * (HEAD_DIM / 128u);
    return four_halves(key_scales[word], key_scales[word + HEAD_DIM / 128u - 1u]);
}

fn value_scales_of(row: u32) -> vec4<f32> {
    let word = row * (HEAD_DIM / 128u);
    return four_halves(value_scales[word], value_scales[word + HEAD_DIM / 128u - 1u]);
}

fn four_halves(a: u32, b: u32) -> vec4<f32> {
    return vec4<f32>(f16_to_f32(a & 0xffffu), f16_to_f32(a >> 16u), f16_to_f32(b & 0xffffu), f16_to_f32(b >> 16u));
}

// Which of the scales a lane's dims have.
fn scale_of(lane: u32) -> u32 {
    return select(lane / 16u, lane / 8u, HEAD_DIM == 256u);
}

// A lane's part of a key and a thread's part of a value, as they lie in memory.
struct RawKey { lo: u32, hi: u32 }
struct RawValue { codes: u32 }

fn load_key(row: u32, lane: u32) -> RawKey {
    if (HEAD_DIM == 256u) {
        let at = row * QUADS + lane * 2u;
        return RawKey(keys[at], keys[at + 1u]);
    }
    return RawKey(keys[row * QUADS + lane], 0u);
}

// The dims of the lane: 8 when HEAD_DIM is 256, else 4 in `lo`.
fn key_values(raw: RawKey, scale: f32) -> Eight {
    return Eight(four_codes(raw.lo, scale), four_codes(raw.hi, scale));
}

// Dims 4*quad .. 4*quad+3 of a value.
fn load_value(row: u32, quad: u32) -> RawValue {
    return RawValue(values[row * QUADS + quad]);
}

fn value_of(raw: RawValue, scale: f32) -> vec4<f32> {
    return four_codes(raw.codes, scale);
}
