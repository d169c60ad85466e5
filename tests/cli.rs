//! The binary, as a user runs it: output and exit status.

#![cfg(feature = "cli")]

use std::process::{Command, Output};

use serde_json::Value;

fn samebits(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_samebits")).args(args).output().expect("the binary starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!(
            "{e}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// What every run says about itself, and that everything in it was compared and is as expected.
fn check_run(run: &Value, backend: &str) {
    assert_eq!(run["backend"], backend, "{run}");
    for field in ["adapter", "driver", "lowering", "verdict"] {
        assert!(run[field].as_str().is_some_and(|s| !s.is_empty()), "{field}: {run}");
    }
    let (mut cases, stages) = (0, run["stages"].as_object().unwrap());
    assert_eq!(stages.keys().collect::<Vec<_>>(), ["qsa_attend", "qsa_merge", "qsa_score", "qsa_topk"]);
    for (stage, counts) in stages {
        assert!(counts["cases"].as_u64().unwrap() > 0, "{stage}: {run}");
        assert_eq!(counts["differ"], 0, "{stage}: {run}");
        cases += counts["cases"].as_u64().unwrap();
    }
    assert_eq!(run["cases"], cases);
    assert_eq!(run["differ"], 0);
    assert!(run.get("error").is_none(), "{run}");
}

#[test]
fn the_cpu_is_verified() {
    let output = samebits(&["verify", "--backend", "cpu", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let run = json(&output);
    check_run(&run, "cpu");
    assert_eq!(run["verdict"], "Exact");
    assert_eq!(run["ok"], true);
    assert_eq!(run["numerics"], samebits::golden::NUMERICS_VERSION);

    let text = samebits(&["verify", "--backend", "cpu"]);
    assert_eq!(text.status.code(), Some(0));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(&format!("{} cases, 0 differ", run["cases"])), "{text}");
}

#[test]
fn what_cannot_be_asked_for_is_status_2() {
    for args in [
        &["verify", "--backend", "cpu", "--nonsense"][..],
        &["verify", "--backend", "nonsense"],
        &["nonsense"],
        &[],
    ] {
        let output = samebits(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[cfg(not(feature = "wgpu"))]
#[test]
fn without_wgpu_there_is_the_cpu() {
    assert_eq!(json(&samebits(&["adapters", "--json"]))["adapters"], serde_json::json!([]));
    let output = samebits(&["verify", "--backend", "wgpu"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text, "samebits: built without wgpu; --backend cpu runs everywhere\n");
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use super::*;

    fn adapters() -> Vec<Value> {
        let output = samebits(&["adapters", "--json"]);
        assert_eq!(output.status.code(), Some(0));
        let report = json(&output);
        assert_eq!(report["numerics"], samebits::golden::NUMERICS_VERSION);
        let adapters = report["adapters"].as_array().unwrap().clone();
        if adapters.is_empty() {
            let required = std::env::var("SAMEBITS_REQUIRE_GPU").is_ok_and(|v| v == "1");
            assert!(!required, "no adapter, and SAMEBITS_REQUIRE_GPU=1");
            println!("skipped: no adapter");
        }
        adapters
    }

    #[test]
    fn adapters_are_listed() {
        let adapters = adapters();
        for (i, adapter) in adapters.iter().enumerate() {
            assert_eq!(adapter["index"], i);
            for field in ["name", "backend", "device_type", "driver", "lowering", "verdict"] {
                assert!(adapter[field].as_str().is_some_and(|s| !s.is_empty()), "{field}: {adapter}");
            }
            let lowering = adapter["lowering"].as_str().unwrap();
            assert!(lowering.parse::<samebits::gpu::Lowering>().is_ok(), "{adapter}");
            let refused = adapter["verdict"].as_str().unwrap().starts_with("refused");
            assert_eq!(adapter.get("failed").is_some(), refused, "{adapter}");
            let limits = &adapter["limits"];
            assert!(limits["max_storage_buffer_binding_size"].as_u64().unwrap() >= 128 << 20, "{adapter}");
            assert!(limits["max_compute_workgroup_storage_size"].as_u64().unwrap() >= 16 << 10, "{adapter}");
        }
        let text = samebits(&["adapters"]);
        assert_eq!(text.status.code(), Some(0));
        let text = String::from_utf8(text.stdout).unwrap();
        for adapter in &adapters {
            for field in ["name", "driver", "lowering", "verdict"] {
                assert!(text.contains(adapter[field].as_str().unwrap()), "{field}: {text}");
            }
        }
        assert!(!adapters.is_empty() || text.contains("no adapter"), "{text}");
    }

    /// One after the other and the CPU: every adapter that passes.
    #[test]
    fn everything_is_verified() {
        let passing = adapters().iter().filter(|a| a.get("failed").is_none()).count();
        let all = adapters().len();
        let output = samebits(&["verify", "--backend", "all", "--json"]);
        let report = json(&output);
        assert_eq!(output.status.code(), Some(i32::from(passing != all)), "{report}");
        assert_eq!(report["ok"], passing == all);
        let alone = std::slice::from_ref(&report);
        let runs = report.get("runs").map_or(alone, |runs| runs.as_array().unwrap());
        assert_eq!(runs.len(), 1 + all);
        check_run(&runs[0], "cpu");
        for run in &runs[1..] {
            if run["verdict"] != "Refused" {
                check_run(run, "wgpu");
            }
        }
    }

    #[test]
    fn no_such_adapter() {
        for json_flag in [&[][..], &["--json"]] {
            let args = [&["verify", "--backend", "wgpu", "--adapter", "nonexistent"], json_flag].concat();
            let output = samebits(&args);
            assert_eq!(output.status.code(), Some(1));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("no adapter: nonexistent matches none"), "{text}");
            assert!(text.contains("the CPU backend runs everywhere"), "{text}");
            assert!(!text.contains("\"ok\": true"), "{text}");
        }
    }

    #[test]
    fn no_such_lowering() {
        let output = samebits(&["verify", "--backend", "all", "--lowering", "nonsense", "--json"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "samebits: lowering: expected auto, precise, guarded, soft-fma, precise+soft-fma or \
                        guarded+soft-fma, got nonsense\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn an_adapter_goes_with_wgpu() {
        let output = samebits(&["verify", "--backend", "cpu", "--adapter", "0"]);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.ends_with("samebits: --adapter goes with --backend wgpu\n"), "{text}");
    }

    /// Without a driver there is no adapter; that is no success, whatever the CPU gives.
    #[cfg(target_os = "linux")]
    #[test]
    fn no_driver() {
        let run = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
            command.args(args).env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
            command.output().unwrap()
        };
        let output = run(&["verify", "--backend", "wgpu", "--json"]);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.ends_with("samebits: no adapter; --backend cpu runs everywhere\n"), "{text}");
        assert_eq!(json(&run(&["adapters", "--json"]))["adapters"], serde_json::json!([]));
        let text = String::from_utf8(run(&["adapters"]).stdout).unwrap();
        assert_eq!(text, "no adapter: install a Vulkan driver, or use the CPU backend\n");
    }
}
