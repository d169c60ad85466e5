//! Who may import whom: each module's `crate::` paths against the modules that it may know.
//!
//! The oracle stays apart from what it judges, backends do not know each other, and nothing below the façade knows it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A module of the crate's root, and the others that it may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("exact", &[]),
    ("shape", &["error", "quant"]),
    ("quant", &["error", "exact"]),
    ("reference", &["error", "exact", "quant", "shape"]),
    ("cpu", &["error", "exact", "quant", "shape"]),
    ("gguf", &["error"]),
    // The conformance probe knows the results from `exact`.
    ("gpu", &["error", "exact"]),
    ("stages", &["error", "exact", "gpu", "quant", "shape"]),
    ("qsa", &["cpu", "error", "exact", "gpu", "shape", "stages"]),
    ("golden", &["error", "exact", "qsa", "quant", "shape"]),
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All Rust files of a module.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        return entries.iter().flat_map(|p| files(p)).collect();
    }
    let rust = path.extension().is_some_and(|e| e == "rs") && path.exists();
    if rust { vec![path.to_owned()] } else { vec![] }
}

/// The root modules that a text names, comments aside.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
    let name = |after: &str| after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    code.split("crate::").skip(1).map(name).collect()
}

#[test]
fn modules_name_only_what_they_may() {
    let mut wrong = Vec::new();
    for (module, allowed) in ALLOWED {
        let sources = [files(&source().join(module)), files(&source().join(format!("{module}.rs")))].concat();
        assert!(!sources.is_empty(), "no module {module}");
        for file in sources {
            for name in named(&fs::read_to_string(&file).unwrap()) {
                if name != *module && !allowed.contains(&name.as_str()) {
                    wrong.push(format!("{} names crate::{name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_module_has_a_rule() {
    let lib = fs::read_to_string(source().join("lib.rs")).unwrap();
    let modules = lib.lines().filter_map(|l| l.strip_prefix("pub mod ").or(l.strip_prefix("mod ")));
    for module in modules.map(|m| m.trim_end_matches(';')) {
        assert!(ALLOWED.iter().any(|(name, _)| *name == module), "{module} has no rule");
    }
}

#[test]
fn paths_are_found() {
    let text = "use crate::error::Result;\n// crate::reference\n    x(crate::cpu::y);\nuse crate::{shape};";
    // A group gives the empty name, which no rule allows.
    assert_eq!(named(text), ["", "cpu", "error"].map(String::from).into());
}
