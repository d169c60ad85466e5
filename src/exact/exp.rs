//! Exponential and logistic function.

use super::{INF, NAN, ROUND_MAGIC, div, is_nan};

/// The smallest argument whose exponential is a normal number, bits `c2aeac4f`, about -87.33654; below it [`exp`]
/// is 0.
pub const EXP_LOW: f32 = f32::from_bits(0xc2ae_ac4f);
/// The largest argument whose exponential is finite, bits `42b17217`, about 88.72283; above it [`exp`] is +inf.
pub const EXP_HIGH: f32 = f32::from_bits(0x42b1_7217);

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// ln 2 rounded.
const LN2_HI: f32 = f32::from_bits(0x3f31_7218);
/// ln 2 minus `LN2_HI`, rounded.
const LN2_LO: f32 = f32::from_bits(0xb102_e308);
/// Coefficients of r^2 to r^6.
const C2: f32 = f32::from_bits(0x3eff_fffe);
const C3: f32 = f32::from_bits(0x3e2a_aa49);
const C4: f32 = f32::from_bits(0x3d2a_ac58);
const C5: f32 = f32::from_bits(0x3c09_1cc3);
const C6: f32 = f32::from_bits(0x3ab5_26a4);

/// `e^x`: 0 below [`EXP_LOW`] (no subnormal results), +inf above [`EXP_HIGH`], NaN for NaN.
///
/// At most 0.69 ulp from the true value between the two.
///
/// Method: Cody and Waite. `n` is `x / ln 2` to the nearest integer (next to a tie it may be the other neighbour),
/// `r = x - n ln 2` with ln 2 in two words; the first fma is exact, because both terms are multiples of the unit of
/// its first word and cancel. `e^r = 1 + r + r^2 q(r)` with `q` of degree 4, found by minimising the largest relative
/// error on |r| <= 0.34665 (2^-28.2) and rounding the coefficients one after the other, lowest first, the rest
/// fitted again each time. `1 + r` is kept as a rounded sum and its error, so that only the last addition rounds at
/// the size of the result. `2^n` is an integer addition to the exponent. Subnormal values of `r` change nothing: the
/// result is then 1. The limits are tested on the bits, which no compiler's assumption about NaN and infinities
/// touches; NaN passes one of the tests, and is put right at the end.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let low = x.to_bits() > EXP_LOW.to_bits();
    let high = x.to_bits() as i32 > EXP_HIGH.to_bits() as i32;
    let c = if low { EXP_LOW } else { x };
    let c = if high { EXP_HIGH } else { c };
    let z = c * LOG2_E + ROUND_MAGIC;
    let n = z - ROUND_MAGIC;
    let h = (-n).mul_add(LN2_HI, c);
    let l = -n * LN2_LO;
    let r = (-n).mul_add(LN2_LO, h);
    let q = C6.mul_add(r, C5);
    let q = q.mul_add(r, C4);
    let q = q.mul_add(r, C3);
    let q = q.mul_add(r, C2);
    let s = 1.0 + h;
    let e = h - (s - 1.0);
    let p = s + (r * r).mul_add(q, e + l);
    // The low bits of z hold n.
    let result = p.to_bits().wrapping_add(z.to_bits() << 23);
    let result = if low { 0 } else { result };
    let result = if high { INF } else { result };
    f32::from_bits(if is_nan(x) { NAN } else { result })
}

/// `1 / (1 + e^-x)`.
///
/// At most 1.5 ulp from the true value where the result is normal. Below -87.33, where the true value is subnormal,
/// the result is within 1 unit of 2^-149 down to `-EXP_HIGH`, and 0 below that. NaN gives NaN.
///
/// Method: `e = exp(-x)`, `q = 1 / (1 + e)` by [`div`]. The rounding of `1 + e` alone would take the result to 2.5
/// ulp, so its error `w` (exact: the smaller term is added to the larger) goes into a residual, and one fma corrects
/// `q`. From `e > 2^60` on `1 + e` is as good as `e` and `q` is final; the residual would lose itself among
/// subnormals there.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x);
    let s = 1.0 + e;
    let q = div(1.0, s);
    // e is not negative, so its bits order it.
    let above = e.to_bits() > 1f32.to_bits();
    let big = if above { e } else { 1.0 };
    let small = if above { 1.0 } else { e };
    let w = small - (s - big);
    let r = (-q).mul_add(s, 1.0);
    let r = (-q).mul_add(w, r);
    let y = q.mul_add(r, q);
    if e.to_bits() > SIGMOID_LAST.to_bits() { q } else { y }
}

/// 2^60.
const SIGMOID_LAST: f32 = f32::from_bits(0x5d80_0000);
