//! What the stages compute, in binary64 and without their structure, each value with a bound on the error of the
//! binary32 definition; and top-k by sorting.
//!
//! # How the bounds come about
//!
//! `u = 2^-24` is the unit roundoff: a rounded operation gives `x (1 + e)`, `|e| <= u`, plus at most [`TINY`] = 2^-149 where
//! a product falls among the subnormal numbers (sums and differences never add such an error).
//! `n` of them in a row give `1 + theta`, `|theta| <= gamma(n) = n u / (1 - n u)` (Higham, Accuracy and Stability, lemma 3.1),
//! so a sum of products is off by at most `gamma(n) * sum |terms|`, where `n` counts the roundings that a term goes through:
//!
//! * lane product of `j` values: the term that is multiplied first sees its own rounding and `j - 1` fused ones: `j`;
//! * tree over 32 lanes: 5; so a dot product: `4 + 5` or `8 + 5`;
//! * serial fma over `n` terms: the term at index `i` sees `n - i`.
//!
//! `exp` is within 1 ulp, that is `2u` relative to a normal result, and 0 instead of less than `exp(-87.33) < 2^-125.9`;
//! `sigmoid` is within 2 ulp: `4u`. Division is one rounding.
//!
//! The binary64 values have the same errors with `2^-53` for `u`, a factor of 2^-29 below the bound that the same
//! operations get here; [`Bounded::new`] adds 2^-20 of the bound for them.

#![allow(dead_code, reason = "each test file uses its own part")]

use samebits::exact::{f16_to_f32, order_key};
use samebits::{KvCells, QsaShape, Step};

/// Unit roundoff of binary32.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;
/// The smallest subnormal number, 2^-149.
pub const TINY: f64 = 1.401298464324817e-45;
/// More than what `exp` drops where it gives 0: 2^-125.
const FLUSHED: f64 = 2.350988701644575e-38;

/// Bound on `|theta|` of `n` roundings in a row.
pub fn gamma(n: usize) -> f64 {
    let nu = n as f64 * U;
    nu / (1.0 - nu)
}

/// A value and how far the definition may be from it.
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    pub value: f64,
    pub bound: f64,
}

impl Bounded {
    fn new(value: f64, bound: f64) -> Bounded {
        assert!(value.is_finite() && bound.is_finite(), "the oracle covers finite rows");
        Bounded { value, bound: bound * (1.0 + 1.0 / (1 << 20) as f64) }
    }

    pub fn holds(&self, got: f32) -> bool {
        // NaN does not hold.
        (f64::from(got) - self.value).abs() <= self.bound
    }
}

/// The first value outside its bound.
pub fn violation(got: &[f32], oracle: &[Bounded]) -> Option<String> {
    assert_eq!(got.len(), oracle.len());
    let i = got.iter().zip(oracle).position(|(&got, want)| !want.holds(got))?;
    let Bounded { value, bound } = oracle[i];
    let error = (f64::from(got[i]) - value).abs();
    Some(format!("at {i}: {:e} instead of {value:e}, off by {error:e}, bound {bound:e}", got[i]))
}

/// How many values are outside their bounds.
pub fn violations(got: &[f32], oracle: &[Bounded]) -> usize {
    assert_eq!(got.len(), oracle.len());
    got.iter().zip(oracle).filter(|(got, want)| !want.holds(**got)).count()
}

/// `(sum, sum of magnitudes)` of the products.
fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    a.iter().zip(b).fold((0.0, 0.0), |(sum, abs), (&x, &y)| {
        let p = f64::from(x) * f64::from(y);
        (sum + p, abs + p.abs())
    })
}

