//! The text of `examples/data/text`, and the cache and queries that the examples make of it.
//!
//! A cell is a token: cell `c` holds token `c` of the text, which starts over where it ends. Keys, values and queries
//! are linear functions of the tokens' word embeddings, then normed and rotated as a model would. Everything is
//! deterministic and the same on every platform: only f32 additions, subtractions and multiplications and the functions
//! of [`samebits::exact`], sums in a stated order, and a pure-Rust sine and cosine.
//!
//! * **Embedding** of a word: its row of `embeddings.f16` minus the mean of all rows (ascending serial sum times
//!   1/3751), so that what words have in common does not drown what tells them apart.
//! * **Projection** matrices are uniform in [-1, 1): row by row, each entry the upper 24 bits of the next splitmix64
//!   output, read as `bits / 2^23 - 1`; the seed names the matrix. A product of 384 terms is 32 serial sums, of terms
//!   `t`, `t + 32` and so on in sum `t`, added as a tree. Words are projected once each, not cell by cell.
//! * **RMS norm** of D values: lane `t` of 32 sums the squares of its D/32 consecutive values by fma, the lanes are
//!   added as a tree, `s = rsqrt(fma(ss, 1/D, 1e-6))`, `y = s * x`. The weight gamma is 1.
//! * **Rotation**: the first 64 values in NEOX pairs `(i, i + 32)`, `a*cos - z*sin` as `fma(a, cos, -(z*sin))` and
//!   `a*sin + z*cos` as `fma(a, sin, z*cos)`. The angle is `position * 10000^(-i/32)` in f64; its sine and cosine, from
//!   the crate `libm` in f64, are rounded once to f32.
//! * **Indexer keys**: P times the embedding, with one P for keys and queries. Raw keys are rounded to f16 and back; a
//!   block of 4 cells is their mean `0.25 * (((k0 + k1) + k2) + k3)`, normed, and rotated at its first cell. The dead
//!   key is the same of cell 0 alone.
//! * **Indexer query**: head `h` of the row at `pos` is P times the embedding of the word at `pos - h` (not before cell
//!   0), normed and rotated at `pos`. A head so looks for blocks that hold words like that one, and the four together
//!   for blocks that resemble the last four words.
//! * **Keys and values**: one matrix each for all KV heads. Keys are normed over a head and rotated at their cell, values
//!   are neither. Then f16, or int8 in groups of 64.
//! * **Query**: head `h` is the word's product with the key matrix of its KV head plus a quarter of its product with a
//!   matrix of its own, normed and rotated.
//! * **Pages**: of `n` pages, page `p` lies at `(p * m + 1) mod n` with `m` the first number from `0.6 n` that has no
//!   common factor with `n`. Cells of the last page that nothing was written to hold NaN.

use rayon::prelude::*;
use samebits::exact::{div, f16_to_f32, f32_to_f16, fma, rne, rsqrt, tree32};
use samebits::shape::{BLOCK_CELLS, KV_GROUP, LANES};
use samebits::{KvCells, KvFormat, QsaCache, QsaShape, Window};

/// Values of a word embedding.
const EMBEDDING: usize = 384;
/// Rotated values of a head, and pairs of them.
const ROTATED: usize = 64;
const PAIRS: usize = ROTATED / 2;
const THETA: f64 = 10_000.0;
const EPS: f32 = 1e-6;

/// Seeds of the projection matrices; query head `h` has `SEED_HEADS + h`.
const SEED_INDEX: u64 = 1;
const SEED_KEYS: u64 = 2;
const SEED_VALUES: u64 = 3;
const SEED_HEADS: u64 = 100;

/// The tokens and the words.
pub struct Text {
    tokens: Vec<u16>,
    words: Vec<&'static str>,
    /// `[words][EMBEDDING]`, mean subtracted.
    embeddings: Vec<f32>,
}

