//! Times `qsa_score` on an adapter; see `common` for how.

mod common;

use common::Bench;
use samebits::KvFormat;
use samebits::stages::Stage;

fn main() {
    if let Some(bench) = Bench::new(KvFormat::Int8) {
        bench.table("score", &[Stage::Score]);
    }
}
