//! Inner products with the 32 lanes of the definition side by side.

use crate::exact::{fma, tree32};
use crate::shape::LANES;

/// One value for each lane.
pub(super) type Lanes = [f32; LANES];

/// Deals a vector out to the lanes: lane `t` gets the `n = len / 32` consecutive values from `t * n`, and its `j`-th value
/// goes to `to[j * 32 + t]`, where a vector instruction finds the `j`-th values of neighbouring lanes together.
#[inline(always)]
pub(super) fn deal(from: &[f32], to: &mut [f32]) {
    let n = from.len() / LANES;
    for (t, lane) in from.chunks_exact(n).enumerate() {
        for (j, &x) in lane.iter().enumerate() {
            to[j * LANES + t] = x;
        }
    }
}

/// Tree of lane products of two dealt vectors with `J` values a lane.
#[inline(always)]
pub(super) fn dot<const J: usize>(k: &[Lanes; J], q: &[Lanes; J]) -> f32 {
    let mut p = [0.0; LANES];
    for t in 0..LANES {
        p[t] = k[1][t] * q[1][t];
    }
    for t in 0..LANES {
        p[t] = fma(k[0][t], q[0][t], p[t]);
    }
    for j in 2..J {
        for t in 0..LANES {
            p[t] = fma(k[j][t], q[j][t], p[t]);
        }
    }
    tree32(&mut p)
}

/// The dealt vector that starts at `x[0]`.
#[inline(always)]
pub(super) fn dealt<const J: usize>(x: &[f32]) -> &[Lanes; J] {
    let (lanes, _) = x.as_chunks::<LANES>();
    lanes[..J].try_into().expect("J lanes were taken")
}
