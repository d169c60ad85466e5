//! Block scores on an adapter: `wgsl/qsa_score.wgsl` with one of `wgsl/score/*.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::BufferUsages;

use super::{Dispatch, STEPS_BYTES, check_binding, check_extent};
use crate::error::{Result, check};
use crate::gpu::{Binding, Context, FusedMultiplyAdd, Kernel, Pipeline};
use crate::shape::{BLOCK_CELLS, LANES, QsaShape};

/// Columns that one workgroup scores.
const COLUMNS: u32 = 128;
/// Bytes of a column: 32 lanes of 4 floats.
const COLUMN_BYTES: u64 = 512;

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ScoreParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// First block of the piece.
    pub first: u32,
    /// 1: column 0 is the dead key's.
    pub dead: u32,
    /// Columns that hold a key.
    pub columns: u32,
    /// Columns in memory.
    pub stride: u32,
    /// Floats between rows of the scores.
    pub score_stride: u32,
    /// Indexer heads.
    pub heads: u32,
    /// 2: halves of the tree over the lanes.
    pub halves: u32,
}

/// Pooled indexer keys on the device, in the crate's layout: `[32 lanes][stride]` of four dims, one column a block, in
/// as many pieces as the device's largest binding demands. The first piece begins with the dead key's column.
#[derive(Debug)]
pub struct QsaKeys {
    pieces: Vec<Piece>,
    blocks: u32,
}

#[derive(Debug)]
struct Piece {
    buffer: wgpu::Buffer,
    first: u32,
    columns: u32,
    stride: u32,
}

impl QsaKeys {
    /// Uploads row-major keys: `pooled` is `[blocks][index_dim]`, `dead` is `[index_dim]`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a length does not fit, [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn import(ctx: &Context, shape: &QsaShape, pooled: &[f32], dead: &[f32]) -> Result<Self> {
        shape.check()?;
        let dim = shape.index_dim as usize;
        check(
            pooled.len().is_multiple_of(dim),
            "pooled",
            format!("a multiple of {dim} values"),
            format!("{} values", pooled.len()),
        )?;
        check(dead.len() == dim, "dead", format!("{dim} values"), format!("{} values", dead.len()))?;
        let blocks = u32::try_from(pooled.len() / dim).unwrap_or(u32::MAX);
        super::check_blocks(blocks)?;
        // A stride that is a multiple of 8 columns keeps every lane's row on a cache line.
        let room = (ctx.max_binding() / COLUMN_BYTES / 8 * 8) as u32;
        check(room >= 8, "max_binding", "at least 4096 bytes", ctx.max_binding())?;
        let lane = dim / LANES;
        let mut pieces = Vec::new();
        // Column 0 is the dead key's, column b + 1 is block b's.
        let all = blocks + 1;
        for begin in (0..all).step_by(room as usize) {
            let columns = room.min(all - begin);
            let stride = columns.next_multiple_of(8);
            let mut words = vec![0f32; LANES * stride as usize * lane];
            for t in 0..LANES {
                let row = &mut words[t * stride as usize * lane..][..columns as usize * lane];
                for (i, cell) in row.chunks_exact_mut(lane).enumerate() {
                    let column = begin as usize + i;
                    let key = if column == 0 { dead } else { &pooled[(column - 1) * dim..] };
                    cell.copy_from_slice(&key[t * lane..][..lane]);
                }
            }
            let buffer = ctx.storage("indexer keys", &words)?;
            pieces.push(Piece { buffer, first: begin.saturating_sub(1), columns, stride });
        }
        Ok(QsaKeys { pieces, blocks })
    }

    /// Blocks held, the dead key not counted.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Buffers that the keys are spread over.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|p| p.buffer.size()).sum()
    }
}

/// The stage: block scores.
#[derive(Debug, Clone)]
pub struct QsaScore {
    ctx: Context,
    shape: QsaShape,
    pipelines: Vec<(u32, Arc<Pipeline>)>,
}

/// [`QsaScore`] bound to its buffers.
#[derive(Debug)]
pub struct QsaScoreBound {
    pieces: Vec<Bound>,
    blocks: u32,
}

/// One piece of the keys, bound once for each number of rows that a workgroup can take.
#[derive(Debug)]
struct Bound {
    dispatches: Vec<(u32, Dispatch)>,
    first: u32,
    columns: u32,
}

impl QsaScore {
    /// Floats between rows of a score buffer for `blocks` blocks: room for the incomplete one, a multiple of 4.
    pub fn stride(blocks: u32) -> u32 {
        (blocks + 1).next_multiple_of(4)
    }

