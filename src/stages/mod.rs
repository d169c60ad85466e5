//! The stages as wgpu compute passes: host side of the WGSL files of the same names.
//!
//! A stage is made once for a [`Context`] and a shape, *bound* once to buffers, and *encoded* as often as wanted, into
//! any compute pass of the caller. Nothing of a row is known on the host when it is encoded but an upper bound of its
//! context: positions and widths are read from the step records in device memory.
//!
//! Up to [`ROW_TILE`] rows are encoded at a time. Their step records are a uniform array of [`ROW_TILE`] [`Step`]s
//! (256 bytes); a record of zeros is no row, and nothing is written for it.

pub mod expert_combine;
pub mod expert_down;
pub mod expert_forward;
pub mod expert_gate_up;
pub mod expert_group;
pub mod expert_quantize;
pub mod expert_rows;
pub mod expert_swiglu;
pub mod qsa_attend;
pub mod qsa_decode;
pub mod qsa_gather;
pub mod qsa_merge;
pub mod qsa_score;
pub mod qsa_topk;

use std::sync::Arc;

use crate::error::{Error, Result, check};
use crate::gpu::{Context, Pipeline};
use crate::shape::{BLOCK_CELLS, MAX_CELLS, Step};

pub use expert_combine::ExpertCombine;
pub use expert_down::ExpertDown;
pub use expert_forward::{
    ExpertBuffers, ExpertForward, ExpertForwardBound, ExpertScratch, ExpertStage, ExpertWeights,
};
pub use expert_gate_up::ExpertGateUp;
pub use expert_group::{ExpertGroup, ExpertGroups};
pub use expert_quantize::ExpertQuantize;
pub use expert_rows::{ExpertMatrices, Q8Buffers};
pub use expert_swiglu::ExpertSwiglu;
pub use qsa_attend::{KvBuffers, QsaAttend};
pub use qsa_decode::{DecodeBuffers, KvPieces, QsaDecode, QsaDecodeBound, QsaScratch, Stage};
pub use qsa_gather::{KvPiece, QsaGather};
pub use qsa_merge::{OutputFormat, QsaMerge};
pub use qsa_score::{QsaKeys, QsaScore};
pub use qsa_topk::QsaTopk;

/// Rows that one encoding covers at most.
pub const ROW_TILE: u32 = 16;

/// Bytes of the step records of one encoding.
pub const STEPS_BYTES: u64 = ROW_TILE as u64 * size_of::<Step>() as u64;

/// A stage bound to its buffers: one dispatch.
#[derive(Debug, Clone)]
pub(crate) struct Dispatch {
    ctx: Context,
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
}

impl Dispatch {
    /// Binds a parameter block and buffers: binding 0 is `params`, the rest follow in order.
    pub(crate) fn new<P: bytemuck::Pod>(
        ctx: &Context,
        pipeline: &Arc<Pipeline>,
        what: &str,
        params: &P,
        buffers: &[&wgpu::BufferBinding<'_>],
    ) -> Result<Self> {
        let uniform = ctx.uniform(what, params)?;
        let mut resources = vec![uniform.as_entire_binding()];
        for b in buffers {
            resources.push(wgpu::BindingResource::Buffer((*b).clone()));
        }
        let bind_group = pipeline.bind(ctx, &resources)?;
        Ok(Dispatch { ctx: ctx.clone(), pipeline: pipeline.clone(), bind_group })
    }

    /// Checks the workgroups first: wgpu would report them where the caller ends the encoder.
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, groups: [u32; 3]) -> Result<()> {
        self.ctx.check_dispatch(groups)?;
        pass.set_pipeline(&self.pipeline.raw);
        pass.set_bind_group(0, &self.bind_group, &[]);
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        Ok(())
    }
}

/// Bytes that a binding covers.
pub(crate) fn binding_bytes(b: &wgpu::BufferBinding<'_>) -> u64 {
    b.size.map_or(b.buffer.size().saturating_sub(b.offset), |s| s.get())
}

/// Checks that a caller's buffer holds `bytes` and may be used as wanted.
pub(crate) fn check_binding(
    what: &str,
    b: &wgpu::BufferBinding<'_>,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<()> {
    let have = binding_bytes(b);
    check(have >= bytes, what, format!("at least {bytes} bytes"), format!("{have} bytes"))?;
    check(
        b.buffer.usage().contains(usage),
        what,
        format!("a buffer with usage {usage:?}"),
        format!("{:?}", b.buffer.usage()),
    )
}

/// Checks rows and cells of an encoding.
pub(crate) fn check_extent(rows: u32, cells: u32, capacity: u32) -> Result<()> {
    check((1..=ROW_TILE).contains(&rows), "rows", format!("1 to {ROW_TILE}"), rows)?;
    check((1..=capacity).contains(&cells), "max_cells", format!("1 to {capacity}"), cells)
}

/// Checks the completed blocks that something is made for: what the levels of the selection can count.
pub(crate) fn check_blocks(blocks: u32) -> Result<()> {
    let most = MAX_CELLS / BLOCK_CELLS;
    check(blocks <= most, "blocks", format!("at most {most}"), blocks)
}

/// A number of workgroups over two dimensions of at most 65,535 each; some may be too many.
pub(crate) fn fold(groups: u32) -> [u32; 2] {
    let rows = groups.div_ceil(65_535).max(1);
    [groups.div_ceil(rows), rows]
}

/// A binding of a whole buffer.
pub(crate) fn whole(buffer: &wgpu::Buffer) -> wgpu::BufferBinding<'_> {
    wgpu::BufferBinding { buffer, offset: 0, size: None }
}

/// `Error::Invalid` for a device buffer that is larger than one binding may be.
pub(crate) fn check_limit(ctx: &Context, what: &str, bytes: u64) -> Result<()> {
    if bytes > ctx.max_binding() {
        return Err(Error::Limit { what: what.into(), asked: bytes, allowed: ctx.max_binding() });
    }
    Ok(())
}
