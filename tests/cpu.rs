//! The CPU backend against the reference, byte for byte, and the independence of rows from what they do not see.

#[path = "common/inputs.rs"]
mod inputs;
#[path = "common/oracle.rs"]
mod oracle;

use std::time::Instant;

use inputs::{FINITE, Inputs, Kv, NON_FINITE, Recipe, Rng, difference, sprinkle};
use proptest::prelude::*;
use samebits::{KvFormat, QsaShape, Step, cpu, reference};

const MODEL: QsaShape = QsaShape::QWEN38_FLASH_NEXT;
const SMALL: QsaShape = QsaShape { q_heads: 4, page_size: 3, budget: 100, ..MODEL };

/// What the stages left in their buffers, strides included.
#[derive(Clone)]
struct Run {
    scores: Vec<f32>,
    stride: usize,
    ids: Vec<u32>,
    id_stride: usize,
    partials: Vec<f32>,
    partial_stride: usize,
    out: Vec<f32>,
    gated: Vec<f32>,
}

/// Sentinels: a NaN with a payload of its own, and an id that cannot be.
const UNTOUCHED: u32 = 0x7fc5_a5a5;
const NO_ID: u32 = u32::MAX;

impl Run {
    /// Strides longer than any row needs by `spare`; what no row needs is checked to stay as it was.
    fn new(x: &Inputs, spare: usize) -> Run {
        let most = |f: &dyn Fn(&Step) -> usize| x.steps.iter().map(f).max().unwrap();
        let chunk = x.shape.partial_chunk() as usize;
        let stride = most(&|s| s.n_bid as usize + 1) + spare;
        let id_stride = most(&|s| s.width as usize) + spare;
        let partial_stride = most(&|s| s.chunks() as usize * chunk) + spare;
        let rows = x.rows();
        let untouched = f32::from_bits(UNTOUCHED);
        let mut run = Run {
            scores: vec![untouched; rows * stride],
            stride,
            ids: vec![NO_ID; rows * id_stride],
            id_stride,
            partials: vec![untouched; rows * partial_stride],
            partial_stride,
            out: vec![untouched; x.query.len()],
            gated: vec![untouched; x.query.len()],
        };
        let (shape, steps) = (&x.shape, &x.steps[..]);
        cpu::qsa_score(shape, steps, &x.pooled, &x.dead, &x.index_query, &mut run.scores, stride);
        cpu::qsa_topk(shape, steps, &run.scores, stride, &mut run.ids, id_stride);
        run.attend(x);
        for (i, step) in steps.iter().enumerate() {
            let rest = |row: &[f32], used: usize| row[used..].iter().all(|y| y.to_bits() == UNTOUCHED);
            assert!(rest(&run.scores[i * stride..][..stride], step.n_bid as usize + 1));
            assert!(
                run.ids[i * id_stride..][..id_stride][step.width as usize..].iter().all(|&id| id == NO_ID)
            );
            let used = step.chunks() as usize * chunk;
            assert!(rest(&run.partials[i * partial_stride..][..partial_stride], used));
        }
        run
    }

    fn attend(&mut self, x: &Inputs) {
        let (shape, steps) = (&x.shape, &x.steps[..]);
        let (ids, partials) = (&self.ids, &mut self.partials);
        let (kv, stride) = (x.kv.cells(), self.partial_stride);
        cpu::qsa_attend(shape, steps, ids, self.id_stride, &kv, &x.page_table, &x.query, partials, stride);
        cpu::qsa_merge(shape, steps, partials, stride, None, &mut self.out);
        cpu::qsa_merge(shape, steps, partials, stride, Some(&x.gate), &mut self.gated);
    }

    fn row(&self, x: &Inputs, i: usize) -> Row {
        let step = &x.steps[i];
        let out = (x.shape.q_heads * x.shape.head_dim) as usize;
        let partials = (step.chunks() * x.shape.partial_chunk()) as usize;
        Row {
            scores: self.scores[i * self.stride..][..step.n_bid as usize + 1].to_vec(),
            ids: self.ids[i * self.id_stride..][..step.width as usize].to_vec(),
            partials: self.partials[i * self.partial_stride..][..partials].to_vec(),
            out: self.out[i * out..][..out].to_vec(),
            gated: self.gated[i * out..][..out].to_vec(),
        }
    }
}

