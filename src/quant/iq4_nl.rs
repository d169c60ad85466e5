//! `IQ4_NL`: f16 `d`, u8 `qs[16]`; the low halves of the bytes are values 0 to 15, the high ones 16 to 31.

use super::{Call, half, tables::IQ4NL_VALUES};

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (j, y) in out.iter_mut().enumerate() {
        let code = (block[2 + j % 16] >> (4 * (j / 16))) & 15;
        *y = d * f32::from(IQ4NL_VALUES[usize::from(code)]);
    }
}

/// Half of a block: bytes 0 to 7, or 8 to 15. The codes of the other half are 0.
pub(super) fn call(block: &[u8], k: usize) -> Call {
    let mut call = Call::new(half(block, 0), [1, 0]);
    for j in 8 * k..8 * k + 8 {
        call.codes[j] = IQ4NL_VALUES[usize::from(block[2 + j] & 15)];
        call.codes[j + 16] = IQ4NL_VALUES[usize::from(block[2 + j] >> 4)];
    }
    call
}
