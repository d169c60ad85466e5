//! How long parts of an encoder take.

use std::time::Instant;

use super::context::Context;
use crate::error::{Result, check};

/// Which clock a time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeSource {
    /// The device's timestamps: the time on the device alone.
    Gpu,
    /// The host's clock around a submission of its own: includes the cost of submitting and waiting.
    Host,
}

/// One measured part.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// As given to [`Timer::start`].
    pub name: String,
    /// Nanoseconds.
    pub nanoseconds: f64,
}

/// Times named, consecutive parts of an encoder.
///
/// ```no_run,standalone_crate
/// # fn f(context: &samebits::gpu::Context) -> samebits::Result<()> {
/// let mut timer = samebits::gpu::Timer::new(context, 8)?;
/// let mut encoder = context.device().create_command_encoder(&Default::default());
/// timer.start(&mut encoder, "score")?;
/// // ... record ...
/// timer.stop(&mut encoder)?;
/// for span in timer.submit(encoder)? {
///     println!("{}: {} ns ({:?})", span.name, span.nanoseconds, timer.source());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Timer {
    context: Context,
    max_spans: u32,
    names: Vec<String>,
    running: bool,
    clock: Clock,
}

#[derive(Debug)]
enum Clock {
    Gpu { queries: wgpu::QuerySet, resolved: wgpu::Buffer, inside_encoders: bool },
    Host { started: Instant, nanoseconds: Vec<f64> },
}

impl Timer {
    /// The most spans of one timer.
    pub const MAX_SPANS: u32 = wgpu::QUERY_SET_MAX_QUERIES / 2;

    /// A timer for up to `max_spans` parts at a time, 1 to [`Timer::MAX_SPANS`]. Uses the host's clock when the device
    /// has no timestamps.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for another `max_spans`, [`crate::Error::OutOfMemory`], [`crate::Error::DeviceLost`].
    pub fn new(context: &Context, max_spans: u32) -> Result<Timer> {
        if context.has_timestamps() {
            Timer::gpu(context, max_spans)
        } else {
            Timer::host(context, max_spans)
        }
    }

    /// A timer that uses the host's clock even where the device has timestamps.
    ///
    /// # Errors
    /// As [`Timer::new`].
    pub fn host(context: &Context, max_spans: u32) -> Result<Timer> {
        Timer::check_spans(max_spans)?;
        let clock = Clock::Host { started: Instant::now(), nanoseconds: Vec::new() };
        Ok(Timer { context: context.clone(), max_spans, names: Vec::new(), running: false, clock })
    }

    fn gpu(context: &Context, max_spans: u32) -> Result<Timer> {
        Timer::check_spans(max_spans)?;
        let queries = context.scoped("timestamps", 0, || {
            context.device().create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * max_spans,
            })
        })?;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let bytes = 2 * u64::from(max_spans) * u64::from(wgpu::QUERY_SIZE);
        let clock = Clock::Gpu {
            queries,
            resolved: context.buffer("timestamps", bytes, usage)?,
            inside_encoders: context.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS),
        };
        Ok(Timer { context: context.clone(), max_spans, names: Vec::new(), running: false, clock })
    }

    fn check_spans(max_spans: u32) -> Result<()> {
        let max = Timer::MAX_SPANS;
        check((1..=max).contains(&max_spans), "max_spans", format!("1 to {max}"), max_spans)
    }

    /// Which clock is used.
    pub fn source(&self) -> TimeSource {
        match self.clock {
            Clock::Gpu { .. } => TimeSource::Gpu,
            Clock::Host { .. } => TimeSource::Host,
        }
    }

    /// Starts a part. With the host's clock, what `encoder` holds is submitted and waited for, and `encoder` is a new
    /// one afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] when a part is running or there are `max_spans` already; [`crate::Error::DeviceLost`],
    /// [`crate::Error::Gpu`].
    pub fn start(&mut self, encoder: &mut wgpu::CommandEncoder, name: &str) -> Result<()> {
        check(!self.running, "timer", "no running span", self.names.last().map_or("", String::as_str))?;
        let full = self.names.len() >= self.max_spans as usize;
        check(!full, "timer", format!("at most {} spans", self.max_spans), "one more")?;
        self.mark(encoder, false)?;
        self.names.push(name.to_owned());
        self.running = true;
        Ok(())
    }

    /// Ends the running part.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] when none is running; [`crate::Error::DeviceLost`], [`crate::Error::Gpu`].
    pub fn stop(&mut self, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        check(self.running, "timer", "a running span", "none")?;
        self.mark(encoder, true)?;
        self.running = false;
        Ok(())
    }

    fn mark(&mut self, encoder: &mut wgpu::CommandEncoder, stop: bool) -> Result<()> {
        let span = self.names.len() as u32 - u32::from(stop);
        let index = 2 * span + u32::from(stop);
        match &mut self.clock {
            Clock::Gpu { queries, inside_encoders: true, .. } => encoder.write_timestamp(queries, index),
            // WebGPU itself writes timestamps around passes only; an empty pass will do.
            Clock::Gpu { queries, .. } => {
                drop(encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: Some("timestamp"),
                    timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                        query_set: queries,
                        beginning_of_pass_write_index: (!stop).then_some(index),
                        end_of_pass_write_index: stop.then_some(index),
                    }),
                }));
            }
            Clock::Host { started, nanoseconds } => {
                let new = self.context.device().create_command_encoder(&Default::default());
                let submission = self.context.submit(std::mem::replace(encoder, new))?;
                self.context.wait(Some(submission))?;
                if stop {
                    nanoseconds.push(started.elapsed().as_secs_f64() * 1e9);
                } else {
                    *started = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Submits `encoder`, waits, and gives the parts in order. The timer can be used again.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] when a part is still running; [`crate::Error::DeviceLost`], [`crate::Error::Gpu`].
    pub fn submit(&mut self, mut encoder: wgpu::CommandEncoder) -> Result<Vec<Span>> {
        check(!self.running, "timer", "no running span", self.names.last().map_or("", String::as_str))?;
        let count = self.names.len();
        if let (Clock::Gpu { queries, resolved, .. }, 1..) = (&self.clock, count) {
            encoder.resolve_query_set(queries, 0..2 * count as u32, resolved, 0);
        }
        let submission = self.context.submit(encoder)?;
        self.context.wait(Some(submission))?;
        let nanoseconds = match &mut self.clock {
            Clock::Gpu { resolved, .. } => {
                let ticks: Vec<u64> = self.context.read(resolved, 0, 2 * count)?;
                let period = f64::from(self.context.queue().get_timestamp_period());
                // Not every device keeps its counter monotonic across power states.
                ticks.chunks_exact(2).map(|t| t[1].saturating_sub(t[0]) as f64 * period).collect()
            }
            Clock::Host { nanoseconds, .. } => std::mem::take(nanoseconds),
        };
        let names = std::mem::take(&mut self.names);
        Ok(names.into_iter().zip(nanoseconds).map(|(name, nanoseconds)| Span { name, nanoseconds }).collect())
    }
}
