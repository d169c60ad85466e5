//! A device that runs kernels.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::adapter::{self, AdapterChoice};
use super::lowering::{Lowering, LoweringChoice, Verdict};
use super::pipeline::{self, Kernel, Key, Pipeline};
use super::vulkan::SpirvTarget;
use crate::error::{Error, Result};

/// Which limits to ask a device for.
#[derive(Debug, Clone, Default)]
pub enum Limits {
    /// All that the adapter has.
    #[default]
    Adapter,
    /// The least that WebGPU guarantees: 128 MiB bindings, 8 storage buffers a stage, 16 KiB of workgroup memory.
    WebGpuDefault,
    /// These; opening fails with [`Error::Limit`] when the adapter has less.
    Custom(Box<wgpu::Limits>),
}

/// How to open a device.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which lowerings may be tried.
    pub lowering: LoweringChoice,
    /// Run on an adapter that the conformance probe refuses. Its results are not the defined ones.
    pub allow_refused: bool,
    /// Limits to ask for. Not used for a device that the caller made.
    pub limits: Limits,
    /// Features to ask for where the adapter has them; nothing depends on any of them. Not used for a device that the
    /// caller made.
    pub features: wgpu::Features,
    /// Treat storage bindings above this many bytes as impossible, as on a smaller device.
    pub max_binding: Option<u64>,
}

impl Options {
    /// Every feature that there is a use for: timestamps for timing, SPIR-V for the precise lowerings, subgroups.
    pub const FEATURES: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY
        .union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS)
        .union(wgpu::Features::PASSTHROUGH_SHADERS)
        .union(wgpu::Features::SUBGROUP);
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lowering: LoweringChoice::Auto,
            allow_refused: false,
            limits: Limits::Adapter,
            features: Options::FEATURES,
            max_binding: None,
        }
    }
}

/// A device, its queue, the lowering that makes kernels exact on it, and the kernels compiled so far. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    limits: wgpu::Limits,
    features: wgpu::Features,
    max_binding: u64,
    spirv: Option<SpirvTarget>,
    lowering: Lowering,
    verdict: Verdict,
    lost: Arc<Mutex<Option<String>>>,
    /// Opened here, so that its callbacks are ours.
    owned: bool,
    pipelines: Mutex<HashMap<Key, Arc<Pipeline>>>,
}

