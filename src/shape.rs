//! Sizes of the problem and their checks. No GPU type.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result, check};
use crate::quant::Format;

/// Lanes over which every inner product is spread; part of the definition of the sums.
pub const LANES: usize = 32;
/// Cells in a block of the indexer.
pub const BLOCK_CELLS: u32 = 4;
/// Cells in a chunk of attention.
pub const CHUNK_CELLS: u32 = 64;
/// Values that share one scale in an int8 cache.
pub const KV_GROUP: u32 = 64;
/// The longest context, in cells.
pub const MAX_CELLS: u32 = 1 << 20;
/// The number of indexer heads that a kernel works on; missing ones count as zero queries.
pub const INDEX_HEADS: usize = 4;

/// Sizes of a QSA layer.
///
/// Query head `h` reads KV head `h / (q_heads / kv_heads)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QsaShape {
    /// Query heads, a multiple of `kv_heads`.
    pub q_heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Values in a head: 128 or 256.
    pub head_dim: u32,
    /// Indexer heads: 1 to 4.
    pub index_heads: u32,
    /// Values in an indexer head: 128.
    pub index_dim: u32,
    /// Cells that a row attends to, before the tail block: 1 to 65,532.
    pub budget: u32,
    /// Cells in a page of the KV cache: at least 1.
    pub page_size: u32,
}

impl QsaShape {
    /// Qwen3.8-Flash-Next, with pages of 64 cells.
    pub const QWEN38_FLASH_NEXT: QsaShape = QsaShape {
        q_heads: 24,
        kv_heads: 2,
        head_dim: 256,
        index_heads: 4,
        index_dim: 128,
        budget: 2048,
        page_size: 64,
    };

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that does not fit.
    pub fn check(&self) -> Result<()> {
        check((1..=16).contains(&self.kv_heads), "shape.kv_heads", "1 to 16", self.kv_heads)?;
        check(
            self.q_heads > 0 && self.q_heads <= 256 && self.q_heads.is_multiple_of(self.kv_heads),
            "shape.q_heads",
            format!("a multiple of kv_heads ({}) up to 256", self.kv_heads),
            self.q_heads,
        )?;
        check(matches!(self.head_dim, 128 | 256), "shape.head_dim", "128 or 256", self.head_dim)?;
        check(
            (1..=INDEX_HEADS as u32).contains(&self.index_heads),
            "shape.index_heads",
            "1 to 4",
            self.index_heads,
        )?;
        check(self.index_dim == 128, "shape.index_dim", 128, self.index_dim)?;
        check((1..=65_532).contains(&self.budget), "shape.budget", "1 to 65532", self.budget)?;
        check(
            (1..=MAX_CELLS).contains(&self.page_size),
            "shape.page_size",
            format!("1 to {MAX_CELLS}"),
            self.page_size,
        )
    }

    /// Query heads that share a KV head.
    pub fn group(&self) -> u32 {
        self.q_heads / self.kv_heads
    }

    /// The most cells that a row can select.
    pub fn max_width(&self) -> u32 {
        self.budget + BLOCK_CELLS - 1
    }

    /// The most chunks that a row's attention has.
    pub fn max_chunks(&self) -> u32 {
        self.max_width().div_ceil(CHUNK_CELLS)
    }

    /// Floats of one head in a partial: the accumulators, the maximum, the sum.
    pub fn partial_head(&self) -> u32 {
        self.head_dim + 2
    }

    /// Floats of one chunk in a partial.
    pub fn partial_chunk(&self) -> u32 {
        self.partial_head() * self.q_heads
    }

    /// Factor on the attention scores: 1/sqrt(head_dim), rounded once.
    pub fn scale(&self) -> f32 {
        (1.0 / f64::from(self.head_dim).sqrt()) as f32
    }

    /// The step record of the row at `pos`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `pos` is not below [`MAX_CELLS`].
    pub fn step(&self, pos: u32) -> Result<Step> {
        if pos >= MAX_CELLS {
            return Err(Error::invalid("pos", format!("below {MAX_CELLS}"), pos));
        }
        let n_kv = pos + 1;
        Ok(Step { pos, n_kv, n_bid: n_kv / BLOCK_CELLS, width: n_kv.min(self.max_width()) })
    }
}

/// What the kernels know about one row. Lives in device memory; 16 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable, Default)]
pub struct Step {
    /// Position of the row's token.
    pub pos: u32,
    /// Cells that the row may see: `pos + 1`.
    pub n_kv: u32,
    /// Completed blocks: `n_kv / 4`.
    pub n_bid: u32,
    /// Cells that it selects: `min(n_kv, budget + 3)`.
    pub width: u32,
}

impl Step {
    /// Cells of block `n_bid`, the one under construction: 0 to 3.
    pub fn tail(&self) -> u32 {
        self.n_kv % BLOCK_CELLS
    }

    /// Chunks of attention: `ceil(width / 64)`.
    pub fn chunks(&self) -> u32 {
        self.width.div_ceil(CHUNK_CELLS)
    }
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// binary16.
    F16,
    /// 8-bit codes, one f16 scale for 64 values.
    Int8,
}

