//! Made-up layers and windows. The content depends on the seed alone, not on where cells lie or how large the cache is.

#![allow(dead_code, reason = "each test file uses its own part")]

use samebits::exact::f32_to_f16;
use samebits::{KvCells, KvFormat, QsaShape, Step};

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    pub fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut p: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            p.swap(i, self.below(i + 1));
        }
        p
    }
}

/// Finite values at which arithmetic goes wrong first.
pub const FINITE: [f32; 10] =
    [0.0, -0.0, 1e-45, -1e-45, 1.1e-38, -1.2e-38, 1e9, -1e9, 3e-20, f32::MIN_POSITIVE];
/// Values that leave a row's floats unspecified.
pub const NON_FINITE: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Puts one of `values` at about one place in `every`.
pub fn sprinkle(rng: &mut Rng, data: &mut [f32], values: &[f32], every: usize) {
    for x in data {
        if rng.below(every) == 0 {
            *x = values[rng.below(values.len())];
        }
    }
}

/// Keys and values in logical order: `[cell][kv_head][head_dim]`.
pub struct Cells {
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

/// A cache that owns its arrays.
#[derive(Clone)]
pub enum Kv {
    F16 { k: Vec<u16>, v: Vec<u16> },
    Int8 { k: Vec<i8>, k_scale: Vec<u16>, v: Vec<i8>, v_scale: Vec<u16> },
}

impl Kv {
    pub fn cells(&self) -> KvCells<'_> {
        match self {
            Kv::F16 { k, v } => KvCells::F16 { k, v },
            Kv::Int8 { k, k_scale, v, v_scale } => KvCells::Int8 { k, k_scale, v, v_scale },
        }
    }

    /// Lays `cells` out through `page_table` over `pages` pages. What no cell uses holds NaN.
    pub fn lay_out(
        shape: &QsaShape,
        format: KvFormat,
        cells: &Cells,
        page_table: &[u32],
        pages: usize,
    ) -> Kv {
        let page = shape.page_size as usize;
        let row = (shape.kv_heads * shape.head_dim) as usize;
        let slots = pages * page;
        let slot_of = |cell: usize| page_table[cell / page] as usize * page + cell % page;
        match format {
            KvFormat::F16 => {
                let place = |from: &[f32]| {
                    let mut to = vec![0x7e00; slots * row];
                    for (cell, from) in from.chunks_exact(row).enumerate() {
                        let to = &mut to[slot_of(cell) * row..][..row];
                        to.iter_mut().zip(from).for_each(|(to, &x)| *to = f32_to_f16(x));
                    }
                    to
                };
                Kv::F16 { k: place(&cells.k), v: place(&cells.v) }
            }
            KvFormat::Int8 => {
                let place = |from: &[f32]| {
                    let mut codes = vec![-128i8; slots * row];
                    let mut scales = vec![0x7e00; slots * row / 64];
                    for (cell, from) in from.chunks_exact(row).enumerate() {
                        let at = slot_of(cell) * row;
                        for (g, from) in from.chunks_exact(64).enumerate() {
                            let amax = from.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                            scales[at / 64 + g] = f32_to_f16(amax / 127.0);
                            for (code, &x) in codes[at + g * 64..].iter_mut().zip(from) {
                                // Any code will do; one formula is simplest.
                                *code = if amax > 0.0 { (x / amax * 127.0).round() as i8 } else { 0 };
                            }
                        }
                    }
                    (codes, scales)
                };
                let (k, k_scale) = place(&cells.k);
                let (v, v_scale) = place(&cells.v);
                Kv::Int8 { k, k_scale, v, v_scale }
            }
        }
    }
}

/// Everything that the stages of a window read.
#[derive(Clone)]
pub struct Inputs {
    pub shape: QsaShape,
    pub steps: Vec<Step>,
    pub pooled: Vec<f32>,
    pub dead: Vec<f32>,
    pub kv: Kv,
    pub page_table: Vec<u32>,
    /// `[T][index_heads][index_dim]`
    pub index_query: Vec<f32>,
    /// `[T][q_heads][head_dim]`
    pub query: Vec<f32>,
    /// `[T][q_heads][head_dim]`
    pub gate: Vec<f32>,
}

/// How [`Inputs::new`] makes a window.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub shape: QsaShape,
    pub positions: Vec<u32>,
    pub format: KvFormat,
    /// Pages that no cell uses; the page table is a permutation over all when `permuted`.
    pub spare_pages: usize,
    pub permuted: bool,
    /// Sprinkle [`FINITE`] over queries and pooled keys.
    pub finite_specials: bool,
    pub seed: u64,
}

impl Inputs {
    pub fn new(recipe: &Recipe) -> Inputs {
        let Recipe { shape, positions, format, spare_pages, permuted, finite_specials, seed } = recipe;
        shape.check().expect("the recipe's shape");
        let cells = positions.iter().max().expect("a row") + 1;
        let rows = positions.len();
        let mut rng = Rng(*seed);
        let row = (shape.kv_heads * shape.head_dim) as usize;
        let dim = shape.index_dim as usize;
        let heads = (shape.q_heads * shape.head_dim) as usize;

        let mut pooled = rng.units((cells / 4) as usize * dim);
        let dead = rng.units(dim);
        let content = Cells { k: rng.units(cells as usize * row), v: rng.units(cells as usize * row) };
        let mut index_query = rng.units(rows * shape.index_heads as usize * dim);
        let mut query = rng.units(rows * heads);
        let mut gate = rng.units(rows * heads);
        gate.iter_mut().for_each(|g| *g *= 6.0);
        if *finite_specials {
            sprinkle(&mut rng, &mut pooled, &FINITE, 40);
            sprinkle(&mut rng, &mut index_query, &FINITE, 40);
            sprinkle(&mut rng, &mut query, &FINITE, 400);
            sprinkle(&mut rng, &mut gate, &FINITE, 40);
        }

        let used = cells.div_ceil(shape.page_size) as usize;
        let pages = used + spare_pages;
        let mut page_table = if *permuted { rng.permutation(pages) } else { (0..pages as u32).collect() };
        page_table.truncate(used);
        let kv = Kv::lay_out(shape, *format, &content, &page_table, pages);
        let steps = positions.iter().map(|&pos| shape.step(pos).expect("the recipe's position")).collect();
        Inputs { shape: *shape, steps, pooled, dead, kv, page_table, index_query, query, gate }
    }

    pub fn rows(&self) -> usize {
        self.steps.len()
    }

    pub fn index_query_of(&self, row: usize) -> &[f32] {
        let n = (self.shape.index_heads * self.shape.index_dim) as usize;
        &self.index_query[row * n..][..n]
    }

    pub fn query_of(&self, row: usize) -> &[f32] {
        let n = (self.shape.q_heads * self.shape.head_dim) as usize;
        &self.query[row * n..][..n]
    }

    pub fn gate_of(&self, row: usize) -> &[f32] {
        let n = (self.shape.q_heads * self.shape.head_dim) as usize;
        &self.gate[row * n..][..n]
    }
}

/// The first place where two arrays differ in their bytes; with `nan_class`, one NaN is as good as another.
pub fn difference(got: &[f32], expected: &[f32], nan_class: bool) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} values instead of {}", got.len(), expected.len()));
    }
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (nan_class && a.is_nan() && b.is_nan());
    let i = got.iter().zip(expected).position(|(&a, &b)| !same(a, b))?;
    Some(format!(
        "at {i}: {:e} ({:#010x}) instead of {:e} ({:#010x})",
        got[i],
        got[i].to_bits(),
        expected[i],
        expected[i].to_bits()
    ))
}