impl Text {
    pub fn load() -> Text {
        let words: Vec<_> =
            include_str!("../data/text/vocab.txt").trim_end_matches('\n').split('\n').collect();
        let halves = |bytes: &[u8]| -> Vec<u16> {
            bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect()
        };
        let tokens = halves(include_bytes!("../data/text/ids.u16"));
        let raw = halves(include_bytes!("../data/text/embeddings.f16"));
        assert_eq!(raw.len(), words.len() * EMBEDDING, "one embedding a word");
        assert!(tokens.iter().all(|&t| usize::from(t) < words.len()), "tokens are indices of words");

        let mut embeddings: Vec<f32> = raw.into_iter().map(f16_to_f32).collect();
        let mut mean = [0.0; EMBEDDING];
        for row in embeddings.chunks_exact(EMBEDDING) {
            mean.iter_mut().zip(row).for_each(|(m, x)| *m += x);
        }
        let share = div(1.0, words.len() as f32);
        for row in embeddings.chunks_exact_mut(EMBEDDING) {
            row.iter_mut().zip(&mean).for_each(|(x, m)| *x -= m * share);
        }
        Text { tokens, words, embeddings }
    }

    /// Tokens before the text starts over.
    #[allow(dead_code, reason = "not every example asks")]
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    fn token(&self, cell: u32) -> usize {
        self.tokens[cell as usize % self.tokens.len()].into()
    }

    /// The words of some cells as a reader would write them: word pieces joined, no space before a comma, and so on.
    /// The cells of `marked` stand in « ».
    #[allow(dead_code, reason = "not every example asks")]
    pub fn passage(&self, cells: std::ops::Range<u32>, marked: std::ops::Range<u32>) -> String {
        let mut out = String::new();
        let mut before = "";
        for cell in cells.clone() {
            let piece = self.words[self.token(cell)];
            let (joined, word) = match piece.strip_prefix("##") {
                Some(rest) => (true, rest),
                None => (glued(before, piece), piece),
            };
            let space = if joined || cell == cells.start { "" } else { " " };
            if !marked.is_empty() && cell == marked.end {
                out.push('»');
            }
            out.push_str(space);
            if !marked.is_empty() && cell == marked.start {
                out.push('«');
            }
            out.push_str(word);
            before = piece;
        }
        if !marked.is_empty() && marked.end == cells.end {
            out.push('»');
        }
        out.replace(":: ", "::")
    }

    fn embedding(&self, word: usize) -> &[f32] {
        &self.embeddings[word * EMBEDDING..][..EMBEDDING]
    }

    /// Each word times `matrix`: `[words][rows of the matrix]`.
    fn project(&self, matrix: &[f32]) -> Vec<f32> {
        self.embeddings.par_chunks_exact(EMBEDDING).flat_map_iter(|x| product(matrix, x)).collect()
    }
}

/// Whether no space belongs between two words.
fn glued(left: &str, right: &str) -> bool {
    const BOTH: [&str; 5] = ["’", "'", "_", "/", "-"];
    const BEFORE: [&str; 11] = [".", ",", ";", ":", "!", "?", ")", "]", "}", "”", "["];
    const AFTER: [&str; 6] = ["(", "[", "{", "“", "#", "&"];
    BOTH.contains(&left) || BOTH.contains(&right) || BEFORE.contains(&right) || AFTER.contains(&left)
}

/// The next number of a splitmix64 sequence.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A projection matrix `[rows][EMBEDDING]`, uniform in [-1, 1). Every step is exact.
fn matrix(seed: u64, rows: usize) -> Vec<f32> {
    let mut state = seed;
    let step = 1.0 / (1 << 23) as f32;
    (0..rows * EMBEDDING).map(|_| (splitmix64(&mut state) >> 40) as f32 * step - 1.0).collect()
}

/// `matrix * x`.
fn product(matrix: &[f32], x: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| {
        let mut lanes = [0.0; LANES];
        for (row, x) in row.chunks_exact(LANES).zip(x.chunks_exact(LANES)) {
            for t in 0..LANES {
                lanes[t] += row[t] * x[t];
            }
        }
        tree32(&mut lanes)
    };
    matrix.chunks_exact(EMBEDDING).map(dot).collect()
}

