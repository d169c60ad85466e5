// IQ4_NL: a call is two words of 16 codes of four bits, half of a block; the codebook has the two values of each byte.
// rest of a row: f16 d of each block.

const BLOCK = 32u;
const BLOCK_BYTES = 2u;

const CALL_VALUES = 16u;

struct Call {
    codes: vec4<u32>,
    scale: f32,
}

var<workgroup> codebook: array<u32, 256>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 256u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

fn stage_extra(at: u32, low: vec4<u32>, high: vec4<u32>, sum: f32) {}

// The values of the low and the high half of two bytes.
fn four(bytes: u32) -> u32 {
    return codebook[bytes & 255u] | (codebook[(bytes >> 8u) & 255u] << 16u);
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
    return Call(
        vec4<u32>(four(c.x), four(c.x >> 16u), four(c.y), four(c.y >> 16u)),
        f16_to_f32((raw.scale >> (8u * (k & 2u))) & 0xffffu),
    );
}

fn accumulate(call: Call, e: u32, k: u32, sum: f32) -> f32 {
    let integer = dot4(call.codes, staged[(2u * e + (k & 1u)) * X_BLOCKS + k / 2u]);
    return f_fma(f_mul(call.scale, staged_scale[e * X_BLOCKS + k / 2u]), f32(integer), sum);
}
