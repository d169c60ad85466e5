// IQ3_XXS: a call is two words, eight codebook indices of a byte.
// rest of a row: u32 of 32 sign bits for each call; u32 of eight scales of four bits for each block; f32 d of each block.

const BLOCK = 256u;
const BLOCK_BYTES = 40u;

var<workgroup> codebook: array<u32, 256>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 256u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

struct Raw {
    codes: vec2<u32>,
    signs: u32,
    scales: u32,
    scale: u32,
}

fn fetch(row: u32, k: u32) -> Raw {
    let at = row * REST_WORDS;
    return Raw(
        codes[row * CALLS + k],
        rest[at + k],
        rest[at + CALLS + k / 8u],
        rest[at + CALLS + BLOCKS + k / 8u],
    );
}

fn decode(raw: Raw, k: u32) -> Call {
    let c = raw.codes;
    let s = raw.signs;
    return Call(
        vec4<u32>(
            signed(codebook[c.x & 255u], s),
            signed(codebook[(c.x >> 8u) & 255u], s >> 1u),
            signed(codebook[(c.x >> 16u) & 255u], s >> 2u),
            signed(codebook[c.x >> 24u], s >> 3u),
        ),
        vec4<u32>(
            signed(codebook[c.y & 255u], s >> 4u),
            signed(codebook[(c.y >> 8u) & 255u], s >> 5u),
            signed(codebook[(c.y >> 16u) & 255u], s >> 6u),
            signed(codebook[c.y >> 24u], s >> 7u),
        ),
        bitcast<f32>(raw.scale),
        vec2<i32>(i32((raw.scales >> (4u * (k & 7u))) & 15u), 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (scales.x * (a + b) + (a + b) / 2) / 2;
}