impl KvFormat {
    /// Short name: `f16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F16 => "f16",
            KvFormat::Int8 => "int8",
        }
    }
}

/// Keys and values of a layer, borrowed. Slot-major: `[slot][kv_head][head_dim]`, where a slot is a physical cell,
/// `page_table[cell / page_size] * page_size + cell % page_size`. Scales: `[slot][kv_head][head_dim / 64]` as f16 bits.
#[derive(Debug, Clone, Copy)]
pub enum KvCells<'a> {
    /// f16 bits.
    F16 {
        /// Keys.
        k: &'a [u16],
        /// Values.
        v: &'a [u16],
    },
    /// Codes and scales.
    Int8 {
        /// Key codes.
        k: &'a [i8],
        /// Key scales, f16 bits.
        k_scale: &'a [u16],
        /// Value codes.
        v: &'a [i8],
        /// Value scales, f16 bits.
        v_scale: &'a [u16],
    },
}

impl KvCells<'_> {
    /// The format.
    pub fn format(&self) -> KvFormat {
        match self {
            KvCells::F16 { .. } => KvFormat::F16,
            KvCells::Int8 { .. } => KvFormat::Int8,
        }
    }
}

/// A cache to import, borrowed, all arrays row-major.
#[derive(Debug, Clone, Copy)]
pub struct QsaCache<'a> {
    /// Cells in the cache: 1 to [`MAX_CELLS`]. Rows may stand at positions below it.
    pub cells: u32,
    /// Pooled indexer keys `[cells / 4][index_dim]`.
    pub pooled: &'a [f32],
    /// The key that stands in for the incomplete block `[index_dim]`.
    pub dead: &'a [f32],
    /// Keys and values.
    pub kv: KvCells<'a>,
    /// Physical page of each page of cells, at least `ceil(cells / page_size)` entries.
    pub page_table: &'a [u32],
}

impl QsaCache<'_> {
    /// Physical cells that the KV arrays hold.
    pub fn slots(&self, shape: &QsaShape) -> usize {
        let cell = (shape.kv_heads * shape.head_dim) as usize;
        match self.kv {
            KvCells::F16 { k, .. } => k.len() / cell,
            KvCells::Int8 { k, .. } => k.len() / cell,
        }
    }

    /// Checks the lengths of all arrays and every page table entry in use.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field, what was expected and what came.
    pub fn check(&self, shape: &QsaShape) -> Result<()> {
        shape.check()?;
        check((1..=MAX_CELLS).contains(&self.cells), "cache.cells", format!("1 to {MAX_CELLS}"), self.cells)?;
        let len = |what: &str, expected: usize, got: usize| {
            check(got == expected, what, format!("{expected} values"), format!("{got} values"))
        };
        let dim = shape.index_dim as usize;
        len("cache.pooled", (self.cells / BLOCK_CELLS) as usize * dim, self.pooled.len())?;
        len("cache.dead", dim, self.dead.len())?;
        let cell = (shape.kv_heads * shape.head_dim) as usize;
        let slots = self.slots(shape);
        match self.kv {
            KvCells::F16 { k, v } => {
                len("cache.kv.k", slots * cell, k.len())?;
                len("cache.kv.v", slots * cell, v.len())?;
            }
            KvCells::Int8 { k, k_scale, v, v_scale } => {
                let scales = cell / KV_GROUP as usize;
                len("cache.kv.k", slots * cell, k.len())?;
                len("cache.kv.v", slots * cell, v.len())?;
                len("cache.kv.k_scale", slots * scales, k_scale.len())?;
                len("cache.kv.v_scale", slots * scales, v_scale.len())?;
            }
        }
        let page = shape.page_size as usize;
        check(
            slots > 0 && slots.is_multiple_of(page),
            "cache.kv",
            format!("a whole number of pages of {page} cells, at least one"),
            format!("{slots} cells"),
        )?;
        check(
            slots < (1 << 31) / shape.kv_heads as usize / 4,
            "cache.kv",
            "fewer than 2^31 group scales",
            format!("{slots} cells"),
        )?;
        let pages = (self.cells as usize).div_ceil(page);
        check(
            self.page_table.len() >= pages,
            "cache.page_table",
            format!("at least {pages} entries"),
            format!("{} entries", self.page_table.len()),
        )?;
        for (i, &entry) in self.page_table[..pages].iter().enumerate() {
            if entry as usize >= slots / page {
                return Err(Error::invalid(
                    format!("cache.page_table[{i}]"),
                    format!("below {}", slots / page),
                    entry,
                ));
            }
        }
        Ok(())
    }
}

/// A window of rows to decode, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// Position of each row; T = the length, at least 1.
    pub positions: &'a [u32],
    /// Queries `[T][q_heads][head_dim]`.
    pub query: &'a [f32],
    /// Indexer queries `[T][index_heads][index_dim]`.
    pub index_query: &'a [f32],
    /// Gate logits `[T][q_heads][head_dim]`: the output is multiplied by their sigmoid.
    pub gate: Option<&'a [f32]>,
}

