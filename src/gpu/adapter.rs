//! Finding adapters.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::context::{Context, Options};
use super::lowering::{Lowering, Verdict};
use crate::error::{Error, Result};

/// Which adapter to open.
///
/// Parsed from `best`, a number, or anything else as a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum AdapterChoice {
    /// The first that passes the conformance probe, discrete GPUs before integrated ones. Never a software rasteriser.
    #[default]
    Best,
    /// The one at this place of [`adapters`].
    Index(usize),
    /// The first whose name or driver contains this, without regard to case.
    Name(String),
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterChoice::Best => f.pad("best"),
            AdapterChoice::Index(index) => fmt::Display::fmt(index, f),
            AdapterChoice::Name(name) => f.pad(name),
        }
    }
}

impl FromStr for AdapterChoice {
    type Err = Infallible;

    fn from_str(s: &str) -> Result<Self, Infallible> {
        Ok(match s.parse() {
            Ok(index) => AdapterChoice::Index(index),
            Err(_) if s == "best" => AdapterChoice::Best,
            Err(_) => AdapterChoice::Name(s.to_owned()),
        })
    }
}

/// What is known about an adapter.
#[derive(Debug, Clone)]
pub struct AdapterReport {
    /// Its place in [`adapters`].
    pub index: usize,
    /// Name.
    pub name: String,
    /// Graphics API.
    pub backend: wgpu::Backend,
    /// Driver.
    pub driver: String,
    /// Version of the driver.
    pub driver_info: String,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// Kind of device.
    pub device_type: wgpu::DeviceType,
    /// Whether it is a software rasteriser.
    pub software: bool,
    /// The adapter's limits.
    pub limits: wgpu::Limits,
    /// Those of [`Options::FEATURES`] that it has, and `SHADER_F16`.
    pub features: wgpu::Features,
    /// Least number of threads that run in lockstep.
    pub subgroup_min_size: u32,
    /// Greatest number of threads that run in lockstep.
    pub subgroup_max_size: u32,
    /// The lowering that kernels would run under, or that came closest; `None` when the device could not be opened.
    pub lowering: Option<Lowering>,
    /// What the conformance probe found, with the failing case.
    pub verdict: Verdict,
}

/// One for the process: drivers do not like instances to come and go (after some twenty of them NVIDIA's gave no
/// adapters any more).
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        // OpenGL stays off: its float rules are too loose to be worth probing.
        let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
        wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        })
    })
}

async fn enumerate() -> Vec<wgpu::Adapter> {
    instance().enumerate_adapters(wgpu::Backends::all()).await
}

/// All adapters, each opened and probed under the best lowering that it has.
pub async fn adapters() -> Vec<AdapterReport> {
    let mut reports = Vec::new();
    let options = Options { allow_refused: true, ..Options::default() };
    for (index, adapter) in enumerate().await.into_iter().enumerate() {
        let (lowering, verdict) = match Context::from_adapter(&adapter, &options).await {
            Ok(context) => (Some(context.lowering()), context.verdict().clone()),
            Err(e) => (None, Verdict::Refused { case: "opening the device".into(), detail: e.to_string() }),
        };
        let info = adapter.get_info();
        reports.push(AdapterReport {
            index,
            software: info.device_type == wgpu::DeviceType::Cpu,
            name: info.name,
            backend: info.backend,
            driver: info.driver,
            driver_info: info.driver_info,
            vendor: info.vendor,
            device: info.device,
            device_type: info.device_type,
            limits: adapter.limits(),
            features: adapter.features() & (Options::FEATURES | wgpu::Features::SHADER_F16),
            subgroup_min_size: info.subgroup_min_size,
            subgroup_max_size: info.subgroup_max_size,
            lowering,
            verdict,
        });
    }
    reports
}

/// Discrete before integrated before virtual; `None` for what [`AdapterChoice::Best`] never takes.
fn rank(device_type: wgpu::DeviceType) -> Option<u8> {
    match device_type {
        wgpu::DeviceType::DiscreteGpu => Some(0),
        wgpu::DeviceType::IntegratedGpu => Some(1),
        wgpu::DeviceType::VirtualGpu => Some(2),
        wgpu::DeviceType::Other => Some(3),
        wgpu::DeviceType::Cpu => None,
    }
}

pub(super) async fn open(choice: &AdapterChoice, options: &Options) -> Result<Context> {
    let all = enumerate().await;
    let names = || {
        let names: Vec<_> = all.iter().map(|a| a.get_info().name).collect();
        if names.is_empty() { "none found".to_owned() } else { format!("found {}", names.join(", ")) }
    };
    let chosen = match choice {
        AdapterChoice::Best => {
            let mut ranked: Vec<_> =
                all.iter().filter_map(|a| Some((rank(a.get_info().device_type)?, a))).collect();
            // Stable: the platform's own order decides among equals.
            ranked.sort_by_key(|r| r.0);
            if ranked.is_empty() {
                return Err(Error::NoAdapter {
                    reason: format!("no GPU that is not a software rasteriser; {}", names()),
                });
            }
            let mut refused = Vec::new();
            for (_, adapter) in ranked {
                match Context::from_adapter(adapter, options).await {
                    Ok(context) => return Ok(context),
                    Err(e) => {
                        log::warn!("{}: {e}", adapter.get_info().name);
                        refused.push(e);
                    }
                }
            }
            // One adapter's own error says more than a list of one.
            return Err(if refused.len() == 1 {
                refused.remove(0)
            } else {
                let reasons: Vec<_> = refused.iter().map(Error::to_string).collect();
                Error::NoAdapter { reason: reasons.join("; ") }
            });
        }
        AdapterChoice::Index(index) => all.get(*index),
        AdapterChoice::Name(name) => {
            let wanted = name.to_lowercase();
            all.iter().find(|a| {
                let info = a.get_info();
                info.name.to_lowercase().contains(&wanted) || info.driver.to_lowercase().contains(&wanted)
            })
        }
    };
    match chosen {
        Some(adapter) => Context::from_adapter(adapter, options).await,
        None => Err(Error::NoAdapter { reason: format!("{choice} matches none; {}", names()) }),
    }
}
