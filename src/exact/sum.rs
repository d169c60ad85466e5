//! Sums in a named order.

/// Sum of the products of 4 consecutive values: `k1*q1`, then fused `k0*q0`, `k2*q2`, `k3*q3`.
///
/// # Panics
/// When a slice is shorter than 4.
#[inline(always)]
pub fn lane_product4(k: &[f32], q: &[f32]) -> f32 {
    let p = k[1] * q[1];
    let p = k[0].mul_add(q[0], p);
    let p = k[2].mul_add(q[2], p);
    k[3].mul_add(q[3], p)
}

/// Sum of the products of 8 consecutive values: [`lane_product4`], then fused products 4 to 7 in ascending order.
///
/// # Panics
/// When a slice is shorter than 8.
#[inline(always)]
pub fn lane_product8(k: &[f32], q: &[f32]) -> f32 {
    let p = lane_product4(k, q);
    let p = k[4].mul_add(q[4], p);
    let p = k[5].mul_add(q[5], p);
    let p = k[6].mul_add(q[6], p);
    k[7].mul_add(q[7], p)
}

/// Sum of 32 lane values, pairwise at distance 16, 8, 4, 2, 1; overwrites `v`.
///
/// Addition commutes, so a butterfly over 32 threads gives the same bits in every thread.
#[inline(always)]
pub fn tree32(v: &mut [f32; 32]) -> f32 {
    for n in [16, 8, 4, 2, 1] {
        for t in 0..n {
            v[t] += v[t + n];
        }
    }
    v[0]
}

/// The lane that comes `i`-th when the leaves of [`tree32`] are read from left to right: `i` with its 5 bits
/// reversed.
///
/// In this order the tree adds neighbours, then neighbouring pairs, and so on, so a stack of 5 partial sums is
/// enough to form it while the lane values come in one by one.
#[inline(always)]
pub fn tree_leaf_order(i: u32) -> u32 {
    i.reverse_bits() >> 27
}
