//! Block scores of a window. Twin of `wgsl/qsa_score.wgsl`.

use multiversion::multiversion;
use rayon::prelude::*;

use super::lanes::{deal, dealt, dot};
use crate::exact::relu;
use crate::shape::{LANES, QsaShape, Step};

/// Values in an indexer head.
const DIM: usize = 128;
/// Values of a head in a lane.
const PER_LANE: usize = DIM / LANES;
/// Blocks in one piece of work: a few microseconds.
const BLOCKS: usize = 512;
/// Added to the score of an incomplete block.
const TAIL_BONUS: f32 = 1e9;

/// Scores the blocks of every row.
///
/// * `pooled`: pooled keys `[>= n_bid of every row][index_dim]`; `dead`: the stand-in key `[index_dim]`;
/// * `queries`: `[T][index_heads][index_dim]`, `T = steps.len()`;
/// * `scores`: row `i` starts at `i * stride`; its first `n_bid + 1` floats are written, the last is the dead key's.
///
/// # Panics
/// When an array is shorter than stated or `stride` is below a row's `n_bid + 1`.
pub fn qsa_score(
    shape: &QsaShape,
    steps: &[Step],
    pooled: &[f32],
    dead: &[f32],
    queries: &[f32],
    scores: &mut [f32],
    stride: usize,
) {
    let heads = shape.index_heads as usize;
    let queries = &queries[..steps.len() * heads * DIM];
    let rows = super::rows(steps, scores, stride, |step| step.n_bid as usize + 1);
    rows.into_par_iter().zip(steps).zip(queries.par_chunks(heads * DIM)).for_each(|((row, step), query)| {
        let mut dealt_query = vec![0.0; heads * DIM];
        for (head, to) in query.chunks_exact(DIM).zip(dealt_query.chunks_exact_mut(DIM)) {
            deal(head, to);
        }
        let (last, blocks) = row.split_last_mut().expect("a row has at least the dead key's score");
        let keys = &pooled[..step.n_bid as usize * DIM];
        blocks
            .par_chunks_mut(BLOCKS)
            .zip(keys.par_chunks(BLOCKS * DIM))
            .for_each(|(scores, keys)| score_blocks(keys, &dealt_query, scores));
        score_blocks(&dead[..DIM], &dealt_query, std::slice::from_mut(last));
        if step.tail() != 0 {
            *last += TAIL_BONUS;
        }
    });
}

/// Scores of consecutive blocks; `query` is dealt to the lanes.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn score_blocks(keys: &[f32], query: &[f32], scores: &mut [f32]) {
    let mut key = [0.0; DIM];
    for (score, from) in scores.iter_mut().zip(keys.chunks_exact(DIM)) {
        deal(from, &mut key);
        // Starting from +0 adds no bit: no head gives less than +0.
        let mut sum = 0.0;
        for head in query.chunks_exact(DIM) {
            sum += relu(dot::<PER_LANE>(dealt(&key), dealt(head)));
        }
        *score = sum;
    }
}
