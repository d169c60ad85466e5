//! Merge of one row's chunks, with the optional output gate.

use super::qsa_attend::max_logit;
use crate::exact::{div, exp, f32_to_f16, fma, sigmoid};
use crate::shape::QsaShape;

/// The row's attention from its partial results.
///
/// * `partials`: `[chunks][q_heads][head_dim + 2]` as [`qsa_attend`](super::qsa_attend()) gives them, and no chunk more;
/// * `gate`: logits `[q_heads][head_dim]`, the result is multiplied by their sigmoid.
///
/// Returns `[q_heads][head_dim]`.
///
/// Order, per head: `M` = the maximum of `m` by [`max_logit`](super::max_logit), `e[k] = exp(m[k] - M)`,
/// `L` and `out[d]` = fma over ascending `k` of `l[k] * e[k]` and `acc[k][d] * e[k]`, from 0; the result is `out / L`,
/// and 0 when `L` is 0. A chunk whose `l` is 0 takes no part: its `m` and accumulators are not looked at.
/// The sign of a zero `M` reaches nothing: `m - M` is then `m` or a zero, and exp of either zero is 1.
///
/// # Panics
/// When an array is shorter than stated.
pub fn qsa_merge(shape: &QsaShape, partials: &[f32], gate: Option<&[f32]>) -> Vec<f32> {
    let dim = shape.head_dim as usize;
    let chunk_stride = shape.partial_chunk() as usize;
    let chunks = partials.len() / chunk_stride;
    let mut result = Vec::new();
    for h in 0..shape.q_heads as usize {
        let at = |k: usize, i: usize| partials[k * chunk_stride + h * (dim + 2) + i];
        let m_of = |k: usize| at(k, dim);
        let l_of = |k: usize| at(k, dim + 1);

        let mut m = f32::NEG_INFINITY;
        for k in 0..chunks {
            if l_of(k) != 0.0 {
                m = max_logit(m, m_of(k));
            }
        }

        let mut e = vec![0.0; chunks];
        let mut l = 0.0;
        for k in 0..chunks {
            if l_of(k) != 0.0 {
                e[k] = exp(m_of(k) - m);
                l = fma(l_of(k), e[k], l);
            }
        }

        for d in 0..dim {
            let mut out = 0.0;
            for k in 0..chunks {
                if l_of(k) != 0.0 {
                    out = fma(at(k, d), e[k], out);
                }
            }
            let mut y = if l == 0.0 { 0.0 } else { div(out, l) };
            if let Some(gate) = gate {
                y *= sigmoid(gate[h * dim + d]);
            }
            result.push(y);
        }
    }
    result
}

/// The output as f16 bits, rounded to nearest even.
pub fn output_f16(out: &[f32]) -> Vec<u16> {
    let mut bits = Vec::new();
    for &y in out {
        bits.push(f32_to_f16(y));
    }
    bits
}
