//! Attention over the selected cells, in chunks. Twin of `wgsl/qsa_attend.wgsl`.

use multiversion::multiversion;
use rayon::prelude::*;

use super::lanes::{Lanes, deal, dealt, dot};
use crate::exact::{exp, f16_to_f32, fma, tree32};
use crate::shape::{CHUNK_CELLS, KV_GROUP, KvCells, LANES, QsaShape, Step};

const CHUNK: usize = CHUNK_CELLS as usize;
/// Dims whose accumulators are kept in registers at a time.
const TILE: usize = 64;

/// Partial results of every row, see [`qsa_merge`](super::qsa_merge()) for what becomes of them.
///
/// * `ids`: row `i` starts at `i * id_stride`, `width` cell ids; one that the row cannot see counts as cell `n_kv - 1`;
/// * `kv`, `page_table`: the cache, see [`KvCells`];
/// * `queries`: `[T][q_heads][head_dim]`, `T = steps.len()`;
/// * `partials`: row `i` starts at `i * partial_stride`; `[chunks][q_heads][head_dim + 2]` is written, the accumulators,
///   then the maximum, then the sum.
///
/// # Panics
/// When an array is shorter than stated or the page table points outside the cache.
#[allow(clippy::too_many_arguments, reason = "the arrays of a stage, as its kernel binds them")]
pub fn qsa_attend(
    shape: &QsaShape,
    steps: &[Step],
    ids: &[u32],
    id_stride: usize,
    kv: &KvCells,
    page_table: &[u32],
    queries: &[f32],
    partials: &mut [f32],
    partial_stride: usize,
) {
    let dim = shape.head_dim as usize;
    let row_query = shape.q_heads as usize * dim;
    let mut dealt_queries = vec![0.0; steps.len() * row_query];
    dealt_queries
        .par_chunks_mut(dim)
        .zip(queries[..steps.len() * row_query].par_chunks(dim))
        .for_each(|(to, from)| deal(from, to));

    let kv_heads = shape.kv_heads as usize;
    let group = shape.group() as usize;
    let rows = super::rows(steps, partials, partial_stride, |step| {
        step.chunks() as usize * shape.partial_chunk() as usize
    });
    rows.into_par_iter().zip(steps).enumerate().for_each(|(i, (row, step))| {
        let ids = &ids[i * id_stride..][..step.width as usize];
        let query = &dealt_queries[i * row_query..][..row_query];
        // The query heads of one KV head lie together, so a piece of work is one KV head of one chunk.
        row.par_chunks_mut(group * (dim + 2)).enumerate().for_each_init(
            || Scratch::new(shape),
            |scratch, (piece, out)| {
                let (chunk, kv_head) = (piece / kv_heads, piece % kv_heads);
                let ids = &ids[chunk * CHUNK..];
                let ids = &ids[..ids.len().min(CHUNK)];
                let slots = ids.iter().map(|&id| {
                    let cell = id.min(step.n_kv - 1);
                    let page = page_table[(cell / shape.page_size) as usize];
                    page as usize * shape.page_size as usize + (cell % shape.page_size) as usize
                });
                scratch.slots.clear();
                scratch.slots.extend(slots);
                let query = &query[kv_head * group * dim..][..group * dim];
                attend_chunk(shape, kv, kv_head, query, scratch, out);
            },
        );
    });
}

/// Buffers of one thread.
struct Scratch {
    /// Physical cells of the chunk.
    slots: Vec<usize>,
    /// One key or value vector as it is stored, widened.
    row: Vec<f32>,
    /// Keys `[cell][head_dim]`, dealt to the lanes.
    keys: Vec<f32>,
    /// Values `[cell][head_dim]`.
    values: Vec<f32>,
    /// Logits, then weights, `[head][cell]`.
    weights: Vec<f32>,
}

impl Scratch {
    fn new(shape: &QsaShape) -> Self {
        let dim = shape.head_dim as usize;
        Scratch {
            slots: Vec::with_capacity(CHUNK),
            row: vec![0.0; dim],
            keys: vec![0.0; CHUNK * dim],
            values: vec![0.0; CHUNK * dim],
            weights: vec![0.0; shape.group() as usize * CHUNK],
        }
    }
}

