// Q2_0: a call is two words of 16 codes of two bits each.
// rest of a row: f16 d of each block of 64.

const BLOCK = 64u;
const BLOCK_BYTES = 2u;

fn load_codebook(thread: u32) {}

const CALL_VALUES = 32u;

struct Call {
    low: vec4<u32>,  // every fourth of 16 codes a word
    high: vec4<u32>,
    scale: f32,
}

// The sums of the activations' codes: the codes' one too many is taken off in them.
var<workgroup> code_sums: array<i32, STAGED_BLOCKS>;

fn stage_extra(at: u32, low: vec4<u32>, high: vec4<u32>, sum: f32) {
    let ones = vec4<u32>(0x01010101u);
    code_sums[at] = dot4(low, ones) + dot4(high, ones);
}

struct Raw {
    codes: vec2<u32>,
    scale: u32,
}

fn fetch(row: u32, k: u32) -> Raw {
    return Raw(codes[row * CALLS + k], rest[row * REST_WORDS + k / 4u]);
}

fn decode(raw: Raw, k: u32) -> Call {
    let c = raw.codes;
    let shift = vec4<u32>(0u, 2u, 4u, 6u);
    return Call(
        (vec4<u32>(c.x) >> shift) & vec4<u32>(0x03030303u),
        (vec4<u32>(c.y) >> shift) & vec4<u32>(0x03030303u),
        f16_to_f32((raw.scale >> (8u * (k & 2u))) & 0xffffu),
    );
}

fn accumulate(call: Call, e: u32, k: u32, sum: f32) -> f32 {
    let a = dot4(call.low, staged[2u * e * X_BLOCKS + k]);
    let b = dot4(call.high, staged[(2u * e + 1u) * X_BLOCKS + k]);
    let d = f_mul(call.scale, staged_scale[e * X_BLOCKS + k]);
    return f_fma(d, f32(a + b - code_sums[e * X_BLOCKS + k]), sum);
}
