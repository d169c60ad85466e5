//! The whole layer: every target against the oracle, what a row must not depend on, and what happens when a device, a
//! buffer or an argument is not as it should be.

mod common;

use std::time::{Duration, Instant};

use common::{assert_same_trace, oracle, targets};
use samebits::golden::{OwnedCache, OwnedKv, OwnedWindow, Random};
use samebits::shape::MAX_CELLS;
use samebits::{Backend, KvCells, KvFormat, QsaCache, QsaLayer, QsaShape, Trace, Window};

const SMALL: QsaShape = QsaShape {
    q_heads: 4,
    kv_heads: 2,
    head_dim: 128,
    index_heads: 3,
    index_dim: 128,
    budget: 61,
    page_size: 4,
};

/// Floats of a row's queries and indexer queries.
fn widths(shape: &QsaShape) -> (usize, usize) {
    ((shape.q_heads * shape.head_dim) as usize, (shape.index_heads * shape.index_dim) as usize)
}

/// These rows of a window, in this order.
fn pick(shape: &QsaShape, window: &OwnedWindow, rows: &[usize]) -> OwnedWindow {
    let (heads, index) = widths(shape);
    let take = |all: &[f32], n: usize| rows.iter().flat_map(|&r| all[r * n..][..n].to_vec()).collect();
    OwnedWindow {
        positions: rows.iter().map(|&r| window.positions[r]).collect(),
        query: take(&window.query, heads),
        index_query: take(&window.index_query, index),
        gate: window.gate.as_ref().map(|g| take(g, heads)),
    }
}

/// These rows of a trace, in this order.
fn pick_trace(shape: &QsaShape, trace: &Trace, rows: &[usize]) -> Trace {
    let (heads, _) = widths(shape);
    Trace {
        steps: rows.iter().map(|&r| trace.steps[r]).collect(),
        scores: rows.iter().map(|&r| trace.scores[r].clone()).collect(),
        ids: rows.iter().map(|&r| trace.ids[r].clone()).collect(),
        partials: rows.iter().map(|&r| trace.partials[r].clone()).collect(),
        attention: rows.iter().flat_map(|&r| trace.attention[r * heads..][..heads].to_vec()).collect(),
    }
}

/// The same cells in a larger cache of `cells` cells with pages of another size in another order. Whatever is not
/// theirs is NaN: cells and blocks that come later, and pages that nothing points to.
fn moved(
    random: &mut Random,
    from: &QsaShape,
    cache: &OwnedCache,
    page_size: u32,
    cells: u32,
) -> (QsaShape, OwnedCache) {
    fn copy<T: Copy>(from: &[T], slots: &[[u32; 2]], slot_count: u32, width: u32, fill: T) -> Vec<T> {
        let mut all = vec![fill; (slot_count * width) as usize];
        let width = width as usize;
        for &[old, new] in slots {
            all[new as usize * width..][..width].copy_from_slice(&from[old as usize * width..][..width]);
        }
        all
    }
    let shape = QsaShape { page_size, ..*from };
    let used = cells.div_ceil(page_size);
    let pages = used + 3;
    let mut page_table = random.permutation(pages);
    page_table.truncate(used as usize);
    let slot = |table: &[u32], size: u32, cell: u32| table[(cell / size) as usize] * size + cell % size;
    let slots: Vec<[u32; 2]> = (0..cache.cells)
        .map(|c| [slot(&cache.page_table, from.page_size, c), slot(&page_table, page_size, c)])
        .collect();
    let count = pages * page_size;
    let width = from.kv_heads * from.head_dim;
    let kv = match &cache.kv {
        OwnedKv::F16(k, v) => {
            OwnedKv::F16(copy(k, &slots, count, width, 0x7e00), copy(v, &slots, count, width, 0x7e00))
        }
        OwnedKv::Int8(k, ks, v, vs) => OwnedKv::Int8(
            copy(k, &slots, count, width, 99),
            copy(ks, &slots, count, width / 64, 0x7e00),
            copy(v, &slots, count, width, 99),
            copy(vs, &slots, count, width / 64, 0x7e00),
        ),
    };
    let mut pooled = cache.pooled.clone();
    pooled.resize((cells / 4 * from.index_dim) as usize, f32::NAN);
    (shape, OwnedCache { cells, pooled, dead: cache.dead.clone(), kv, page_table })
}

