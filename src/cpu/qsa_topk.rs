//! Selection of the cells of a window. Twin of `wgsl/qsa_topk.wgsl`.

use rayon::prelude::*;

use crate::exact::order_key;
use crate::shape::{BLOCK_CELLS, QsaShape, Step};

/// Digits of the radix selection, highest first: (shift, bits).
const DIGITS: [(u32, u32); 3] = [(21, 11), (10, 11), (0, 10)];

/// Selects the `width` best cells of every row, ascending.
///
/// * `scores`: row `i` starts at `i * stride`, `n_bid + 1` floats of any value;
/// * `ids`: row `i` starts at `i * id_stride`; its first `width` entries are written.
///
/// Higher order keys first, among equal ones lower indices first. Time is linear in the number of blocks.
///
/// # Panics
/// When an array is shorter than stated or `id_stride` is below a row's `width`.
pub fn qsa_topk(
    _shape: &QsaShape,
    steps: &[Step],
    scores: &[f32],
    stride: usize,
    ids: &mut [u32],
    id_stride: usize,
) {
    let rows = super::rows(steps, ids, id_stride, |step| step.width as usize);
    rows.into_par_iter().zip(steps).enumerate().for_each(|(i, (ids, step))| {
        if step.n_kv <= step.width {
            for (cell, id) in ids.iter_mut().enumerate() {
                *id = cell as u32;
            }
        } else {
            select(step, &scores[i * stride..][..step.n_bid as usize + 1], ids);
        }
    });
}

/// Selection of a row that has more cells than it may take.
fn select(step: &Step, scores: &[f32], ids: &mut [u32]) {
    let keys: Vec<u32> = scores.iter().map(|&score| order_key(score)).collect();
    let (&last, full) = keys.split_last().expect("a row has at least the dead key's score");

    // Finds the largest threshold such that the cells at or above it are enough, one digit at a time. `missing` cells are
    // still to be taken from the blocks whose key agrees with `threshold` in the digits of `mask`.
    let mut missing = step.width;
    let (mut threshold, mut mask) = (0u32, 0u32);
    for (shift, bits) in DIGITS {
        let digit_mask = (1u32 << bits) - 1;
        let mut cells = vec![0u32; 1 << bits];
        for &key in full {
            if key & mask == threshold {
                cells[(key >> shift & digit_mask) as usize] += BLOCK_CELLS;
            }
        }
        if last & mask == threshold {
            cells[(last >> shift & digit_mask) as usize] += step.tail();
        }
        let mut digit = digit_mask;
        while cells[digit as usize] < missing {
            missing -= cells[digit as usize];
            digit -= 1;
        }
        threshold |= digit << shift;
        mask |= digit_mask << shift;
    }

    let mut n = 0;
    for (b, &key) in keys.iter().enumerate() {
        if key < threshold {
            continue;
        }
        let mut take = if b < full.len() { BLOCK_CELLS } else { step.tail() };
        if key == threshold {
            take = take.min(missing);
            missing -= take;
        }
        for cell in 0..take {
            ids[n] = b as u32 * BLOCK_CELLS + cell;
            n += 1;
        }
    }
}
