//! Times the whole decode step, all stages in one pass of one submission; see `common` for how.

mod common;

use common::Bench;
use samebits::KvFormat;
use samebits::stages::Stage;

fn main() {
    if let Some(bench) = Bench::new(KvFormat::Int8) {
        for stage in Stage::ALL {
            bench.table(stage.name(), &[stage]);
        }
        bench.table("step", &Stage::ALL);
    }
}
