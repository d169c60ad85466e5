//! The reference against values worked out by hand, against sorting, and against binary64 within derived bounds.

#[path = "common/inputs.rs"]
mod inputs;
#[path = "common/oracle.rs"]
mod oracle;

use inputs::{Cells, FINITE, Inputs, Kv, NON_FINITE, Recipe, Rng, difference, sprinkle};
use oracle::{violation, violations};
use proptest::prelude::*;
use samebits::exact::sigmoid;
use samebits::reference::{max_logit, output_f16, qsa_attend, qsa_merge, qsa_score, qsa_topk};
use samebits::{KvFormat, QsaShape, Step};

const MODEL: QsaShape = QsaShape::QWEN38_FLASH_NEXT;
const SMALL: QsaShape = QsaShape { q_heads: 4, page_size: 3, budget: 100, ..MODEL };

fn step(shape: &QsaShape, n_kv: u32) -> Step {
    shape.step(n_kv - 1).unwrap()
}

// Scores.

#[test]
fn scores_by_hand() {
    let ones = [1.0; 128];
    let pooled = [[1.0; 128], [-1.0; 128]].concat();
    let query = [[1.0; 128], [-1.0; 128], [0.5; 128], [0.0; 128]].concat();
    // A key of ones: 128 + 0 + 64 + 0. A key of minus ones: 0 + 128 + 0 + 0; one head's dislike takes nothing away.
    let shape = QsaShape { index_heads: 4, ..MODEL };
    assert_eq!(qsa_score(&shape, &step(&shape, 8), &pooled, &ones, &query), [192.0, 128.0, 192.0]);
    // 1e9 is a multiple of 64, the spacing of floats there, and 192 is three times that.
    assert_eq!(qsa_score(&shape, &step(&shape, 9), &pooled, &ones, &query), [192.0, 128.0, 1_000_000_192.0]);
    // A row that sees one block scores one block.
    assert_eq!(qsa_score(&shape, &step(&shape, 5), &pooled, &ones, &query), [192.0, 1_000_000_192.0]);
    assert_eq!(qsa_score(&shape, &step(&shape, 1), &pooled, &ones, &query), [1_000_000_192.0]);
}

#[test]
fn score_is_in_the_declared_order() {
    // In lane 0, k1*q1 comes first and k0*q0 is fused onto it: (1 + 2^-12)^2 survives unrounded only when it is fused.
    let x = 1.0 + 2f32.powi(-12);
    let one_head = QsaShape { index_heads: 1, ..MODEL };
    let score = |key: [f32; 4], query: [f32; 4]| {
        let (mut k, mut q) = ([0.0; 128], [0.0; 128]);
        k[..4].copy_from_slice(&key);
        q[..4].copy_from_slice(&query);
        qsa_score(&one_head, &step(&one_head, 4), &k, &k, &q)[0]
    };
    // x*x = 1 + 2^-11 + 2^-24; rounded: 1 + 2^-11.
    assert_eq!(score([x, 1.0, 0.0, 0.0], [x, -(1.0 + 2f32.powi(-11)), 0.0, 0.0]), 2f32.powi(-24));
    assert_eq!(score([1.0, x, 0.0, 0.0], [-(1.0 + 2f32.powi(-11)), x, 0.0, 0.0]), 0.0);
    // The tree adds lanes 0 and 16 first: (1e8 - 1e8) + 1 is 1, and (1e8 + 1) - 1e8 would be 0.
    let (mut k, q) = ([0.0; 128], [1.0; 128]);
    (k[0], k[4], k[64]) = (1e8, 1.0, -1e8);
    assert_eq!(qsa_score(&one_head, &step(&one_head, 4), &k, &k, &q)[0], 1.0);
}

