//! Gathering the selected cells of an array that is split over several buffers: `wgsl/qsa_gather.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::BufferUsages;

use super::{Dispatch, STEPS_BYTES, check_binding, check_extent};
use crate::error::Result;
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::shape::{MAX_CELLS, QsaShape};
use crate::stages::QsaTopk;

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GatherParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// Cells in a page.
    pub page_size: u32,
    /// Entries between rows of the ids.
    pub id_stride: u32,
    /// Words of a cell.
    pub words: u32,
    /// First slot of the piece.
    pub first_slot: u32,
    /// Slots of the piece.
    pub slots: u32,
    /// Words that one layer of workgroups copies.
    pub slice: u32,
    /// Not used.
    pub spare: u32,
}

/// A part of an array: consecutive slots in one buffer.
#[derive(Debug, Clone)]
pub struct KvPiece<'a> {
    /// Where it lies.
    pub buffer: wgpu::BufferBinding<'a>,
    /// Cells in it.
    pub slots: u32,
}

/// The stage: copies cells.
#[derive(Debug, Clone)]
pub struct QsaGather {
    ctx: Context,
    shape: QsaShape,
    pipeline: Arc<Pipeline>,
}

/// [`QsaGather`] bound to one array.
#[derive(Debug)]
pub struct QsaGatherBound {
    pieces: Vec<Dispatch>,
    groups: [u32; 2],
}

impl QsaGather {
    /// Compiles the stage.
    ///
    /// # Errors
    /// As [`QsaShape::check`]; what the device reports.
    pub fn new(ctx: &Context, shape: &QsaShape) -> Result<Self> {
        shape.check()?;
        let pipeline = ctx.pipeline(&Kernel {
            name: "qsa_gather",
            sources: &[include_str!("../../wgsl/qsa_gather.wgsl")],
            entry: "main",
            bindings: &[
                Binding::Uniform,
                Binding::Uniform,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::ReadWrite,
            ],
            constants: &[],
        })?;
        Ok(QsaGather { ctx: ctx.clone(), shape: *shape, pipeline })
    }

    /// Binds the stage to the pieces of an array of `words` words a cell; `out` is `[rows][QsaTopk::id_stride][words]`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a buffer is too small.
    pub fn bind(
        &self,
        steps: &wgpu::BufferBinding<'_>,
        ids: &wgpu::BufferBinding<'_>,
        page_table: &wgpu::BufferBinding<'_>,
        pieces: &[KvPiece<'_>],
        words: u32,
        out: &wgpu::BufferBinding<'_>,
    ) -> Result<QsaGatherBound> {
        let id_stride = QsaTopk::id_stride(&self.shape);
        check_binding("steps", steps, STEPS_BYTES, BufferUsages::UNIFORM)?;
        check_binding("ids", ids, u64::from(id_stride) * 4, BufferUsages::STORAGE)?;
        check_binding("page_table", page_table, 4, BufferUsages::STORAGE)?;
        check_binding("gathered", out, u64::from(id_stride * words) * 4, BufferUsages::STORAGE)?;
        // A row of wide cells has more words than one dimension of a dispatch can count.
        let most = self.ctx.limits().max_compute_workgroups_per_dimension.max(1);
        let all = (id_stride * words).div_ceil(64);
        let groups = all.clamp(1, most);
        let mut first_slot = 0;
        let mut bound = Vec::new();
        for piece in pieces {
            check_binding(
                "piece",
                &piece.buffer,
                u64::from(piece.slots) * u64::from(words) * 4,
                BufferUsages::STORAGE,
            )?;
            let params = GatherParams {
                zero: 0,
                page_size: self.shape.page_size,
                id_stride,
                words,
                first_slot,
                slots: piece.slots,
                slice: groups * 64,
                spare: 0,
            };
            let buffers = [steps, ids, page_table, &piece.buffer, out];
            bound.push(Dispatch::new(&self.ctx, &self.pipeline, "qsa_gather", &params, &buffers)?);
            first_slot += piece.slots;
        }
        Ok(QsaGatherBound { pieces: bound, groups: [groups, all.div_ceil(groups)] })
    }
}

impl QsaGatherBound {
    /// Encodes the copies for `rows` rows.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `rows` is 0 or too large.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32) -> Result<()> {
        check_extent(rows, 1, MAX_CELLS)?;
        for piece in &self.pieces {
            piece.encode(pass, [self.groups[0], rows, self.groups[1]])?;
        }
        Ok(())
    }
}