/// The results of one row.
struct Row {
    scores: Vec<f32>,
    ids: Vec<u32>,
    partials: Vec<f32>,
    out: Vec<f32>,
    gated: Vec<f32>,
}

impl Row {
    fn of_reference(x: &Inputs, i: usize) -> Row {
        let (shape, step, kv) = (&x.shape, &x.steps[i], x.kv.cells());
        let scores = reference::qsa_score(shape, step, &x.pooled, &x.dead, x.index_query_of(i));
        let ids = reference::qsa_topk(shape, step, &scores);
        let partials = reference::qsa_attend(shape, step, &ids, &kv, &x.page_table, x.query_of(i));
        let out = reference::qsa_merge(shape, &partials, None);
        let gated = reference::qsa_merge(shape, &partials, Some(x.gate_of(i)));
        Row { scores, ids, partials, out, gated }
    }

    /// Where it differs from `expected`; floats may be NaN only where `nan` says so, and then any NaN will do.
    fn differs(&self, expected: &Row, nan: bool) -> Option<String> {
        let floats = |what: &str, a: &[f32], b: &[f32]| difference(a, b, nan).map(|d| format!("{what} {d}"));
        floats("scores", &self.scores, &expected.scores)
            .or_else(|| (self.ids != expected.ids).then(|| "ids".to_string()))
            .or_else(|| floats("partials", &self.partials, &expected.partials))
            .or_else(|| floats("out", &self.out, &expected.out))
            .or_else(|| floats("gated", &self.gated, &expected.gated))
            .or_else(|| (!nan && !self.out.iter().all(|y| y.is_finite())).then(|| "not finite".to_string()))
    }
}

