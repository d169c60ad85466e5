//! The whole decode step: score, top-k, (gather,) attend, merge, encoded into one compute pass.

use wgpu::{BufferBinding, BufferUsages};

use super::qsa_attend::{QsaAttendBound, cell_bytes};
use super::qsa_gather::{KvPiece, QsaGather, QsaGatherBound};
use super::qsa_merge::{OutputFormat, QsaMergeBound};
use super::qsa_score::QsaScoreBound;
use super::qsa_topk::QsaTopkBound;
use super::{
    KvBuffers, QsaAttend, QsaKeys, QsaMerge, QsaScore, QsaTopk, ROW_TILE, check_binding, check_limit, whole,
};
use crate::error::{Result, check};
use crate::gpu::Context;
use crate::shape::{KvFormat, QsaShape};

/// The stages of a step, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Block scores.
    Score,
    /// Cells of the best blocks.
    Topk,
    /// Chunked attention, with the gathering of cells where the cache is split.
    Attend,
    /// Merge of the chunks, and the output gate.
    Merge,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 4] = [Stage::Score, Stage::Topk, Stage::Attend, Stage::Merge];

    /// The stage's stem: `qsa_score` and so on.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Score => "qsa_score",
            Stage::Topk => "qsa_topk",
            Stage::Attend => "qsa_attend",
            Stage::Merge => "qsa_merge",
        }
    }
}

/// Keys and values as pieces of consecutive slots. One piece each unless the arrays outgrow a binding.
#[derive(Debug, Clone)]
pub struct KvPieces<'a> {
    /// How they are kept.
    pub format: KvFormat,
    /// Keys.
    pub k: Vec<KvPiece<'a>>,
    /// Key scales; empty for f16.
    pub k_scale: Vec<KvPiece<'a>>,
    /// Values.
    pub v: Vec<KvPiece<'a>>,
    /// Value scales; empty for f16.
    pub v_scale: Vec<KvPiece<'a>>,
}

/// Intermediate results of up to [`ROW_TILE`] rows, reused from step to step.
#[derive(Debug)]
pub struct QsaScratch {
    rows: u32,
    blocks: u32,
    /// f32 `[rows][QsaScore::stride(blocks)]`.
    pub scores: wgpu::Buffer,
    /// u32 `[rows][QsaTopk::id_stride(shape)]`.
    pub ids: wgpu::Buffer,
    /// f32 `[rows][shape.max_chunks()][q_heads][head_dim + 2]`.
    pub partials: wgpu::Buffer,
    survivors: [wgpu::Buffer; 2],
}

impl QsaScratch {
    /// Scratch for `rows` rows over a cache of `blocks` completed blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Limit`](crate::Error::Limit) when a buffer would outgrow a
    /// binding, [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(ctx: &Context, shape: &QsaShape, rows: u32, blocks: u32) -> Result<Self> {
        shape.check()?;
        check((1..=ROW_TILE).contains(&rows), "rows", format!("1 to {ROW_TILE}"), rows)?;
        super::check_blocks(blocks)?;
        let buffer = |what: &str, row_bytes: u64| {
            let bytes = row_bytes * u64::from(rows);
            check_limit(ctx, what, bytes)?;
            ctx.zeros(what, bytes)
        };
        let survivors = QsaTopk::scratch_bytes(shape, blocks);
        Ok(QsaScratch {
            rows,
            blocks,
            scores: buffer("scores", u64::from(QsaScore::stride(blocks)) * 4)?,
            ids: buffer("ids", u64::from(QsaTopk::id_stride(shape)) * 4)?,
            partials: buffer(
                "partials",
                u64::from(shape.max_chunks()) * u64::from(shape.partial_chunk()) * 4,
            )?,
            survivors: [buffer("survivors", survivors)?, buffer("survivors", survivors)?],
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let [a, b] = &self.survivors;
        [&self.scores, &self.ids, &self.partials, a, b].iter().map(|b| b.size()).sum()
    }
}

/// What a step reads and writes.
#[derive(Debug)]
pub struct DecodeBuffers<'a> {
    /// [`STEPS_BYTES`](super::STEPS_BYTES) of step records, usage `UNIFORM`; written by the host or by another kernel.
    pub steps: BufferBinding<'a>,
    /// The indexer keys.
    pub keys: &'a QsaKeys,
    /// Keys and values.
    pub kv: KvPieces<'a>,
    /// u32, the physical page of each page of cells.
    pub page_table: BufferBinding<'a>,
    /// Indexer queries, f32 `[rows][index_heads][index_dim]`.
    pub index_query: BufferBinding<'a>,
    /// Queries, f32 `[rows][q_heads][head_dim]`.
    pub query: BufferBinding<'a>,
    /// Gate logits, f32 `[rows][q_heads][head_dim]`.
    pub gate: Option<BufferBinding<'a>>,
    /// The attention, `[rows][q_heads][head_dim]` of `format`.
    pub out: BufferBinding<'a>,
    /// What `out` holds.
    pub format: OutputFormat,
}

