// IQ3_XXS: a call is two words, eight codebook indices of a byte.
// rest of a row: u32 of four times seven sign bits and a scale of four bits for each call; f16 d of each block.

const BLOCK = 256u;
override REST_BYTES: u32 = (COLUMNS / 256u * 34u + 3u) / 4u * 4u;

var<workgroup> codebook: array<u32, 256>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 256u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

fn decode(row: u32, k: u32) -> Call {
    let c = codes[row * CALLS + k];
    let signs = rest_word(row, 4u * k);
    let s = vec4<u32>(signs7(signs), signs7(signs >> 7u), signs7(signs >> 14u), signs7(signs >> 21u));
    return Call(
        vec4<u32>(
            signed(codebook[c.x & 255u], s.x),
            signed(codebook[(c.x >> 8u) & 255u], s.x >> 4u),
            signed(codebook[(c.x >> 16u) & 255u], s.y),
            signed(codebook[c.x >> 24u], s.y >> 4u),
        ),
        vec4<u32>(
            signed(codebook[c.y & 255u], s.z),
            signed(codebook[(c.y >> 8u) & 255u], s.z >> 4u),
            signed(codebook[(c.y >> 16u) & 255u], s.w),
            signed(codebook[c.y >> 24u], s.w >> 4u),
        ),
        f16_to_f32(rest_half(row, 4u * CALLS + k / 8u * 2u)),
        vec2<i32>(i32(signs >> 28u), 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (scales.x * (a + b) + (a + b) / 2) / 2;
}
