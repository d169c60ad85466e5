//! Times the stages of a window's experts and all of them in one pass; see `common::experts` for how.

mod common;

use samebits::stages::ExpertStage;

fn main() {
    common::experts::table(&ExpertStage::ALL);
}