#[test]
fn missing_heads_are_zero_queries() {
    let mut rng = Rng(1);
    for heads in 1..4 {
        let few = QsaShape { index_heads: heads, ..MODEL };
        let mut pooled = rng.units(50 * 128);
        sprinkle(&mut rng, &mut pooled, &FINITE, 30);
        let dead = rng.units(128);
        let mut query = rng.units(heads as usize * 128);
        sprinkle(&mut rng, &mut query, &FINITE, 30);
        let expected = qsa_score(&few, &step(&few, 202), &pooled, &dead, &query);
        query.resize(4 * 128, 0.0);
        let got = qsa_score(&MODEL, &step(&MODEL, 202), &pooled, &dead, &query);
        assert_eq!(difference(&got, &expected, false), None, "{heads} heads");
    }
}

#[test]
fn scores_are_within_their_bounds_and_the_bounds_see_faults() {
    let mut rng = Rng(2);
    for round in 0..20 {
        let shape = QsaShape { index_heads: 1 + round % 4, ..MODEL };
        let n_kv = 400 + round;
        let row = step(&shape, n_kv);
        let mut pooled = rng.units(104 * 128);
        let dead = rng.units(128);
        let mut query = rng.units(shape.index_heads as usize * 128);
        if round % 2 == 1 {
            sprinkle(&mut rng, &mut pooled, &FINITE, 20);
            sprinkle(&mut rng, &mut query, &FINITE, 20);
        }
        let oracle = oracle::scores(&shape, &row, &pooled, &dead, &query);
        let got = qsa_score(&shape, &row, &pooled, &dead, &query);
        assert_eq!(violation(&got, &oracle), None, "round {round}");
    }

    // Positive products: the sum of magnitudes is the sum, and the bound is 12 roundings of it.
    let row = step(&MODEL, 400);
    let positive = |rng: &mut Rng, n| rng.units(n).iter().map(|x: &f32| x.abs()).collect::<Vec<_>>();
    let (pooled, mut query) = (positive(&mut rng, 100 * 128), positive(&mut rng, 4 * 128));
    query[77] = 0.75;
    let dead = pooled[..128].to_vec();
    let oracle = oracle::scores(&MODEL, &row, &pooled, &dead, &query);
    let got = qsa_score(&MODEL, &row, &pooled, &dead, &query);
    assert_eq!(violation(&got, &oracle), None);
    let scaled: Vec<f32> = got.iter().map(|s| s * (1.0 + 1e-5)).collect();
    assert_eq!(violations(&scaled, &oracle), 101, "off by 1e-5");
    let fault = |change: &dyn Fn(&mut Vec<f32>)| {
        let mut query = query.clone();
        change(&mut query);
        violations(&qsa_score(&MODEL, &row, &pooled, &dead, &query), &oracle)
    };
    for lane in [0, 1, 17, 31] {
        assert!(fault(&|q| q[4 * lane..4 * lane + 4].fill(0.0)) >= 100, "lane {lane} dropped");
    }
    assert!(fault(&|q| q[77] *= 1.01) >= 90, "one factor off by a hundredth");
    assert!(fault(&|q| q[4 * 128 - 1] = 0.0) >= 100, "the last value dropped");
}

// Top-k.

#[test]
fn equal_scores_take_the_lowest_cells() {
    let row = step(&MODEL, 2052);
    let expected: Vec<u32> = (0..2051).collect();
    for score in [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(qsa_topk(&MODEL, &row, &vec![score; 514]), expected, "{score}");
    }
    // With a tail block of 3 that wins by its bonus, the others fill the rest.
    let row = step(&MODEL, 2055);
    let mut scores = vec![1.0; 514];
    scores[513] += 1e9;
    let expected: Vec<u32> = (0..2048).chain(2052..2055).collect();
    assert_eq!(qsa_topk(&MODEL, &row, &scores), expected);
}

#[test]
fn short_rows_are_the_identity() {
    for n_kv in [1, 3, 4, 63, 64, 65, 2050, 2051] {
        let row = step(&MODEL, n_kv);
        let scores: Vec<f32> = (0..=row.n_bid).map(|b| (b * 37 % 11) as f32).collect();
        assert_eq!(qsa_topk(&MODEL, &row, &scores), (0..n_kv).collect::<Vec<_>>(), "n_kv = {n_kv}");
    }
}

