// Functions with one defined result for each input; method, source and bounds: the functions of the same names in
// src/exact. Integer tests for NaN and limits, because `x != x` is folded to false and some compilers assume that
// there are no NaN or infinities; negation of the sign bit, because a compiler may move a minus through an operation.

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn f_neg(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u);
}

// x where x > 0, else +0.
fn f_relu(x: f32) -> f32 {
    return select(0.0, x, x > 0.0);
}

fn v_relu(x: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(0.0), x, x > vec4<f32>(0.0));
}

// Nearest integer, half to even, for |x| < 2^22.
fn f_rne(x: f32) -> f32 {
    return f_sub(f_add(x, 12582912.0), 12582912.0);
}

// Order of scores as u32; NaN is 0, -0 equals +0.
fn order_key(x: f32) -> u32 {
    let raw = bitcast<u32>(x);
    let bits = select(raw, 0u, raw == 0x80000000u);
    let key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    return select(key, 0u, is_nan(x));
}

// a / b, correctly rounded for every input: long division in three digits of 8 bits.
fn f_div(fa: f32, fb: f32) -> f32 {
    let sign = (bitcast<u32>(fa) ^ bitcast<u32>(fb)) & 0x80000000u;
    let a = bitcast<u32>(fa) & 0x7fffffffu;
    let b = bitcast<u32>(fb) & 0x7fffffffu;
    // a = ma * 2^(xa - 149), ma < 2^24, and the same for b.
    let xa = max(a >> 23u, 1u) - 1u;
    let xb = max(b >> 23u, 1u) - 1u;
    let sa = a - (xa << 23u);
    let sb = b - (xb << 23u);
    // Leading one to bit 23. A zero is none of the results below, but must not divide.
    let na = countLeadingZeros(sa | 1u) - 8u;
    let nb = countLeadingZeros(sb | 1u) - 8u;
    let ma = sa << (na & 31u);
    let mb = (sb | select(0u, 1u, b == 0u)) << (nb & 31u);
    let less = select(0u, 1u, ma < mb);
    // Quotient in [1, 2) as 1.24 bits and a sticky bit; f is its exponent field minus one.
    let f = 126 + i32(xa) - i32(na) - i32(xb) + i32(nb) - i32(less);
    let r0 = ((ma << less) - mb) << 8u;
    let d1 = r0 / mb;
    let r1 = (r0 - d1 * mb) << 8u;
    let d2 = r1 / mb;
    let r2 = (r1 - d2 * mb) << 8u;
    let d3 = r2 / mb;
    let r3 = r2 - d3 * mb;
    let g = 0x2000000u | (d1 << 17u) | (d2 << 9u) | (d3 << 1u) | select(0u, 1u, r3 != 0u);
    // Round half to even. A subnormal result is shifted further; from 27 on nothing is left to round up.
    let s = u32(min(2 + max(-f, 0), 31));
    let q = (g + (0xffffffffu >> (33u - s)) + ((g >> s) & 1u)) >> s;
    let packed = min((u32(clamp(f, 0, 254)) << 23u) + q, 0x7f800000u);
    let infinite = select(packed, 0x7f800000u, a == 0x7f800000u || b == 0u);
    let magnitude = select(infinite, 0u, a == 0u || b == 0x7f800000u);
    let nan = a > 0x7f800000u || b > 0x7f800000u || (a == b && (a == 0u || a == 0x7f800000u));
    return bitcast<f32>(select(sign | magnitude, 0x7fc00000u, nan));
}

// 1 / x, correctly rounded for every input.
fn f_recip(x: f32) -> f32 {
    return f_div(1.0, x);
}

