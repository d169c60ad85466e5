// Q5_1: a call is four words of 32 codes of four bits.
// rest of a row: u32 of the fifth bits for each call; f16 d and f16 m for each call.

const BLOCK = 32u;
const BLOCK_BYTES = 8u;

fn load_codebook(thread: u32) {}

// Four bits to bit 4 of four bytes.
fn fifth(bits: u32) -> u32 {
    return (((bits & 15u) * 0x00204081u) & 0x01010101u) << 4u;
}

fn decode(raw: Raw, k: u32) -> Call {
    let row = raw.row;
    let c = vec4<u32>(codes[2u * (row * CALLS + k)], codes[2u * (row * CALLS + k) + 1u]);
    let h = rest_word(row, 4u * k);
    let d = rest_word(row, 4u * CALLS + 4u * k);
    let low = c & vec4<u32>(0x0f0f0f0fu);
    let high = (c >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return Call(
        low | vec4<u32>(fifth(h), fifth(h >> 4u), fifth(h >> 8u), fifth(h >> 12u)),
        high | vec4<u32>(fifth(h >> 16u), fifth(h >> 20u), fifth(h >> 24u), fifth(h >> 28u)),
        f16_to_f32(d & 0xffffu),
        vec2<i32>(1, 0),
        f16_to_f32(d >> 16u),
        0.0,
    );
}

// The sum of the values before they became codes.
fn extra(low: vec4<u32>, high: vec4<u32>, sum: f32) -> f32 {
    return sum;
}

fn minimum_of(call: Call, d: f32, value_sum: f32, sum: f32) -> f32 {
    return f_fma(call.minimum, value_sum, sum);
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return a + b;
}
