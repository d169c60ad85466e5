//! The gated activation between the matrices.

use crate::exact::{div, exp};

/// `(g / (1 + e^-g)) * u` of each pair.
pub fn expert_swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(&g, &u)| div(g, 1.0 + exp(-g)) * u).collect()
}
