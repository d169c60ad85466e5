//! `IQ4_NL`: f16 `d`, u8 `qs[16]`; the low halves of the bytes are values 0 to 15, the high ones 16 to 31.

use super::{half, tables::IQ4NL_VALUES};

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (j, y) in out.iter_mut().enumerate() {
        let code = (block[2 + j % 16] >> (4 * (j / 16))) & 15;
        *y = d * f32::from(IQ4NL_VALUES[usize::from(code)]);
    }
}
