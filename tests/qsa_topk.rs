//! Top-k: every target against the oracle, which sorts.

mod common;

use common::targets;
use samebits::golden::Random;
use samebits::{QsaShape, Step, reference};

const SHAPE: QsaShape = QsaShape::QWEN38_FLASH_NEXT;

/// Rows of scores through all targets; id slots beyond a row's width must keep what they held.
fn check(what: &str, shape: &QsaShape, positions: &[u32], scores: &[Vec<f32>]) {
    let steps: Vec<Step> = positions.iter().map(|&p| shape.step(p).unwrap()).collect();
    let blocks = steps.iter().map(|s| s.n_bid).max().unwrap();
    let want: Vec<Vec<u32>> =
        steps.iter().zip(scores).map(|(step, s)| reference::qsa_topk(shape, step, s)).collect();
    for target in targets() {
        let got = target.topk(shape, &steps, blocks, scores, 0xdead_beef);
        for (r, step) in steps.iter().enumerate() {
            let width = step.width as usize;
            assert_eq!(got[r][..width], want[r], "{what} on {}: row {r} at {}", target.name, step.pos);
            assert!(
                got[r][width..].iter().all(|&id| id == 0xdead_beef),
                "{what} on {}: row {r}",
                target.name
            );
        }
    }
}

fn random_scores(random: &mut Random, n_kv: u32, distinct: u32) -> Vec<f32> {
    (0..n_kv / 4 + 1).map(|_| random.below(distinct) as f32 * 0.37 - 3.0).collect()
}

#[test]
fn contexts_around_every_edge() {
    let mut random = Random::new(1);
    for n_kv in
        [1, 3, 4, 63, 64, 65, 2050, 2051, 2052, 2053, 2054, 2055, 2056, 8192, 16_383, 16_384, 32_771, 32_772]
    {
        check("random", &SHAPE, &[n_kv - 1], &[random_scores(&mut random, n_kv, 1 << 20)]);
        check("few values", &SHAPE, &[n_kv - 1], &[random_scores(&mut random, n_kv, 5)]);
    }
}

#[test]
fn equal_scores_take_the_lowest_cells() {
    check("equal", &SHAPE, &[2051], &[vec![1.0; 514]]);
    let steps = [SHAPE.step(2051).unwrap()];
    for target in targets() {
        let got = target.topk(&SHAPE, &steps, 513, &[vec![1.0; 514]], 0);
        assert_eq!(got[0], (0..2051).collect::<Vec<u32>>(), "{}", target.name);
    }
}

/// The tail block stands first in line above the budget, whatever its residue.
#[test]
fn the_tail_is_taken() {
    for n_kv in [2053u32, 2054, 2055, 4097, 40_003] {
        let mut scores: Vec<f32> = (0..n_kv / 4 + 1).map(|b| (b % 7) as f32).collect();
        *scores.last_mut().unwrap() += 1e9;
        check("tail", &SHAPE, &[n_kv - 1], &[scores]);
    }
}

#[test]
fn special_values_in_every_position() {
    let specials = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        0.0,
        1e9,
        1e-40,
        -1e-40,
        f32::MAX,
        -f32::NAN,
        -1.0,
    ];
    let shape = QsaShape { budget: 16, ..SHAPE };
    let n_kv = 4 * 23 + 1;
    for (i, &a) in specials.iter().enumerate() {
        for &b in &specials[i..] {
            let rows: Vec<Vec<f32>> = (0..16usize)
                .map(|p| {
                    (0..24usize)
                        .map(|k| {
                            if k == p {
                                a
                            } else if k == (p + 5) % 24 {
                                b
                            } else {
                                specials[(k * 7 + i) % 11]
                            }
                        })
                        .collect()
                })
                .collect();
            check("specials", &shape, &[n_kv - 1; 16], &rows);
        }
    }
}

/// More than one level of the selection, and more than 65,535 blocks.
#[test]
fn long_contexts() {
    let mut random = Random::new(3);
    for n_kv in [131_072, 131_076, 262_143, 262_144, 262_147, 1_048_576] {
        check("long", &SHAPE, &[n_kv - 1], &[random_scores(&mut random, n_kv, 1 << 22)]);
    }
    check("long ties", &SHAPE, &[1_048_574], &[vec![2.5; 262_144]]);
    let ascending = (0..262_145).map(|b| b as f32).collect();
    check("long ascending", &SHAPE, &[1_048_575], &[ascending]);
}

#[test]
fn rows_of_different_lengths_in_one_window() {
    let mut random = Random::new(4);
    let positions = [50_000, 3, 2051, 2050, 20_000, 49_999, 0, 40_001];
    let rows: Vec<Vec<f32>> = positions.iter().map(|&p| random_scores(&mut random, p + 1, 300)).collect();
    check("window", &SHAPE, &positions, &rows);
}

#[test]
fn other_budgets() {
    let mut random = Random::new(6);
    check(
        "widest",
        &QsaShape { budget: 65_532, ..SHAPE },
        &[320_000],
        &[random_scores(&mut random, 320_001, 3)],
    );
    for budget in [1, 2, 3, 4, 5, 63, 1000, 20_000] {
        let shape = QsaShape { budget, ..SHAPE };
        for n_kv in [budget + 2, budget + 3, budget + 4, budget * 3 + 7, 70_001] {
            check("budget", &shape, &[n_kv - 1], &[random_scores(&mut random, n_kv, 97)]);
        }
    }
}

/// The same window a thousand times: the same cells.
#[test]
fn repeats_are_identical() {
    let mut random = Random::new(7);
    let n_kv = 20_001;
    let scores = vec![random_scores(&mut random, n_kv, 40)];
    let steps = [SHAPE.step(n_kv - 1).unwrap()];
    let want = reference::qsa_topk(&SHAPE, &steps[0], &scores[0]);
    for target in targets() {
        for _ in 0..1000 / if target.name == "cpu" { 1 } else { 20 } {
            assert_eq!(target.topk(&SHAPE, &steps, n_kv / 4, &scores, 0)[0][..2051], want, "{}", target.name);
        }
    }
}
