// IQ4_XS: a call is four words of 32 codes of four bits; the codebook has the two values of each byte.
// rest of a row: four bits of scale for each call; two more bits for each call; f16 d of each block.

const BLOCK = 256u;
const BLOCK_BYTES = 8u;

var<workgroup> codebook: array<u32, 256>;

fn load_codebook(thread: u32) {
    for (var i = thread; i < 256u; i += THREADS) {
        codebook[i] = tables[i];
    }
}

// The values of the low and the high half of two bytes.
fn four(bytes: u32) -> u32 {
    return codebook[bytes & 255u] | (codebook[(bytes >> 8u) & 255u] << 16u);
}

fn decode(raw: Raw, k: u32) -> Call {
    let row = raw.row;
    let c = codes[2u * (row * CALLS + k)];
    let d = codes[2u * (row * CALLS + k) + 1u];
    let low = (rest_byte(row, k / 2u) >> (4u * (k & 1u))) & 15u;
    let high = (rest_byte(row, CALLS / 2u + k / 4u) >> (2u * (k & 3u))) & 3u;
    return Call(
        vec4<u32>(four(c.x), four(c.x >> 16u), four(c.y), four(c.y >> 16u)),
        vec4<u32>(four(d.x), four(d.x >> 16u), four(d.y), four(d.y >> 16u)),
        f16_to_f32(rest_half(row, 3u * CALLS / 4u + k / 8u * 2u)),
        vec2<i32>(i32(low | (high << 4u)) - 32, 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return (a + b) * scales.x;
}
