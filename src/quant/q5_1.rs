//! `Q5_1`: f16 `d`, f16 `m`, u32 `qh` with the fifth bits, u8 `qs[16]` laid out as in `IQ4_NL`.

use super::{Call, Minimum, half, word};

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    let high = word(block, 4);
    for (j, y) in out.iter_mut().enumerate() {
        let low = (block[8 + j % 16] >> (4 * (j / 16))) & 15;
        let code = u32::from(low) | (high >> j & 1) << 4;
        *y = code as f32 * d + m;
    }
}

pub(super) fn call(block: &[u8], _: usize) -> Call {
    let mut call = Call::new(half(block, 0), [1, 0]);
    call.minimum = Minimum::Sum { scale: half(block, 2) };
    let high = word(block, 4);
    for (j, code) in call.codes.iter_mut().enumerate() {
        let low = (block[8 + j % 16] >> (4 * (j / 16))) & 15;
        *code = (low | ((high >> j & 1) as u8) << 4) as i8;
    }
    call
}