#[test]
fn the_cut_may_fall_inside_a_block() {
    // 5 + 3 = 8 of 14 cells: block 2 (4 cells), the tail (2 cells: 12, 13), then 2 cells of block 0, the first of the ties.
    let shape = QsaShape { budget: 5, ..MODEL };
    let row = step(&shape, 14);
    assert_eq!(qsa_topk(&shape, &row, &[3.0, 3.0, 9.0, 1e9]), [0, 1, 8, 9, 10, 11, 12, 13]);
    // The tail is only a block as others: here it is the worst and gives its place away.
    assert_eq!(qsa_topk(&shape, &row, &[3.0, 3.0, 9.0, 2.0]), [0, 1, 2, 3, 8, 9, 10, 11]);
    // 12 cells: no tail; its score is not looked at.
    let row = step(&shape, 12);
    for unused in [1e9, f32::NAN, f32::INFINITY] {
        assert_eq!(qsa_topk(&shape, &row, &[3.0, 4.0, 9.0, unused]), [4, 5, 6, 7, 8, 9, 10, 11]);
    }
}

#[test]
fn special_scores_are_ordered() {
    // Highest first; -0 and 0 are equal.
    let order = [f32::INFINITY, 1e9, 1e-45, 0.0, -1e-45, -1.0, f32::NEG_INFINITY, f32::NAN];
    let shape = QsaShape { budget: 1, ..MODEL };
    let row = step(&shape, 8);
    for (i, &better) in order.iter().enumerate() {
        for &worse in &order[i + 1..] {
            assert_eq!(qsa_topk(&shape, &row, &[worse, better, 0.0]), [4, 5, 6, 7], "{better} over {worse}");
            assert_eq!(qsa_topk(&shape, &row, &[better, worse, 0.0]), [0, 1, 2, 3], "{better} over {worse}");
        }
    }
    assert_eq!(qsa_topk(&shape, &row, &[-0.0, 0.0, 0.0]), [0, 1, 2, 3]);
    assert_eq!(qsa_topk(&shape, &row, &[-f32::NAN, f32::NAN, 0.0]), [0, 1, 2, 3]);
}

#[test]
fn topk_is_the_sorted_selection() {
    let mut rng = Rng(3);
    for round in 0..300 {
        let shape = QsaShape { budget: 1 + rng.below(120) as u32, ..MODEL };
        let row = step(&shape, 1 + rng.below(400) as u32);
        let mut scores = rng.units(row.n_bid as usize + 1);
        // Few distinct values, so that ties are common.
        scores.iter_mut().for_each(|s| *s = (*s * [1.0, 3.0, 1e6][round % 3]).round());
        sprinkle(&mut rng, &mut scores, &[&FINITE[..], &NON_FINITE].concat(), 4);
        let ids = qsa_topk(&shape, &row, &scores);
        assert_eq!(ids, oracle::topk(&row, &scores));
        assert!(ids.is_sorted_by(|a, b| a < b) && ids.len() == row.width as usize);
    }
}

// Attention and merge.

/// A cache of one KV head in which each cell's key and value are constant over the dims.
fn constant_cells(shape: &QsaShape, keys: &[f32], values: &[f32]) -> (Kv, Vec<u32>) {
    let dim = shape.head_dim as usize;
    let spread = |x: &[f32]| x.iter().flat_map(|&x| vec![x; dim]).collect();
    let cells = Cells { k: spread(keys), v: spread(values) };
    let pages = keys.len().div_ceil(shape.page_size as usize);
    let page_table: Vec<u32> = (0..pages as u32).rev().collect();
    (Kv::lay_out(shape, KvFormat::F16, &cells, &page_table, pages), page_table)
}

