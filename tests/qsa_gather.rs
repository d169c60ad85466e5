//! Gathering from an array in pieces: every adapter against the oracle. The CPU backend needs no such stage.
#![cfg(feature = "wgpu")]

mod common;

use common::{contexts, step_buffer, submit, whole};
use samebits::golden::Random;
use samebits::stages::{KvPiece, QsaGather, QsaTopk};
use samebits::{QsaShape, Step, reference};

/// Cuts an array of `words` words a slot after `cuts` slots and gathers three rows from the pieces.
fn check(shape: &QsaShape, words: u32, cuts: &[u32]) {
    let mut random = Random::new(u64::from(words) * 31 + cuts.len() as u64);
    let pages = 300u32.div_ceil(shape.page_size);
    let slots = pages * shape.page_size;
    let table = random.permutation(pages);
    let array: Vec<u32> = (0..slots * words).map(|_| random.bits() as u32).collect();
    let steps: Vec<Step> = [299, 5, 150].iter().map(|&p| shape.step(p).unwrap()).collect();
    let id_stride = QsaTopk::id_stride(shape);
    // Beyond a row's width stands what must not be followed.
    let mut ids = vec![u32::MAX; steps.len() * id_stride as usize];
    for (row, step) in ids.chunks_exact_mut(id_stride as usize).zip(&steps) {
        let mut cells = random.permutation(step.n_kv);
        cells.truncate(step.width as usize);
        cells.sort_unstable();
        row[..cells.len()].copy_from_slice(&cells);
    }
    // One id that the row cannot see: its last cell stands in.
    ids[0] = 4_000_000;
    for (name, ctx) in contexts() {
        let ends: Vec<u32> = cuts.iter().copied().chain([slots]).collect();
        let mut begin = 0;
        let buffers: Vec<_> = ends
            .iter()
            .map(|&end| {
                let part = &array[(begin * words) as usize..(end * words) as usize];
                let slots = end - begin;
                begin = end;
                (ctx.storage("piece", part).unwrap(), slots)
            })
            .collect();
        let pieces: Vec<KvPiece<'_>> =
            buffers.iter().map(|(buffer, slots)| KvPiece { buffer: whole(buffer), slots: *slots }).collect();
        let records = step_buffer(ctx, &steps);
        let device_ids = ctx.storage("ids", &ids).unwrap();
        let pages = ctx.storage("pages", &table).unwrap();
        let row_words = (id_stride * words) as usize;
        let out = ctx.storage("gathered", &vec![7u32; steps.len() * row_words]).unwrap();
        let stage = QsaGather::new(ctx, shape).unwrap();
        let bound = stage
            .bind(&whole(&records), &whole(&device_ids), &whole(&pages), &pieces, words, &whole(&out))
            .unwrap();
        submit(ctx, |pass| bound.encode(pass, steps.len() as u32).unwrap());
        let got: Vec<u32> = ctx.read(&out, 0, steps.len() * row_words).unwrap();
        for (row, step) in steps.iter().enumerate() {
            let row_ids = &ids[row * id_stride as usize..];
            let want = reference::qsa_gather(shape, step, row_ids, &table, &array, words as usize);
            let got = &got[row * row_words..][..row_words];
            assert!(got[..want.len()] == want, "{name}: row {row}, {words} words, cuts {cuts:?}");
            assert!(got[want.len()..].iter().all(|&w| w == 7), "{name}: row {row} wrote beyond its width");
        }
    }
}

#[test]
fn pieces_of_every_kind() {
    let shape = QsaShape { budget: 100, page_size: 4, ..QsaShape::QWEN38_FLASH_NEXT };
    for words in [1, 3, 4, 128] {
        check(&shape, words, &[]);
        check(&shape, words, &[1, 2, 150]);
        check(&QsaShape { page_size: 7, ..shape }, words, &[100, 299]);
    }
}

/// More workgroups than one dimension of a dispatch has.
#[test]
fn wide_cells_of_a_wide_budget() {
    let shape = QsaShape { budget: 20_000, page_size: 4, ..QsaShape::QWEN38_FLASH_NEXT };
    check(&shape, 256, &[40]);
}
