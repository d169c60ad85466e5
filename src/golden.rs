//! The golden suite: deterministic cases and the digests that every backend has to give for them.
//!
//! The digests live in `tests/golden/qsa.txt` and `tests/golden/experts.txt`; they are made by
//! [`reference`](crate::reference) and are part of the crate's contract. A change to one is a breaking change and raises [`NUMERICS_VERSION`].

pub mod experts;

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::exact::f32_to_f16;
use crate::qsa::{Backend, QsaLayer, Trace};
use crate::quant::Format;
use crate::shape::{KV_GROUP, KvCells, KvFormat, QsaCache, QsaShape, Window};

/// Version of the arithmetic. Outputs of two builds can be compared when it is the same.
pub const NUMERICS_VERSION: u32 = 1;

/// Expected digests: `case stage digest`, one a line, `#` begins a comment.
pub const EXPECTED: &str = include_str!("../tests/golden/qsa.txt");

/// The stages that are compared, in order.
pub const STAGES: [&str; 4] = ["qsa_score", "qsa_topk", "qsa_attend", "qsa_merge"];

/// A deterministic source of numbers: splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A source that depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A source for a case of this name.
    fn of_name(name: &str) -> Self {
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// In [-1, 1), a multiple of 2^-23.
    pub fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
    }

    /// `n` values in [-scale, scale).
    pub fn floats(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }

    /// A permutation of `0..n`.
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        let mut p: Vec<u32> = (0..n).collect();
        for i in (1..p.len()).rev() {
            p.swap(i, self.below(i as u32 + 1) as usize);
        }
        p
    }
}

/// Blocks of random bits whose scales are small enough that products of rows are of order 1.
pub fn random_blocks(random: &mut Random, format: Format, blocks: usize) -> Vec<u8> {
    let size = format.block_bytes();
    let mut bytes: Vec<u8> =
        (0..(blocks * size).div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
    bytes.truncate(blocks * size);
    for block in bytes.chunks_exact_mut(size) {
        // Exponents of f16 scales: from subnormals to 2^-8 or so.
        let scale = |block: &mut [u8], at: usize| block[at] &= 0x9f;
        match format {
            // The scale's high half byte is that of the last word.
            Format::Iq1M => block[55] &= 0x9f,
            Format::Q6K => scale(block, 209),
            Format::Q4K | Format::Q5K | Format::Q5_1 => {
                scale(block, 1);
                scale(block, 3);
            }
            _ => scale(block, 1),
        }
    }
    bytes
}

/// A cache that owns its arrays.
#[derive(Debug, Clone)]
pub struct OwnedCache {
    /// Cells.
    pub cells: u32,
    /// Pooled indexer keys.
    pub pooled: Vec<f32>,
    /// The dead key.
    pub dead: Vec<f32>,
    /// Keys and values.
    pub kv: OwnedKv,
    /// Page table.
    pub page_table: Vec<u32>,
}

/// Keys and values that own their arrays; see [`KvCells`].
#[derive(Debug, Clone)]
pub enum OwnedKv {
    /// f16 bits: keys, values.
    F16(Vec<u16>, Vec<u16>),
    /// Key codes, key scales, value codes, value scales.
    Int8(Vec<i8>, Vec<u16>, Vec<i8>, Vec<u16>),
}

impl OwnedCache {
    /// Random contents: keys and values of order 1, pages permuted.
    pub fn random(random: &mut Random, shape: &QsaShape, format: KvFormat, cells: u32) -> Self {
        let pages = cells.div_ceil(shape.page_size);
        let values = (pages * shape.page_size * shape.kv_heads * shape.head_dim) as usize;
        let mut halves = |n: usize, scale: f32| -> Vec<u16> {
            (0..n).map(|_| f32_to_f16(random.unit() * scale)).collect()
        };
        let kv = match format {
            KvFormat::F16 => OwnedKv::F16(halves(values, 2.0), halves(values, 2.0)),
            KvFormat::Int8 => {
                let groups = values / KV_GROUP as usize;
                let (ks, vs) = (halves(groups, 0.02), halves(groups, 0.02));
                let mut codes = || (0..values).map(|_| (random.below(255) as i32 - 127) as i8).collect();
                OwnedKv::Int8(codes(), ks, codes(), vs)
            }
        };
        let dim = shape.index_dim as usize;
        OwnedCache {
            cells,
            pooled: random.floats((cells / 4) as usize * dim, 1.0),
            dead: random.floats(dim, 1.0),
            kv,
            page_table: random.permutation(pages),
        }
    }

    /// As an argument of [`QsaLayer::import`].
    pub fn view(&self) -> QsaCache<'_> {
        QsaCache {
            cells: self.cells,
            pooled: &self.pooled,
            dead: &self.dead,
            kv: match &self.kv {
                OwnedKv::F16(k, v) => KvCells::F16 { k, v },
                OwnedKv::Int8(k, k_scale, v, v_scale) => KvCells::Int8 { k, k_scale, v, v_scale },
            },
            page_table: &self.page_table,
        }
    }
}

/// A window that owns its arrays.
#[derive(Debug, Clone)]
pub struct OwnedWindow {
    /// Positions.
    pub positions: Vec<u32>,
    /// Queries.
    pub query: Vec<f32>,
    /// Indexer queries.
    pub index_query: Vec<f32>,
    /// Gate logits.
    pub gate: Option<Vec<f32>>,
}

impl OwnedWindow {
    /// Random queries of order 1, gate logits of order 4.
    pub fn random(random: &mut Random, shape: &QsaShape, positions: &[u32], gated: bool) -> Self {
        let heads = positions.len() * (shape.q_heads * shape.head_dim) as usize;
        let index = positions.len() * (shape.index_heads * shape.index_dim) as usize;
        OwnedWindow {
            positions: positions.to_vec(),
            query: random.floats(heads, 2.0),
            index_query: random.floats(index, 1.0),
            gate: gated.then(|| random.floats(heads, 4.0)),
        }
    }

