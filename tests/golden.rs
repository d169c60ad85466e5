//! The golden digests: made by the reference, and the same on every target.
//!
//! `SAMEBITS_BLESS=1 cargo test --release --test golden` writes the file anew from the reference. That is a change of
//! the crate's contract: raise `NUMERICS_VERSION` and say why in the changelog.

mod common;

use std::fmt::Write as _;

use samebits::golden::{NUMERICS_VERSION, STAGES, cases, digests, expected, verify};

#[test]
fn the_reference_gives_the_digests() {
    let mut made = format!(
        "# Golden digests (sha256), numerics version {NUMERICS_VERSION}: case, stage, digest.\n\
         # Made by src/reference from the cases of src/golden.rs; see tests/golden.rs.\n"
    );
    let expected = expected();
    let mut wrong = Vec::new();
    for case in cases() {
        let (cache, window) = case.build();
        let trace = common::oracle(&case.shape, &cache, &window);
        for (stage, digest) in STAGES.into_iter().zip(digests(&trace)) {
            writeln!(made, "{} {stage} {digest}", case.name).unwrap();
            if expected.get(&(case.name, stage)) != Some(&digest.as_str()) {
                wrong.push(format!("{} {stage}", case.name));
            }
        }
    }
    if std::env::var_os("SAMEBITS_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/qsa.txt"), made).unwrap();
        return;
    }
    assert_eq!(expected.len(), cases().len() * STAGES.len(), "one digest for each case and stage");
    assert!(wrong.is_empty(), "the reference no longer gives: {}", wrong.join(", "));
}

#[test]
fn every_target_gives_the_digests() {
    for target in common::targets() {
        let report = verify(&target.backend).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        assert_eq!(report.cases as usize, cases().len() * STAGES.len());
        assert_eq!(report.differ, 0, "{}: {:?}", target.name, report.failures);
    }
}
