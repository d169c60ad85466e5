// Q8_0: a call is eight words of codes.
// rest of a row: f16 d of each call.

const BLOCK = 32u;
override REST_BYTES: u32 = (COLUMNS / 32u * 2u + 3u) / 4u * 4u;

fn load_codebook(thread: u32) {}

fn decode(row: u32, k: u32) -> Call {
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