/// Block scores, the dead key's last.
///
/// A head's `d` is off by `gamma(9) A + 128 TINY`, `A` the sum of magnitudes; relu moves two numbers no further apart.
/// Adding the `H` heads is `H - 1` roundings at most, and one for the 1e9 of an incomplete block:
/// with `r = relu(d)` the score is off by `sum_h (gamma(9) A_h + 128 TINY)(1 + gamma(H)) + gamma(H) (sum_h r_h + 1e9)`.
pub fn scores(shape: &QsaShape, step: &Step, pooled: &[f32], dead: &[f32], query: &[f32]) -> Vec<Bounded> {
    let dim = shape.index_dim as usize;
    let score = |key: &[f32], bonus: Option<f64>| {
        let roundings = shape.index_heads as usize - 1 + bonus.iter().len();
        let (mut value, mut dots) = (bonus.unwrap_or(0.0), 0.0);
        for q in query.chunks_exact(dim) {
            let (d, abs) = dot(key, q);
            value += d.max(0.0);
            dots += gamma(9) * abs + 128.0 * TINY;
        }
        Bounded::new(value, dots * (1.0 + gamma(roundings)) + gamma(roundings) * value)
    };
    let n_bid = step.n_bid as usize;
    let mut all: Vec<_> = pooled.chunks_exact(dim).take(n_bid).map(|key| score(key, None)).collect();
    let incomplete = !step.n_kv.is_multiple_of(4);
    all.push(score(dead, incomplete.then_some(1e9)));
    all
}

/// Top-k by sorting every cell by (key descending, index ascending).
pub fn topk(step: &Step, scores: &[f32]) -> Vec<u32> {
    let mut cells: Vec<(u32, u32)> =
        (0..step.n_kv).map(|c| (!order_key(scores[c as usize / 4]), c)).collect();
    cells.sort_unstable();
    let mut ids: Vec<u32> = cells[..step.width as usize].iter().map(|&(_, c)| c).collect();
    ids.sort_unstable();
    ids
}

/// One KV head of one cell, widened; exact, since a code times a scale has at most 19 bits.
fn cell(shape: &QsaShape, kv: &KvCells, page_table: &[u32], id: u32, kv_head: usize) -> (Vec<f32>, Vec<f32>) {
    let dim = shape.head_dim as usize;
    let slot = page_table[(id / shape.page_size) as usize] * shape.page_size + id % shape.page_size;
    let at = (slot as usize * shape.kv_heads as usize + kv_head) * dim;
    match *kv {
        KvCells::F16 { k, v } => {
            let wide = |x: &[u16]| x[at..at + dim].iter().map(|&h| f16_to_f32(h)).collect();
            (wide(k), wide(v))
        }
        KvCells::Int8 { k, k_scale, v, v_scale } => {
            let wide = |x: &[i8], s: &[u16]| {
                (at..at + dim).map(|i| f32::from(x[i]) * f16_to_f32(s[i / 64])).collect()
            };
            (wide(k, k_scale), wide(v, v_scale))
        }
    }
}

/// A cell as one head sees it.
struct Seen {
    /// The logit and the bound on its error.
    ///
    /// `gamma(j + 5)` for the dot product, one rounding for the scale (the definition's factor is 1/sqrt(D) rounded) and
    /// one for the product with it: `gamma(j + 7) scale A`, and TINY for each product.
    s: Bounded,
    value: Vec<f32>,
}

fn look(
    shape: &QsaShape,
    ids: &[u32],
    kv: &KvCells,
    page_table: &[u32],
    query: &[f32],
    head: usize,
) -> Vec<Seen> {
    let dim = shape.head_dim as usize;
    let q = &query[head * dim..][..dim];
    let scale = 1.0 / f64::from(shape.head_dim).sqrt();
    let logit = |key: &[f32]| {
        let (d, abs) = dot(key, q);
        Bounded::new(d * scale, gamma(dim / 32 + 7) * abs * scale + (dim + 1) as f64 * TINY)
    };
    ids.iter()
        .map(|&id| {
            let (key, value) = cell(shape, kv, page_table, id, head / shape.group() as usize);
            Seen { s: logit(&key), value }
        })
        .collect()
}

/// Logarithm of the factor by which `exp` may be off.
const LN_EXP: f64 = 2.0 * U / (1.0 - 2.0 * U);