impl Window<'_> {
    /// Checks the arrays against the shape and the positions against the cache; gives the step records.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field, what was expected and what came.
    pub fn steps(&self, shape: &QsaShape, cells: u32) -> Result<Vec<Step>> {
        let rows = self.positions.len();
        check(rows > 0, "window.positions", "at least 1 row (T >= 1)", "T = 0")?;
        let len = |what: &str, expected: usize, got: usize| {
            check(got == expected, what, format!("{expected} values"), format!("{got} values"))
        };
        let heads = (shape.q_heads * shape.head_dim) as usize;
        len("window.query", rows * heads, self.query.len())?;
        len(
            "window.index_query",
            rows * (shape.index_heads * shape.index_dim) as usize,
            self.index_query.len(),
        )?;
        if let Some(gate) = self.gate {
            len("window.gate", rows * heads, gate.len())?;
        }
        self.positions
            .iter()
            .enumerate()
            .map(|(i, &pos)| {
                check(
                    pos < cells,
                    &format!("window.positions[{i}]"),
                    format!("below the cache's {cells} cells"),
                    pos,
                )?;
                shape.step(pos)
            })
            .collect()
    }
}

/// The most experts that a layer has.
pub const MAX_EXPERTS: u32 = 4096;
/// The longest row of an expert's matrices, in values.
pub const MAX_COLUMNS: u32 = 32_768;
/// The most (token, expert) entries of a window.
pub const MAX_ENTRIES: usize = 1 << 20;

/// Sizes and formats of a layer's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertShape {
    /// Values of a token: columns of gate and up, rows of down. A multiple of 32 and of the blocks of `gate` and `up`.
    pub n_embd: u32,
    /// Rows of gate and up, columns of down. A multiple of 32 and of the block of `down`.
    pub n_ff: u32,
    /// Experts: 1 to [`MAX_EXPERTS`].
    pub experts: u32,
    /// Format of the gate matrices.
    pub gate: Format,
    /// Format of the up matrices.
    pub up: Format,
    /// Format of the down matrices.
    pub down: Format,
}

impl ExpertShape {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that does not fit.
    pub fn check(&self) -> Result<()> {
        let columns = |what: &str, n: u32, formats: &[Format]| {
            check((1..=MAX_COLUMNS).contains(&n), what, format!("1 to {MAX_COLUMNS}"), n)?;
            check(n.is_multiple_of(32), what, "a multiple of 32", n)?;
            formats.iter().try_for_each(|f| {
                let block = f.block_values() as u32;
                check(
                    n.is_multiple_of(block),
                    what,
                    format!("a multiple of {block}, the block of {}", f.name()),
                    n,
                )
            })
        };
        columns("shape.n_embd", self.n_embd, &[self.gate, self.up])?;
        columns("shape.n_ff", self.n_ff, &[self.down])?;
        check(
            (1..=MAX_EXPERTS).contains(&self.experts),
            "shape.experts",
            format!("1 to {MAX_EXPERTS}"),
            self.experts,
        )
    }

    /// Bytes of one expert's matrix of `rows` rows of `columns` values.
    fn matrix(format: Format, rows: u32, columns: u32) -> u64 {
        u64::from(rows) * (columns as usize / format.block_values() * format.block_bytes()) as u64
    }

    /// Bytes of one expert's gate matrix.
    pub fn gate_bytes(&self) -> u64 {
        Self::matrix(self.gate, self.n_ff, self.n_embd)
    }

    /// Bytes of one expert's up matrix.
    pub fn up_bytes(&self) -> u64 {
        Self::matrix(self.up, self.n_ff, self.n_embd)
    }

    /// Bytes of one expert's down matrix.
    pub fn down_bytes(&self) -> u64 {
        Self::matrix(self.down, self.n_embd, self.n_ff)
    }
}

/// Which experts the tokens of a window go to, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Routing<'a> {
    /// Experts of a token.
    pub used: u32,
    /// Experts `[T][used]`, in the router's order.
    pub experts: &'a [u32],
    /// Weights of their outputs `[T][used]`.
    pub weights: &'a [f32],
}

impl Routing<'_> {
    /// Checks the arrays and every expert against a window of `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field, what was expected and what came.
    pub fn check(&self, shape: &ExpertShape, tokens: usize) -> Result<()> {
        check(tokens > 0, "tokens", "at least 1", tokens)?;
        check(self.used > 0, "routing.used", "at least 1", self.used)?;
        let entries = tokens.saturating_mul(self.used as usize);
        check(entries <= MAX_ENTRIES, "routing", format!("at most {MAX_ENTRIES} entries"), entries)?;
        let len = |what: &str, got: usize| {
            check(got == entries, what, format!("{entries} values"), format!("{got} values"))
        };
        len("routing.experts", self.experts.len())?;
        len("routing.weights", self.weights.len())?;
        for (i, &expert) in self.experts.iter().enumerate() {
            if expert >= shape.experts {
                let what = format!("routing.experts[{i}]");
                return Err(Error::invalid(what, format!("below {}", shape.experts), expert));
            }
        }
        Ok(())
    }
}
