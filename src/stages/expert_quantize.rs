//! Activations as q8_1 on an adapter: `wgsl/expert_quantize.wgsl`.

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
pub struct QuantizeParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// Blocks of all rows.
    pub blocks: u32,
    /// Not used.
    pub spare0: u32,
    /// Not used.
    pub spare1: u32,
}

/// The stage.
#[derive(Debug, Clone)]
pub struct ExpertQuantize {
    ctx: Context,
    pipeline: Arc<Pipeline>,
}

/// [`ExpertQuantize`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertQuantizeBound {
    dispatch: Dispatch,
    blocks: u32,
}

impl ExpertQuantize {
    /// Compiles the stage.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(ctx: &Context) -> Result<Self> {
        let pipeline = ctx.pipeline(&Kernel {
            name: "expert_quantize",
            sources: &[
                include_str!("../../wgsl/exact/math.wgsl"),
                include_str!("../../wgsl/exact/f16.wgsl"),
                include_str!("../../wgsl/expert/q8_1.wgsl"),
                include_str!("../../wgsl/expert_quantize.wgsl"),
            ],
            entry: "main",
            bindings: &[Binding::Uniform, Binding::Read, Binding::ReadWrite, Binding::ReadWrite],
            constants: &[],
        })?;
        Ok(ExpertQuantize { ctx: ctx.clone(), pipeline })
    }

    /// Binds the stage.
    ///
    /// * `x`: f32 `[blocks][32]`;
    /// * `out`: `blocks` blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `blocks` is 0 or a buffer is too small.
    pub fn bind(
        &self,
        x: &BufferBinding<'_>,
        blocks: u32,
        out: &Q8Buffers<'_>,
    ) -> Result<ExpertQuantizeBound> {
        check(blocks > 0, "blocks", "at least 1", blocks)?;
        check_binding("x", x, u64::from(blocks) * 128, BufferUsages::STORAGE)?;
        check_binding("out.codes", &out.codes, u64::from(blocks) * 32, BufferUsages::STORAGE)?;
        check_binding("out.scales", &out.scales, u64::from(blocks) * 8, BufferUsages::STORAGE)?;
        let params = QuantizeParams { zero: 0, blocks, spare0: 0, spare1: 0 };
        let buffers = [x, &out.codes, &out.scales];
        let dispatch = Dispatch::new(&self.ctx, &self.pipeline, "expert_quantize", &params, &buffers)?;
        Ok(ExpertQuantizeBound { dispatch, blocks })
    }
}

impl ExpertQuantizeBound {
    /// Encodes all blocks.
    ///
    /// # Errors
    /// None but a lost device's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        let [x, y] = fold(self.blocks.div_ceil(8));
        self.dispatch.encode(pass, [x, y, 1])
    }
}