/// A poisoned lock guards nothing here that could be half-written.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a future that is ready. wgpu's native error scopes always are.
fn ready<T>(future: impl Future<Output = Option<T>>) -> Option<T> {
    match pin!(future).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => None,
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some of wgpu's descriptions already contain their causes.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl Context {
    /// Opens an adapter, and runs the conformance probe on it.
    ///
    /// # Errors
    /// [`Error::NoAdapter`] when none matches, [`Error::Refused`] when it does not give the defined results,
    /// [`Error::Invalid`] when the lowering or the limits that were asked for are impossible on it.
    pub async fn open(choice: &AdapterChoice, options: &Options) -> Result<Context> {
        adapter::open(choice, options).await
    }

    /// Uses a device that the caller made, and runs the conformance probe on it.
    ///
    /// The precise lowerings need a Vulkan device with [`wgpu::Features::PASSTHROUGH_SHADERS`]; on another one the
    /// guarded ones are used. The caller's error and device-lost callbacks stay as they are: pass what the latter
    /// learns to [`Context::set_lost`] to get the device's own words in [`Error::DeviceLost`].
    ///
    /// # Errors
    /// [`Error::Refused`] when the device does not give the defined results, [`Error::Invalid`] when the lowering that
    /// was asked for is impossible on it, [`Error::DeviceLost`].
    pub async fn from_device(device: wgpu::Device, queue: wgpu::Queue, options: &Options) -> Result<Context> {
        let info = device.adapter_info();
        Context::settle(device, queue, info, options, None).await
    }

    /// Opens `adapter`.
    pub(super) async fn from_adapter(adapter: &wgpu::Adapter, options: &Options) -> Result<Context> {
        let limits = match &options.limits {
            Limits::Adapter => adapter.limits(),
            Limits::WebGpuDefault => wgpu::Limits::default(),
            Limits::Custom(limits) => wgpu::Limits::clone(limits),
        };
        let mut excess = None;
        limits.check_limits_with_fail_fn(&adapter.limits(), false, |name, asked, allowed| {
            excess = excess.take().or(Some(Error::Limit { what: name.to_owned(), asked, allowed }));
        });
        if let Some(error) = excess {
            return Err(error);
        }
        let required_features = options.features & adapter.features();
        let experimental_features = if required_features.intersects(wgpu::Features::all_experimental_mask()) {
            // SAFETY: the one experimental feature in use is PASSTHROUGH_SHADERS; the modules handed over under it
            // are argued for where they are made. The others have no effect unless a caller asks for and uses them.
            unsafe { wgpu::ExperimentalFeatures::enabled() }
        } else {
            wgpu::ExperimentalFeatures::disabled()
        };
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("samebits"),
                required_features,
                required_limits: limits,
                experimental_features,
                ..Default::default()
            })
            .await
            .map_err(|e| Error::Gpu { what: "opening the device".into(), reason: chain(&e) })?;
        let lost = Arc::new(Mutex::new(None));
        device.set_device_lost_callback({
            let lost = Arc::clone(&lost);
            move |reason, message| {
                lock(&lost).get_or_insert(if message.is_empty() { format!("{reason:?}") } else { message });
            }
        });
        // Errors are caught by scopes; what none catches must not end the process, which is wgpu's default.
        device.on_uncaptured_error(Arc::new(|e: wgpu::Error| log::error!("GPU: {}", chain(&e))));
        Context::settle(device, queue, adapter.get_info(), options, Some(lost)).await
    }

    async fn settle(
        device: wgpu::Device,
        queue: wgpu::Queue,
        info: wgpu::AdapterInfo,
        options: &Options,
        lost: Option<Arc<Mutex<Option<String>>>>,
    ) -> Result<Context> {
        let features = device.features();
        let spirv = features
            .contains(wgpu::Features::PASSTHROUGH_SHADERS)
            .then(|| SpirvTarget::of(&device))
            .flatten();
        let candidates = options.lowering.candidates(spirv.is_some());
        let Some(&first) = candidates.first() else {
            return Err(Error::invalid(
                "lowering",
                "guarded: the precise ones need Vulkan and PASSTHROUGH_SHADERS, which the device lacks",
                options.lowering,
            ));
        };
        let limits = device.limits();
        let inner = Inner {
            device,
            queue,
            info,
            features,
            max_binding: options
                .max_binding
                .unwrap_or(u64::MAX)
                .min(limits.max_storage_buffer_binding_size)
                .min(limits.max_buffer_size),
            limits,
            spirv,
            lowering: first,
            verdict: Verdict::Exact,
            owned: lost.is_some(),
            lost: lost.unwrap_or_default(),
            pipelines: Mutex::default(),
        };
        let context = Context(Arc::new(inner));
        let (lowering, verdict) = super::probe::choose(&context, &candidates)?;
        if let (Verdict::Refused { case, detail }, false) = (&verdict, options.allow_refused) {
            return Err(Error::Refused {
                adapter: context.info().name.clone(),
                lowering: lowering.to_string(),
                case: case.clone(),
                detail: detail.clone(),
            });
        }
        let inner = Arc::try_unwrap(context.0).map_err(|_| Error::Gpu {
            what: "probing the device".into(),
            reason: "the probe still holds it".into(),
        })?;
        // The probe's own pipelines have served.
        Ok(Context(Arc::new(Inner { lowering, verdict, pipelines: Mutex::default(), ..inner })))
    }

    /// The device.
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// Name, backend and driver.
    pub fn info(&self) -> &wgpu::AdapterInfo {
        &self.0.info
    }

    /// The device's limits, as it was opened.
    pub fn limits(&self) -> &wgpu::Limits {
        &self.0.limits
    }

    /// The device's features, as it was opened.
    pub fn features(&self) -> wgpu::Features {
        self.0.features
    }

    /// How kernels are made exact here.
    pub fn lowering(&self) -> Lowering {
        self.0.lowering
    }

    /// What the conformance probe found under that lowering.
    pub fn verdict(&self) -> &Verdict {
        &self.0.verdict
    }

    /// What SPIR-V modules may contain; `None` when the device takes none.
    pub fn spirv_target(&self) -> Option<SpirvTarget> {
        self.0.spirv
    }

    /// Whether the device can time what it runs.
    pub fn has_timestamps(&self) -> bool {
        self.0.features.contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// The most bytes that one storage binding may have; longer arrays are split by the stages.
    pub fn max_binding(&self) -> u64 {
        self.0.max_binding
    }

    /// The pipeline of a kernel under this context's lowering. Compiled on the first call, shared by the later ones.
    ///
    /// # Errors
    /// [`Error::Limit`] when the kernel needs more than the device has, [`Error::Gpu`] when it does not compile,
    /// [`Error::DeviceLost`].
    pub fn pipeline(&self, kernel: &Kernel<'_>) -> Result<Arc<Pipeline>> {
        self.pipeline_with(kernel, self.0.lowering)
    }

    /// The same under a lowering of the caller's choice.
    ///
    /// # Errors
    /// As [`Context::pipeline`]; [`Error::Gpu`] for a precise lowering on a device that takes no SPIR-V.
    pub fn pipeline_with(&self, kernel: &Kernel<'_>, lowering: Lowering) -> Result<Arc<Pipeline>> {
        let key = Key::new(kernel, lowering);
        if let Some(found) = lock(&self.0.pipelines).get(&key) {
            return Ok(Arc::clone(found));
        }
        // Not under the lock: compiling takes up to seconds. Two threads may build the same one; the first stays.
        let built = pipeline::build(self, kernel.name, &key)?;
        Ok(Arc::clone(lock(&self.0.pipelines).entry(key).or_insert(built)))
    }

    /// Checks the workgroups of a dispatch. wgpu itself would say so only when the encoder ends.
    ///
    /// # Errors
    /// [`Error::Limit`] when a dimension is beyond what the device can count.
    pub fn check_dispatch(&self, workgroups: [u32; 3]) -> Result<()> {
        let allowed = self.0.limits.max_compute_workgroups_per_dimension;
        match workgroups.into_iter().max() {
            Some(asked) if asked > allowed => Err(Error::Limit {
                what: "max_compute_workgroups_per_dimension".into(),
                asked: asked.into(),
                allowed: allowed.into(),
            }),
            _ => Ok(()),
        }
    }

    /// Ends the encoder and submits it.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`], or [`Error::Gpu`] when what was recorded is invalid.
    pub fn submit(&self, encoder: wgpu::CommandEncoder) -> Result<wgpu::SubmissionIndex> {
        let index = self.scoped("submitting commands", 0, || self.0.queue.submit([encoder.finish()]))?;
        self.hear_of_loss()?;
        Ok(index)
    }

    /// Waits for a submission, or for all so far.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Gpu`].
    pub fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        self.poll(wgpu::PollType::Wait { submission_index: submission, timeout: None })
    }

    /// Remembers that the device is lost. For callers who made the device: wgpu tells only them.
    pub fn set_lost(&self, reason: impl Into<String>) {
        lock(&self.0.lost).get_or_insert(reason.into());
    }

    /// Whether the device is still there, as far as is known.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn check_alive(&self) -> Result<()> {
        match &*lock(&self.0.lost) {
            Some(reason) => Err(Error::DeviceLost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn poll(&self, how: wgpu::PollType) -> Result<()> {
        // wgpu panics when it is the wait that finds the device lost; that is an error like others here.
        match catch_unwind(AssertUnwindSafe(|| self.0.device.poll(how))) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => {
                self.check_alive()?;
                Err(Error::Gpu { what: "waiting for the device".into(), reason: e.to_string() })
            }
            Err(_) => {
                self.set_lost("waiting for the device failed");
                self.check_alive()
            }
        }
    }

    /// Runs wgpu calls, and turns what they report into a typed error. `bytes` is what is being allocated.
    pub(super) fn scoped<T>(&self, what: &str, bytes: u64, f: impl FnOnce() -> T) -> Result<T> {
        self.check_alive()?;
        let device = &self.0.device;
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let value = f();
        let validation = ready(validation.pop());
        let memory = ready(memory.pop());
        let internal = ready(internal.pop());
        // A lost device makes everything after it fail in other words.
        self.check_alive()?;
        match memory.or(validation).or(internal) {
            None => Ok(value),
            Some(e @ wgpu::Error::OutOfMemory { .. }) => {
                Err(Error::OutOfMemory { what: what.into(), asked: bytes, reason: chain(&e) })
            }
            Some(e) => {
                self.look_alive()?;
                Err(Error::Gpu { what: what.into(), reason: chain(&e) })
            }
        }
    }

    /// Gives wgpu the occasion to call back about a loss; it takes none by itself.
    pub(super) fn hear_of_loss(&self) -> Result<()> {
        if self.0.owned {
            self.poll(wgpu::PollType::Poll)?;
        }
        self.check_alive()
    }

    /// Finds out whether the device is lost when nobody has said so. wgpu reports a loss to nothing but the callback,
    /// which runs late or belongs to the caller; what is created on a lost device is silently invalid.
    pub(super) fn look_alive(&self) -> Result<()> {
        self.hear_of_loss()?;
        let device = &self.0.device;
        let create = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("sign of life"),
            size: 4,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let created = ready(create.pop());
        let map = device.push_error_scope(wgpu::ErrorFilter::Validation);
        buffer.map_async(wgpu::MapMode::Read, .., |_| ());
        let mapped = ready(map.pop());
        if created.is_none() && mapped.is_some() {
            self.set_lost("everything that is created on it is invalid");
        }
        self.check_alive()
    }
}
