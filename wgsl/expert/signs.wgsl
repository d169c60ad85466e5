// Signs of codes.

// Seven bits and the one that makes their number even.
fn signs7(bits: u32) -> u32 {
    let b = bits & 127u;
    return b | ((countOneBits(b) & 1u) << 7u);
}

// Four magnitudes, none of which is 0, with four sign bits: in a byte -g is (g ^ 255) + 1, which carries for 0 only.
fn signed(magnitudes: u32, bits: u32) -> u32 {
    let one = ((bits & 15u) * 0x00204081u) & 0x01010101u;
    return (magnitudes ^ (one * 255u)) + one;
}
