// Signs of codes. Bit 8 * b + w of a call's signs is that of byte b of its word w.

// Four magnitudes, none of which is 0, with the sign bits at 0, 8, 16 and 24: in a byte -g is (g ^ 255) + 1, which
// carries for 0 only.
fn signed(magnitudes: u32, bits: u32) -> u32 {
    let one = bits & 0x01010101u;
    return (magnitudes ^ (one * 255u)) + one;
}