/// Random shapes and windows: T of 1 to 8 and 20, both formats, all page sizes, gated or not, rows in any order.
#[test]
fn windows_of_every_kind() {
    let mut random = Random::new(1);
    for case in 0..32u32 {
        let mut any = |of: &[u32]| of[random.below(of.len() as u32) as usize];
        let kv_heads = any(&[1, 2, 3]);
        let shape = QsaShape {
            q_heads: kv_heads * any(&[1, 2, 13]),
            kv_heads,
            head_dim: [128, 256][(case / 8 % 2) as usize],
            index_heads: any(&[1, 2, 3, 4]),
            index_dim: 128,
            budget: any(&[1, 5, 61, 64, 129, 200]),
            page_size: [1, 4, 64, 512][(case % 4) as usize],
        };
        let edge = shape.budget + 3;
        let n_kv = any(&[1, 3, 4, 63, 64, 65, edge - 1, edge, edge + 1, 300, 477, 602]);
        let format = if case / 4 % 2 == 0 { KvFormat::F16 } else { KvFormat::Int8 };
        let rows = if case % 11 == 10 { 20 } else { 1 + case % 8 };
        let mut positions: Vec<u32> = (0..rows).map(|_| random.below(n_kv)).collect();
        positions[random.below(rows) as usize] = n_kv - 1;
        let cache = OwnedCache::random(&mut random, &shape, format, n_kv);
        let window = OwnedWindow::random(&mut random, &shape, &positions, case % 3 == 0);
        let want = oracle(&shape, &cache, &window);
        for target in targets() {
            let what = format!("{}: case {case}, {shape:?} {format:?} at {positions:?}", target.name);
            assert_same_trace(&what, &target.decode(&shape, &cache, &window), &want);
        }
    }
}

/// A row's bytes are the same alone, among others, in any order, twice in one window, and beside rows of NaN.
#[test]
fn a_row_does_not_depend_on_the_others() {
    let mut random = Random::new(2);
    for format in [KvFormat::F16, KvFormat::Int8] {
        let cache = OwnedCache::random(&mut random, &SMALL, format, 411);
        let positions: Vec<u32> = (403..411).collect();
        let window = OwnedWindow::random(&mut random, &SMALL, &positions, true);
        let want = oracle(&SMALL, &cache, &window);
        let mut spoiled = window.clone();
        let (heads, index) = widths(&SMALL);
        spoiled.query[3 * heads..4 * heads].fill(f32::NAN);
        spoiled.query[5 * heads] = f32::INFINITY;
        spoiled.index_query[3 * index..4 * index].fill(f32::NAN);
        spoiled.index_query[6 * index + 7] = f32::NEG_INFINITY;
        spoiled.gate.as_mut().unwrap()[3 * heads..4 * heads].fill(f32::NAN);
        for target in targets() {
            let name = &target.name;
            let mut layer = target.layer(&SMALL, &cache);
            assert_same_trace(name, &layer.decode_traced(&window.view()).unwrap(), &want);
            for r in 0..8 {
                let alone = layer.decode_traced(&pick(&SMALL, &window, &[r]).view()).unwrap();
                assert_same_trace(
                    &format!("{name}: row {r} alone"),
                    &alone,
                    &pick_trace(&SMALL, &want, &[r]),
                );
            }
            for order in [&[7, 6, 5, 4, 3, 2, 1, 0][..], &[2, 2, 2], &[5, 0, 5, 7, 1, 0]] {
                let got = layer.decode_traced(&pick(&SMALL, &window, order).view()).unwrap();
                assert_same_trace(
                    &format!("{name}: rows {order:?}"),
                    &got,
                    &pick_trace(&SMALL, &want, order),
                );
            }
            let got = layer.decode_traced(&spoiled.view()).unwrap();
            let clean = [0, 1, 2, 4, 7];
            assert_same_trace(
                &format!("{name}: beside NaN"),
                &pick_trace(&SMALL, &got, &clean),
                &pick_trace(&SMALL, &want, &clean),
            );
            // The spoiled rows' ids are still a selection: ascending cells that exist, as many as the width.
            for r in [3, 5, 6] {
                let ids = &got.ids[r];
                assert_eq!(ids.len(), got.steps[r].width as usize);
                assert!(ids.windows(2).all(|p| p[0] < p[1]) && ids.iter().all(|&id| id < got.steps[r].n_kv));
            }
        }
    }
}

