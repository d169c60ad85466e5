//! Stand-in until the real module lands.
#![allow(missing_docs, reason = "stand-in")]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}
pub fn div(a: f32, b: f32) -> f32 {
    a / b
}
pub fn exp(x: f32) -> f32 {
    if x < -87.33 { 0.0 } else { f64::from(x).exp() as f32 }
}
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}
pub fn f32_to_f16(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}
pub fn f16_to_f32(h: u16) -> f32 {
    half::f16::from_bits(h).to_f32()
}
pub fn order_key(s: f32) -> u32 {
    let b = (s + 0.0).to_bits();
    if b & 0x7fff_ffff > 0x7f80_0000 {
        0
    } else if b >> 31 == 0 {
        b ^ 0x8000_0000
    } else {
        !b
    }
}
pub fn relu(d: f32) -> f32 {
    if d > 0.0 { d } else { 0.0 }
}
pub fn lane_product4(k: &[f32], q: &[f32]) -> f32 {
    let mut p = k[1] * q[1];
    p = fma(k[0], q[0], p);
    p = fma(k[2], q[2], p);
    fma(k[3], q[3], p)
}
pub fn lane_product8(k: &[f32], q: &[f32]) -> f32 {
    let mut p = k[1] * q[1];
    p = fma(k[0], q[0], p);
    for j in 2..8 {
        p = fma(k[j], q[j], p);
    }
    p
}
pub fn tree32(v: &mut [f32; 32]) -> f32 {
    for n in [16, 8, 4, 2, 1] {
        for t in 0..n {
            v[t] += v[t + n];
        }
    }
    v[0]
}