/// One KV head of one chunk; `query` is `[group][head_dim]`, dealt to the lanes.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn attend_chunk(
    shape: &QsaShape,
    kv: &KvCells,
    kv_head: usize,
    query: &[f32],
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    load(shape, kv, kv_head, scratch);
    if shape.head_dim as usize == 8 * LANES {
        logits::<8>(shape.scale(), query, scratch);
        weigh::<8>(scratch, out);
    } else {
        logits::<4>(shape.scale(), query, scratch);
        weigh::<4>(scratch, out);
    }
}

/// Widens the keys and values of the chunk's cells, which all heads of the group read.
#[inline(always)]
fn load(shape: &QsaShape, kv: &KvCells, kv_head: usize, scratch: &mut Scratch) {
    let dim = shape.head_dim as usize;
    let Scratch { slots, row, keys, values, .. } = scratch;
    for (c, &slot) in slots.iter().enumerate() {
        let at = (slot * shape.kv_heads as usize + kv_head) * dim;
        let key = &mut keys[c * dim..][..dim];
        let value = &mut values[c * dim..][..dim];
        match kv {
            KvCells::F16 { k, v } => {
                widen_f16(&k[at..][..dim], row);
                widen_f16(&v[at..][..dim], value);
            }
            KvCells::Int8 { k, k_scale, v, v_scale } => {
                let (scale_at, scales) = (at / KV_GROUP as usize, dim / KV_GROUP as usize);
                widen_int8(&k[at..][..dim], &k_scale[scale_at..][..scales], row);
                widen_int8(&v[at..][..dim], &v_scale[scale_at..][..scales], value);
            }
        }
        deal(row, key);
    }
}

#[inline(always)]
fn widen_f16(from: &[u16], to: &mut [f32]) {
    for (y, &bits) in to.iter_mut().zip(from) {
        *y = f16_to_f32(bits);
    }
}

#[inline(always)]
fn widen_int8(codes: &[i8], scales: &[u16], to: &mut [f32]) {
    let groups = codes.chunks_exact(KV_GROUP as usize).zip(to.chunks_exact_mut(KV_GROUP as usize));
    for ((codes, to), &scale) in groups.zip(scales) {
        let scale = f16_to_f32(scale);
        for (y, &code) in to.iter_mut().zip(codes) {
            *y = f32::from(code) * scale;
        }
    }
}

/// `s[head][cell]` of the chunk's cells.
#[inline(always)]
fn logits<const J: usize>(scale: f32, query: &[f32], scratch: &mut Scratch) {
    for (c, key) in scratch.keys.chunks_exact(J * LANES).take(scratch.slots.len()).enumerate() {
        for (head, q) in query.chunks_exact(J * LANES).enumerate() {
            scratch.weights[head * CHUNK + c] = dot::<J>(dealt(key), dealt(q)) * scale;
        }
    }
}

/// Maxima, weights, their sums and the accumulators of each head.
#[inline(always)]
fn weigh<const J: usize>(scratch: &mut Scratch, out: &mut [f32]) {
    let n = scratch.slots.len();
    let dim = J * LANES;
    for (weights, out) in scratch.weights.chunks_exact_mut(CHUNK).zip(out.chunks_exact_mut(dim + 2)) {
        let mut m = f32::NEG_INFINITY;
        for &s in &weights[..n] {
            m = if s > m { s + 0.0 } else { m };
        }
        for p in &mut weights[..n] {
            *p = exp(*p - m);
        }
        weights[n..].fill(0.0);
        let mut lanes: Lanes = [0.0; LANES];
        for t in 0..LANES {
            lanes[t] = weights[t] + weights[t + LANES];
        }
        out[dim] = m;
        out[dim + 1] = tree32(&mut lanes);
    }
    // A tile of all cells' values stays in the first-level cache while the heads go over it.
    for d in (0..dim).step_by(TILE) {
        for (weights, out) in scratch.weights.chunks_exact(CHUNK).zip(out.chunks_exact_mut(dim + 2)) {
            let mut acc = [0.0f32; TILE];
            for (&p, value) in weights[..n].iter().zip(scratch.values.chunks_exact(dim)) {
                let value: &[f32; TILE] = value[d..d + TILE].try_into().expect("a tile was taken");
                for i in 0..TILE {
                    acc[i] = fma(p, value[i], acc[i]);
                }
            }
            out[d..d + TILE].copy_from_slice(&acc);
        }
    }
}