#[test]
fn attention_by_hand() {
    for head_dim in [128, 256] {
        let dim = head_dim as usize;
        let shape = QsaShape { q_heads: 1, kv_heads: 1, head_dim, page_size: 2, ..MODEL };
        let ids: Vec<u32> = (0..65).collect();
        // 65 equal keys: weights 1; the sum of 0..=63 is 2016, the last chunk is cell 64 alone; the mean is 32.
        let values: Vec<f32> = ids.iter().map(|&c| c as f32).collect();
        let (kv, pages) = constant_cells(&shape, &[0.25; 65], &values);
        let query = vec![2.0; dim];
        let partials = qsa_attend(&shape, &step(&shape, 65), &ids, &kv.cells(), &pages, &query);
        // dim * 0.25 * 2 / sqrt(dim), exact for 256.
        let logit = dim as f32 * 0.5 * shape.scale();
        let expected = [vec![2016.0; dim], vec![logit, 64.0], vec![64.0; dim], vec![logit, 1.0]].concat();
        assert_eq!(partials, expected);
        if head_dim == 256 {
            assert_eq!(logit, 8.0);
        }
        assert_eq!(qsa_merge(&shape, &partials, None), vec![32.0; dim]);

        // One cell is its value, whatever its key.
        let (kv, pages) = constant_cells(&shape, &[-3.0], &[0.3]);
        let partials = qsa_attend(&shape, &step(&shape, 1), &[0], &kv.cells(), &pages, &query);
        let value = samebits::exact::f16_to_f32(samebits::exact::f32_to_f16(0.3));
        assert_eq!(qsa_merge(&shape, &partials, None), vec![value; dim]);

        // A cell 200 below the other has weight 0 and leaves no trace.
        let (kv, pages) = constant_cells(&shape, &[100.0, 0.0], &[5.0, 7.0]);
        let partials = qsa_attend(&shape, &step(&shape, 2), &[0, 1], &kv.cells(), &pages, &query);
        assert_eq!(partials[dim + 1], 1.0);
        assert_eq!(qsa_merge(&shape, &partials, None), vec![5.0; dim]);
    }
}

#[test]
fn int8_is_code_times_scale() {
    let shape = QsaShape { q_heads: 1, kv_heads: 1, head_dim: 128, page_size: 1, ..MODEL };
    let v: Vec<i8> = (0..128).map(|d| (d * 2 - 127) as i8).collect();
    // Group 0 in halves, group 1 in quarters.
    let kv =
        Kv::Int8 { k: vec![1; 128], k_scale: vec![0x3c00; 2], v: v.clone(), v_scale: vec![0x3800, 0x3400] };
    let partials = qsa_attend(&shape, &step(&shape, 1), &[0], &kv.cells(), &[0], &[0.5; 128]);
    for d in 0..128 {
        assert_eq!(partials[d], f32::from(v[d]) * if d < 64 { 0.5 } else { 0.25 });
    }
    assert_eq!(partials[128], 64.0 * shape.scale());
}

#[test]
fn merge_by_hand() {
    let shape = QsaShape { q_heads: 1, kv_heads: 1, head_dim: 128, ..MODEL };
    let part = |acc: f32, m: f32, l: f32| [vec![acc; 128], vec![m, l]].concat();
    let merged = |parts: &[Vec<f32>]| qsa_merge(&shape, &parts.concat(), None)[0];
    assert_eq!(merged(&[part(6.0, 1.0, 2.0)]), 3.0);
    assert_eq!(merged(&[part(6.0, 1.0, 2.0), part(2.0, 1.0, 2.0)]), 2.0);
    // The far smaller chunk adds exp(-100) = 0.
    assert_eq!(merged(&[part(6.0, 1.0, 2.0), part(1e30, -99.0, 2.0)]), 3.0);
    // Empty chunks are not looked at, wherever they are.
    let empty = part(f32::NAN, f32::INFINITY, 0.0);
    assert_eq!(merged(&[empty.clone(), part(6.0, 1.0, 2.0), part(f32::NAN, f32::NAN, -0.0)]), 3.0);
    assert_eq!(merged(&[empty.clone(), empty]).to_bits(), 0);
    // The division is rounded once; 5 times the rounded 1/49 is one ulp off.
    assert_eq!(merged(&[part(1.0, 0.0, 3.0)]), 1.0 / 3.0);
    assert_eq!(merged(&[part(5.0, 0.0, 49.0)]), 5.0 / 49.0);
    // The sign of a zero maximum does not matter.
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0)] {
        let parts = |a, b| [part(6.0, a, 2.0), part(2.0, b, 2.0), part(1.0, -1.5, 1.5)];
        assert_eq!(merged(&parts(a, b)).to_bits(), merged(&parts(0.0, 0.0)).to_bits());
    }
    let gate = [0.75; 128];
    let gated = qsa_merge(&shape, &part(6.0, 1.0, 2.0), Some(&gate))[0];
    assert_eq!(gated, 3.0 * sigmoid(0.75));
    assert!((gated - 2.037_537).abs() < 1e-5);
}

