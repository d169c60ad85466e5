//! Merge of the chunks on an adapter: `wgsl/qsa_merge.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::BufferUsages;

use super::{Dispatch, STEPS_BYTES, check_binding, check_extent};
use crate::error::Result;
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::shape::{MAX_CELLS, QsaShape};

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct MergeParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// Query heads.
    pub q_heads: u32,
    /// Floats between rows of the partials.
    pub partial_stride: u32,
    /// 1: multiply by sigmoid(gate).
    pub gated: u32,
    /// 1: write f16.
    pub half_out: u32,
    /// Chunks that a row of the partials has room for.
    pub max_chunks: u32,
    /// Not used.
    pub spare0: u32,
    /// Not used.
    pub spare1: u32,
}

/// What the merge writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputFormat {
    /// binary32.
    #[default]
    F32,
    /// binary16, rounded to nearest even.
    F16,
}

/// The stage: merge of the chunks, optional output gate.
#[derive(Debug, Clone)]
pub struct QsaMerge {
    ctx: Context,
    shape: QsaShape,
    pipeline: Arc<Pipeline>,
}

/// [`QsaMerge`] bound to its buffers.
#[derive(Debug)]
pub struct QsaMergeBound {
    dispatch: Dispatch,
    q_heads: u32,
}

impl QsaMerge {
    /// Compiles the stage.
    ///
    /// # Errors
    /// As [`QsaShape::check`]; what the device reports.
    pub fn new(ctx: &Context, shape: &QsaShape) -> Result<Self> {
        shape.check()?;
        let pipeline = ctx.pipeline(&Kernel {
            name: "qsa_merge",
            sources: &[
                include_str!("../../wgsl/exact/math.wgsl"),
                include_str!("../../wgsl/exact/f16.wgsl"),
                include_str!("../../wgsl/qsa_merge.wgsl"),
            ],
            entry: "main",
            bindings: &[Binding::Uniform, Binding::Uniform, Binding::Read, Binding::Read, Binding::ReadWrite],
            constants: &[("HEAD_DIM", f64::from(shape.head_dim))],
        })?;
        Ok(QsaMerge { ctx: ctx.clone(), shape: *shape, pipeline })
    }

    /// Binds the stage.
    ///
    /// * `steps`: [`STEPS_BYTES`] of step records, usage `UNIFORM`;
    /// * `partials`: as [`QsaAttend`](super::QsaAttend) writes them;
    /// * `gates`: f32 `[rows][q_heads][head_dim]`, or none;
    /// * `out`: `[rows][q_heads][head_dim]` of `format`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a buffer is too small for one row.
    pub fn bind(
        &self,
        steps: &wgpu::BufferBinding<'_>,
        partials: &wgpu::BufferBinding<'_>,
        gates: Option<&wgpu::BufferBinding<'_>>,
        out: &wgpu::BufferBinding<'_>,
        format: OutputFormat,
    ) -> Result<QsaMergeBound> {
        let shape = &self.shape;
        let partial_stride = shape.max_chunks() * shape.partial_chunk();
        let values = u64::from(shape.q_heads * shape.head_dim);
        let out_bytes = match format {
            OutputFormat::F32 => values * 4,
            OutputFormat::F16 => values * 2,
        };
        check_binding("steps", steps, STEPS_BYTES, BufferUsages::UNIFORM)?;
        check_binding("partials", partials, u64::from(partial_stride) * 4, BufferUsages::STORAGE)?;
        if let Some(gates) = gates {
            check_binding("gate", gates, values * 4, BufferUsages::STORAGE)?;
        }
        check_binding("out", out, out_bytes, BufferUsages::STORAGE)?;
        let params = MergeParams {
            zero: 0,
            q_heads: shape.q_heads,
            partial_stride,
            gated: u32::from(gates.is_some()),
            half_out: u32::from(format == OutputFormat::F16),
            max_chunks: shape.max_chunks(),
            spare0: 0,
            spare1: 0,
        };
        // Without gates the shader does not read the binding; the partials stand in.
        let buffers = [steps, partials, gates.unwrap_or(partials), out];
        let dispatch = Dispatch::new(&self.ctx, &self.pipeline, "qsa_merge", &params, &buffers)?;
        Ok(QsaMergeBound { dispatch, q_heads: shape.q_heads })
    }
}

impl QsaMergeBound {
    /// Encodes the merge of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `rows` is 0 or too large.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32) -> Result<()> {
        check_extent(rows, 1, MAX_CELLS)?;
        self.dispatch.encode(pass, [self.q_heads, rows, 1])
    }
}
