// IQ2_XXS: a call is two words: four codebook indices of a byte; 32 sign bits.
// rest of a row: u32 of eight scales of four bits for each block; f32 d of each block.

const BLOCK = 256u;
const BLOCK_BYTES = 8u;

var<workgroup> codebook: array<vec2<u32>, 256>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 256u; i += THREADS) {
        codebook[i] = vec2<u32>(tables[2u * i], tables[2u * i + 1u]);
    }
}

struct Raw {
    codes: vec2<u32>,
    scales: u32,
    scale: u32,
}

fn fetch(row: u32, k: u32) -> Raw {
    let at = row * REST_WORDS + k / 8u;
    return Raw(codes[row * CALLS + k], rest[at], rest[at + BLOCKS]);
}

fn decode(raw: Raw, k: u32) -> Call {
    let x = raw.codes.x;
    let s = raw.codes.y;
    let i = vec4<u32>(x & 255u, (x >> 8u) & 255u, (x >> 16u) & 255u, x >> 24u);
    let a = codebook[i.x];
    let b = codebook[i.y];
    let c = codebook[i.z];
    let d = codebook[i.w];
    return Call(
        vec4<u32>(signed(a.x, s), signed(a.y, s >> 1u), signed(b.x, s >> 2u), signed(b.y, s >> 3u)),
        vec4<u32>(signed(c.x, s >> 4u), signed(c.y, s >> 5u), signed(d.x, s >> 6u), signed(d.y, s >> 7u)),
        bitcast<f32>(raw.scale),
        vec2<i32>(2 * i32((raw.scales >> (4u * (k & 7u))) & 15u) + 1, 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a + b) * scales.x / 8;
}