/// RMS norm in place, over 128 or 256 values.
fn norm(x: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    for (lane, values) in lanes.iter_mut().zip(x.chunks_exact(x.len() / LANES)) {
        values.iter().for_each(|&v| *lane = fma(v, v, *lane));
    }
    let ss = tree32(&mut lanes);
    // The length is a power of two, its reciprocal exact.
    let s = rsqrt(fma(ss, 1.0 / x.len() as f32, EPS));
    x.iter_mut().for_each(|v| *v *= s);
}

/// Sines and cosines of positions.
struct Rope {
    frequencies: [f64; PAIRS],
}

impl Rope {
    fn new() -> Rope {
        Rope { frequencies: std::array::from_fn(|i| libm::pow(THETA, -(i as f64) / PAIRS as f64)) }
    }

    /// Rotates the first 64 values of each head of `x` at a position.
    fn rotate(&self, x: &mut [f32], head: usize, position: u32) {
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let angle = f64::from(position) * frequency;
            let (sin, cos) = (libm::sin(angle) as f32, libm::cos(angle) as f32);
            for x in x.chunks_exact_mut(head) {
                let (a, z) = (x[i], x[i + PAIRS]);
                x[i] = fma(a, cos, -(z * sin));
                x[i + PAIRS] = fma(a, sin, z * cos);
            }
        }
    }
}

/// Keys or values in one of the formats.
enum Rows {
    F16(Vec<u16>),
    Int8 { codes: Vec<i8>, scales: Vec<u16> },
}

impl Rows {
    /// Rows of NaN.
    fn new(format: KvFormat, values: usize) -> Rows {
        const NAN: u16 = 0x7e00;
        match format {
            KvFormat::F16 => Rows::F16(vec![NAN; values]),
            KvFormat::Int8 => {
                Rows::Int8 { codes: vec![-128; values], scales: vec![NAN; values / KV_GROUP as usize] }
            }
        }
    }

    fn encode(format: KvFormat, x: &[f32]) -> Rows {
        let mut rows = Rows::new(format, x.len());
        match &mut rows {
            Rows::F16(halves) => encode_f16(x, halves),
            Rows::Int8 { codes, scales } => encode_int8(x, codes, scales),
        }
        rows
    }

    fn bytes(&self) -> u64 {
        match self {
            Rows::F16(halves) => 2 * halves.len() as u64,
            Rows::Int8 { codes, scales } => (codes.len() + 2 * scales.len()) as u64,
        }
    }

    /// Fills rows of `row` values in parallel: copies row `word` of `words` for each `Some((word, cell))` that
    /// `source(slot)` gives, and lets `turn(cell, start of a head)` rewrite the first 64 values of each head.
    fn fill(
        &mut self,
        words: &Rows,
        [row, head]: [usize; 2],
        source: impl Fn(usize) -> Option<(usize, u32)> + Sync,
        turn: impl Fn(usize, u32) -> Option<Vec<f32>> + Sync,
    ) {
        const GROUP: usize = KV_GROUP as usize;
        match (self, words) {
            (Rows::F16(out), Rows::F16(words)) => {
                out.par_chunks_exact_mut(row).enumerate().for_each(|(slot, out)| {
                    let Some((word, cell)) = source(slot) else { return };
                    out.copy_from_slice(&words[word * row..][..row]);
                    let turned = turn(word, cell).unwrap_or_default();
                    for (out, x) in out.chunks_exact_mut(head).zip(turned.chunks_exact(ROTATED)) {
                        encode_f16(x, &mut out[..ROTATED]);
                    }
                });
            }
            (Rows::Int8 { codes, scales }, Rows::Int8 { codes: word_codes, scales: word_scales }) => {
                let groups = row / GROUP;
                let out = codes.par_chunks_exact_mut(row).zip(scales.par_chunks_exact_mut(groups));
                out.enumerate().for_each(|(slot, (codes, scales))| {
                    let Some((word, cell)) = source(slot) else { return };
                    codes.copy_from_slice(&word_codes[word * row..][..row]);
                    scales.copy_from_slice(&word_scales[word * groups..][..groups]);
                    let turned = turn(word, cell).unwrap_or_default();
                    let heads = codes.chunks_exact_mut(head).zip(scales.chunks_exact_mut(head / GROUP));
                    for ((codes, scales), x) in heads.zip(turned.chunks_exact(ROTATED)) {
                        encode_int8(x, &mut codes[..ROTATED], &mut scales[..ROTATED / GROUP]);
                    }
                });
            }
            _ => unreachable!("one format in a cache"),
        }
    }
}