/// The partial results of a row: `[chunks][q_heads][head_dim + 2]`.
///
/// `m` is the largest logit; with `D = max delta_c` over the chunk, it is off by at most `D`.
/// A weight is `exp'(fl(s' - m'))`; the logarithm of its ratio to `exp(s - m)` is at most
/// `delta_c + D` (inputs) `+ u (m - s + delta_c + D)` (the difference) `+ LN_EXP` = `x_c`, or it is 0 and off by FLUSHED.
/// Sums: `l`: 1 + 5 roundings; `acc`: `n - c` for cell `c` of `n`, and TINY for each product.
pub fn partials(
    shape: &QsaShape,
    step: &Step,
    ids: &[u32],
    kv: &KvCells,
    page_table: &[u32],
    query: &[f32],
) -> Vec<Bounded> {
    let mut out = Vec::new();
    for ids in ids[..step.width as usize].chunks(64) {
        for head in 0..shape.q_heads as usize {
            let seen = look(shape, ids, kv, page_table, query, head);
            let n = seen.len();
            let m = seen.iter().map(|c| c.s.value).fold(f64::NEG_INFINITY, f64::max);
            let worst = seen.iter().map(|c| c.s.bound).fold(0.0, f64::max);
            // Weight, and the logarithm of its relative error.
            let weights: Vec<(f64, f64)> = seen
                .iter()
                .map(|Seen { s, .. }| {
                    let inputs = s.bound + worst;
                    ((s.value - m).exp(), inputs + U * (m - s.value + inputs) + LN_EXP)
                })
                .collect();
            for d in 0..shape.head_dim as usize {
                let (mut value, mut bound) = (0.0, n as f64 * TINY);
                for (c, (seen, &(w, x))) in seen.iter().zip(&weights).enumerate() {
                    let v = f64::from(seen.value[d]);
                    value += w * v;
                    bound += v.abs() * (w * (x.exp() * (1.0 + gamma(n - c)) - 1.0) + FLUSHED);
                }
                out.push(Bounded::new(value, bound));
            }
            out.push(Bounded::new(m, worst));
            let l = weights.iter().map(|(w, _)| w).sum();
            let bound = weights.iter().map(|(w, x)| w * (x.exp() * (1.0 + gamma(6)) - 1.0) + FLUSHED).sum();
            out.push(Bounded::new(l, bound));
        }
    }
    out
}

/// `numerator / denominator` of two bounded numbers, and one rounding.
///
/// `N'/L' - N/L = (N' - N)/L' - (N/L) (L' - L)/L'`, so it is off by `(E_N + |N/L| E_L) / (L - E_L)`.
fn quotient(n: Bounded, l: Bounded) -> Bounded {
    let value = n.value / l.value;
    let bound = (n.bound + value.abs() * l.bound) / (l.value - l.bound);
    Bounded::new(value, bound + U * (value.abs() + bound) + TINY)
}

/// Product with the sigmoid of a gate: within 2 ulp (4u, or less than 2^-125 where it is subnormal), then one rounding.
fn gated(y: Bounded, gate: f32) -> Bounded {
    let s = 1.0 / (1.0 + (-f64::from(gate)).exp());
    let bound = y.bound * s + (y.value.abs() + y.bound) * (4.0 * U * s + FLUSHED);
    let value = y.value * s;
    Bounded::new(value, bound + U * (value.abs() + bound) + TINY)
}

