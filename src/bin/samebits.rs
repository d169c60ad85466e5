//! The `samebits` command: what adapters there are, and whether they give the defined bits.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use samebits::golden::{self, NUMERICS_VERSION, Report};
use samebits::qsa::Backend;
use serde_json::{Value, json};

#[cfg(feature = "wgpu")]
use samebits::gpu::{self, AdapterChoice, AdapterReport, LoweringChoice, Options, Verdict};

#[derive(Parser)]
#[command(version, about = "Sparse-attention kernels that return the same bits on every adapter")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List every adapter with its limits, the lowering chosen for it and the conformance probe's verdict
    Adapters {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run the golden suite; the exit status is 0 only if every digest is as expected
    Verify {
        /// Where to run it
        #[arg(long, value_enum, default_value = "all")]
        backend: Which,
        /// Adapter by index or by part of its name; default: every adapter that passes the probe
        #[arg(long)]
        adapter: Option<String>,
        /// auto, precise, guarded, soft-fma, or one lowering by its full name
        #[arg(long, default_value = "auto")]
        lowering: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Cpu,
    Wgpu,
    All,
}

/// One backend's outcome.
struct Run {
    backend: &'static str,
    adapter: String,
    driver: String,
    lowering: String,
    verdict: String,
    outcome: Result<Report, String>,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    match Cli::parse().command {
        Command::Adapters { json } => adapters(json),
        Command::Verify { backend, adapter, lowering, json } => {
            match runs(backend, adapter.as_deref(), &lowering) {
                Ok(runs) => report(&runs, json),
                Err(message) => {
                    eprintln!("samebits: {message}");
                    ExitCode::from(2)
                }
            }
        }
    }
}

fn verify(backend: &Backend) -> Result<Report, String> {
    golden::verify(backend).map_err(|e| e.to_string())
}

fn cpu_run() -> Run {
    Run {
        backend: "cpu",
        adapter: format!("{} threads", std::thread::available_parallelism().map_or(1, usize::from)),
        driver: std::env::consts::ARCH.into(),
        lowering: "none".into(),
        verdict: "Exact".into(),
        outcome: verify(&Backend::Cpu),
    }
}

#[cfg(feature = "wgpu")]
fn runs(which: Which, adapter: Option<&str>, lowering: &str) -> Result<Vec<Run>, String> {
    let lowering: LoweringChoice = lowering.parse().map_err(|e: samebits::Error| e.to_string())?;
    let mut runs = Vec::new();
    if which != Which::Wgpu && adapter.is_none() {
        runs.push(cpu_run());
    }
    if which == Which::Cpu {
        return if adapter.is_some() { Err("--adapter goes with --backend wgpu".into()) } else { Ok(runs) };
    }
    let choices: Vec<AdapterChoice> = match adapter {
        Some(name) => vec![name.parse().unwrap_or(AdapterChoice::Best)],
        None => pollster::block_on(gpu::adapters()).iter().map(|a| AdapterChoice::Index(a.index)).collect(),
    };
    let options = Options { lowering, ..Options::default() };
    for choice in choices {
        runs.push(match Backend::wgpu(&choice, &options) {
            Ok(backend) => {
                let Backend::Wgpu(context) = &backend else { unreachable!("asked for wgpu") };
                Run {
                    backend: "wgpu",
                    adapter: context.info().name.clone(),
                    driver: driver(&context.info().driver, &context.info().driver_info),
                    lowering: context.lowering().to_string(),
                    verdict: context.verdict().to_string(),
                    outcome: verify(&backend),
                }
            }
            Err(error) => Run {
                backend: "wgpu",
                adapter: adapter.map_or_else(|| format!("{choice:?}"), String::from),
                driver: String::new(),
                lowering: lowering.to_string(),
                verdict: "Refused".into(),
                outcome: Err(error.to_string()),
            },
        });
    }
    if runs.is_empty() {
        return Err("no adapter; --backend cpu runs everywhere".into());
    }
    Ok(runs)
}

#[cfg(not(feature = "wgpu"))]
fn runs(which: Which, adapter: Option<&str>, _lowering: &str) -> Result<Vec<Run>, String> {
    if which == Which::Wgpu || adapter.is_some() {
        return Err("built without wgpu; --backend cpu runs everywhere".into());
    }
    Ok(vec![cpu_run()])
}

#[cfg(feature = "wgpu")]
fn driver(name: &str, info: &str) -> String {
    format!("{name} {info}").trim().to_owned()
}

/// Prints the outcome; success only if something was compared and nothing differs anywhere.
fn report(runs: &[Run], json: bool) -> ExitCode {
    let count = |r: &Run| r.outcome.as_ref().map_or((0, 0), |o| (o.cases, o.differ));
    let (cases, differ) = runs.iter().map(count).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let good = differ == 0 && runs.iter().all(|r| count(r).0 > 0);
    if json {
        let mut object = match runs {
            [one] => run_json(one),
            several => several_json(several),
        };
        object["numerics"] = json!(NUMERICS_VERSION);
        object["cases"] = json!(cases);
        object["differ"] = json!(differ);
        object["ok"] = json!(good);
        println!("{object:#}");
    } else {
        for run in runs {
            println!("{}: {} ({})", run.backend, run.adapter, run.driver);
            println!("  lowering {}, verdict {}", run.lowering, run.verdict);
            match &run.outcome {
                Ok(outcome) => {
                    let width = outcome.stages.keys().map(|stage| stage.len()).max().unwrap_or(0) + 2;
                    for (stage, (cases, differ)) in &outcome.stages {
                        println!("  {stage:<width$} {cases} cases, {differ} differ");
                    }
                    for failure in &outcome.failures {
                        println!("  differs: {failure}");
                    }
                }
                Err(message) => println!("  {message}"),
            }
        }
        println!("numerics {NUMERICS_VERSION}: {cases} cases, {differ} differ");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Several runs as one: the same members, names joined and counts added, and each run by itself.
fn several_json(runs: &[Run]) -> Value {
    let joined = |f: fn(&Run) -> &str| runs.iter().map(f).collect::<Vec<_>>().join("; ");
    let mut stages: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (stage, counts) in runs.iter().flat_map(|r| r.outcome.iter().flat_map(|o| &o.stages)) {
        let sum = stages.entry(stage).or_default();
        *sum = (sum.0 + counts.0, sum.1 + counts.1);
    }
    let counts = |(cases, differ): &(u32, u32)| json!({ "cases": cases, "differ": differ });
    json!({
        "backend": joined(|r| r.backend),
        "adapter": joined(|r| &r.adapter),
        "driver": joined(|r| &r.driver),
        "lowering": joined(|r| &r.lowering),
        "verdict": joined(|r| &r.verdict),
        "stages": stages.iter().map(|(stage, c)| (stage.to_string(), counts(c))).collect::<serde_json::Map<_, _>>(),
        "runs": runs.iter().map(run_json).collect::<Vec<_>>(),
    })
}

fn run_json(run: &Run) -> Value {
    let mut object = json!({
        "backend": run.backend,
        "adapter": run.adapter,
        "driver": run.driver,
        "lowering": run.lowering,
        "verdict": run.verdict,
        "cases": 0,
        "differ": 0,
        "stages": {},
    });
    match &run.outcome {
        Ok(outcome) => {
            object["cases"] = json!(outcome.cases);
            object["differ"] = json!(outcome.differ);
            for (stage, (cases, differ)) in &outcome.stages {
                object["stages"][stage] = json!({ "cases": cases, "differ": differ });
            }
            object["failures"] = json!(outcome.failures);
        }
        Err(message) => object["error"] = json!(message),
    }
    object
}

#[cfg(feature = "wgpu")]
fn adapters(json: bool) -> ExitCode {
    let found = pollster::block_on(gpu::adapters());
    if json {
        let adapters: Vec<Value> = found.iter().map(adapter_json).collect();
        println!("{:#}", json!({ "numerics": NUMERICS_VERSION, "adapters": adapters }));
        return ExitCode::SUCCESS;
    }
    if found.is_empty() {
        println!("no adapter: install a Vulkan driver, or use the CPU backend");
    }
    for a in &found {
        let software = if a.software { ", software" } else { "" };
        println!("{}: {} ({:?}, {:?}{software})", a.index, a.name, a.backend, a.device_type);
        println!("   driver   {}", driver(&a.driver, &a.driver_info));
        println!("   lowering {}", a.lowering.map_or("none".into(), |l| l.to_string()));
        println!("   verdict  {}", a.verdict);
        if let Verdict::Refused { case, detail } = &a.verdict {
            println!("   failed   {case}: {detail}");
        }
        println!(
            "   limits   binding {} MiB, buffer {} MiB, workgroup memory {} KiB, {} threads a workgroup, {} storage buffers a stage",
            a.limits.max_storage_buffer_binding_size >> 20,
            a.limits.max_buffer_size >> 20,
            a.limits.max_compute_workgroup_storage_size >> 10,
            a.limits.max_compute_invocations_per_workgroup,
            a.limits.max_storage_buffers_per_shader_stage,
        );
        println!("   subgroup {} to {}", a.subgroup_min_size, a.subgroup_max_size);
    }
    ExitCode::SUCCESS
}

#[cfg(feature = "wgpu")]
fn adapter_json(a: &AdapterReport) -> Value {
    let mut object = json!({
        "index": a.index,
        "name": a.name,
        "backend": format!("{:?}", a.backend),
        "device_type": format!("{:?}", a.device_type),
        "software": a.software,
        "driver": driver(&a.driver, &a.driver_info),
        "lowering": a.lowering.map(|l| l.to_string()),
        "verdict": a.verdict.to_string(),
        "subgroup": [a.subgroup_min_size, a.subgroup_max_size],
        "limits": {
            "max_storage_buffer_binding_size": a.limits.max_storage_buffer_binding_size,
            "max_buffer_size": a.limits.max_buffer_size,
            "max_compute_workgroup_storage_size": a.limits.max_compute_workgroup_storage_size,
            "max_compute_invocations_per_workgroup": a.limits.max_compute_invocations_per_workgroup,
            "max_storage_buffers_per_shader_stage": a.limits.max_storage_buffers_per_shader_stage,
        },
        "timestamps": a.features.contains(samebits::wgpu::Features::TIMESTAMP_QUERY),
    });
    if let Verdict::Refused { case, detail } = &a.verdict {
        object["failed"] = json!({ "case": case, "detail": detail });
    }
    object
}

#[cfg(not(feature = "wgpu"))]
fn adapters(json: bool) -> ExitCode {
    if json {
        println!("{:#}", json!({ "numerics": NUMERICS_VERSION, "adapters": [] }));
    } else {
        println!("built without wgpu: the CPU backend is all there is");
    }
    ExitCode::SUCCESS
}
