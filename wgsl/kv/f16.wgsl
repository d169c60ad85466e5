// Keys and values as binary16, two to a word: [slot][kv_head][HEAD_DIM].

@group(0) @binding(5) var<storage, read> keys: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> key_scales: array<u32>;   // not used
@group(0) @binding(7) var<storage, read> values: array<vec2<u32>>;
@group(0) @binding(8) var<storage, read> value_scales: array<u32>; // not used

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn four_halves(w: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(f16_to_f32(w.x & 0xffffu), f16_to_f32(w.x >> 16u), f16_to_f32(w.y & 0xffffu), f16_to_f32(w.y >> 16u));
}

// There are no scales.
fn key_scales_of(row: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

fn value_scales_of(row: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

fn scale_of(lane: u32) -> u32 {
    return 0u;
}

// A lane's part of a key and a thread's part of a value, as they lie in memory.
struct RawKey { lo: vec2<u32>, hi: vec2<u32> }
struct RawValue { halves: vec2<u32> }

fn load_key(row: u32, lane: u32) -> RawKey {
    if (HEAD_DIM == 256u) {
        let at = row * QUADS + lane * 2u;
        return RawKey(keys[at], keys[at + 1u]);
    }
    return RawKey(keys[row * QUADS + lane], vec2<u32>(0u));
}

// The dims of the lane: 8 when HEAD_DIM is 256, else 4 in `lo`.
fn key_values(raw: RawKey, scale: f32) -> Eight {
    return Eight(four_halves(raw.lo), four_halves(raw.hi));
}

// Dims 4*quad .. 4*quad+3 of a value.
fn load_value(row: u32, quad: u32) -> RawValue {
    return RawValue(values[row * QUADS + quad]);
}

fn value_of(raw: RawValue, scale: f32) -> vec4<f32> {
    return four_halves(raw.halves);
}
