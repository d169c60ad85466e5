//! Attention of one row over its selected cells, in chunks.

use crate::exact::{exp, f16_to_f32, fma, lane_product4, lane_product8, order_key, tree32};
use crate::shape::{CHUNK_CELLS, KV_GROUP, KvCells, LANES, QsaShape, Step};

/// The larger of two logits: the one rule for every maximum of the attention and merge stages.
///
/// A maximum starts at -inf. A candidate `s` replaces it when its order key is higher, and is stored with -0 made +0:
///
/// * both zeros have one key and one stored form, so the bytes of a maximum do not depend on the order in which
///   candidates came, nor on who compares them;
/// * a NaN has the lowest key of all and is never taken, so a maximum is never NaN; nothing but NaN and -inf gives -inf.
///
/// For numbers that is `if s > m { s + 0 } else { m }`, and since that comparison is false for NaN, it is the same rule.
pub fn max_logit(m: f32, s: f32) -> f32 {
    if order_key(s) > order_key(m) { s + 0.0 } else { m }
}

/// Partial results of a row: for each chunk of 64 entries of `ids`, each query head's accumulators, maximum and sum.
///
/// * `ids`: at least `step.width` cell ids; one that the row cannot see counts as its last cell, `step.n_kv - 1`;
/// * `kv`, `page_table`: the cache, see [`KvCells`];
/// * `query`: `[q_heads][head_dim]`.
///
/// Returns `[step.chunks()][q_heads][head_dim + 2]`: the accumulators, then `m`, then `l`.
///
/// Order, per query head `h` and cell `c` of the chunk:
/// `s = tree of lane products * scale`, `m` = the maximum by [`max_logit`], `p[c] = exp(s[c] - m)`,
/// `l` = tree over lanes of `p[t] + p[t + 32]` with 0 for a cell that is not there,
/// `acc[d]` = fma over ascending `c` of `p[c] * v[c][d]`, from 0. A cell that is not there adds nothing and is not read.
///
/// # Panics
/// When an array is shorter than stated or the page table points outside the cache.
pub fn qsa_attend(
    shape: &QsaShape,
    step: &Step,
    ids: &[u32],
    kv: &KvCells,
    page_table: &[u32],
    query: &[f32],
) -> Vec<f32> {
    let dim = shape.head_dim as usize;
    let width = step.width as usize;
    let mut out = Vec::new();
    for chunk in 0..step.chunks() as usize {
        let first = chunk * CHUNK_CELLS as usize;
        let last = width.min(first + CHUNK_CELLS as usize);
        for h in 0..shape.q_heads as usize {
            let kv_head = h / shape.group() as usize;
            let q = &query[h * dim..(h + 1) * dim];

            let mut s = [0.0f32; CHUNK_CELLS as usize];
            let mut m = f32::NEG_INFINITY;
            for c in 0..last - first {
                let slot = slot_of(shape, step, page_table, ids[first + c]);
                let mut key = vec![0.0; dim];
                for d in 0..dim {
                    key[d] = key_at(shape, kv, slot, kv_head, d);
                }
                s[c] = dot(&key, q) * shape.scale();
                m = max_logit(m, s[c]);
            }

            let mut p = [0.0f32; CHUNK_CELLS as usize];
            for c in 0..last - first {
                p[c] = exp(s[c] - m);
            }

            let mut lanes = [0.0; LANES];
            for t in 0..LANES {
                lanes[t] = p[t] + p[t + LANES];
            }
            let l = tree32(&mut lanes);

            for d in 0..dim {
                let mut acc = 0.0;
                for c in 0..last - first {
                    let slot = slot_of(shape, step, page_table, ids[first + c]);
                    acc = fma(p[c], value_at(shape, kv, slot, kv_head, d), acc);
                }
                out.push(acc);
            }
            out.push(m);
            out.push(l);
        }
    }
    out
}

/// Physical cell of a cell id.
pub(super) fn slot_of(shape: &QsaShape, step: &Step, page_table: &[u32], id: u32) -> usize {
    let cell = id.min(step.n_kv - 1);
    let page = page_table[(cell / shape.page_size) as usize] as usize;
    page * shape.page_size as usize + (cell % shape.page_size) as usize
}

fn key_at(shape: &QsaShape, kv: &KvCells, slot: usize, kv_head: usize, d: usize) -> f32 {
    let i = (slot * shape.kv_heads as usize + kv_head) * shape.head_dim as usize + d;
    match kv {
        KvCells::F16 { k, .. } => f16_to_f32(k[i]),
        KvCells::Int8 { k, k_scale, .. } => f32::from(k[i]) * f16_to_f32(k_scale[i / KV_GROUP as usize]),
    }
}

fn value_at(shape: &QsaShape, kv: &KvCells, slot: usize, kv_head: usize, d: usize) -> f32 {
    let i = (slot * shape.kv_heads as usize + kv_head) * shape.head_dim as usize + d;
    match kv {
        KvCells::F16 { v, .. } => f16_to_f32(v[i]),
        KvCells::Int8 { v, v_scale, .. } => f32::from(v[i]) * f16_to_f32(v_scale[i / KV_GROUP as usize]),
    }
}

/// Lane `t` holds the `len / 32` consecutive dims from `t * len / 32`: 8 of 256, 4 of 128.
fn dot(key: &[f32], query: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for t in 0..LANES {
        lanes[t] = if key.len() == 8 * LANES {
            lane_product8(&key[8 * t..8 * t + 8], &query[8 * t..8 * t + 8])
        } else {
            lane_product4(&key[4 * t..4 * t + 4], &query[4 * t..4 * t + 4])
        };
    }
    tree32(&mut lanes)
}
