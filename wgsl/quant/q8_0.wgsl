// Q8_0: a call is eight words of codes.
// rest of a row: f16 d of each call.

const BLOCK = 32u;
const BLOCK_BYTES = 2u;

fn load_codebook(thread: u32) {}

fn decode(raw: Raw, k: u32) -> Call {
    let row = raw.row;
    let at = 4u * (row * CALLS + k);
    return Call(
        vec4<u32>(codes[at], codes[at + 1u]),
        vec4<u32>(codes[at + 2u], codes[at + 3u]),
        f16_to_f32(rest_half(row, 2u * k)),
        vec2<i32>(1, 0),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return a + b;
}
