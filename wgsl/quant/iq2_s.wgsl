// IQ2_S: a call is two words: the low bytes of four codebook indices; 32 sign bits.
// rest of a row: u8 of four times two high bits for each call; u8 of two scales for each call; f16 d of each block.

const BLOCK = 256u;
override REST_BYTES: u32 = (COLUMNS / 256u * 18u + 3u) / 4u * 4u;

var<workgroup> codebook: array<u32, 2048>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 2048u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

fn decode(row: u32, k: u32) -> Call {
    let c = codes[row * CALLS + k];
    let h = rest_byte(row, k);
    let low = vec4<u32>(c.x, c.x >> 8u, c.x >> 16u, c.x >> 24u) & vec4<u32>(255u);
    let high = vec4<u32>(h << 8u, h << 6u, h << 4u, h << 2u) & vec4<u32>(0x300u);
    let i = 2u * (low | high);
    let scales = rest_byte(row, CALLS + k);
    return Call(
        vec4<u32>(
            signed(codebook[i.x], c.y),
            signed(codebook[i.x + 1u], c.y >> 4u),
            signed(codebook[i.y], c.y >> 8u),
            signed(codebook[i.y + 1u], c.y >> 12u),
        ),
        vec4<u32>(
            signed(codebook[i.z], c.y >> 16u),
            signed(codebook[i.z + 1u], c.y >> 20u),
            signed(codebook[i.w], c.y >> 24u),
            signed(codebook[i.w + 1u], c.y >> 28u),
        ),
        f16_to_f32(rest_half(row, 2u * CALLS + k / 8u * 2u)),
        vec2<i32>(i32(scales & 15u), i32(scales >> 4u)),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a * scales.x + b * scales.y + (a + b) / 2) / 4;
}
