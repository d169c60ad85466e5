// IQ2_XS: a call is two words, four u16 of nine bits of codebook index and seven sign bits.
// rest of a row: u8 of two scales for each call; f16 d of each block.

const BLOCK = 256u;
override REST_BYTES: u32 = (COLUMNS / 256u * 10u + 3u) / 4u * 4u;

var<workgroup> codebook: array<u32, 1024>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 1024u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

fn decode(row: u32, k: u32) -> Call {
    let c = codes[row * CALLS + k];
    let i = 2u * (vec4<u32>(c.x, c.x >> 16u, c.y, c.y >> 16u) & vec4<u32>(511u));
    let s = vec4<u32>(signs7(c.x >> 9u), signs7(c.x >> 25u), signs7(c.y >> 9u), signs7(c.y >> 25u));
    let scales = rest_byte(row, k);
    return Call(
        vec4<u32>(
            signed(codebook[i.x], s.x),
            signed(codebook[i.x + 1u], s.x >> 4u),
            signed(codebook[i.y], s.y),
            signed(codebook[i.y + 1u], s.y >> 4u),
        ),
        vec4<u32>(
            signed(codebook[i.z], s.z),
            signed(codebook[i.z + 1u], s.z >> 4u),
            signed(codebook[i.w], s.w),
            signed(codebook[i.w + 1u], s.w >> 4u),
        ),
        f16_to_f32(rest_half(row, CALLS + k / 8u * 2u)),
        vec2<i32>(i32(scales & 15u), i32(scales >> 4u)),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a * scales.x + b * scales.y + (a + b) / 2) / 4;
}
