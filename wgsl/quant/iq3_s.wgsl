// IQ3_S: a call is two words, the low bytes of eight codebook indices.
// rest of a row: u32 of 32 sign bits for each call; u8 of eight high bits for each call; four bits of scale for each
// call; f16 d of each block.

const BLOCK = 256u;
override REST_BYTES: u32 = (COLUMNS / 256u * 46u + 3u) / 4u * 4u;

var<workgroup> codebook: array<u32, 512>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 512u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

fn decode(row: u32, k: u32) -> Call {
    let c = codes[row * CALLS + k];
    let s = rest_word(row, 4u * k);
    let h = rest_byte(row, 4u * CALLS + k) << 8u;
    let scale = rest_byte(row, 5u * CALLS + k / 2u) >> (4u * (k & 1u));
    return Call(
        vec4<u32>(
            signed(codebook[(c.x & 255u) | (h & 256u)], s),
            signed(codebook[((c.x >> 8u) & 255u) | ((h >> 1u) & 256u)], s >> 4u),
            signed(codebook[((c.x >> 16u) & 255u) | ((h >> 2u) & 256u)], s >> 8u),
            signed(codebook[(c.x >> 24u) | ((h >> 3u) & 256u)], s >> 12u),
        ),
        vec4<u32>(
            signed(codebook[(c.y & 255u) | ((h >> 4u) & 256u)], s >> 16u),
            signed(codebook[((c.y >> 8u) & 255u) | ((h >> 5u) & 256u)], s >> 20u),
            signed(codebook[((c.y >> 16u) & 255u) | ((h >> 6u) & 256u)], s >> 24u),
            signed(codebook[(c.y >> 24u) | ((h >> 7u) & 256u)], s >> 28u),
        ),
        f16_to_f32(rest_half(row, 11u * CALLS / 2u + k / 8u * 2u)),
        vec2<i32>(2 * i32(scale & 15u) + 1, 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a + b) * scales.x;
}
