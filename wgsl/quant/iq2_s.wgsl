// IQ2_S: a call is two words: the low bytes of four codebook indices; 32 sign bits.
// rest of a row: f32 d of each block; u8 of four times two high bits for each call; u8 of two scales for each call.

const BLOCK = 256u;
const BLOCK_BYTES = 20u;

var<workgroup> codebook: array<vec2<u32>, 1024>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 1024u; i += THREADS) {
        codebook[i] = vec2<u32>(tables[2u * i], tables[2u * i + 1u]);
    }
}

struct Raw {
    codes: vec2<u32>,
    high: u32,
    scales: u32,
    scale: u32,
}

fn fetch(row: u32, k: u32) -> Raw {
    let at = row * REST_WORDS;
    return Raw(
        codes[row * CALLS + k],
        rest[at + BLOCKS + k / 4u],
        rest[at + 3u * BLOCKS + k / 4u],
        rest[at + k / 8u],
    );
}

fn decode(raw: Raw, k: u32) -> Call {
    let x = raw.codes.x;
    let s = raw.codes.y;
    let h = raw.high >> (8u * (k & 3u));
    let i = vec4<u32>(
        (x & 255u) | ((h << 8u) & 768u),
        ((x >> 8u) & 255u) | ((h << 6u) & 768u),
        ((x >> 16u) & 255u) | ((h << 4u) & 768u),
        (x >> 24u) | ((h << 2u) & 768u),
    );
    let scales = raw.scales >> (8u * (k & 3u));
    let a = codebook[i.x];
    let b = codebook[i.y];
    let c = codebook[i.z];
    let d = codebook[i.w];
    return Call(
        vec4<u32>(signed(a.x, s), signed(a.y, s >> 1u), signed(b.x, s >> 2u), signed(b.y, s >> 3u)),
        vec4<u32>(signed(c.x, s >> 4u), signed(c.y, s >> 5u), signed(d.x, s >> 6u), signed(d.y, s >> 7u)),
        bitcast<f32>(raw.scale),
        vec2<i32>(i32(scales & 15u), i32((scales >> 4u) & 15u)),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a * scales.x + b * scales.y + (a + b) / 2) / 4;
}