#[test]
fn maxima_do_not_depend_on_the_order() {
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-45,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
    ];
    let max = |x: &[f32]| x.iter().fold(f32::NEG_INFINITY, |m, &s| max_logit(m, s));
    let mut rng = Rng(4);
    for _ in 0..2000 {
        let n = 1 + rng.below(5);
        let x: Vec<f32> = (0..n).map(|_| values[rng.below(values.len())]).collect();
        let expected = max(&x);
        let shuffled: Vec<f32> = rng.permutation(n).iter().map(|&i| x[i as usize]).collect();
        assert_eq!(max(&shuffled).to_bits(), expected.to_bits(), "{x:?}");
        // Halves first, as threads do it.
        let (a, b) = x.split_at(n / 2);
        assert_eq!(max_logit(max(b), max(a)).to_bits(), expected.to_bits(), "{x:?}");
        assert!(!expected.is_nan() && (expected != 0.0 || expected.is_sign_positive()));
        // The comparison that is false for NaN is the same rule.
        let plain = x.iter().fold(f32::NEG_INFINITY, |m, &s| if s > m { s + 0.0 } else { m });
        assert_eq!(plain.to_bits(), expected.to_bits(), "{x:?}");
    }
}

#[test]
fn a_zero_maximum_is_positive() {
    let shape = QsaShape { q_heads: 2, kv_heads: 1, ..SMALL };
    let (kv, pages) = constant_cells(&shape, &[1.0, 2.0, 3.0], &[1.0, 4.0, 1.0]);
    // -0 times a positive key is -0, and so is a sum of nothing else; all weights are 1.
    let query = [[-0.0; 256], [0.0; 256]].concat();
    let partials = qsa_attend(&shape, &step(&shape, 3), &[0, 1, 2], &kv.cells(), &pages, &query);
    let expected = [vec![6.0; 256], vec![0.0, 3.0]].concat();
    assert_eq!(difference(&partials, &expected.repeat(2), false), None);
}

#[test]
fn f16_output_rounds_to_even() {
    let cases = [
        (1.0, 0x3c00),
        (-2.0, 0xc000),
        (2049.0, 0x6800),
        (2051.0, 0x6802),
        (65519.9, 0x7bff),
        (65520.0, 0x7c00),
        (2f32.powi(-25), 0),
        (2f32.powi(-25) * 1.0001, 1),
        (-0.0, 0x8000),
    ];
    for (x, bits) in cases {
        assert_eq!(output_f16(&[x]), [bits], "{x}");
    }
}

fn recipe(shape: QsaShape, positions: Vec<u32>, format: KvFormat, seed: u64) -> Recipe {
    Recipe { shape, positions, format, spare_pages: 2, permuted: true, finite_specials: false, seed }
}

#[test]
fn attention_is_within_its_bounds() {
    for (i, head_dim) in [128, 256, 128, 256].into_iter().enumerate() {
        for n_kv in [1, 2, 31, 33, 64, 65, 103, 140, 333] {
            let format = if i < 2 { KvFormat::F16 } else { KvFormat::Int8 };
            let shape = QsaShape { head_dim, ..SMALL };
            let mut x = Inputs::new(&recipe(shape, vec![n_kv - 1], format, u64::from(n_kv)));
            // From nearly uniform weights to one cell taking all.
            let factor = [0.05, 1.0, 30.0][n_kv as usize % 3];
            x.query.iter_mut().for_each(|q| *q *= factor);
            check_attention(&x);
        }
    }
}