/// Another capacity, other pages, later cells and unused pages full of NaN: the same bytes.
#[test]
fn a_row_does_not_depend_on_what_it_does_not_see() {
    let mut random = Random::new(3);
    for format in [KvFormat::F16, KvFormat::Int8] {
        let cache = OwnedCache::random(&mut random, &SMALL, format, 322);
        let window = OwnedWindow::random(&mut random, &SMALL, &[321, 319, 64, 17], false);
        let want = oracle(&SMALL, &cache, &window);
        for (page_size, cells) in [(1, 322), (4, 323), (64, 1100), (512, 700)] {
            let (shape, other) = moved(&mut random, &SMALL, &cache, page_size, cells);
            for target in targets() {
                let what = format!("{}: {format:?}, pages of {page_size}, {cells} cells", target.name);
                assert_same_trace(&what, &target.decode(&shape, &other, &window), &want);
            }
        }
    }
}

/// The same window up to a thousand times, with another layer's windows in between.
#[test]
fn repeats_are_identical() {
    let mut random = Random::new(4);
    let other_shape = QsaShape { q_heads: 2, index_heads: 1, budget: 9, ..SMALL };
    let caches = [(SMALL, 901), (other_shape, 250)]
        .map(|(shape, cells)| OwnedCache::random(&mut random, &shape, KvFormat::Int8, cells));
    let window = OwnedWindow::random(&mut random, &SMALL, &[900, 899, 3], true);
    let other = OwnedWindow::random(&mut random, &other_shape, &[249, 200], false);
    for target in targets() {
        let mut layer = target.layer(&SMALL, &caches[0]);
        let mut second = target.layer(&other_shape, &caches[1]);
        let want = layer.decode(&window.view()).unwrap();
        let want_second = second.decode(&other.view()).unwrap();
        let begun = Instant::now();
        let mut repeats = 0;
        while repeats < 1000 && (repeats < 50 || begun.elapsed() < Duration::from_secs(3)) {
            assert!(layer.decode(&window.view()).unwrap() == want, "{}: repeat {repeats}", target.name);
            if repeats % 3 == 0 {
                assert!(second.decode(&other.view()).unwrap() == want_second, "{}: {repeats}", target.name);
            }
            repeats += 1;
        }
        println!("{}: {repeats} times the same", target.name);
    }
}

/// Scratch and bindings are made again when a window does not fit them, and used again when it does.
#[test]
fn one_layer_takes_windows_of_every_size() {
    let mut random = Random::new(5);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 200);
    let mut windows = Vec::new();
    for (rows, gated) in
        [(4, false), (1, false), (8, false), (8, true), (2, true), (20, true), (16, false), (3, false)]
    {
        let positions: Vec<u32> = (0..rows).map(|_| random.below(200)).collect();
        let window = OwnedWindow::random(&mut random, &SMALL, &positions, gated);
        windows.push((oracle(&SMALL, &cache, &window), window));
    }
    for target in targets() {
        let mut layer = target.layer(&SMALL, &cache);
        for (want, window) in &windows {
            let what = format!("{}: {} rows", target.name, window.positions.len());
            assert_same_trace(&what, &layer.decode_traced(&window.view()).unwrap(), want);
        }
        // Apart from the above, so that each window follows one that differs from it in size or gate alone.
        for (want, window) in &windows {
            let half = layer.decode_f16(&window.view()).unwrap();
            let rounded: Vec<u16> =
                want.attention.iter().map(|&y| half::f16::from_f32(y).to_bits()).collect();
            let what = format!("{}: {} rows as f16", target.name, window.positions.len());
            assert!(half.attention == rounded && half.ids == want.ids, "{what}");
        }
    }
}

