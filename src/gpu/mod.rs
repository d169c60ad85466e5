//! Running kernels on a GPU so that they give the defined bits: devices, the lowering that makes the one WGSL text
//! exact on each of them, the probe that proves it, pipelines, memory and timing. Names no stage.

mod adapter;
mod buffer;
mod context;
mod lowering;
mod pipeline;
mod probe;
mod spirv;
mod timer;
mod vulkan;

pub use adapter::{AdapterChoice, AdapterReport, adapters};
pub use context::{Context, Limits, Options};
pub use lowering::{Arithmetic, FusedMultiplyAdd, Lowering, LoweringChoice, Verdict};
pub use pipeline::{Binding, Kernel, Pipeline};
pub use spirv::FloatControls;
pub use timer::{Span, TimeSource, Timer};
pub use vulkan::SpirvTarget;
