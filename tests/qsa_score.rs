//! Block scores: every target against the oracle, bytes.

mod common;

use common::{assert_same, targets};
use samebits::golden::Random;
use samebits::{QsaShape, Step, reference};

const SHAPE: QsaShape = QsaShape::QWEN38_FLASH_NEXT;

fn steps(shape: &QsaShape, positions: &[u32]) -> Vec<Step> {
    positions.iter().map(|&p| shape.step(p).unwrap()).collect()
}

/// Runs a window on all targets; entries beyond a row's incomplete block must keep what they held.
fn check(shape: &QsaShape, blocks: u32, positions: &[u32], seed: u64) {
    let mut random = Random::new(seed);
    let dim = shape.index_dim as usize;
    let pooled = random.floats(blocks as usize * dim, 1.0);
    let dead = random.floats(dim, 1.0);
    let row = shape.index_heads as usize * dim;
    let queries = random.floats(positions.len() * row, 1.0);
    let steps = steps(shape, positions);
    for target in targets() {
        let got = target.score(shape, &steps, &pooled, &dead, &queries, -7.0);
        for (r, step) in steps.iter().enumerate() {
            let want = reference::qsa_score(shape, step, &pooled, &dead, &queries[r * row..][..row]);
            let scored = step.n_bid as usize + 1;
            let what = format!("{}: row {r} at {}", target.name, step.pos);
            assert_same(&what, &got[r][..scored], &want);
            assert!(got[r][scored..].iter().all(|&s| s == -7.0), "{what}: wrote beyond its blocks");
        }
    }
}

#[test]
fn contexts_of_every_residue() {
    for n_kv in [1, 3, 4, 63, 64, 65, 255, 256, 257, 2050, 2051, 2052, 8192] {
        check(&SHAPE, n_kv / 4, &[n_kv - 1], u64::from(n_kv));
    }
}

#[test]
fn windows_whose_rows_end_in_different_blocks() {
    check(&SHAPE, 300, &[1190, 1191, 1192, 1193, 1194, 1195, 1196, 1197], 1);
    check(&SHAPE, 300, &[1197, 3, 600], 2);
    check(&SHAPE, 64, &(240..256).collect::<Vec<_>>(), 3);
}

#[test]
fn fewer_indexer_heads() {
    for index_heads in 1..=3 {
        check(&QsaShape { index_heads, ..SHAPE }, 77, &[309, 310], 10 + u64::from(index_heads));
    }
}

/// A NaN key or query spoils its own scores only.
#[test]
fn non_finite_input_stays_where_it_is() {
    let mut random = Random::new(5);
    let (blocks, dim) = (130u32, 128usize);
    let mut pooled = random.floats(blocks as usize * dim, 1.0);
    let dead = random.floats(dim, 1.0);
    let mut queries = random.floats(3 * 4 * dim, 1.0);
    let steps = steps(&SHAPE, &[519, 520, 521]);
    let clean: Vec<Vec<f32>> = (0..3)
        .map(|r| reference::qsa_score(&SHAPE, &steps[r], &pooled, &dead, &queries[r * 512..][..512]))
        .collect();
    pooled[17 * dim + 5] = f32::NAN;
    pooled[99 * dim] = f32::INFINITY;
    queries[512 + 3] = f32::NAN;
    for target in targets() {
        let got = target.score(&SHAPE, &steps, &pooled, &dead, &queries, 0.0);
        for r in [0, 2] {
            for b in (0..131).filter(|&b| b != 17 && b != 99) {
                assert_eq!(got[r][b].to_bits(), clean[r][b].to_bits(), "{}: row {r} block {b}", target.name);
            }
        }
    }
}