    /// Compiles the stage.
    ///
    /// # Errors
    /// As [`QsaShape::check`]; what the device reports.
    pub fn new(ctx: &Context, shape: &QsaShape) -> Result<Self> {
        shape.check()?;
        // With an emulated multiply-add the text must stay short, and there is one pipeline to compile.
        let (dots, rows): (_, &[u32]) = match ctx.lowering().fma {
            FusedMultiplyAdd::Native => (include_str!("../../wgsl/score/unrolled.wgsl"), &[1, 2, 4]),
            FusedMultiplyAdd::Soft => (include_str!("../../wgsl/score/looped.wgsl"), &[2]),
        };
        let compile = |&rows: &u32| {
            let pipeline = ctx.pipeline(&Kernel {
                name: "qsa_score",
                sources: &[
                    include_str!("../../wgsl/exact/lane.wgsl"),
                    include_str!("../../wgsl/exact/math.wgsl"),
                    include_str!("../../wgsl/qsa_score.wgsl"),
                    dots,
                ],
                entry: "main",
                bindings: &[
                    Binding::Uniform,
                    Binding::Uniform,
                    Binding::Read,
                    Binding::Read,
                    Binding::ReadWrite,
                ],
                constants: &[("ROWS", f64::from(rows))],
            })?;
            Ok((rows, pipeline))
        };
        let pipelines = rows.iter().map(compile).collect::<Result<_>>()?;
        Ok(QsaScore { ctx: ctx.clone(), shape: *shape, pipelines })
    }

    /// Binds the stage.
    ///
    /// * `steps`: [`STEPS_BYTES`] of step records, usage `UNIFORM`;
    /// * `queries`: f32 `[rows][index_heads][index_dim]`, usage `STORAGE`;
    /// * `scores`: f32 `[rows][QsaScore::stride(keys.blocks())]`, usage `STORAGE`; entries beyond a row's block
    ///   `n_bid` keep what they held.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a buffer is too small for one row.
    pub fn bind(
        &self,
        steps: &wgpu::BufferBinding<'_>,
        keys: &QsaKeys,
        queries: &wgpu::BufferBinding<'_>,
        scores: &wgpu::BufferBinding<'_>,
    ) -> Result<QsaScoreBound> {
        let stride = Self::stride(keys.blocks);
        check_binding("steps", steps, STEPS_BYTES, BufferUsages::UNIFORM)?;
        let query = u64::from(self.shape.index_heads * self.shape.index_dim) * 4;
        check_binding("index_query", queries, query, BufferUsages::STORAGE)?;
        check_binding("scores", scores, u64::from(stride) * 4, BufferUsages::STORAGE)?;
        let pieces = keys.pieces.iter().enumerate().map(|(i, p)| {
            let params = ScoreParams {
                zero: 0,
                first: p.first,
                dead: u32::from(i == 0),
                columns: p.columns,
                stride: p.stride,
                score_stride: stride,
                heads: self.shape.index_heads,
                halves: 2,
            };
            let buffers = [steps, &super::whole(&p.buffer), queries, scores];
            let dispatches = self.pipelines.iter().map(|(rows, pipeline)| {
                Ok((*rows, Dispatch::new(&self.ctx, pipeline, "qsa_score", &params, &buffers)?))
            });
            Ok(Bound { dispatches: dispatches.collect::<Result<_>>()?, first: p.first, columns: p.columns })
        });
        Ok(QsaScoreBound { pieces: pieces.collect::<Result<_>>()?, blocks: keys.blocks })
    }
}

impl QsaScoreBound {
    /// Encodes the scores of `rows` rows, none of which sees more than `max_cells` cells.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `rows` or `max_cells` is 0 or too large.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32, max_cells: u32) -> Result<()> {
        check_extent(rows, max_cells, self.blocks * BLOCK_CELLS + BLOCK_CELLS - 1)?;
        let blocks = max_cells / BLOCK_CELLS;
        for (i, piece) in self.pieces.iter().enumerate() {
            let wanted = (blocks - piece.first.min(blocks) + u32::from(i == 0)).min(piece.columns);
            // The fewest rows a workgroup that take the window in one go, else the most.
            let enough = piece.dispatches.iter().find(|(take, _)| *take >= rows);
            if let (Some((take, dispatch)), 1..) = (enough.or(piece.dispatches.last()), wanted) {
                dispatch.encode(pass, [wanted.div_ceil(COLUMNS), rows.div_ceil(*take), 1])?;
            }
        }
        Ok(())
    }
}