/// The attention of a row from its cells: a plain softmax over the selection, no chunks. `[q_heads][head_dim]`.
///
/// A softmax does not change when all logits move together, so the true weights are taken relative to the computed
/// maximum `M'`, which is within `D = max delta_c` of the true one. The definition's weight of cell `c` in chunk `k` is
/// `exp'(fl(s' - m'_k)) * exp'(fl(m'_k - M'))`. Both differences have the same sign, so their roundings together are at most
/// `u |s' - M'|`, and the logarithm of the ratio to `exp(s - M')` is at most
/// `x_c = delta_c + u (M - s + delta_c + D) + 2 LN_EXP`; each of the two may be flushed: `2 FLUSHED`.
/// Relative to the true maximum all weights carry one more factor `exp(+-D)`, which cancels in the quotient.
///
/// Roundings of cell `c` of `n` in chunk `k` of `K`: numerator `(n - c) + (K - k)`, denominator `1 + 5 + (K - k)`.
/// Each product of the numerator may add TINY (`width + K` of them; the denominator is above 1/2, so it is twice that).
pub fn attention(
    shape: &QsaShape,
    step: &Step,
    ids: &[u32],
    kv: &KvCells,
    page_table: &[u32],
    query: &[f32],
    gate: Option<&[f32]>,
) -> Vec<Bounded> {
    let dim = shape.head_dim as usize;
    let ids = &ids[..step.width as usize];
    let chunks = ids.len().div_ceil(64);
    let mut out = Vec::new();
    for head in 0..shape.q_heads as usize {
        let seen = look(shape, ids, kv, page_table, query, head);
        let m = seen.iter().map(|c| c.s.value).fold(f64::NEG_INFINITY, f64::max);
        let worst = seen.iter().map(|c| c.s.bound).fold(0.0, f64::max);
        let mut l = Bounded { value: 0.0, bound: 0.0 };
        let mut n = vec![Bounded { value: 0.0, bound: 2.0 * (ids.len() + chunks) as f64 * TINY }; dim];
        for (i, Seen { s, value }) in seen.iter().enumerate() {
            let w = (s.value - m).exp();
            let x = (s.bound + U * (m - s.value + s.bound + worst) + 2.0 * LN_EXP).exp();
            let (k, c) = (i / 64, i % 64);
            let cells = (ids.len() - 64 * k).min(64);
            let off = |roundings: usize| w * (x * (1.0 + gamma(roundings)) - 1.0) + 2.0 * FLUSHED;
            l.value += w;
            l.bound += off(6 + chunks - k);
            let numerator = off(cells - c + chunks - k);
            for (n, &v) in n.iter_mut().zip(value) {
                n.value += w * f64::from(v);
                n.bound += numerator * f64::from(v).abs();
            }
        }
        for (d, n) in n.into_iter().enumerate() {
            let y = quotient(n, l);
            out.push(gate.map_or(y, |gate| gated(y, gate[head * dim + d])));
        }
    }
    out
}

/// The merge of given partial results, `[q_heads][head_dim]`.
///
/// The maximum is exact. `exp'(fl(m_k - M))`: the logarithm of its relative error is at most `u (M - m_k) + LN_EXP`, or it is
/// flushed. Chunk `k` of the `K` that are not empty sees `K - k` roundings, and each product may add TINY.
pub fn merge(shape: &QsaShape, partials: &[f32], gate: Option<&[f32]>) -> Vec<Bounded> {
    let dim = shape.head_dim as usize;
    let mut out = Vec::new();
    for head in 0..shape.q_heads as usize {
        let parts: Vec<&[f32]> = partials
            .chunks_exact(shape.partial_chunk() as usize)
            .map(|chunk| &chunk[head * (dim + 2)..][..dim + 2])
            .filter(|part| part[dim + 1] != 0.0)
            .collect();
        let m = parts.iter().map(|part| f64::from(part[dim])).fold(f64::NEG_INFINITY, f64::max);
        let sum = |i: usize| {
            let (mut value, mut bound) = (0.0, parts.len() as f64 * TINY);
            for (k, part) in parts.iter().enumerate() {
                let x = m - f64::from(part[dim]);
                let (a, e) = (f64::from(part[i]), (-x).exp());
                value += a * e;
                let off = (U * x + LN_EXP).exp() * (1.0 + gamma(parts.len() - k)) - 1.0;
                bound += a.abs() * (e * off + FLUSHED);
            }
            Bounded::new(value, bound)
        };
        let l = sum(dim + 1);
        for d in 0..dim {
            let y = if parts.is_empty() { l } else { quotient(sum(d), l) };
            out.push(gate.map_or(y, |gate| gated(y, gate[head * dim + d])));
        }
    }
    out
}
