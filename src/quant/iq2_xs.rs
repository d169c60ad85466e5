//! `IQ2_XS`: f16 `d`, u16 `qs[32]` with nine bits of codebook index and seven sign bits, u8 `scales[8]` with a scale of
//! four bits for each 16 values.

use super::{Call, half, half_bits, nibble, signed, signs7, tables::IQ2XS_GRID};

const SCALES: usize = 66;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, eight) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * (0.5 + f32::from(nibble(&block[SCALES..], i / 2))) * 0.25;
        let q = half_bits(block, 2 + 2 * i);
        signed(scale, IQ2XS_GRID[usize::from(q & 511)], signs7((q >> 9).into()), eight);
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let scale = |i| i32::from(nibble(&block[SCALES..], 2 * k + i));
    let mut call = Call::new(half(block, 0), [scale(0), scale(1)]);
    for l in 0..4 {
        let q = half_bits(block, 2 + 2 * (4 * k + l));
        call.signed(8 * l, IQ2XS_GRID[usize::from(q & 511)], 8, signs7((q >> 9).into()));
    }
    call
}