#[test]
fn attention_of_the_model_is_within_its_bounds() {
    check_attention(&Inputs::new(&recipe(MODEL, vec![2999], KvFormat::Int8, 5)));
}

fn check_attention(x: &Inputs) {
    let (shape, row, kv, query) = (&x.shape, &x.steps[0], &x.kv.cells(), x.query_of(0));
    let ids = oracle::topk(row, &Rng(6).units(row.n_bid as usize + 1));
    let partials = qsa_attend(shape, row, &ids, kv, &x.page_table, query);
    let oracle = oracle::partials(shape, row, &ids, kv, &x.page_table, query);
    assert_eq!(violation(&partials, &oracle), None, "partials, n_kv = {}", row.n_kv);
    for gate in [None, Some(x.gate_of(0))] {
        let out = qsa_merge(shape, &partials, gate);
        assert_eq!(violation(&out, &oracle::merge(shape, &partials, gate)), None, "merge");
        let oracle = oracle::attention(shape, row, &ids, kv, &x.page_table, query, gate);
        assert_eq!(violation(&out, &oracle), None, "attention, n_kv = {}", row.n_kv);
    }
}

#[test]
fn attention_bounds_see_faults() {
    for head_dim in [128, 256] {
        let shape = QsaShape { head_dim, ..SMALL };
        let mut x = Inputs::new(&recipe(shape, vec![229], KvFormat::Int8, 7));
        // Positive keys, values and queries: no cancellation for the bound to allow for.
        if let Kv::Int8 { k, v, .. } = &mut x.kv {
            k.iter_mut().chain(v).for_each(|code| *code = code.saturating_abs());
        }
        x.query.iter_mut().for_each(|q| *q = q.abs() * 0.1);
        let (row, kv, query) = (&x.steps[0], &x.kv.cells(), x.query_of(0));
        let ids = oracle::topk(row, &Rng(8).units(row.n_bid as usize + 1));
        let (dim, heads) = (head_dim as usize, shape.q_heads as usize);

        let partials = qsa_attend(&shape, row, &ids, kv, &x.page_table, query);
        let of_partials = oracle::partials(&shape, row, &ids, kv, &x.page_table, query);
        assert_eq!(violation(&partials, &of_partials), None);
        let out = qsa_merge(&shape, &partials, None);
        let of_out = oracle::attention(&shape, row, &ids, kv, &x.page_table, query, None);
        assert_eq!(violation(&out, &of_out), None);
        let all = heads * dim;

        // Every accumulator, maximum and sum that is off by 1e-5 is seen; so is every output.
        let scaled: Vec<f32> = partials.iter().map(|y| y * (1.0 + 1e-5)).collect();
        assert_eq!(violations(&scaled, &of_partials), partials.len());
        let scaled: Vec<f32> = out.iter().map(|y| y * (1.0 + 1e-5)).collect();
        assert_eq!(violations(&scaled, &of_out), all);
        let of_merge = oracle::merge(&shape, &partials, None);
        assert_eq!(violations(&scaled, &of_merge), all);

        // Logits off by 1e-5: the maxima show it.
        let louder: Vec<f32> = query.iter().map(|q| q * (1.0 + 1e-5)).collect();
        let got = qsa_attend(&shape, row, &ids, kv, &x.page_table, &louder);
        assert!(violations(&got, &of_partials) >= heads * row.chunks() as usize);

        // A lane dropped from the first head's products.
        let mut lame = query.to_vec();
        lame[..dim / 32].fill(0.0);
        let got = qsa_attend(&shape, row, &ids, kv, &x.page_table, &lame);
        assert!(violations(&got, &of_partials) >= row.chunks() as usize);
        let got = qsa_merge(&shape, &got, None);
        assert!(violations(&got, &of_out) > dim / 2);

        // One cell taken for another, one chunk lost.
        let mut wrong = ids.clone();
        wrong[40] = wrong[41];
        let got = qsa_attend(&shape, row, &wrong, kv, &x.page_table, query);
        assert!(violations(&qsa_merge(&shape, &got, None), &of_out) > all * 9 / 10);
        let lost = &partials[..shape.partial_chunk() as usize];
        let got = qsa_merge(&shape, lost, None);
        assert!(violations(&got, &of_out) > all * 9 / 10 && violations(&got, &of_merge) > all * 9 / 10);
    }
}

