//! Selection of one row's cells.

use crate::exact::order_key;
use crate::shape::{BLOCK_CELLS, QsaShape, Step};

/// The `step.width` best cells of a row, as ascending cell ids.
///
/// `scores`: at least `step.n_bid + 1` block scores, any floats. A cell ranks as its block does: by order key, higher
/// first, and among equal keys by index, lower first, so the cut may fall inside a block. The incomplete block competes
/// with its `n_kv % 4` cells; when that is 0 its score is not looked at.
///
/// # Panics
/// When `scores` is too short.
pub fn qsa_topk(_shape: &QsaShape, step: &Step, scores: &[f32]) -> Vec<u32> {
    let width = step.width as usize;
    // Cells are listed in ascending order and the sort is stable: equal keys stay lowest index first.
    let mut cells: Vec<u32> = (0..step.n_kv).collect();
    cells.sort_by_key(|&cell| std::cmp::Reverse(order_key(scores[(cell / BLOCK_CELLS) as usize])));
    let mut ids = cells[..width].to_vec();
    ids.sort();
    ids
}
