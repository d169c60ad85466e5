//! The golden digests: made by the reference, and the same on every target.
//!
//! `SAMEBITS_BLESS=1 cargo test --release --test golden` writes the files anew from the reference. That is a change of
//! the crate's contract: raise `NUMERICS_VERSION` and say why in the changelog. Adding a case is none.

mod common;

use std::fmt::Write as _;

use samebits::golden::{NUMERICS_VERSION, STAGES, cases, digests, expected, experts, verify};

/// Compares digests of the reference with a file's, or writes the file.
fn check(file: &str, made: &[(&str, &str, String)]) {
    let mut text = format!(
        "# Golden digests (sha256), numerics version {NUMERICS_VERSION}: case, stage, digest.\n\
         # Made by src/reference from the cases of src/golden; see tests/golden.rs.\n"
    );
    let expected = expected();
    let mut wrong = Vec::new();
    for (case, stage, digest) in made {
        writeln!(text, "{case} {stage} {digest}").unwrap();
        if expected.get(&(*case, *stage)) != Some(&digest.as_str()) {
            wrong.push(format!("{case} {stage}"));
        }
    }
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("SAMEBITS_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(path, text).unwrap();
        return;
    }
    assert!(wrong.is_empty(), "the reference no longer gives: {}", wrong.join(", "));
    assert_eq!(std::fs::read_to_string(path).unwrap(), text, "one digest for each case and stage, in order");
}

#[test]
fn the_reference_gives_the_digests() {
    let mut made = Vec::new();
    for case in cases() {
        let (cache, window) = case.build();
        let trace = common::oracle(&case.shape, &cache, &window);
        made.extend(
            STAGES.into_iter().zip(digests(&trace)).map(|(stage, digest)| (case.name, stage, digest)),
        );
    }
    check("qsa.txt", &made);
}

#[test]
fn the_reference_gives_the_digests_of_experts() {
    let mut made = Vec::new();
    for case in experts::cases() {
        case.shape.check().unwrap();
        let (weights, tokens) = case.build();
        tokens.routing().check(&case.shape, case.tokens as usize).unwrap();
        let traced = common::experts::oracle(&case.shape, &weights, &tokens);
        assert!(traced.y.iter().all(|y| y.is_finite()), "{}", case.name);
        let digests = experts::STAGES.into_iter().zip(traced.digests());
        made.extend(digests.map(|(stage, digest)| (case.name, stage, digest)));
    }
    check("experts.txt", &made);
}

#[test]
fn every_format_has_a_case() {
    for format in samebits::quant::Format::ALL {
        let cases = experts::cases();
        assert!(cases.iter().any(|c| c.shape.gate == format || c.shape.up == format), "{}", format.name());
        assert!(cases.iter().any(|c| c.shape.down == format), "{}", format.name());
    }
}

#[test]
fn every_target_gives_the_digests() {
    for target in common::targets() {
        let report = verify(&target.backend).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        assert_eq!(report.cases as usize, cases().len() * STAGES.len());
        assert_eq!(report.differ, 0, "{}: {:?}", target.name, report.failures);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn every_adapter_gives_the_digests_of_experts() {
    let expected = expected();
    for case in experts::cases() {
        let (weights, tokens) = case.build();
        for (name, ctx) in common::contexts() {
            let traced = common::experts::device::forward(ctx, &case.shape, &weights, &tokens);
            for (stage, digest) in experts::STAGES.into_iter().zip(traced.digests()) {
                let want = expected.get(&(case.name, stage));
                assert_eq!(Some(&digest.as_str()), want, "{name}: {} {stage}", case.name);
            }
        }
    }
}