fn text<T: std::fmt::Debug>(result: samebits::Result<T>) -> String {
    result.expect_err("bad input").to_string()
}

/// Every target refuses a shape and a cache with the same words.
fn refuses_cache(shape: QsaShape, cache: &QsaCache<'_>, expected: &str) {
    for target in targets() {
        assert_eq!(text(QsaLayer::import(&target.backend, shape, cache)), expected, "{}", target.name);
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let cache = OwnedCache::random(&mut Random::new(6), &SMALL, KvFormat::F16, 8);
    let good = SMALL;
    for (shape, expected) in [
        (QsaShape { kv_heads: 0, ..good }, "shape.kv_heads: expected 1 to 16, got 0"),
        (QsaShape { kv_heads: 17, ..good }, "shape.kv_heads: expected 1 to 16, got 17"),
        (
            QsaShape { q_heads: 0, ..good },
            "shape.q_heads: expected a multiple of kv_heads (2) up to 256, got 0",
        ),
        (
            QsaShape { q_heads: 5, ..good },
            "shape.q_heads: expected a multiple of kv_heads (2) up to 256, got 5",
        ),
        (
            QsaShape { q_heads: 258, ..good },
            "shape.q_heads: expected a multiple of kv_heads (2) up to 256, got 258",
        ),
        (QsaShape { head_dim: 64, ..good }, "shape.head_dim: expected 128 or 256, got 64"),
        (QsaShape { index_heads: 0, ..good }, "shape.index_heads: expected 1 to 4, got 0"),
        (QsaShape { index_heads: 5, ..good }, "shape.index_heads: expected 1 to 4, got 5"),
        (QsaShape { index_dim: 64, ..good }, "shape.index_dim: expected 128, got 64"),
        (QsaShape { budget: 0, ..good }, "shape.budget: expected 1 to 65532, got 0"),
        (QsaShape { budget: 65_533, ..good }, "shape.budget: expected 1 to 65532, got 65533"),
        (QsaShape { page_size: 0, ..good }, "shape.page_size: expected 1 to 1048576, got 0"),
        (
            QsaShape { page_size: MAX_CELLS + 1, ..good },
            "shape.page_size: expected 1 to 1048576, got 1048577",
        ),
    ] {
        assert_eq!(text(shape.check()), expected);
        refuses_cache(shape, &cache.view(), expected);
    }
    assert_eq!(text(good.step(MAX_CELLS)), "pos: expected below 1048576, got 1048576");
    good.step(MAX_CELLS - 1).unwrap();
}

#[test]
fn caches_that_do_not_fit() {
    let mut random = Random::new(7);
    let half = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 10);
    let int8 = OwnedCache::random(&mut random, &SMALL, KvFormat::Int8, 10);
    let (good, good8) = (half.view(), int8.view());
    let refused = |cache: QsaCache<'_>, expected: &str| refuses_cache(SMALL, &cache, expected);

    refused(QsaCache { cells: 0, ..good }, "cache.cells: expected 1 to 1048576, got 0");
    refused(QsaCache { cells: MAX_CELLS + 1, ..good }, "cache.cells: expected 1 to 1048576, got 1048577");
    refused(QsaCache { cells: 12, ..good }, "cache.pooled: expected 384 values, got 256 values");
    refused(
        QsaCache { pooled: &good.pooled[..255], ..good },
        "cache.pooled: expected 256 values, got 255 values",
    );
    refused(QsaCache { dead: &good.dead[..127], ..good }, "cache.dead: expected 128 values, got 127 values");
    let KvCells::F16 { k, v } = good.kv else { unreachable!("made as f16") };
    let kv = |k, v| QsaCache { kv: KvCells::F16 { k, v }, ..good };
    refused(kv(&k[..3071], v), "cache.kv.k: expected 2816 values, got 3071 values");
    refused(kv(k, &v[..3071]), "cache.kv.v: expected 3072 values, got 3071 values");
    refused(
        kv(&k[..2560], &v[..2560]),
        "cache.kv: expected a whole number of pages of 4 cells, at least one, got 10 cells",
    );
    refused(kv(&[], &[]), "cache.kv: expected a whole number of pages of 4 cells, at least one, got 0 cells");
    let KvCells::Int8 { k, k_scale, v, v_scale } = good8.kv else { unreachable!("made as int8") };
    let kv = |k, k_scale, v, v_scale| QsaCache { kv: KvCells::Int8 { k, k_scale, v, v_scale }, ..good8 };
    refused(kv(&k[1..], k_scale, v, v_scale), "cache.kv.k: expected 2816 values, got 3071 values");
    refused(kv(k, k_scale, &v[1..], v_scale), "cache.kv.v: expected 3072 values, got 3071 values");
    refused(kv(k, &k_scale[1..], v, v_scale), "cache.kv.k_scale: expected 48 values, got 47 values");
    refused(kv(k, k_scale, v, &v_scale[1..]), "cache.kv.v_scale: expected 48 values, got 47 values");

    let table = |page_table| QsaCache { page_table, ..good };
    refused(table(&[0, 1]), "cache.page_table: expected at least 3 entries, got 2 entries");
    refused(table(&[0, 3, 1]), "cache.page_table[1]: expected below 3, got 3");
    refused(table(&[0, 1, u32::MAX]), "cache.page_table[2]: expected below 3, got 4294967295");
    // Entries that are not in use may hold anything.
    for target in targets() {
        QsaLayer::import(&target.backend, SMALL, &table(&[0, 2, 1, u32::MAX])).unwrap();
    }
}