fn encode_f16(x: &[f32], out: &mut [u16]) {
    out.iter_mut().zip(x).for_each(|(h, &x)| *h = f32_to_f16(x));
}

/// Groups of 64: the scale is the greatest magnitude over 127, as f16; codes are to the nearest, half to even.
fn encode_int8(x: &[f32], codes: &mut [i8], scales: &mut [u16]) {
    let groups = x.chunks_exact(KV_GROUP as usize).zip(codes.chunks_exact_mut(KV_GROUP as usize));
    for ((x, codes), scale) in groups.zip(scales) {
        let amax = x.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
        *scale = f32_to_f16(div(amax, 127.0));
        let s = f16_to_f32(*scale);
        for (code, &x) in codes.iter_mut().zip(x) {
            *code = if s == 0.0 { 0 } else { rne(div(x, s)).clamp(-127.0, 127.0) as i8 };
        }
    }
}

/// A layer's cache over the first cells of the text.
pub struct TextCache {
    pub shape: QsaShape,
    pub cells: u32,
    pub pooled: Vec<f32>,
    pub dead: Vec<f32>,
    k: Rows,
    v: Rows,
    pub page_table: Vec<u32>,
}

impl TextCache {
    /// Builds the cache; `progress` is called once a cell.
    pub fn build(
        text: &Text,
        shape: QsaShape,
        format: KvFormat,
        cells: u32,
        progress: impl Fn() + Sync,
    ) -> TextCache {
        let rope = Rope::new();
        let (row, head) = ((shape.kv_heads * shape.head_dim) as usize, shape.head_dim as usize);
        let page_table = page_table(cells.div_ceil(shape.page_size));
        let mut cache = TextCache {
            shape,
            cells,
            pooled: Vec::new(),
            dead: Vec::new(),
            k: Rows::new(format, page_table.len() * shape.page_size as usize * row),
            v: Rows::new(format, page_table.len() * shape.page_size as usize * row),
            page_table,
        };
        cache.index(text, &rope);

        let mut keys = text.project(&matrix(SEED_KEYS, row));
        keys.par_chunks_exact_mut(head).for_each(norm);
        let values = text.project(&matrix(SEED_VALUES, row));

        let mut page_of = vec![0; cache.page_table.len()];
        for (page, &place) in cache.page_table.iter().enumerate() {
            page_of[place as usize] = page as u32;
        }
        let size = shape.page_size as usize;
        let source = |slot: usize| {
            let cell = page_of[slot / size] * shape.page_size + (slot % size) as u32;
            (cell < cells).then(|| (text.token(cell), cell))
        };
        cache.k.fill(&Rows::encode(format, &keys), [row, head], source, |word, cell| {
            let heads = keys[word * row..][..row].chunks_exact(head);
            let mut turned: Vec<f32> = heads.flat_map(|x| &x[..ROTATED]).copied().collect();
            rope.rotate(&mut turned, ROTATED, cell);
            progress();
            Some(turned)
        });
        cache.v.fill(&Rows::encode(format, &values), [row, head], source, |_, _| None);
        cache
    }

