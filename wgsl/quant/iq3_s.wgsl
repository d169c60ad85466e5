// IQ3_S: a call is two words, the low bytes of eight codebook indices.
// rest of a row: u32 of 32 sign bits for each call; u32 of eight scales of four bits for each block; u8 of eight high bits
// for each call; f32 d of each block.

const BLOCK = 256u;
const BLOCK_BYTES = 48u;

var<workgroup> codebook: array<u32, 512>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 512u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

struct Raw {
    codes: vec2<u32>,
    signs: u32,
    scales: u32,
    high: u32,
    scale: u32,
}

fn fetch(row: u32, k: u32) -> Raw {
    let at = row * REST_WORDS;
    return Raw(
        codes[row * CALLS + k],
        rest[at + k],
        rest[at + CALLS + k / 8u],
        rest[at + CALLS + BLOCKS + k / 4u],
        rest[at + CALLS + 3u * BLOCKS + k / 8u],
    );
}

fn decode(raw: Raw, k: u32) -> Call {
    let c = raw.codes;
    let s = raw.signs;
    let h = raw.high >> (8u * (k & 3u));
    return Call(
        vec4<u32>(
            signed(codebook[(c.x & 255u) | ((h << 8u) & 256u)], s),
            signed(codebook[((c.x >> 8u) & 255u) | ((h << 7u) & 256u)], s >> 1u),
            signed(codebook[((c.x >> 16u) & 255u) | ((h << 6u) & 256u)], s >> 2u),
            signed(codebook[(c.x >> 24u) | ((h << 5u) & 256u)], s >> 3u),
        ),
        vec4<u32>(
            signed(codebook[(c.y & 255u) | ((h << 4u) & 256u)], s >> 4u),
            signed(codebook[((c.y >> 8u) & 255u) | ((h << 3u) & 256u)], s >> 5u),
            signed(codebook[((c.y >> 16u) & 255u) | ((h << 2u) & 256u)], s >> 6u),
            signed(codebook[(c.y >> 24u) | ((h << 1u) & 256u)], s >> 7u),
        ),
        bitcast<f32>(raw.scale),
        vec2<i32>(2 * i32((raw.scales >> (4u * (k & 7u))) & 15u) + 1, 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a + b) * scales.x;
}
