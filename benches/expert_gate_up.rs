//! Times `expert_gate_up` on an adapter; see `common::experts` for how.

mod common;

use samebits::stages::ExpertStage;

fn main() {
    common::experts::table(&[ExpertStage::GateUp]);
}