    /// Makes the pooled keys and the dead key.
    fn index(&mut self, text: &Text, rope: &Rope) {
        let dim = self.shape.index_dim as usize;
        let mut raw = text.project(&matrix(SEED_INDEX, dim));
        raw.par_iter_mut().for_each(|x| *x = f16_to_f32(f32_to_f16(*x)));
        let raw = |cell: u32| &raw[text.token(cell) * dim..][..dim];
        let pool = |out: &mut [f32], cells: [u32; 4]| {
            let [k0, k1, k2, k3] = cells.map(raw);
            for (i, y) in out.iter_mut().enumerate() {
                *y = 0.25 * (((k0[i] + k1[i]) + k2[i]) + k3[i]);
            }
            norm(out);
            rope.rotate(out, dim, cells[0]);
        };
        self.dead = vec![0.0; dim];
        pool(&mut self.dead, [0; 4]);
        self.pooled = vec![0.0; (self.cells / BLOCK_CELLS) as usize * dim];
        self.pooled.par_chunks_exact_mut(dim).enumerate().for_each(|(b, out)| {
            let first = b as u32 * BLOCK_CELLS;
            pool(out, [first, first + 1, first + 2, first + 3]);
        });
    }

    pub fn view(&self) -> QsaCache<'_> {
        QsaCache {
            cells: self.cells,
            pooled: &self.pooled,
            dead: &self.dead,
            kv: match (&self.k, &self.v) {
                (Rows::F16(k), Rows::F16(v)) => KvCells::F16 { k, v },
                (Rows::Int8 { codes: k, scales: k_scale }, Rows::Int8 { codes: v, scales: v_scale }) => {
                    KvCells::Int8 { k, k_scale, v, v_scale }
                }
                _ => unreachable!("one format in a cache"),
            },
            page_table: &self.page_table,
        }
    }

    /// Bytes of all arrays.
    #[allow(dead_code, reason = "not every example asks")]
    pub fn bytes(&self) -> u64 {
        let words = self.pooled.len() + self.dead.len() + self.page_table.len();
        self.k.bytes() + self.v.bytes() + 4 * words as u64
    }
}

/// Where each of `pages` pages lies.
fn page_table(pages: u32) -> Vec<u32> {
    let common = |mut a: u32, mut b: u32| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = (u64::from(pages) * 6 / 10) as u32;
    let step = (first.max(1)..).find(|&m| common(m, pages) == 1).unwrap_or(1);
    (0..u64::from(pages)).map(|p| ((p * u64::from(step) + 1) % u64::from(pages)) as u32).collect()
}

/// Queries of a window.
pub struct TextWindow {
    pub positions: Vec<u32>,
    pub query: Vec<f32>,
    pub index_query: Vec<f32>,
}

impl TextWindow {
    /// The queries of the words at `positions`.
    pub fn new(text: &Text, shape: &QsaShape, positions: Vec<u32>) -> TextWindow {
        let rope = Rope::new();
        let (dim, head) = (shape.index_dim as usize, shape.head_dim as usize);
        let embedding = |pos: u32| text.embedding(text.token(pos));

        let index = matrix(SEED_INDEX, dim);
        let mut index_query = Vec::new();
        for &pos in &positions {
            for h in 0..shape.index_heads {
                let mut x = product(&index, embedding(pos.saturating_sub(h)));
                norm(&mut x);
                rope.rotate(&mut x, dim, pos);
                index_query.extend(x);
            }
        }

        let keys = matrix(SEED_KEYS, (shape.kv_heads * shape.head_dim) as usize);
        let per_head = |h: u32| {
            let of_kv_head = (h / shape.group()) as usize * head * EMBEDDING;
            let shared = &keys[of_kv_head..][..head * EMBEDDING];
            let own = matrix(SEED_HEADS + u64::from(h), head);
            let row = |&pos: &u32| {
                let own = product(&own, embedding(pos));
                let mut x = product(shared, embedding(pos));
                x.iter_mut().zip(own).for_each(|(x, own)| *x += 0.25 * own);
                norm(&mut x);
                rope.rotate(&mut x, head, pos);
                x
            };
            positions.iter().map(row).collect::<Vec<_>>()
        };
        let heads: Vec<_> = (0..shape.q_heads).into_par_iter().map(per_head).collect();
        let rows = 0..positions.len();
        let query = rows.flat_map(|r| heads.iter().flat_map(move |h| &h[r])).copied().collect();
        TextWindow { positions, query, index_query }
    }

    pub fn view(&self) -> Window<'_> {
        Window { positions: &self.positions, query: &self.query, index_query: &self.index_query, gate: None }
    }
}
