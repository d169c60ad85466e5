//! Rows of the down matrices on an adapter: `wgsl/expert_down.wgsl`.

use wgpu::BufferBinding;

use super::expert_group::ExpertGroups;
use super::expert_rows::{ExpertMatrices, Q8Buffers, Rows, RowsBound};
use crate::error::Result;
use crate::gpu::Context;
use crate::quant::Format;

/// The stage, compiled for one format and size.
#[derive(Debug, Clone)]
pub struct ExpertDown(Rows);

/// [`ExpertDown`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertDownBound(RowsBound);

impl ExpertDown {
    /// Compiles the stage for matrices of `rows` rows of `columns` values.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a row is not whole blocks, or a number is 0 or too large;
    /// [`Error::Limit`](crate::Error::Limit) when the activations of one entry do not fit the device's workgroup memory;
    /// what the device reports.
    pub fn new(ctx: &Context, format: Format, rows: u32, columns: u32) -> Result<Self> {
        let source = include_str!("../../wgsl/expert_down.wgsl");
        Ok(ExpertDown(Rows::new(ctx, "expert_down", source, format, rows, columns)?))
    }

    /// Entries that a group may have: 1, 2 or 4, as the device's workgroup memory allows.
    pub fn per_group(&self) -> u32 {
        self.0.per_group()
    }

    /// Binds the stage.
    ///
    /// * `h`: a row of blocks for each entry;
    /// * `out`: f32 `[entries][rows]`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) naming the buffer or the size that does not fit.
    pub fn bind(
        &self,
        matrices: &ExpertMatrices,
        h: &Q8Buffers<'_>,
        groups: &ExpertGroups,
        out: &BufferBinding<'_>,
    ) -> Result<ExpertDownBound> {
        let rows = self.0.rows();
        Ok(ExpertDownBound(self.0.bind(matrices, h, 1, groups, out, 0, rows)?))
    }
}

impl ExpertDownBound {
    /// Encodes the rows of all groups.
    ///
    /// # Errors
    /// None but a lost device's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        self.0.encode(pass)
    }
}
