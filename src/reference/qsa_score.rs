//! Block scores of one row.

use crate::exact::{lane_product4, relu, tree32};
use crate::shape::{LANES, QsaShape, Step};

/// Added to the score of an incomplete block, so that the newest cells are always selected.
const TAIL_BONUS: f32 = 1e9;

/// Scores the completed blocks and the stand-in for the incomplete one.
///
/// * `pooled`: pooled keys `[>= step.n_bid][index_dim]`;
/// * `dead`: the stand-in key `[index_dim]`;
/// * `query`: indexer query of the row `[index_heads][index_dim]`.
///
/// Returns `step.n_bid + 1` scores. The last is the dead key's, with 1e9 added when the row has an incomplete block.
///
/// Order: lane `t` of 32 holds dims `4t..4t+3` (lane product), the lanes are added as a tree, negative sums count as +0
/// (and so does a NaN), heads are added in ascending order. A score is therefore never negative and never -0.
///
/// # Panics
/// When an array is shorter than stated.
pub fn qsa_score(shape: &QsaShape, step: &Step, pooled: &[f32], dead: &[f32], query: &[f32]) -> Vec<f32> {
    let dim = shape.index_dim as usize;
    let n_bid = step.n_bid as usize;
    let mut scores = Vec::with_capacity(n_bid + 1);
    for b in 0..n_bid {
        scores.push(block_score(shape, &pooled[b * dim..(b + 1) * dim], query));
    }
    let mut last = block_score(shape, &dead[..dim], query);
    if step.tail() != 0 {
        last += TAIL_BONUS;
    }
    scores.push(last);
    scores
}

/// `((relu(d0) + relu(d1)) + relu(d2)) + relu(d3)` over the heads there are. A head that is missing would add +0, which
/// changes no bit of a sum that cannot be -0.
fn block_score(shape: &QsaShape, key: &[f32], query: &[f32]) -> f32 {
    let dim = shape.index_dim as usize;
    let mut score = relu(dot128(key, &query[..dim]));
    for h in 1..shape.index_heads as usize {
        score += relu(dot128(key, &query[h * dim..(h + 1) * dim]));
    }
    score
}

fn dot128(key: &[f32], query: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for t in 0..LANES {
        lanes[t] = lane_product4(&key[4 * t..4 * t + 4], &query[4 * t..4 * t + 4]);
    }
    tree32(&mut lanes)
}
