//! `Q2_0`: f16 `d`, u8 `qs[16]`; codes of two bits in ascending order, the lowest bits first, less 1.

use super::{Call, half};

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (j, y) in out.iter_mut().enumerate() {
        let code = (block[2 + j / 4] >> (2 * (j % 4))) & 3;
        *y = d * f32::from(code as i8 - 1);
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let mut call = Call::new(half(block, 0), [1, 0]);
    for (j, code) in call.codes.iter_mut().enumerate() {
        *code = (block[2 + 8 * k + j / 4] >> (2 * (j % 4)) & 3) as i8 - 1;
    }
    call
}
