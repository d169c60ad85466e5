//! Decodes a window of rows over a long context made from a real text, compares every byte of every stage with the
//! reference, and shows which passages the indexer chose.
//!
//! ```text
//! cargo run --release --example decode_window
//! cargo run --release --example decode_window -- --backend cpu --context 131072 --rows 4 --kv int8
//! cargo run --release --example decode_window -- --adapter llvmpipe --context 4096 --runs 1
//! ```
//!
//! A cell is a token of *The Rust Programming Language*. Keys, values and queries are products of the tokens' word
//! embeddings with random matrices, normed and rotated as a model does it (theta 10,000); the four indexer heads of a row
//! ask for the last four words, with the projection that made the indexer's keys, so the best blocks are the passages that
//! resemble the words before the query. All of it is f32 arithmetic in a fixed order, which makes the digest a property
//! of `--context`, `--rows` and `--kv` alone: every adapter, every lowering, every page size and the CPU print the same.
//! The definition is in `examples/common/text.rs`. Without arguments the last line of the first part is
//! `digest 9718353e1fec697335c048d92a5e8785b6dd9164852d56b8921d9cbeed5af48c`.
//!
//! The floor of a stage is the time that the backend, copying memory as fast as it can, needs for the bytes that the stage
//! must read and write. It assumes that they come from memory: what fits a cache can be faster.
//!
//! Exit status: 0 when all bytes are those of the reference, 1 when any differs, 2 when there was nothing to compare: bad
//! arguments, no such adapter, an adapter that does not pass the conformance probe, too little memory.

#[path = "common/check.rs"]
mod check;
#[path = "common/cost.rs"]
mod cost;
#[path = "common/digest.rs"]
mod digest;
#[path = "common/text.rs"]
mod text;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use samebits::shape::{BLOCK_CELLS, MAX_CELLS};
use samebits::{Backend, KvFormat, Profile, QsaLayer, QsaShape, Trace, exact};
use text::{Text, TextCache, TextWindow};

