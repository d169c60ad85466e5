//! Compute kernels for engines that run language models locally, with one promise: **the same bits on every adapter**.
//!
//! The crate does the decode step of QSA sparse attention: an indexer scores every block of four cells of a long KV cache,
//! the best cells are selected, and attention runs over those only. It runs on any adapter that wgpu reaches
//! through Vulkan, Metal or DX12, and on the CPU, and the output of one is the output of all: equal as bytes, not close.
//! A window decoded on one machine can be checked, continued or bisected on another.
//!
//! # Decoding a window
//!
//! ```standalone_crate
//! use samebits::{Backend, KvCells, QsaCache, QsaLayer, QsaShape, Window, exact};
//!
//! let shape = QsaShape { budget: 64, page_size: 16, ..QsaShape::QWEN38_FLASH_NEXT };
//! let wave = |n: usize| -> Vec<f32> { (0..n).map(|i| (i * 37 % 101) as f32 / 64.0 - 0.75).collect() };
//! let half = |n: usize| -> Vec<u16> { wave(n).into_iter().map(exact::f32_to_f16).collect() };
//! let cache = QsaCache {
//!     cells: 1000,
//!     pooled: &wave(250 * 128), // an indexer key for each four cells
//!     dead: &wave(128),
//!     kv: KvCells::F16 { k: &half(63 * 16 * 2 * 256), v: &half(63 * 16 * 2 * 256) },
//!     page_table: &(0..63).rev().collect::<Vec<u32>>(),
//! };
//! let mut layer = QsaLayer::import(&Backend::Cpu, shape, &cache)?; // or Backend::best()?
//! let out = layer.decode(&Window {
//!     positions: &[998, 999],
//!     query: &wave(2 * 24 * 256),
//!     index_query: &wave(2 * 4 * 128),
//!     gate: None,
//! })?;
//! assert_eq!(out.ids[1].len(), 67); // the cells that the second row read: the budget and a block less one
//! assert_eq!(out.attention.len(), 2 * 24 * 256);
//! # Ok::<(), samebits::Error>(())
//! ```
//!
//! # Shapes
//!
//! All arrays are row-major. T is the number of rows of a window, `n_kv` the position of a row plus one, and the width of
//! a row `min(n_kv, budget + 3)`. A slot is a physical cell: `page_table[cell / page_size] * page_size + cell % page_size`.
//!
//! | array | shape | type |
//! |---|---|---|
//! | [`QsaCache::pooled`] | `[cells / 4][index_dim]` | f32 |
//! | [`QsaCache::dead`] | `[index_dim]` | f32 |
//! | [`QsaCache::page_table`] | `[ceil(cells / page_size)]`, or longer | u32 |
//! | [`QsaCache::kv`], f16 | keys and values `[slots][kv_heads][head_dim]` | f16 bits |
//! | [`QsaCache::kv`], int8 | codes `[slots][kv_heads][head_dim]`, scales `[slots][kv_heads][head_dim / 64]` | i8, f16 bits |
//! | [`Window::query`], [`Window::gate`] | `[T][q_heads][head_dim]` | f32 |
//! | [`Window::index_query`] | `[T][index_heads][index_dim]` | f32 |
//! | [`Decoded::ids`] | of each row `[width]`, ascending | u32 |
//! | [`Decoded::attention`] | `[T][q_heads][head_dim]` | f32, or f16 bits from [`QsaLayer::decode_f16`] |
//!
//! [`QsaShape`] says which sizes are possible.
//!
//! # Stages
//!
//! | stage | makes | of | order of its sums |
//! |---|---|---|---|
//! | `qsa_score` | a score for each block | indexer keys and queries | four products a lane, then a tree over 32 lanes; heads in order |
//! | `qsa_topk` | the cells of the best blocks, ascending | scores | no sum; among equal scores the lowest cells |
//! | `qsa_attend` | accumulators, maximum and sum for each 64 cells | ids, keys, values, queries | eight products a lane, then the tree; values in ascending order of cells |
//! | `qsa_merge` | the attention, gated if wanted | the chunks | chunks in ascending order |
//!
//! # How the same bits come about
//!
//! Floats are binary32, rounded to nearest even, subnormals kept. Kernels use additions, subtractions, multiplications and
//! fused multiply-adds only, each rounded once. Division, exponential, reciprocal square root and conversions to f16 are
//! fixed sequences of those and of integer operations ([`exact`]), the same on every backend. Each sum has a defined order,
//! and no backend uses another: neither the CPU's vectors, nor the size of a subgroup or a workgroup, nor the number of
//! threads changes it. [`mod@reference`] holds every stage as plain loops; tests compare all backends with it, byte for byte.
//!
//! Drivers fuse, factor and simplify float arithmetic, and some do not fuse a fused multiply-add. So the WGSL of a kernel
//! is made exact for a device by a [lowering](gpu::Lowering):
//!
//! | lowering | additions and multiplications | where |
//! |---|---|---|
//! | `precise` | the kernel becomes SPIR-V whose operations are marked `NoContraction` | Vulkan with `PASSTHROUGH_SHADERS` |
//! | `guarded` | each result passes an XOR with a zero that the compiler cannot know | everywhere |
//!
//! Each of them comes with `+soft-fma`, where the fused multiply-add is emulated. When a device is opened, a conformance
//! probe runs every operation on inputs with known results, and the fastest lowering that passes is taken. Its
//! [verdict](gpu::Verdict) is one of:
//!
//! * **`Exact`**: all results have the defined bits;
//! * **`ExactNormal`**: the same as long as no input, result or intermediate is subnormal, for devices that flush those;
//! * **`Refused`**: opening fails with [`Error::Refused`], unless the caller insists.
//!
//! A NaN is a NaN: its sign and payload are not defined. A row with a NaN or an infinity in its input has unspecified
//! floats; its selection is still complete and ordered, and no other row changes.
//!
//! [`golden::verify`] runs a suite of cases with known digests on a backend; so does `samebits verify`.
//!
//! # Backends
//!
//! [`Backend::best`] takes the best adapter that passes the probe, else the CPU; it never takes a software rasteriser.
//! [`Backend::wgpu`](Backend) opens an adapter by name or index, under a lowering of choice. [`Backend::Cpu`] runs on all
//! cores; the widest vectors that the CPU has are picked at run time.
//!
//! # In an engine's own encoder
//!
//! [`stages`] records the step into a compute pass of the caller, on the caller's device and buffers. Nothing is read by
//! the host in between: the positions are in device memory. `examples/caller_encoder.rs` is a complete engine's frame.
//!
//! ```standalone_crate
//! # #[cfg(feature = "wgpu")]
//! # mod engine {
//! use samebits::gpu::{Context, Options};
//! use samebits::stages::{DecodeBuffers, QsaDecode, QsaDecodeBound, QsaScratch};
//! use samebits::{KvFormat, QsaShape, Result, wgpu};
//!
//! /// Once: `context` is from `Context::from_device(device, queue, &Options::default()).await?`, which probes the device.
//! fn bind(context: &Context, shape: &QsaShape, buffers: &DecodeBuffers) -> Result<QsaDecodeBound> {
//!     let scratch = QsaScratch::new(context, shape, 4, buffers.keys.blocks())?;
//!     QsaDecode::new(context, shape, KvFormat::Int8)?.bind(buffers, &scratch)
//! }
//!
//! /// Each step: four rows, none of which sees more than `max_cells` cells.
//! fn record(bound: &QsaDecodeBound, encoder: &mut wgpu::CommandEncoder, max_cells: u32) -> Result<()> {
//!     bound.encode(&mut encoder.begin_compute_pass(&Default::default()), 4, max_cells)
//! }
//! # }
//! ```
//!
//! # Errors
//!
//! Every function that can fail returns [`Error`]. Bad input is found before anything is submitted, and named: the field,
//! what was expected, what came. Ids and page table entries on the device are clamped before use: a wrong buffer gives
//! wrong numbers, never an access out of bounds. A lost device is [`Error::DeviceLost`], not a panic.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `wgpu` | yes | the modules [`gpu`] and [`stages`], and the adapters as a [`Backend`] |
//! | `cli` | yes | the `samebits` command, and the crates that only it needs; libraries turn it off |
//!
//! With neither, the CPU backend is all there is.
#![cfg_attr(
    not(feature = "wgpu"),
    allow(rustdoc::broken_intra_doc_links, reason = "modules of the feature wgpu are mentioned")
)]

pub mod cpu;
pub mod error;
pub mod exact;
pub mod gguf;
pub mod golden;
#[cfg(feature = "wgpu")]
pub mod gpu;
pub mod qsa;
pub mod quant;
pub mod reference;
pub mod shape;
#[cfg(feature = "wgpu")]
pub mod stages;

pub use error::{Error, Result};
pub use qsa::{Backend, Decoded, Profile, QsaLayer, Trace};
pub use shape::{ExpertShape, KvCells, KvFormat, QsaCache, QsaShape, Routing, Step, Window};
#[cfg(feature = "wgpu")]
pub use wgpu;

/// The examples of the README are tested. All doc tests are `standalone_crate`, so that `cargo test` ends with their result
/// and not with the time that merging them took.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
