// IQ2_XXS: a call is two words: four codebook indices of a byte; four times seven sign bits and a scale of four bits.
// rest of a row: f16 d of each block.

const BLOCK = 256u;
override REST_BYTES: u32 = (COLUMNS / 256u * 2u + 3u) / 4u * 4u;

var<workgroup> codebook: array<u32, 512>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 512u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

fn decode(row: u32, k: u32) -> Call {
    let c = codes[row * CALLS + k];
    let i = 2u * (vec4<u32>(c.x, c.x >> 8u, c.x >> 16u, c.x >> 24u) & vec4<u32>(255u));
    let s = vec4<u32>(signs7(c.y), signs7(c.y >> 7u), signs7(c.y >> 14u), signs7(c.y >> 21u));
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
        f16_to_f32(rest_half(row, k / 8u * 2u)),
        vec2<i32>(2 * i32(c.y >> 28u) + 1, 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a + b) * scales.x / 8;
}
