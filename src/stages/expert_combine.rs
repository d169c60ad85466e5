//! The experts of a token put together on an adapter: `wgsl/expert_combine.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::{BufferBinding, BufferUsages};

use super::{Dispatch, check_binding, fold};
use crate::error::{Result, check};
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::shape::MAX_ENTRIES;

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CombineParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// Entries of a token.
    pub used: u32,
    /// Experts of the layer.
    pub experts: u32,
    /// Values of a token.
    pub n_embd: u32,
    /// 1: shared experts are added.
    pub has_shared: u32,
    /// Tokens.
    pub tokens: u32,
    /// Not used.
    pub spare0: u32,
    /// Not used.
    pub spare1: u32,
}

/// Buffers of the stage.
#[derive(Debug)]
pub struct CombineBuffers<'a> {
    /// u32 `[tokens][used]`, the expert of each entry.
    pub experts: BufferBinding<'a>,
    /// f32 `[tokens][used]`.
    pub weights: BufferBinding<'a>,
    /// u32 `[experts]`, the slot of each expert's weights or [`NO_SLOT`](super::expert_group::NO_SLOT).
    pub slots: BufferBinding<'a>,
    /// f32 `[tokens * used][n_embd]`.
    pub outs: BufferBinding<'a>,
    /// f32 `[tokens][n_embd]`.
    pub shared: Option<BufferBinding<'a>>,
    /// f32 `[tokens][n_embd]`.
    pub y: BufferBinding<'a>,
}

/// The stage.
#[derive(Debug, Clone)]
pub struct ExpertCombine {
    ctx: Context,
    pipeline: Arc<Pipeline>,
}

/// [`ExpertCombine`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertCombineBound {
    dispatch: Dispatch,
    n_embd: u32,
    tokens: u32,
}

impl ExpertCombine {
    /// Compiles the stage.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(ctx: &Context) -> Result<Self> {
        let pipeline = ctx.pipeline(&Kernel {
            name: "expert_combine",
            sources: &[include_str!("../../wgsl/expert_combine.wgsl")],
            entry: "main",
            bindings: &[
                Binding::Uniform,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::ReadWrite,
            ],
            constants: &[],
        })?;
        Ok(ExpertCombine { ctx: ctx.clone(), pipeline })
    }

    /// Binds the stage for `tokens` tokens of `n_embd` values and `used` of `experts` experts each.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a number is 0, there are too many entries or a buffer is too small.
    pub fn bind(
        &self,
        tokens: u32,
        used: u32,
        experts: u32,
        n_embd: u32,
        buffers: &CombineBuffers<'_>,
    ) -> Result<ExpertCombineBound> {
        for (what, n) in [("tokens", tokens), ("used", used), ("experts", experts), ("n_embd", n_embd)] {
            check(n > 0, what, "at least 1", n)?;
        }
        let b = buffers;
        let entries = u64::from(tokens) * u64::from(used);
        check(entries <= MAX_ENTRIES as u64, "tokens", format!("at most {MAX_ENTRIES} entries"), entries)?;
        let row = 4 * u64::from(n_embd);
        let storage = BufferUsages::STORAGE;
        check_binding("routing.experts", &b.experts, 4 * entries, storage)?;
        check_binding("routing.weights", &b.weights, 4 * entries, storage)?;
        check_binding("slots", &b.slots, 4 * u64::from(experts), storage)?;
        check_binding("outs", &b.outs, entries * row, storage)?;
        if let Some(shared) = &b.shared {
            check_binding("shared", shared, u64::from(tokens) * row, storage)?;
        }
        check_binding("y", &b.y, u64::from(tokens) * row, storage)?;
        let params = CombineParams {
            zero: 0,
            used,
            experts,
            n_embd,
            has_shared: u32::from(b.shared.is_some()),
            tokens,
            spare0: 0,
            spare1: 0,
        };
        // Without shared experts the shader does not read the binding; the outs stand in.
        let shared = b.shared.as_ref().unwrap_or(&b.outs);
        let buffers = [&b.experts, &b.weights, &b.slots, &b.outs, shared, &b.y];
        let dispatch = Dispatch::new(&self.ctx, &self.pipeline, "expert_combine", &params, &buffers)?;
        Ok(ExpertCombineBound { dispatch, n_embd, tokens })
    }
}

impl ExpertCombineBound {
    /// Encodes all tokens.
    ///
    /// # Errors
    /// None but a lost device's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        let [y, z] = fold(self.tokens);
        self.dispatch.encode(pass, [self.n_embd.div_ceil(256), y, z])
    }
}
