//! GPU compute kernels for local LLM engines that return the same bits on every adapter.

pub mod cpu;
pub mod error;
pub mod exact;
pub mod golden;
#[cfg(feature = "wgpu")]
pub mod gpu;
pub mod qsa;
pub mod reference;
pub mod shape;
#[cfg(feature = "wgpu")]
pub mod stages;

pub use error::{Error, Result};
pub use qsa::{Backend, Decoded, Profile, QsaLayer, Trace};
pub use shape::{KvCells, KvFormat, QsaCache, QsaShape, Step, Window};
#[cfg(feature = "wgpu")]
pub use wgpu;
