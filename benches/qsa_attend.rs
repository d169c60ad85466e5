//! Times `qsa_attend` on an adapter; see `common` for how.

mod common;

use common::Bench;
use samebits::KvFormat;
use samebits::stages::Stage;

fn main() {
    for format in [KvFormat::Int8, KvFormat::F16] {
        if let Some(bench) = Bench::new(format) {
            bench.table(&format!("attend {}", format.name()), &[Stage::Attend]);
        }
    }
}
