//! Rows of the gate and up matrices on an adapter: `wgsl/expert_gate_up.wgsl`.

use wgpu::BufferBinding;

use super::expert_group::ExpertGroups;
use super::expert_rows::{ExpertMatrices, Q8Buffers, Rows, RowsBound};
use crate::error::Result;
use crate::gpu::Context;
use crate::quant::Format;

/// The stage, compiled for one format and size.
#[derive(Debug, Clone)]
pub struct ExpertGateUp(Rows);

/// [`ExpertGateUp`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertGateUpBound(RowsBound);

impl ExpertGateUp {
    /// Compiles the stage for matrices of `rows` rows of `columns` values.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a row is not whole blocks, or a number is 0 or too large;
    /// [`Error::Limit`](crate::Error::Limit) when the activations of one entry do not fit the device's workgroup memory;
    /// what the device reports.
    pub fn new(ctx: &Context, format: Format, rows: u32, columns: u32) -> Result<Self> {
        let source = include_str!("../../wgsl/expert_gate_up.wgsl");
        Ok(ExpertGateUp(Rows::new(ctx, "expert_gate_up", source, format, rows, columns)?))
    }

    /// Entries that a group may have: 1, 2 or 4, as the device's workgroup memory allows.
    pub fn per_group(&self) -> u32 {
        self.0.per_group()
    }

    /// Binds the stage.
    ///
    /// * `x`: a row of blocks for each token;
    /// * `used`: entries of a token, which come one after the other;
    /// * `out`: f32, the rows of entry `i` from `i * out_stride + first_row` on.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) naming the buffer or the size that does not fit.
    #[allow(clippy::too_many_arguments, reason = "a stage's inputs")]
    pub fn bind(
        &self,
        matrices: &ExpertMatrices,
        x: &Q8Buffers<'_>,
        used: u32,
        groups: &ExpertGroups,
        out: &BufferBinding<'_>,
        first_row: u32,
        out_stride: u32,
    ) -> Result<ExpertGateUpBound> {
        Ok(ExpertGateUpBound(self.0.bind(matrices, x, used, groups, out, first_row, out_stride)?))
    }
}

impl ExpertGateUpBound {
    /// Encodes the rows of all groups.
    ///
    /// # Errors
    /// None but a lost device's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        self.0.encode(pass)
    }
}