/// The four stages, compiled for one shape and KV format.
#[derive(Debug, Clone)]
pub struct QsaDecode {
    ctx: Context,
    shape: QsaShape,
    score: QsaScore,
    topk: QsaTopk,
    gather: QsaGather,
    attend: QsaAttend,
    merge: QsaMerge,
}

/// [`QsaDecode`] bound to its buffers.
#[derive(Debug)]
pub struct QsaDecodeBound {
    rows: u32,
    score: QsaScoreBound,
    topk: QsaTopkBound,
    gathers: Vec<QsaGatherBound>,
    attend: QsaAttendBound,
    merge: QsaMergeBound,
}

impl QsaDecode {
    /// Compiles the stages.
    ///
    /// # Errors
    /// As [`QsaShape::check`]; what the device reports.
    pub fn new(ctx: &Context, shape: &QsaShape, format: KvFormat) -> Result<Self> {
        Ok(QsaDecode {
            ctx: ctx.clone(),
            shape: *shape,
            score: QsaScore::new(ctx, shape)?,
            topk: QsaTopk::new(ctx, shape)?,
            gather: QsaGather::new(ctx, shape)?,
            attend: QsaAttend::new(ctx, shape, format)?,
            merge: QsaMerge::new(ctx, shape)?,
        })
    }

