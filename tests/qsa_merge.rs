//! Merge and output gate: every target against the oracle, bytes.

mod common;

use common::{Target, assert_same, exact_targets, targets};
use samebits::golden::{OwnedCache, OwnedWindow, Random};
use samebits::{KvFormat, QsaShape, Step, reference};

const SHAPE: QsaShape = QsaShape::QWEN38_FLASH_NEXT;

/// Partials that look like attention's: maxima of order 8, sums of order 30.
fn partials(random: &mut Random, shape: &QsaShape, step: &Step, fill: f32) -> Vec<f32> {
    let dim = shape.head_dim as usize;
    let mut all = vec![fill; (shape.max_chunks() * shape.partial_chunk()) as usize];
    for head in all[..(step.chunks() * shape.partial_chunk()) as usize].chunks_exact_mut(dim + 2) {
        head[..dim].copy_from_slice(&random.floats(dim, 30.0));
        head[dim] = random.unit() * 8.0;
        head[dim + 1] = 1.0 + 30.0 * random.unit().abs();
    }
    all
}

fn check(shape: &QsaShape, steps: &[Step], partials: &[Vec<f32>], gates: Option<&[f32]>) {
    check_on(targets().iter(), shape, steps, partials, gates);
}

fn check_on(
    targets: impl Iterator<Item = &'static Target>,
    shape: &QsaShape,
    steps: &[Step],
    partials: &[Vec<f32>],
    gates: Option<&[f32]>,
) {
    let row = (shape.q_heads * shape.head_dim) as usize;
    let mut want = Vec::new();
    for (r, step) in steps.iter().enumerate() {
        let there = (step.chunks() * shape.partial_chunk()) as usize;
        want.extend(reference::qsa_merge(shape, &partials[r][..there], gates.map(|g| &g[r * row..][..row])));
    }
    for target in targets {
        let got = target.merge(shape, steps, partials, gates);
        assert_same(&format!("{}: {shape:?}", target.name), &got, &want);
    }
}

#[test]
fn every_chunk_count_with_and_without_gates() {
    let mut random = Random::new(1);
    for (q_heads, head_dim) in [(24, 256), (3, 128)] {
        let shape = QsaShape { q_heads, kv_heads: 1, head_dim, ..SHAPE };
        for positions in [vec![0], vec![63, 64], vec![2050, 100, 500], vec![5000, 511, 512, 513, 575, 576]] {
            let steps: Vec<Step> = positions.iter().map(|&p| shape.step(p).unwrap()).collect();
            // Chunks that a row does not have hold NaN.
            let rows: Vec<Vec<f32>> =
                steps.iter().map(|s| partials(&mut random, &shape, s, f32::NAN)).collect();
            let gates = random.floats(steps.len() * (q_heads * head_dim) as usize, 20.0);
            check(&shape, &steps, &rows, None);
            check(&shape, &steps, &rows, Some(&gates));
        }
    }
}

#[test]
fn many_chunks() {
    let shape = QsaShape { q_heads: 1, kv_heads: 1, head_dim: 128, budget: 65_532, ..SHAPE };
    let mut random = Random::new(2);
    let step = shape.step(1_000_000).unwrap();
    assert_eq!(step.chunks(), 1024);
    let rows = vec![partials(&mut random, &shape, &step, 0.0)];
    check(&shape, &[step], &rows, None);
}

/// Empty chunks take no part whatever they hold, and nothing but empty chunks gives 0.
#[test]
fn empty_chunks_are_skipped() {
    let shape = QsaShape { q_heads: 2, kv_heads: 1, head_dim: 128, ..SHAPE };
    let mut random = Random::new(3);
    let step = shape.step(640).unwrap();
    let mut row = partials(&mut random, &shape, &step, 0.0);
    let (head, chunk) = (130, 260);
    for k in [0, 3, 10] {
        row[k * chunk..][..128].fill(7.0);
        row[k * chunk + 128] = 1e30;
        row[k * chunk + 129] = 0.0;
    }
    for k in 0..11 {
        row[k * chunk + head + 129] = 0.0;
    }
    check(&shape, &[step], &[row.clone()], None);
    for target in targets() {
        let got = target.merge(&shape, &[step], &[row.clone()], None);
        assert!(got[..128].iter().all(|y| y.is_finite()) && got[0] != 0.0, "{}", target.name);
        assert!(
            got[128..].iter().all(|y| y.to_bits() == 0),
            "{}: the head without chunks is +0",
            target.name
        );
    }
}

/// Seven chunks of two heads with the given maxima, and gates of all kinds that occur.
fn with_maxima(maxima: [f32; 7], seed: u64) -> (QsaShape, Step, Vec<f32>) {
    let shape = QsaShape { q_heads: 2, kv_heads: 2, head_dim: 128, ..SHAPE };
    let step = shape.step(400).unwrap();
    let mut row = partials(&mut Random::new(seed), &shape, &step, 0.0);
    for (i, head) in row[..7 * 260].chunks_exact_mut(130).enumerate() {
        head[128] = maxima[i / 2];
    }
    (shape, step, row)
}

/// Maxima far apart, of both signs of zero, and gates from which sigmoid is 1 or as small as it gets and stays normal.
#[test]
fn extreme_values() {
    // The weights that are not 0 are at least exp(-60), so that no product with them is subnormal.
    let (shape, step, row) = with_maxima([0.0, -0.0, -200.0, -60.0, -1e30, -88.0, -1e-20], 4);
    let gates: Vec<f32> =
        (0..256).map(|i| [0.0, -0.0, 88.8, -60.0, 1e30, -1e30, 16.7, -3.5][i % 8]).collect();
    check(&shape, &[step], std::slice::from_ref(&row), None);
    check(&shape, &[step], &[row], Some(&gates));
}

/// The same with weights and outputs that are subnormal, where those are kept.
#[test]
fn extreme_values_that_are_subnormal() {
    let (shape, step, mut row) = with_maxima([0.0, -0.0, -200.0, -87.3, -1e30, -87.0, -1e-20], 4);
    // Sums that consist of nothing but the smallest weights.
    for chunk in [0, 1, 6] {
        row[chunk * 260..][..64].fill(0.0);
    }
    let gates: Vec<f32> =
        (0..256).map(|i| [0.0, -0.0, 88.8, -87.0, 1e30, -1e30, 16.7, -3.5][i % 8]).collect();
    let want = reference::qsa_merge(&shape, &row[..7 * 260], Some(&gates));
    assert!(want.iter().any(|y| y.is_subnormal()), "the data has subnormal results");
    check_on(exact_targets(), &shape, &[step], std::slice::from_ref(&row), None);
    check_on(exact_targets(), &shape, &[step], &[row], Some(&gates));
}

#[test]
fn half_output_is_rounded_to_nearest_even() {
    let shape = QsaShape { q_heads: 4, kv_heads: 2, head_dim: 128, budget: 40, ..SHAPE };
    let mut random = Random::new(5);
    let cache = OwnedCache::random(&mut random, &shape, KvFormat::F16, 90);
    let window = OwnedWindow::random(&mut random, &shape, &[88, 89], true);
    let want: Vec<u16> = common::oracle(&shape, &cache, &window)
        .attention
        .iter()
        .map(|&y| half::f16::from_f32(y).to_bits())
        .collect();
    for target in targets() {
        let mut layer = samebits::QsaLayer::import(&target.backend, shape, &cache.view()).unwrap();
        assert_eq!(layer.decode_f16(&window.view()).unwrap().attention, want, "{}", target.name);
    }
}
