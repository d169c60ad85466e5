// Q5_K: two calls share eight words; the first has the low halves of the bytes.
// rest of a row: for each block 32 bytes with the fifth bits of all calls; twelve bytes of scales and minimums for each
// block; f16 d and f16 dmin of each block.

const BLOCK = 256u;
const BLOCK_BYTES = 48u;

fn load_codebook(thread: u32) {}

// Scale and minimum of six bits each of call k; at: the byte of the block's twelve in the rest.
fn scale_and_minimum(row: u32, at: u32, k: u32) -> vec2<u32> {
    let shift = 8u * (k & 3u);
    let a = rest_word(row, at) >> shift;
    let b = rest_word(row, at + 4u) >> shift;
    let c = rest_word(row, at + 8u) >> shift;
    let upper = vec2<u32>((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
    return select(vec2<u32>(a & 63u, b & 63u), upper, (k & 4u) != 0u);
}

fn decode(raw: Raw, k: u32) -> Call {
    let row = raw.row;
    let at = 4u * ((row * CALLS + k) / 2u);
    let shift = vec4<u32>(4u * (k & 1u));
    let low = vec4<u32>(codes[at], codes[at + 1u]) >> shift;
    let high = vec4<u32>(codes[at + 2u], codes[at + 3u]) >> shift;
    let block = k / 8u;
    let f = 32u * block;
    let bit = vec4<u32>(k & 7u);
    let low5 = vec4<u32>(rest_word(row, f), rest_word(row, f + 4u), rest_word(row, f + 8u), rest_word(row, f + 12u));
    let high5 =
        vec4<u32>(rest_word(row, f + 16u), rest_word(row, f + 20u), rest_word(row, f + 24u), rest_word(row, f + 28u));
    let both = scale_and_minimum(row, 4u * CALLS + 12u * block, k & 7u);
    let d = rest_word(row, 11u * CALLS / 2u + 4u * block);
    return Call(
        (low & vec4<u32>(0x0f0f0f0fu)) | (((low5 >> bit) & vec4<u32>(0x01010101u)) << vec4<u32>(4u)),
        (high & vec4<u32>(0x0f0f0f0fu)) | (((high5 >> bit) & vec4<u32>(0x01010101u)) << vec4<u32>(4u)),
        f16_to_f32(d & 0xffffu),
        vec2<i32>(i32(both.x), 0),
        f16_to_f32(d >> 16u),
        f32(both.y),
    );
}

fn extra(low: vec4<u32>, high: vec4<u32>, sum: f32) -> f32 {
    return code_sum(low, high);
}

fn minimum_of(call: Call, d: f32, codes_sum: f32, sum: f32) -> f32 {
    return f_fma(f_neg(f_mul(call.minimum, d)), f_mul(call.factor, codes_sum), sum);
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a + b) * scales.x;
}
