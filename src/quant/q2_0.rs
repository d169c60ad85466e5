//! `Q2_0`: f16 `d`, u8 `qs[16]`; codes of two bits in ascending order, the lowest bits first, less 1.

use super::half;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (j, y) in out.iter_mut().enumerate() {
        let code = (block[2 + j / 4] >> (2 * (j % 4))) & 3;
        *y = d * f32::from(code as i8 - 1);
    }
}
