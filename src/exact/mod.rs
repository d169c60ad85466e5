//! The arithmetic that every backend shares: scalar binary32 functions with one defined result for each input.
//!
//! Everything is built from operations that IEEE 754 rounds once (add, sub, mul, fma, to nearest even, subnormals
//! kept), comparisons and 32-bit integer operations; the order of a sum is part of its name. Each function has a
//! twin of the same name in `wgsl/exact` that takes the same steps, so the two can be read side by side.
//!
//! NaN is a class: its payload and sign are free, and [`same_bits`] compares accordingly.
//!
//! | function | result |
//! |---|---|
//! | [`fma`], [`div`], [`recip`] | correctly rounded, all inputs |
//! | [`rsqrt`] | at most 0.501 ulp, all positive inputs |
//! | [`exp`] | at most 0.69 ulp where the result is normal; 0 below, +inf above |
//! | [`sigmoid`] | at most 1.5 ulp where the result is normal |
//! | [`f32_to_f16`], [`f16_to_f32`] | correctly rounded, exact |
//!
//! The bounds are measured over all 2^32 inputs by the tests; an ulp is the spacing of binary32 at the result.

mod div;
mod exp;
mod f16;
mod fma;
mod ops;
mod rsqrt;
mod sum;

pub use div::{div, div_int, recip};
pub use exp::{EXP_HIGH, EXP_LOW, exp, sigmoid};
pub use f16::{f16_to_f32, f32_to_f16};
pub use fma::{fma, fma_int};
pub use ops::{Op, same_bits, subnormal_involved};
pub use rsqrt::rsqrt;
pub use sum::{lane_product4, lane_product8, tree_leaf_order, tree32};

const SIGN: u32 = 0x8000_0000;
const INF: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fc0_0000;

/// Whether `x` is NaN, from its bits: compilers of shaders fold `x != x` to false.
#[inline(always)]
pub fn is_nan(x: f32) -> bool {
    x.to_bits() & !SIGN > INF
}

/// `x` where `x > 0`, else `+0` (also for NaN and `-0`).
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x > 0.0 { x } else { 0.0 }
}

/// `x` rounded to an integer, half to even, for `|x| < 2^22`; a zero result is `+0`.
///
/// Adds and subtracts 1.5 * 2^23, where the spacing of binary32 is 1: the first addition rounds, the second is exact.
#[inline(always)]
pub fn rne(x: f32) -> f32 {
    (x + ROUND_MAGIC) - ROUND_MAGIC
}

/// 1.5 * 2^23: the half keeps the sum in the same binade for negative values.
const ROUND_MAGIC: f32 = 12_582_912.0;

/// Key whose order as `u32` is the order of scores: NaN lowest (0), then -inf to +inf, with `-0` equal to `+0`.
///
/// The zero is joined by an integer test, since `x + 0` would flush subnormals on some adapters.
#[inline(always)]
pub fn order_key(x: f32) -> u32 {
    let bits = if x.to_bits() == SIGN { 0 } else { x.to_bits() };
    let key = if bits & SIGN != 0 { !bits } else { bits | SIGN };
    if is_nan(x) { 0 } else { key }
}
