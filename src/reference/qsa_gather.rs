//! The cells that a row selected, side by side.

use super::qsa_attend::slot_of;
use crate::shape::{QsaShape, Step};

/// Copies the first `step.width` cells of `ids` out of an array of `words` words a slot.
///
/// * `array`: `[slots][words]`; `page_table`: the physical page of each page of cells;
/// * an id that the row cannot see counts as its last cell.
///
/// Returns `[step.width][words]`. Nothing is added, so there is no order to state.
///
/// # Panics
/// When an array is shorter than stated or the page table points outside it.
pub fn qsa_gather(
    shape: &QsaShape,
    step: &Step,
    ids: &[u32],
    page_table: &[u32],
    array: &[u32],
    words: usize,
) -> Vec<u32> {
    let mut out = Vec::new();
    for entry in 0..step.width as usize {
        let slot = slot_of(shape, step, page_table, ids[entry]);
        for word in 0..words {
            out.push(array[slot * words + word]);
        }
    }
    out
}