#[test]
fn cells_that_are_not_there_are_not_read() {
    // Every slot but those of the row's cells holds NaN, and so does everything beyond them in every array.
    for format in [KvFormat::F16, KvFormat::Int8] {
        for n_kv in [1, 5, 64, 70, 130] {
            let x = Inputs::new(&recipe(SMALL, vec![n_kv - 1], format, 9));
            let row = &x.steps[0];
            let mut scores = qsa_score(&SMALL, row, &x.pooled, &x.dead, x.index_query_of(0));
            let clean = qsa_topk(&SMALL, row, &scores);
            scores.extend([f32::NAN; 9]);
            let mut ids = qsa_topk(&SMALL, row, &scores);
            assert_eq!(ids, clean);
            ids.extend([u32::MAX; 100]);
            let partials = qsa_attend(&SMALL, row, &ids, &x.kv.cells(), &x.page_table, x.query_of(0));
            assert!(partials.iter().all(|y| y.is_finite()), "n_kv = {n_kv}");
        }
    }
}

#[test]
fn ids_are_clamped() {
    let x = Inputs::new(&recipe(SMALL, vec![9], KvFormat::F16, 10));
    let run = |ids: &[u32]| qsa_attend(&SMALL, &x.steps[0], ids, &x.kv.cells(), &x.page_table, x.query_of(0));
    let wrong = run(&[0, 1, 2, 3, u32::MAX, 5, 10, 1 << 20, 8, 9]);
    assert_eq!(difference(&wrong, &run(&[0, 1, 2, 3, 9, 5, 9, 9, 8, 9]), false), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bits at all in every float array: nothing panics, ids are a selection.
    #[test]
    fn any_bits_are_survived(seed: u64, n_kv in 1u32..300, int8: bool, head_dim in prop_oneof![Just(128u32), Just(256)]) {
        let shape = QsaShape { head_dim, ..SMALL };
        let format = if int8 { KvFormat::Int8 } else { KvFormat::F16 };
        let mut x = Inputs::new(&recipe(shape, vec![n_kv - 1], format, seed));
        let mut rng = Rng(seed);
        for floats in [&mut x.pooled, &mut x.dead, &mut x.index_query, &mut x.query, &mut x.gate] {
            floats.iter_mut().for_each(|y| *y = f32::from_bits(rng.next() as u32));
        }
        let halves: [&mut Vec<u16>; 2] = match &mut x.kv {
            Kv::F16 { k, v } => [k, v],
            Kv::Int8 { k_scale, v_scale, .. } => [k_scale, v_scale],
        };
        halves.into_iter().flatten().for_each(|h| *h = rng.next() as u16);

        let row = &x.steps[0];
        let scores = qsa_score(&shape, row, &x.pooled, &x.dead, &x.index_query);
        let any: Vec<f32> = scores.iter().map(|_| f32::from_bits(rng.next() as u32)).collect();
        for scores in [scores, any] {
            let ids = qsa_topk(&shape, row, &scores);
            prop_assert_eq!(&ids, &oracle::topk(row, &scores));
            let partials = qsa_attend(&shape, row, &ids, &x.kv.cells(), &x.page_table, &x.query);
            let out = qsa_merge(&shape, &partials, Some(&x.gate));
            prop_assert_eq!(out.len(), (shape.q_heads * shape.head_dim) as usize);
            prop_assert_eq!(output_f16(&out).len(), out.len());
        }
    }
}