fn shapes() -> impl Strategy<Value = QsaShape> {
    (
        prop::sample::select(vec![(1, 1), (2, 1), (3, 3), (4, 2), (6, 2), (24, 2)]),
        prop::sample::select(vec![128, 256]),
        1u32..=4,
        prop::sample::select(vec![1, 2, 5, 61, 62, 100, 125, 400]),
        prop::sample::select(vec![1, 3, 4, 16, 64]),
    )
        .prop_map(|((q_heads, kv_heads), head_dim, index_heads, budget, page_size)| QsaShape {
            q_heads,
            kv_heads,
            head_dim,
            index_heads,
            budget,
            page_size,
            ..MODEL
        })
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let last = prop_oneof![1 => 0u32..70, 2 => 0u32..500];
    (shapes(), last, 1usize..=8, any::<(bool, bool, bool)>(), 0usize..4, any::<u64>()).prop_map(
        |(shape, last, rows, (int8, specials, scattered), spare_pages, seed)| {
            let mut rng = Rng(!seed);
            let consecutive = |i: usize| last.saturating_sub((rows - 1 - i) as u32);
            let positions = (0..rows)
                .map(|i| if scattered { rng.below(last as usize + 1) as u32 } else { consecutive(i) })
                .collect();
            let format = if int8 { KvFormat::Int8 } else { KvFormat::F16 };
            Recipe { shape, positions, format, spare_pages, permuted: true, finite_specials: specials, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_reference(recipe in recipes(), spare in 0usize..9) {
        let x = Inputs::new(&recipe);
        let run = Run::new(&x, spare);
        for i in 0..x.rows() {
            prop_assert_eq!(run.row(&x, i).differs(&Row::of_reference(&x, i), false), None, "row {}", i);
        }
    }

    /// NaN and infinities anywhere: the same numbers, NaN in the same places, and ids as always.
    #[test]
    fn equals_the_reference_on_bad_rows(recipe in recipes(), every in prop::sample::select(vec![2, 60, 4000])) {
        let mut x = Inputs::new(&recipe);
        let mut rng = Rng(recipe.seed);
        for floats in [&mut x.pooled, &mut x.dead, &mut x.index_query, &mut x.query, &mut x.gate] {
            sprinkle(&mut rng, floats, &NON_FINITE, every);
        }
        let (Kv::F16 { k: a, v: b } | Kv::Int8 { k_scale: a, v_scale: b, .. }) = &mut x.kv;
        for half in a.iter_mut().chain(b) {
            if rng.below(every * 100) == 0 {
                *half = [0x7c00, 0xfc00, 0x7e01, 0xfd00][rng.below(4)];
            }
        }
        let run = Run::new(&x, 0);
        for i in 0..x.rows() {
            prop_assert_eq!(run.row(&x, i).differs(&Row::of_reference(&x, i), true), None, "row {}", i);
        }
    }

    /// A row has the same bytes alone, beside any other, in another cache, and through another page table.
    #[test]
    fn rows_do_not_see_each_other(recipe in recipes(), bad in any::<prop::sample::Index>()) {
        let x = Inputs::new(&recipe);
        let run = Run::new(&x, 0);
        let shape = x.shape;
        let (index, heads) = ((shape.index_heads * shape.index_dim) as usize, (shape.q_heads * shape.head_dim) as usize);

        for i in 0..x.rows() {
            let mut alone = x.clone();
            alone.steps = vec![x.steps[i]];
            alone.index_query = x.index_query_of(i).to_vec();
            alone.query = x.query_of(i).to_vec();
            alone.gate = x.gate_of(i).to_vec();
            prop_assert_eq!(Run::new(&alone, 0).row(&alone, 0).differs(&run.row(&x, i), false), None, "alone");
        }

        let bad = bad.index(x.rows());
        let mut poisoned = x.clone();
        poisoned.index_query[bad * index..][..index].fill(f32::NAN);
        poisoned.query[bad * heads..][..heads].fill(f32::NAN);
        poisoned.gate[bad * heads..][..heads].fill(f32::INFINITY);
        let beside = Run::new(&poisoned, 0);
        for i in (0..x.rows()).filter(|&i| i != bad) {
            prop_assert_eq!(beside.row(&x, i).differs(&run.row(&x, i), false), None, "beside a bad row");
        }

        let elsewhere = Recipe { spare_pages: recipe.spare_pages + 5, permuted: false, ..recipe.clone() };
        let mut y = Inputs::new(&elsewhere);
        // A longer cache: blocks, pages and entries that no row may see.
        y.pooled.extend([f32::NAN; 256]);
        y.page_table.extend([u32::MAX; 3]);
        let other = Run::new(&y, 7);
        for i in 0..x.rows() {
            prop_assert_eq!(other.row(&y, i).differs(&run.row(&x, i), false), None, "elsewhere");
        }
    }

    /// Any scores, few distinct ones among them.
    #[test]
    fn topk_is_the_sorted_selection(
        seed: u64, budget in 1u32..200, last in prop::collection::vec(0u32..900, 1..5), levels in 1u32..40, spare in 0usize..5
    ) {
        let shape = QsaShape { budget, ..MODEL };
        let steps: Vec<Step> = last.iter().map(|&pos| shape.step(pos).unwrap()).collect();
        let mut rng = Rng(seed);
        let (stride, id_stride) = (226 + spare, shape.max_width() as usize + spare);
        let mut scores = rng.units(steps.len() * stride);
        scores.iter_mut().for_each(|s| *s = (*s * levels as f32).round());
        sprinkle(&mut rng, &mut scores, &[&FINITE[..], &NON_FINITE].concat(), 1 + seed as usize % 7);
        let mut ids = vec![NO_ID; steps.len() * id_stride];
        cpu::qsa_topk(&shape, &steps, &scores, stride, &mut ids, id_stride);
        for (i, step) in steps.iter().enumerate() {
            let row = &ids[i * id_stride..][..id_stride];
            prop_assert_eq!(&row[..step.width as usize], &oracle::topk(step, &scores[i * stride..])[..]);
            prop_assert!(row[step.width as usize..].iter().all(|&id| id == NO_ID));
        }
    }
}

fn topk(shape: &QsaShape, step: &Step, scores: &[f32]) -> Vec<u32> {
    let mut ids = vec![NO_ID; step.width as usize];
    cpu::qsa_topk(shape, &[*step], scores, scores.len(), &mut ids, step.width as usize);
    ids
}

#[test]
fn special_scores_in_every_position() {
    let specials =
        [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 1e9, 1e-45, -1e-45, 1.0, -1.0];
    let shape = QsaShape { budget: 6, ..MODEL };
    for n_kv in 10..=22 {
        let step = shape.step(n_kv - 1).unwrap();
        let blocks = step.n_bid as usize + 1;
        for a in specials {
            for b in specials {
                for at in 0..blocks {
                    for rest in [0.0, 1.0, -1.0, f32::NAN] {
                        let mut scores = vec![rest; blocks];
                        scores[at] = a;
                        scores[(at + 2) % blocks] = b;
                        assert_eq!(topk(&shape, &step, &scores), oracle::topk(&step, &scores), "{scores:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn equal_scores_take_the_lowest_cells() {
    let step = MODEL.step(2051).unwrap();
    assert_eq!(topk(&MODEL, &step, &[2.5; 514]), (0..2051).collect::<Vec<_>>());
}

#[test]
fn lengths_from_the_field() {
    let mut rng = Rng(11);
    for n_kv in [1, 3, 4, 63, 64, 65, 2050, 2051, 2052, 2053, 8192, 8193, 262_143, 262_144, 262_147, 1 << 20]
    {
        let step = MODEL.step(n_kv - 1).unwrap();
        let mut scores = rng.units(step.n_bid as usize + 1);
        *scores.last_mut().unwrap() += if step.tail() != 0 { 1e9 } else { 0.0 };
        let ids = topk(&MODEL, &step, &scores);
        if n_kv <= 2051 {
            assert_eq!(ids, (0..n_kv).collect::<Vec<_>>());
        } else {
            // The cells of the incomplete block are first in line.
            assert!(ids.ends_with(&(n_kv - step.tail()..n_kv).collect::<Vec<_>>()));
        }
        assert_eq!(ids, oracle::topk(&step, &scores), "n_kv = {n_kv}");
    }
}

#[test]
fn model_shape_equals_the_reference() {
    for (n_kv, format) in [(2051, KvFormat::F16), (2052, KvFormat::Int8), (8192, KvFormat::F16)] {
        let x = Inputs::new(&Recipe {
            shape: MODEL,
            positions: vec![n_kv - 1, 64],
            format,
            spare_pages: 1,
            permuted: true,
            finite_specials: true,
            seed: u64::from(n_kv),
        });
        let run = Run::new(&x, 3);
        for i in 0..2 {
            assert_eq!(run.row(&x, i).differs(&Row::of_reference(&x, i), false), None, "n_kv = {n_kv}");
        }
    }
}

#[test]
fn page_tables_and_page_sizes_change_nothing() {
    for format in [KvFormat::F16, KvFormat::Int8] {
        let make = |page_size, permuted, spare_pages| {
            let shape = QsaShape { page_size, ..SMALL };
            let positions = vec![598, 599];
            let finite_specials = false;
            Inputs::new(&Recipe {
                shape,
                positions,
                format,
                spare_pages,
                permuted,
                finite_specials,
                seed: 12,
            })
        };
        let plain = make(64, false, 0);
        let expected = Run::new(&plain, 0);
        for (page_size, spare) in [(1, 0), (1, 100), (4, 0), (4, 9), (512, 0), (512, 3)] {
            let x = make(page_size, true, spare);
            let run = Run::new(&x, 0);
            for i in 0..2 {
                assert_eq!(
                    run.row(&x, i).differs(&expected.row(&plain, i), false),
                    None,
                    "pages of {page_size}"
                );
            }
        }
    }
}

#[test]
fn ids_are_clamped() {
    let x = Inputs::new(&Recipe {
        shape: SMALL,
        positions: vec![9],
        format: KvFormat::F16,
        spare_pages: 0,
        permuted: true,
        finite_specials: false,
        seed: 13,
    });
    let mut run = Run::new(&x, 0);
    run.ids = vec![0, 1, 2, 3, u32::MAX, 5, 10, 1 << 20, 8, 9];
    run.attend(&x);
    let expected =
        reference::qsa_attend(&SMALL, &x.steps[0], &run.ids, &x.kv.cells(), &x.page_table, &x.query);
    assert_eq!(difference(&run.partials, &expected, false), None);
    run.ids = vec![0, 1, 2, 3, 9, 5, 9, 9, 8, 9];
    run.attend(&x);
    assert_eq!(difference(&run.partials, &expected, false), None);
}

#[test]
fn a_zero_maximum_is_positive() {
    let mut x = Inputs::new(&Recipe {
        shape: SMALL,
        positions: vec![69],
        format: KvFormat::Int8,
        spare_pages: 0,
        permuted: true,
        finite_specials: false,
        seed: 18,
    });
    // Positive keys make -0 of the first heads' logits, and +0 of the others'.
    if let Kv::Int8 { k, .. } = &mut x.kv {
        k.iter_mut().for_each(|code| *code = code.saturating_abs().max(1));
    }
    let (negative, positive) = x.query.split_at_mut(2 * 256);
    negative.fill(-0.0);
    positive.fill(0.0);
    let row = Run::new(&x, 0).row(&x, 0);
    assert_eq!(row.differs(&Row::of_reference(&x, 0), false), None);
    assert!(row.partials.chunks_exact(258).all(|part| part[256].to_bits() == 0));
}

#[test]
fn empty_chunks_are_skipped() {
    let shape = SMALL;
    let step = shape.step(102).unwrap();
    assert_eq!(step.chunks(), 2);
    let head = shape.partial_head() as usize;
    let chunk = shape.partial_chunk() as usize;
    let mut partials = Rng(14).units(2 * chunk);
    for (i, part) in partials.chunks_exact_mut(head).enumerate() {
        part[head - 1] = part[head - 1].abs() + 1.0;
        // Head 0 has no first chunk, head 1 no second one, head 2 none at all; what is there is NaN.
        if [0, 2, 5, 6].contains(&i) {
            part.fill(f32::NAN);
            part[head - 1] = 0.0;
        }
    }
    let mut out = vec![f32::NAN; 4 * shape.head_dim as usize];
    cpu::qsa_merge(&shape, &[step], &partials, 2 * chunk, None, &mut out);
    assert_eq!(difference(&out, &reference::qsa_merge(&shape, &partials, None), false), None);
    assert!(out.iter().all(|y| y.is_finite()));
    assert!(out[2 * 256..3 * 256].iter().all(|y| y.to_bits() == 0));
}

#[test]
fn f16_output_equals_the_reference() {
    let mut rng = Rng(15);
    let mut x: Vec<f32> = (0..100_000).map(|_| f32::from_bits(rng.next() as u32)).collect();
    x.retain(|x| !x.is_nan());
    let mut bits = vec![0; x.len()];
    cpu::output_f16(&x, &mut bits);
    assert_eq!(bits, reference::output_f16(&x));
}

#[test]
fn the_same_bytes_every_time() {
    let x = Inputs::new(&Recipe {
        shape: SMALL,
        positions: vec![300, 301, 302, 303],
        format: KvFormat::Int8,
        spare_pages: 3,
        permuted: true,
        finite_specials: false,
        seed: 16,
    });
    let first = Run::new(&x, 0);
    for _ in 0..100 {
        let run = Run::new(&x, 0);
        for i in 0..4 {
            assert_eq!(run.row(&x, i).differs(&first.row(&x, i), false), None);
        }
    }
}

/// Run with `--ignored --nocapture` for times of the model's verify window.
#[test]
#[ignore = "prints times, checks nothing"]
fn times() {
    let positions: Vec<u32> = (131_072..131_076).collect();
    for format in [KvFormat::F16, KvFormat::Int8] {
        let recipe = Recipe {
            shape: MODEL,
            positions: positions.clone(),
            format,
            spare_pages: 0,
            permuted: true,
            finite_specials: false,
            seed: 17,
        };
        let x = Inputs::new(&recipe);
        let mut run = Run::new(&x, 0);
        let mut best = [f64::INFINITY; 4];
        for _ in 0..20 {
            let mut clock = Instant::now();
            let mut lap = |i: usize| {
                best[i] = best[i].min(clock.elapsed().as_secs_f64() * 1e3);
                clock = Instant::now();
            };
            cpu::qsa_score(
                &x.shape,
                &x.steps,
                &x.pooled,
                &x.dead,
                &x.index_query,
                &mut run.scores,
                run.stride,
            );
            lap(0);
            cpu::qsa_topk(&x.shape, &x.steps, &run.scores, run.stride, &mut run.ids, run.id_stride);
            lap(1);
            let (kv, partials, stride) = (x.kv.cells(), &mut run.partials, run.partial_stride);
            cpu::qsa_attend(
                &x.shape,
                &x.steps,
                &run.ids,
                run.id_stride,
                &kv,
                &x.page_table,
                &x.query,
                partials,
                stride,
            );
            lap(2);
            cpu::qsa_merge(&x.shape, &x.steps, partials, stride, Some(&x.gate), &mut run.gated);
            lap(3);
        }
        println!("{}: score, top-k, attend, merge: {best:.2?} ms", format.name());
    }
}
