//! The gated activation as q8_1 on an adapter: `wgsl/expert_swiglu.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::{BufferBinding, BufferUsages};

use super::expert_rows::Q8Buffers;
use super::{Dispatch, check_binding, fold};
use crate::error::{Result, check};
use crate::gpu::{Binding, Context, Kernel, Pipeline};

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SwigluParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// Blocks of all rows.
    pub blocks: u32,
    /// Blocks of an entry.
    pub row_blocks: u32,
    /// Not used.
    pub spare: u32,
}

/// The stage.
#[derive(Debug, Clone)]
pub struct ExpertSwiglu {
    ctx: Context,
    pipeline: Arc<Pipeline>,
}

/// [`ExpertSwiglu`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertSwigluBound {
    dispatch: Dispatch,
    blocks: u32,
}

impl ExpertSwiglu {
    /// Compiles the stage.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(ctx: &Context) -> Result<Self> {
        let pipeline = ctx.pipeline(&Kernel {
            name: "expert_swiglu",
            sources: &[
                include_str!("../../wgsl/exact/math.wgsl"),
                include_str!("../../wgsl/exact/f16.wgsl"),
                include_str!("../../wgsl/expert/q8_1.wgsl"),
                include_str!("../../wgsl/expert_swiglu.wgsl"),
            ],
            entry: "main",
            bindings: &[Binding::Uniform, Binding::Read, Binding::ReadWrite, Binding::ReadWrite],
            constants: &[],
        })?;
        Ok(ExpertSwiglu { ctx: ctx.clone(), pipeline })
    }

    /// Binds the stage.
    ///
    /// * `gate_up`: f32 `[entries][2][n_ff]`, gate first;
    /// * `out`: a row of `n_ff / 32` blocks for each entry.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a number is 0 or does not fit, or a buffer is too small.
    pub fn bind(
        &self,
        gate_up: &BufferBinding<'_>,
        entries: u32,
        n_ff: u32,
        out: &Q8Buffers<'_>,
    ) -> Result<ExpertSwigluBound> {
        check(entries > 0, "entries", "at least 1", entries)?;
        check(n_ff > 0 && n_ff.is_multiple_of(32), "n_ff", "a multiple of 32", n_ff)?;
        let blocks = entries.saturating_mul(n_ff / 32);
        check_binding("gate_up", gate_up, u64::from(blocks) * 256, BufferUsages::STORAGE)?;
        check_binding("out.codes", &out.codes, u64::from(blocks) * 32, BufferUsages::STORAGE)?;
        check_binding("out.scales", &out.scales, u64::from(blocks) * 8, BufferUsages::STORAGE)?;
        let params = SwigluParams { zero: 0, blocks, row_blocks: n_ff / 32, spare: 0 };
        let buffers = [gate_up, &out.codes, &out.scales];
        let dispatch = Dispatch::new(&self.ctx, &self.pipeline, "expert_swiglu", &params, &buffers)?;
        Ok(ExpertSwigluBound { dispatch, blocks })
    }
}

impl ExpertSwigluBound {
    /// Encodes all blocks.
    ///
    /// # Errors
    /// None but a lost device's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        let [x, y] = fold(self.blocks.div_ceil(8));
        self.dispatch.encode(pass, [x, y, 1])
    }
}