    /// Binds a step's buffers and scratch. The result may be encoded any number of times.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) naming the buffer that is too small or of the wrong usage.
    pub fn bind(&self, buffers: &DecodeBuffers<'_>, scratch: &QsaScratch) -> Result<QsaDecodeBound> {
        let b = buffers;
        let blocks = b.keys.blocks();
        check(scratch.blocks == blocks, "scratch.blocks", blocks, scratch.blocks)?;
        // What an array lacks would be read from memory that holds something else.
        let slots = |pieces: &[KvPiece<'_>]| pieces.iter().map(|p| u64::from(p.slots)).sum::<u64>();
        let arrays = [
            ("kv.k", &b.kv.k),
            ("kv.v", &b.kv.v),
            ("kv.k_scale", &b.kv.k_scale),
            ("kv.v_scale", &b.kv.v_scale),
        ];
        let used = if b.kv.format == KvFormat::Int8 { 4 } else { 2 };
        for (what, pieces) in &arrays[..used] {
            check(!pieces.is_empty(), what, "at least one piece", "none")?;
            let (expected, got) = (slots(&b.kv.k), slots(pieces));
            check(got == expected, what, format!("{expected} cells, as in kv.k"), format!("{got} cells"))?;
        }
        // The stages know one row; here it is known how many there can be.
        let rows = |what: &str, b: &BufferBinding<'_>, row_bytes: u32| {
            check_binding(what, b, u64::from(scratch.rows) * u64::from(row_bytes), Self::USAGE)
        };
        let values = self.shape.q_heads * self.shape.head_dim;
        rows("index_query", &b.index_query, self.shape.index_heads * self.shape.index_dim * 4)?;
        rows("query", &b.query, values * 4)?;
        if let Some(gate) = &b.gate {
            rows("gate", gate, values * 4)?;
        }
        let out_bytes = match b.format {
            OutputFormat::F32 => 4,
            OutputFormat::F16 => 2,
        };
        rows("out", &b.out, values * out_bytes)?;
        let scores = whole(&scratch.scores);
        let ids = whole(&scratch.ids);
        let partials = whole(&scratch.partials);
        let survivors = [&whole(&scratch.survivors[0]), &whole(&scratch.survivors[1])];

        let mut gathers = Vec::new();
        let mut gathered = Vec::new();
        let one_each = [&b.kv.k, &b.kv.k_scale, &b.kv.v, &b.kv.v_scale].iter().all(|p| p.len() <= 1);
        let (values, scales) = cell_bytes(&self.shape, b.kv.format);
        let id_stride = QsaTopk::id_stride(&self.shape);
        if !one_each {
            let arrays =
                [(&b.kv.k, values), (&b.kv.k_scale, scales), (&b.kv.v, values), (&b.kv.v_scale, scales)];
            for (pieces, bytes) in arrays {
                let out = u64::from(scratch.rows) * u64::from(id_stride) * u64::from(bytes);
                check_limit(&self.ctx, "gathered cells", out)?;
                let out = self.ctx.zeros("gathered cells", out)?;
                if bytes > 0 {
                    let stage = &self.gather;
                    gathers.push(stage.bind(
                        &b.steps,
                        &ids,
                        &b.page_table,
                        pieces,
                        bytes / 4,
                        &whole(&out),
                    )?);
                }
                gathered.push(out);
            }
        }
        // f16 has no scales; any storage buffer does for the bindings that the shader does not read.
        let first = |i: usize, pieces: &'_ Vec<KvPiece<'_>>| match (gathered.get(i), pieces.first()) {
            (Some(buffer), _) => buffer.clone(),
            (None, Some(piece)) => piece.buffer.buffer.clone(),
            (None, None) => scratch.survivors[0].clone(),
        };
        let arrays = [&b.kv.k, &b.kv.k_scale, &b.kv.v, &b.kv.v_scale];
        let kept: Vec<wgpu::Buffer> = arrays.iter().enumerate().map(|(i, p)| first(i, p)).collect();
        let binding = |i: usize| match arrays[i].first() {
            Some(piece) if one_each => piece.buffer.clone(),
            _ => whole(&kept[i]),
        };
        let slots = if one_each { b.kv.k[0].slots } else { scratch.rows * id_stride };
        let kv = KvBuffers {
            format: b.kv.format,
            slots,
            k: binding(0),
            k_scale: binding(1),
            v: binding(2),
            v_scale: binding(3),
        };
        Ok(QsaDecodeBound {
            rows: scratch.rows,
            score: self.score.bind(&b.steps, b.keys, &b.index_query, &scores)?,
            topk: self.topk.bind(&b.steps, blocks, &scores, &ids, survivors)?,
            attend: self.attend.bind(&b.steps, &ids, &b.page_table, &b.query, &kv, !one_each, &partials)?,
            merge: self.merge.bind(&b.steps, &partials, b.gate.as_ref(), &b.out, b.format)?,
            gathers,
        })
    }

    /// Usages that a buffer in [`DecodeBuffers`] must have: `UNIFORM` for the steps, this for all others.
    pub const USAGE: BufferUsages = BufferUsages::STORAGE;
}

impl QsaDecodeBound {
    /// Encodes the step of `rows` rows, none of which sees more than `max_cells` cells; positions and widths come from
    /// the step records on the device.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `rows` is 0 or above the scratch's, or `max_cells` above the
    /// cache's capacity.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32, max_cells: u32) -> Result<()> {
        Stage::ALL.iter().try_for_each(|&stage| self.encode_stage(pass, stage, rows, max_cells))
    }

    /// Encodes one stage of the step; the others' results must be in the scratch.
    ///
    /// # Errors
    /// As [`QsaDecodeBound::encode`].
    pub fn encode_stage(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        stage: Stage,
        rows: u32,
        max_cells: u32,
    ) -> Result<()> {
        check((1..=self.rows).contains(&rows), "rows", format!("1 to {}", self.rows), rows)?;
        match stage {
            Stage::Score => self.score.encode(pass, rows, max_cells),
            Stage::Topk => self.topk.encode(pass, rows, max_cells),
            Stage::Attend => {
                self.gathers.iter().try_for_each(|g| g.encode(pass, rows))?;
                self.attend.encode(pass, rows, max_cells)
            }
            Stage::Merge => self.merge.encode(pass, rows),
        }
    }
}
