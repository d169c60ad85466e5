//! Comparing a backend's bytes with the reference.

use rayon::prelude::*;
use samebits::{Trace, reference};

use super::text::{TextCache, TextWindow};

/// Compares every stage of every row with [`samebits::reference`], each of whose stages is fed by the one before, not
/// by the backend. Gives the number of bytes compared, or what differs.
pub fn against_reference(cache: &TextCache, window: &TextWindow, trace: &Trace) -> Result<usize, String> {
    let shape = &cache.shape;
    let view = cache.view();
    let heads = (shape.q_heads * shape.head_dim) as usize;
    let index = (shape.index_heads * shape.index_dim) as usize;
    let row = |r: usize| {
        let step = &trace.steps[r];
        let query = &window.query[r * heads..][..heads];
        let index_query = &window.index_query[r * index..][..index];
        let scores = reference::qsa_score(shape, step, view.pooled, view.dead, index_query);
        let ids = reference::qsa_topk(shape, step, &scores);
        let partials = reference::qsa_attend(shape, step, &ids, &view.kv, view.page_table, query);
        let attention = reference::qsa_merge(shape, &partials, None);
        let stages = [
            same("qsa_score", &bits(&scores), &bits(&trace.scores[r])),
            same("qsa_topk", &ids, &trace.ids[r]),
            same("qsa_attend", &bits(&partials), &bits(&trace.partials[r])),
            same("qsa_merge", &bits(&attention), &bits(&trace.attention[r * heads..][..heads])),
        ];
        let found = stages.into_iter().sum::<Result<usize, String>>();
        found.map_err(|e| format!("row {r} (position {}): {e}", step.pos))
    };
    (0..trace.steps.len()).into_par_iter().map(row).sum()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The number of bytes when all are equal, else how many words differ and the first of them.
fn same(stage: &str, expected: &[u32], got: &[u32]) -> Result<usize, String> {
    if expected.len() != got.len() {
        return Err(format!("{stage}: {} values expected, {} came", expected.len(), got.len()));
    }
    let mut differing = (0..got.len()).filter(|&i| expected[i] != got[i]);
    match differing.next() {
        None => Ok(4 * got.len()),
        Some(i) => Err(format!(
            "{stage}: {} of {} values differ, the first is value {i}: expected bits {:08x}, got {:08x}",
            1 + differing.count(),
            got.len(),
            expected[i],
            got[i]
        )),
    }
}
