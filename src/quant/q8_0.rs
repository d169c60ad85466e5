//! `Q8_0`: f16 `d`, i8 `qs[32]`.

use super::{Call, half};

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (y, &code) in out.iter_mut().zip(&block[2..]) {
        *y = f32::from(code as i8) * d;
    }
}

pub(super) fn call(block: &[u8], _: usize) -> Call {
    let mut call = Call::new(half(block, 0), [1, 0]);
    for (code, &byte) in call.codes.iter_mut().zip(&block[2..]) {
        *code = byte as i8;
    }
    call
}
