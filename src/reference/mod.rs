//! The oracle: every stage written down once, scalar and obvious, one row a call.
//!
//! Here the definition of a result can be read: each loop is a sum in the order in which it is added. Nothing is fast.
//! The stages take any float, NaN and infinity included, without panicking; array lengths are the caller's business.

#![allow(
    clippy::needless_range_loop,
    reason = "an index that runs in the order of the sum is the point here"
)]

mod expert_combine;
mod expert_down;
mod expert_gate_up;
mod expert_group;
mod expert_quantize;
mod expert_swiglu;
mod qsa_attend;
mod qsa_gather;
mod qsa_merge;
mod qsa_score;
mod qsa_topk;

pub use expert_combine::expert_combine;
pub use expert_down::expert_down;
pub use expert_gate_up::expert_gate_up;
pub use expert_group::expert_group;
pub use expert_quantize::expert_quantize;
pub use expert_swiglu::expert_swiglu;
pub use qsa_attend::{max_logit, qsa_attend};
pub use qsa_gather::qsa_gather;
pub use qsa_merge::{output_f16, qsa_merge};
pub use qsa_score::qsa_score;
pub use qsa_topk::qsa_topk;