#[test]
fn windows_that_do_not_fit() {
    let mut random = Random::new(8);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 10);
    let owned = OwnedWindow::random(&mut random, &SMALL, &[9, 3], true);
    let good = owned.view();
    let want = oracle(&SMALL, &cache, &owned);
    for target in targets() {
        let mut layer = target.layer(&SMALL, &cache);
        let mut refused = |window: Window<'_>, expected: &str| {
            assert_eq!(text(layer.decode(&window)), expected, "{}", target.name);
            assert_eq!(text(layer.decode_f16(&window)), expected, "{}", target.name);
            assert_eq!(text(layer.decode_traced(&window)), expected, "{}", target.name);
            assert_eq!(text(layer.profile(&window, 1, 1)), expected, "{}", target.name);
        };
        let none = Window { positions: &[], query: &[], index_query: &[], gate: None };
        refused(none, "window.positions: expected at least 1 row (T >= 1), got T = 0");
        refused(
            Window { query: &good.query[1..], ..good },
            "window.query: expected 1024 values, got 1023 values",
        );
        refused(
            Window { positions: &[9, 3, 1], ..good },
            "window.query: expected 1536 values, got 1024 values",
        );
        refused(
            Window { index_query: &good.index_query[1..], ..good },
            "window.index_query: expected 768 values, got 767 values",
        );
        refused(
            Window { gate: Some(&good.query[1..]), ..good },
            "window.gate: expected 1024 values, got 1023 values",
        );
        refused(
            Window { positions: &[9, 10], ..good },
            "window.positions[1]: expected below the cache's 10 cells, got 10",
        );
        refused(
            Window { positions: &[u32::MAX, 3], ..good },
            "window.positions[0]: expected below the cache's 10 cells, got 4294967295",
        );
        // And nothing has happened to the layer.
        assert_same_trace(&target.name, &layer.decode_traced(&good).unwrap(), &want);
        if !matches!(target.backend, Backend::Cpu) {
            let many = OwnedWindow::random(&mut random, &SMALL, &[5; 17], false);
            assert_eq!(
                text(layer.profile(&many.view(), 1, 1)),
                "window.positions: expected at most 16 rows in a profile, got 17"
            );
        }
    }
}

