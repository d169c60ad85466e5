// Q6_K: four calls share 16 words; of a half of the block calls 0 and 2 have the low and the high halves of the first 32
// bytes, calls 1 and 3 those of the second.
// rest of a row: for each block 64 bytes with the two high bits, those of four calls in a byte; two scales for each call;
// f16 d of each block.

const BLOCK = 256u;
const BLOCK_BYTES = 82u;

fn load_codebook(thread: u32) {}

fn decode(raw: Raw, k: u32) -> Call {
    let row = raw.row;
    let half_block = k / 4u;
    let at = 8u * (row * (CALLS / 4u) + half_block) + 4u * (k & 1u);
    let shift = vec4<u32>(4u * ((k >> 1u) & 1u));
    let low = vec4<u32>(codes[at], codes[at + 1u]) >> shift;
    let high = vec4<u32>(codes[at + 2u], codes[at + 3u]) >> shift;
    let f = 32u * half_block;
    let two = vec4<u32>(2u * (k & 3u));
    let low2 = vec4<u32>(rest_word(row, f), rest_word(row, f + 4u), rest_word(row, f + 8u), rest_word(row, f + 12u));
    let high2 =
        vec4<u32>(rest_word(row, f + 16u), rest_word(row, f + 20u), rest_word(row, f + 24u), rest_word(row, f + 28u));
    let scales = rest_half(row, 8u * CALLS + 2u * k);
    return Call(
        less_32((low & vec4<u32>(0x0f0f0f0fu)) | (((low2 >> two) & vec4<u32>(0x03030303u)) << vec4<u32>(4u))),
        less_32((high & vec4<u32>(0x0f0f0f0fu)) | (((high2 >> two) & vec4<u32>(0x03030303u)) << vec4<u32>(4u))),
        f16_to_f32(rest_half(row, 10u * CALLS + k / 8u * 2u)),
        vec2<i32>(i32(scales << 24u) >> 24u, i32(scales << 16u) >> 24u),
    );
}

// Bytes of 0 to 63 less 32: the bit of 32 flipped is the sign, which fills the two bits above.
fn less_32(x: vec4<u32>) -> vec4<u32> {
    let flipped = x ^ vec4<u32>(0x20202020u);
    return flipped | ((flipped & vec4<u32>(0x20202020u)) * vec4<u32>(6u));
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return a * scales.x + b * scales.y;
}