// 1 / sqrt(x): x = m * 4^k with m in [1, 4), a seed from the bits of m, three Newton steps, the last one with the
// residual to twice the precision.
fn f_rsqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let a = bits & 0x7fffffffu;
    let xa = max(a >> 23u, 1u) - 1u;
    let sa = a - (xa << 23u);
    // Leading one to bit 23.
    let n = countLeadingZeros(sa | 1u) - 8u;
    let ma = sa << (n & 31u);
    let e = i32(xa) - i32(n) - 126;
    let odd = u32(e & 1);
    let mb = (ma & 0x7fffffu) | ((127u + odd) << 23u);
    let m = bitcast<f32>(mb);
    let h = f_mul(0.5, m);
    var y = bitcast<f32>(0x5f375a86u - (mb >> 1u));
    y = f_mul(y, f_fma(f_neg(f_mul(h, y)), y, 1.5));
    y = f_mul(y, f_fma(f_neg(f_mul(h, y)), y, 1.5));
    let t = f_mul(m, y);
    let e1 = f_fma(m, y, f_neg(t));
    var r = f_fma(f_neg(t), y, 1.0);
    r = f_fma(f_neg(e1), y, r);
    y = f_fma(f_mul(0.5, y), r, y);
    var result = bitcast<u32>(y) - (u32(e >> 1u) << 23u);
    result = select(result, 0u, a == 0x7f800000u);
    result = select(result, (bits & 0x80000000u) | 0x7f800000u, a == 0u);
    return bitcast<f32>(select(result, 0x7fc00000u, bits > 0x80000000u || a > 0x7f800000u));
}

// Limits of f_exp, bits c2aeac4f and 42b17217.
const EXP_LOW: f32 = -0x1.5d589ep6;
const EXP_HIGH: f32 = 0x1.62e42ep6;

// e^x; 0 below EXP_LOW, +inf above EXP_HIGH. n ln 2 is taken off in two words, e^r is a polynomial, 2^n is added to
// the exponent.
fn f_exp(x: f32) -> f32 {
    let low = bitcast<u32>(x) > bitcast<u32>(EXP_LOW);
    let high = bitcast<i32>(x) > bitcast<i32>(EXP_HIGH);
    let c = select(select(x, EXP_LOW, low), EXP_HIGH, high);
    let z = f_add(f_mul(c, 0x1.715476p0), 12582912.0);
    let nn = f_neg(f_sub(z, 12582912.0));
    let h = f_fma(nn, 0x1.62e430p-1, c);
    let l = f_mul(nn, -0x1.05c610p-29);
    let r = f_fma(nn, -0x1.05c610p-29, h);
    var q = f_fma(0x1.6a4d48p-10, r, 0x1.123986p-7);
    q = f_fma(q, r, 0x1.5558b0p-5);
    q = f_fma(q, r, 0x1.555492p-3);
    q = f_fma(q, r, 0x1.fffffcp-2);
    let s = f_add(1.0, h);
    let e = f_sub(h, f_sub(s, 1.0));
    let p = f_add(s, f_fma(f_mul(r, r), q, f_add(e, l)));
    // The low bits of z hold n.
    var result = bitcast<u32>(p) + (bitcast<u32>(z) << 23u);
    result = select(result, 0u, low);
    result = select(result, 0x7f800000u, high);
    return bitcast<f32>(select(result, 0x7fc00000u, is_nan(x)));
}

// 1 / (1 + e^-x): the quotient, corrected by the rounding error of the sum.
fn f_sigmoid(x: f32) -> f32 {
    let e = f_exp(f_neg(x));
    let s = f_add(1.0, e);
    let q = f_div(1.0, s);
    // e is not negative, so its bits order it.
    let above = bitcast<u32>(e) > 0x3f800000u;
    let big = select(1.0, e, above);
    let small = select(e, 1.0, above);
    let w = f_sub(small, f_sub(s, big));
    let nq = f_neg(q);
    let r = f_fma(nq, w, f_fma(nq, s, 1.0));
    let y = f_fma(q, r, q);
    return select(y, q, bitcast<u32>(e) > 0x5d800000u);
}