/// Decodes a window over a text, compares it with the reference, shows the passages that it reads.
#[derive(Parser)]
struct Args {
    /// Where to run.
    #[arg(long, value_enum, default_value_t = Where::Best)]
    backend: Where,
    /// Adapter: its index, or a part of its name or driver; may be a software rasteriser. Implies `--backend wgpu`.
    #[arg(long, value_name = "INDEX|NAME")]
    adapter: Option<String>,
    /// auto, precise, guarded, soft-fma, precise+soft-fma, guarded+soft-fma. Implies `--backend wgpu`.
    #[arg(long)]
    lowering: Option<String>,
    /// Cells in the cache, up to 1,048,576; the text starts over after 140,000.
    #[arg(long, default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(1..=MAX_CELLS as i64))]
    context: u32,
    /// Rows of the window: the last cells of the cache, up to 16.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    rows: u32,
    /// How keys and values are kept.
    #[arg(long, value_enum, default_value_t = Kv::Int8)]
    kv: Kv,
    /// Cells in a page of the KV cache.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=MAX_CELLS as i64))]
    page_size: u32,
    /// Timed runs, of which the median is printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Where {
    /// The best adapter that passes the conformance probe, else the CPU.
    Best,
    /// The CPU, all cores.
    Cpu,
    /// The best adapter, or the one that `--adapter` names.
    Wgpu,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kv {
    Int8,
    F16,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    // At this level the crate says why it runs on the CPU when no adapter was usable.
    let filter = env_logger::Env::default().default_filter_or("error,samebits=warn,samebits::qsa=info");
    env_logger::Builder::from_env(filter).format_timestamp(None).format_target(false).init();
    match run(&Args::parse()) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(difference)) => {
            eprintln!("error: the result is not the reference's: {difference}");
            ExitCode::from(1)
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}

/// The inner result tells whether the bytes are the reference's.
fn run(args: &Args) -> Result<Result<(), String>, Failure> {
    if args.rows > args.context {
        let (rows, context) = (args.rows, args.context);
        return Err(format!("--rows: expected at most --context ({context}), got {rows}").into());
    }
    let backend = open(args)?;
    describe(&backend);
    let shape = QsaShape { page_size: args.page_size, ..QsaShape::QWEN38_FLASH_NEXT };
    let format = match args.kv {
        Kv::Int8 => KvFormat::Int8,
        Kv::F16 => KvFormat::F16,
    };

    let text = Text::load();
    let start = Instant::now();
    let bar = ProgressBar::new(args.context.into()).with_style(ProgressStyle::with_template(
        "building the cache {wide_bar} {human_pos} of {human_len} cells",
    )?);
    let cache = TextCache::build(&text, shape, format, args.context, || bar.inc(1));
    bar.finish_and_clear();
    let window = TextWindow::new(&text, &shape, (args.context - args.rows..args.context).collect());
    let built = start.elapsed();

    let start = Instant::now();
    let mut layer = QsaLayer::import(&backend, shape, &cache.view())?;
    let imported = start.elapsed();
    println!(
        "cache     {} cells of {}, {} cells a page; built in {built:.2?}, imported in {imported:.2?}",
        args.context,
        format.name(),
        args.page_size
    );
    let wraps = args.context.div_ceil(text.len());
    if wraps > 1 {
        println!("          the text of {} tokens is there {wraps} times, the last time in part", text.len());
    }

    let trace = layer.decode_traced(&window.view())?;
    let start = Instant::now();
    let verdict = check::against_reference(&cache, &window, &trace);
    match &verdict {
        Ok(bytes) => println!(
            "check     all {bytes} bytes of scores, ids, partials and attention are the reference's ({:.2?})",
            start.elapsed()
        ),
        Err(difference) => println!("check     FAILED: {difference}"),
    }
    let (held, scratch) = layer.memory();
    println!(
        "memory    cache {} ({:+.3} % against the sum of its arrays, {}), scratch {}",
        megabytes(held),
        100.0 * (held as f64 / cache.bytes() as f64 - 1.0),
        megabytes(cache.bytes()),
        megabytes(scratch)
    );

    let repeat = if on_hardware(&backend) { 10 } else { 1 };
    let profile = layer.profile(&window.view(), args.runs as usize, repeat)?;
    print_times(&profile, args.runs, copy_bandwidth(&backend)?, cost::bytes_moved(&shape, format, &trace));
    println!("\ndigest {}", digest::digest(&trace.ids, &trace.attention));

    for r in 0..trace.steps.len() {
        print_passages(&text, &trace, r);
    }
    Ok(verdict.map(|_| ()))
}

#[cfg(feature = "wgpu")]
fn open(args: &Args) -> Result<Backend, Failure> {
    use samebits::gpu::{AdapterChoice, Options};

    let named = args.adapter.is_some() || args.lowering.is_some();
    match args.backend {
        Where::Cpu if named => Err("--adapter and --lowering go with --backend wgpu".into()),
        Where::Cpu => Ok(Backend::Cpu),
        Where::Best if !named => Ok(Backend::best()?),
        Where::Best | Where::Wgpu => {
            let choice = match &args.adapter {
                Some(adapter) => adapter.parse::<AdapterChoice>()?,
                None => AdapterChoice::Best,
            };
            let lowering = args.lowering.as_deref().unwrap_or("auto").parse()?;
            Ok(Backend::wgpu(&choice, &Options { lowering, ..Options::default() })?)
        }
    }
}

#[cfg(not(feature = "wgpu"))]
fn open(args: &Args) -> Result<Backend, Failure> {
    if args.backend == Where::Wgpu || args.adapter.is_some() || args.lowering.is_some() {
        return Err("this was built without the feature wgpu".into());
    }
    Ok(Backend::best()?)
}

fn describe(backend: &Backend) {
    match backend {
        #[cfg(feature = "wgpu")]
        Backend::Wgpu(context) => {
            let info = context.info();
            println!("adapter   {} ({:?})", info.name, info.backend);
            println!("driver    {} {}", info.driver, info.driver_info);
            println!("lowering  {}", context.lowering());
            println!("verdict   {}", context.verdict());
        }
        _ => println!("backend   cpu, {} threads", rayon::current_num_threads()),
    }
}

fn on_hardware(backend: &Backend) -> bool {
    match backend {
        #[cfg(feature = "wgpu")]
        Backend::Wgpu(context) => context.info().device_type != samebits::wgpu::DeviceType::Cpu,
        _ => false,
    }
}

/// Bytes in a second.
fn copy_bandwidth(backend: &Backend) -> samebits::Result<f64> {
    match backend {
        #[cfg(feature = "wgpu")]
        Backend::Wgpu(context) => cost::device_copy_bandwidth(context),
        _ => Ok(cost::cpu_copy_bandwidth()),
    }
}

fn print_times(profile: &Profile, runs: u32, bandwidth: f64, bytes: [u64; 4]) {
    let clock = if profile.device_clock { "the device's timestamps" } else { "the host's clock" };
    println!(
        "time      {clock}, median of {runs}; floors at the {:.1} GB/s of a copy on the same clock",
        bandwidth / 1e9
    );
    println!("\n{:<12}{:>14}{:>14}{:>10}{:>16}", "stage", "time", "floor", "ratio", "must move");
    let line = |name: &str, nanoseconds: f64, bytes: u64| {
        let floor = bytes as f64 / bandwidth * 1e9;
        println!(
            "{name:<12}{:>11.1} µs{:>11.1} µs{:>10.1}{:>16}",
            nanoseconds / 1e3,
            floor / 1e3,
            nanoseconds / floor,
            megabytes(bytes)
        );
    };
    for (&(name, nanoseconds), bytes) in profile.stages.iter().zip(bytes) {
        line(name, nanoseconds, bytes);
    }
    line("step", profile.step, bytes.iter().sum());
}

fn megabytes(bytes: u64) -> String {
    format!("{:.3} MB", bytes as f64 / 1e6)
}

/// A row's last words, and the passages around its best blocks.
fn print_passages(text: &Text, trace: &Trace, r: usize) {
    const PASSAGES: usize = 5;
    const OWN: u32 = 12;
    const AROUND: u32 = 8;
    let step = trace.steps[r];
    let own = step.n_kv.saturating_sub(OWN)..step.n_kv;
    println!("\nrow {r}, position {}, reads {} of {} cells", step.pos, step.width, step.n_kv);
    println!("  query: {}", text.passage(own, 0..0));

    // The incomplete block is chosen in any case, and its score says so only.
    let mut blocks: Vec<u32> = (0..step.n_bid).collect();
    let score = |b: u32| trace.scores[r][b as usize];
    blocks.sort_by_key(|&b| (std::cmp::Reverse(exact::order_key(score(b))), b));
    for &b in blocks.iter().take(PASSAGES) {
        let block = b * BLOCK_CELLS..(b + 1) * BLOCK_CELLS;
        let around = block.start.saturating_sub(AROUND)..(block.end + AROUND).min(step.n_kv);
        let passage = text.passage(around, block.clone());
        println!("  {:>8.3}  cells {}..{}: {passage}", score(b), block.start, block.end);
    }
}
