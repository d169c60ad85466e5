//! Merge of the chunks of a window. Twin of `wgsl/qsa_merge.wgsl`.

use multiversion::multiversion;
use rayon::prelude::*;

use crate::exact::{div, exp, f32_to_f16, fma, sigmoid};
use crate::shape::{QsaShape, Step};

/// Dims whose sums are kept in registers at a time.
const TILE: usize = 64;

/// Attention of every row from its partial results.
///
/// * `partials`: row `i` starts at `i * partial_stride`, `[chunks][q_heads][head_dim + 2]` as
///   [`qsa_attend`](super::qsa_attend()) gives them;
/// * `gates`: logits `[T][q_heads][head_dim]`, the result is multiplied by their sigmoid;
/// * `out`: `[T][q_heads][head_dim]`, `T = steps.len()`.
///
/// A chunk whose sum is 0 takes no part; a head without any other gives zeros.
///
/// # Panics
/// When an array is shorter than stated.
pub fn qsa_merge(
    shape: &QsaShape,
    steps: &[Step],
    partials: &[f32],
    partial_stride: usize,
    gates: Option<&[f32]>,
    out: &mut [f32],
) {
    let dim = shape.head_dim as usize;
    let heads = shape.q_heads as usize;
    let len = steps.len() * heads * dim;
    let gates = gates.map(|gates| &gates[..len]);
    out[..len].par_chunks_mut(dim).enumerate().for_each(|(i, out)| {
        let (row, head) = (i / heads, i % heads);
        let chunks = steps[row].chunks() as usize;
        let partials = &partials[row * partial_stride..][..chunks * heads * (dim + 2)];
        merge_head(partials, heads, head, out);
        if let Some(gates) = gates {
            for (y, &gate) in out.iter_mut().zip(&gates[i * dim..]) {
                *y *= sigmoid(gate);
            }
        }
    });
}

/// One head of one row, before the gate.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn merge_head(partials: &[f32], heads: usize, head: usize, out: &mut [f32]) {
    let dim = out.len();
    let mut m = f32::NEG_INFINITY;
    let mut parts: Vec<(&[f32], f32)> = Vec::with_capacity(partials.len() / (heads * (dim + 2)));
    for chunk in partials.chunks_exact(heads * (dim + 2)) {
        let part = &chunk[head * (dim + 2)..][..dim + 2];
        if part[dim + 1] != 0.0 {
            m = if part[dim] > m { part[dim] } else { m };
            parts.push((part, 0.0));
        }
    }
    let mut l = 0.0;
    for (part, e) in &mut parts {
        *e = exp(part[dim] - m);
        l = fma(part[dim + 1], *e, l);
    }
    for d in (0..dim).step_by(TILE) {
        let mut sum = [0.0f32; TILE];
        for (part, e) in &parts {
            let acc: &[f32; TILE] = part[d..d + TILE].try_into().expect("a tile was taken");
            for i in 0..TILE {
                sum[i] = fma(acc[i], *e, sum[i]);
            }
        }
        for i in 0..TILE {
            out[d + i] = if l == 0.0 { 0.0 } else { div(sum[i], l) };
        }
    }
}

/// The output as f16 bits, rounded to nearest even; `bits` is as long as `out`.
///
/// # Panics
/// When it is not.
pub fn output_f16(out: &[f32], bits: &mut [u16]) {
    assert_eq!(out.len(), bits.len(), "as many f16 values as f32 values");
    for (bits, &y) in bits.iter_mut().zip(out) {
        *bits = f32_to_f16(y);
    }
}
