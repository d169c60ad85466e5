// IQ1_M: a call is one word, the low bytes of four codebook indices. The codebook is too large for small workgroup
// memories and read where it is.
// rest of a row: u16 of four times three high bits and the sign of the eighth for each call; for each block four u16 with
// four scales of three bits and a quarter of the f16 d each.

const BLOCK = 256u;
const BLOCK_BYTES = 24u;

fn load_codebook(thread: u32) {}

// Eighths of four codes of -1, 0 or 1, moved by one: no byte carries into the next.
fn eighths(word: u32, delta: u32) -> u32 {
    // -1, 0, 1 and two's complement: 8 * code + delta, byte by byte, with the sign bits kept apart.
    let x = ((word & 0x1f1f1f1fu) << 3u);
    return ((x & 0x7f7f7f7fu) + (delta & 0x7f7f7f7fu)) ^ ((x ^ delta) & 0x80808080u);
}

fn decode(raw: Raw, k: u32) -> Call {
    let row = raw.row;
    let pair = codes[(row * CALLS + k) / 2u];
    let c = select(pair.x, pair.y, (k & 1u) == 1u);
    let h = rest_half(row, 2u * k);
    let low = vec4<u32>(c, c >> 8u, c >> 16u, c >> 24u) & vec4<u32>(255u);
    let high = vec4<u32>(h << 8u, h << 4u, h, h >> 4u) & vec4<u32>(0x700u);
    let i = 2u * (low | high);
    let minus = vec4<u32>(h >> 3u, h >> 7u, h >> 11u, h >> 15u) & vec4<u32>(1u);
    let delta = select(vec4<u32>(0x01010101u), vec4<u32>(0xffffffffu), minus == vec4<u32>(1u));
    let at = 2u * CALLS + k / 8u * 8u;
    let s0 = rest_word(row, at);
    let s1 = rest_word(row, at + 4u);
    let word = select(s0, s1, (k & 4u) != 0u) >> (16u * ((k >> 1u) & 1u));
    let bits = word >> (6u * (k & 1u));
    let d = ((s0 >> 12u) & 0xfu) | ((s0 >> 24u) & 0xf0u) | ((s1 >> 4u) & 0xf00u) | ((s1 >> 16u) & 0xf000u);
    return Call(
        vec4<u32>(
            eighths(tables[i.x], delta.x),
            eighths(tables[i.x + 1u], delta.x),
            eighths(tables[i.y], delta.y),
            eighths(tables[i.y + 1u], delta.y),
        ),
        vec4<u32>(
            eighths(tables[i.z], delta.z),
            eighths(tables[i.z + 1u], delta.z),
            eighths(tables[i.w], delta.w),
            eighths(tables[i.w + 1u], delta.w),
        ),
        f_mul(f16_to_f32(d), 0.125),
        vec2<i32>(2 * i32(bits & 7u) + 1, 2 * i32((bits >> 3u) & 7u) + 1),
    );
}

fn integer(scales: vec2<i32>, a: i32, b: i32) -> i32 {
    return a * scales.x + b * scales.y;
}