    /// As an argument of [`QsaLayer::decode`].
    pub fn view(&self) -> Window<'_> {
        Window {
            positions: &self.positions,
            query: &self.query,
            index_query: &self.index_query,
            gate: self.gate.as_deref(),
        }
    }
}

/// One case of the suite.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique, without blanks.
    pub name: &'static str,
    /// Sizes.
    pub shape: QsaShape,
    /// KV format.
    pub format: KvFormat,
    /// Cells in the cache.
    pub cells: u32,
    /// Positions of the rows.
    pub positions: Vec<u32>,
    /// Whether the output is gated.
    pub gated: bool,
    /// Whether all indexer keys are alike, so that every score is a tie.
    pub ties: bool,
}

impl Case {
    /// The case's cache and window.
    pub fn build(&self) -> (OwnedCache, OwnedWindow) {
        let mut random = Random::of_name(self.name);
        let mut cache = OwnedCache::random(&mut random, &self.shape, self.format, self.cells);
        if self.ties {
            let dim = self.shape.index_dim as usize;
            let first = cache.dead.clone();
            cache.pooled.chunks_exact_mut(dim).for_each(|key| key.copy_from_slice(&first));
        }
        let window = OwnedWindow::random(&mut random, &self.shape, &self.positions, self.gated);
        (cache, window)
    }
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let full = QsaShape::QWEN38_FLASH_NEXT;
    let small =
        QsaShape { q_heads: 4, kv_heads: 2, head_dim: 128, index_heads: 2, budget: 64, page_size: 4, ..full };
    let odd = QsaShape { q_heads: 26, kv_heads: 2, index_heads: 3, budget: 100, page_size: 1, ..full };
    let case = |name, shape, format, cells, positions: &[u32], gated, ties| Case {
        name,
        shape,
        format,
        cells,
        positions: positions.to_vec(),
        gated,
        ties,
    };
    use KvFormat::{F16, Int8};
    vec![
        case("first_cell", full, F16, 1, &[0], false, false),
        case("short_window", full, Int8, 66, &[62, 63, 64, 65], true, false),
        case("identity_edge", full, F16, 2056, &[2049, 2050, 2051, 2052, 2055], false, false),
        case("ties", full, Int8, 2052, &[2051], false, true),
        case(
            "window_of_eight",
            full,
            Int8,
            8192,
            &[8184, 8185, 8186, 8187, 8188, 8189, 8190, 8191],
            true,
            false,
        ),
        case("long_f16", full, F16, 40_003, &[40_002, 39_999, 20_000], false, false),
        case("small_heads", small, F16, 1023, &[1020, 1021, 1022], true, false),
        case("small_heads_int8", small, Int8, 70_001, &[70_000, 66_000], false, false),
        case("thirteen_heads_a_group", odd, Int8, 4099, &[4098, 17], false, false),
        case("many_rows", small, Int8, 300, &(260..300).collect::<Vec<_>>(), false, false),
    ]
}

/// The digests of a traced window: scores, ids, partials and attention, as little-endian bytes, rows in order.
pub fn digests(trace: &Trace) -> [String; 4] {
    let floats = |rows: &mut dyn Iterator<Item = &[f32]>| {
        let mut hash = Sha256::new();
        for row in rows {
            for x in row {
                hash.update(x.to_bits().to_le_bytes());
            }
        }
        hex(&hash.finalize())
    };
    let mut ids = Sha256::new();
    for id in trace.ids.iter().flatten() {
        ids.update(id.to_le_bytes());
    }
    [
        floats(&mut trace.scores.iter().map(Vec::as_slice)),
        hex(&ids.finalize()),
        floats(&mut trace.partials.iter().map(Vec::as_slice)),
        floats(&mut std::iter::once(trace.attention.as_slice())),
    ]
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The expected digest of each case and stage, the experts' among them.
///
/// # Panics
/// When the embedded file is damaged.
pub fn expected() -> BTreeMap<(&'static str, &'static str), &'static str> {
    (EXPECTED.lines().chain(experts::EXPECTED.lines()))
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(case), Some(stage), Some(digest)) => ((case, stage), digest),
                _ => panic!("golden digests: bad line {line:?}"),
            }
        })
        .collect()
}

/// What running the suite gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Digests compared.
    pub cases: u32,
    /// Digests that were not as expected.
    pub differ: u32,
    /// Of each stage the same two numbers.
    pub stages: BTreeMap<&'static str, (u32, u32)>,
    /// `case stage` of each that differs.
    pub failures: Vec<String>,
}

impl Report {
    /// Compares the digests of a case's stages with those that are expected.
    fn compare<const N: usize>(&mut self, case: &str, stages: [&'static str; N], digests: [String; N]) {
        let expected = expected();
        for (stage, digest) in stages.into_iter().zip(digests) {
            let differs = expected.get(&(case, stage)) != Some(&digest.as_str());
            let counts = self.stages.entry(stage).or_default();
            counts.0 += 1;
            self.cases += 1;
            if differs {
                counts.1 += 1;
                self.differ += 1;
                self.failures.push(format!("{case} {stage}"));
            }
        }
    }
}

/// Runs the suite on a backend.
///
/// # Errors
/// What the backend reports.
pub fn verify(backend: &Backend) -> Result<Report> {
    let mut report = Report::default();
    for case in cases() {
        let (cache, window) = case.build();
        let trace = QsaLayer::import(backend, case.shape, &cache.view())?.decode_traced(&window.view())?;
        report.compare(case.name, STAGES, digests(&trace));
    }
    Ok(report)
}