/// A cache takes what its arrays take; scratch follows the rows of a window up to 16, and is not larger for longer ones.
#[test]
fn memory_is_what_the_arrays_need() {
    let shape = QsaShape { page_size: 64, ..SMALL };
    let mut random = Random::new(77);
    let cache = OwnedCache::random(&mut random, &shape, KvFormat::Int8, 40_000);
    let OwnedKv::Int8(k, k_scale, v, v_scale) = &cache.kv else { unreachable!("made as int8") };
    let arrays = k.len() + v.len() + 2 * (k_scale.len() + v_scale.len());
    let arrays = (arrays + 4 * (cache.pooled.len() + cache.dead.len() + cache.page_table.len())) as u64;
    let row = 4 * (10_000 + u64::from(shape.max_chunks() * shape.partial_chunk()));
    for target in targets() {
        let mut layer = target.layer(&shape, &cache);
        let mut scratch = |rows: usize| {
            let positions: Vec<u32> = (40_000 - rows as u32..40_000).collect();
            let window = OwnedWindow::random(&mut random, &shape, &positions, false);
            layer.decode(&window.view()).unwrap();
            let (held, scratch) = layer.memory();
            assert!(held >= arrays && held <= arrays + arrays / 5, "{}: {held} for {arrays}", target.name);
            scratch
        };
        let (four, sixteen) = (scratch(4), scratch(16));
        assert!(four <= 4 * (row + row / 5), "{}: {four} for 4 rows of {row}", target.name);
        assert!(sixteen <= 4 * four, "{}: {sixteen} after {four}", target.name);
        assert_eq!(scratch(40), sixteen, "{}", target.name);
    }
}

#[cfg(feature = "wgpu")]
#[path = "qsa_layer/device.rs"]
mod device;

/// Finite inputs whose products overflow: the same bytes, a NaN being a NaN. In particular a head does not become zeros.
#[test]
fn overflow_is_the_same_everywhere() {
    let same = |what: &str, got: &[f32], want: &[f32]| {
        let differ =
            |&i: &usize| got[i].to_bits() != want[i].to_bits() && !(got[i].is_nan() && want[i].is_nan());
        assert_eq!(got.len(), want.len(), "{what}");
        if let Some(i) = (0..got.len()).find(differ) {
            panic!("{what}: value {i} is {:e}, not {:e}", got[i], want[i]);
        }
    };
    let mut random = Random::new(40);
    for (head_dim, scale) in [(128, 1e34), (256, 1e38)] {
        let shape = QsaShape { head_dim, budget: 125, ..SMALL };
        let mut cache = OwnedCache::random(&mut random, &shape, KvFormat::F16, 300);
        let OwnedKv::F16(k, _) = &mut cache.kv else { unreachable!("made as f16") };
        k.iter_mut().filter(|k| **k & 0x7c00 > 0x3800).for_each(|k| *k += 12 << 10);
        let mut window = OwnedWindow::random(&mut random, &shape, &[299, 170, 63, 1], true);
        window.query.iter_mut().step_by(2).for_each(|q| *q *= scale);
        let want = oracle(&shape, &cache, &window);
        assert!(want.attention.iter().any(|y| y.is_nan()));
        for target in common::exact_targets() {
            let got = target.decode(&shape, &cache, &window);
            for row in 0..want.steps.len() {
                let what = format!("{}: partials of row {row}", target.name);
                same(&what, &got.partials[row], &want.partials[row]);
            }
            same(&format!("{}: attention", target.name), &got.attention, &want.attention);
        }
    }
}
