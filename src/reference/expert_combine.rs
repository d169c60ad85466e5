//! The experts of a token put together.

use crate::exact::fma;

/// `y = fma(weight, out, y)` from 0 over the experts of one token, in the order of the router; shared experts last.
///
/// * `outs`: of each expert the rows of its down matrix, all of one length;
/// * `weights`: one for each expert.
pub fn expert_combine(outs: &[&[f32]], weights: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; outs.first().map_or(0, |out| out.len())];
    for (out, &weight) in outs.iter().zip(weights) {
        for i in 0..y.len() {
            y[i] = fma(weight, out[i], y[i]);
        }
    }
    y
}
