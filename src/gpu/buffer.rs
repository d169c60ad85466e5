//! Memory on the device: making, filling and reading it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytemuck::Pod;

use super::context::{Context, lock};
use crate::error::{Error, Result, check};

/// Bytes that pass through staging memory at once, so that a large array does not need its size twice.
const CHUNK: u64 = 64 << 20;

/// What a storage buffer can be used for, beside whatever the caller adds.
const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_DST).union(wgpu::BufferUsages::COPY_SRC);

impl Context {
    /// A storage buffer of zeros, of at least 16 bytes, which can be copied from and to.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn zeros(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer> {
        self.buffer(label, bytes, STORAGE)
    }

    /// A buffer of zeros. Rounded up to 4 bytes, and to at least 16.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn buffer(&self, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        let allowed = self.limits().max_buffer_size;
        let size = bytes.max(16).checked_next_multiple_of(4).unwrap_or(u64::MAX);
        if size > allowed {
            return Err(Error::Limit { what: "max_buffer_size".into(), asked: size, allowed });
        }
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.scoped(label, size, || self.device().create_buffer(&descriptor))?;
        self.hear_of_loss()?;
        Ok(buffer)
    }

    /// A storage buffer that holds `data`. Padded with zeros to 4 bytes, and to at least 16.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn storage<T: Pod>(&self, label: &str, data: &[T]) -> Result<wgpu::Buffer> {
        let buffer = self.zeros(label, size_of_val(data) as u64)?;
        self.write(&buffer, 0, data)?;
        Ok(buffer)
    }

    /// A uniform buffer that holds `data`.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn uniform<T: Pod>(&self, label: &str, data: &T) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = self.buffer(label, size_of::<T>() as u64, usage)?;
        self.write(&buffer, 0, std::slice::from_ref(data))?;
        Ok(buffer)
    }

    /// Writes `data` at `offset` bytes, before anything that is submitted later. The last word is padded with zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it does not fit or `offset` is no multiple of 4, [`Error::OutOfMemory`],
    /// [`Error::DeviceLost`].
    pub fn write<T: Pod>(&self, buffer: &wgpu::Buffer, offset: u64, data: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let size = bytes.len() as u64;
        check(offset.is_multiple_of(4), "offset", "a multiple of 4", offset)?;
        check(
            size.checked_next_multiple_of(4)
                .and_then(|s| s.checked_add(offset))
                .is_some_and(|e| e <= buffer.size()),
            "data",
            format!("at most {} bytes", buffer.size().saturating_sub(offset)),
            size,
        )?;
        check(
            buffer.usage().contains(wgpu::BufferUsages::COPY_DST),
            "buffer",
            "usage COPY_DST",
            format!("{:?}", buffer.usage()),
        )?;
        let mut at = offset;
        for chunk in bytes.chunks(CHUNK as usize) {
            let (words, rest) = chunk.split_at(chunk.len() / 4 * 4);
            let last = self.scoped("writing to the device", chunk.len() as u64, || {
                if !words.is_empty() {
                    self.queue().write_buffer(buffer, at, words);
                }
                if !rest.is_empty() {
                    let mut word = [0; 4];
                    word[..rest.len()].copy_from_slice(rest);
                    self.queue().write_buffer(buffer, at + words.len() as u64, &word);
                }
                // Staging memory is given back when the copy is done.
                (size > CHUNK).then(|| self.queue().submit([]))
            })?;
            if last.is_some() {
                self.wait(last)?;
            }
            at += chunk.len() as u64;
        }
        Ok(())
    }

    /// Reads `count` values from `offset` bytes, after everything submitted so far. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the buffer is shorter, lacks the usage `COPY_SRC` or `offset` is no multiple of 4;
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`], [`Error::Gpu`].
    pub fn read<T: Pod>(&self, buffer: &wgpu::Buffer, offset: u64, count: usize) -> Result<Vec<T>> {
        self.check_read::<T>(buffer, offset, count)?;
        let mut out = vec![T::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        for (at, chunk) in (offset..).step_by(CHUNK as usize).zip(bytes.chunks_mut(CHUNK as usize)) {
            let pending = self.start_read(buffer, at, chunk.len() as u64)?;
            self.wait(Some(pending.submission.clone()))?;
            let mapped = pending.answered();
            self.finish_read(&pending, mapped, chunk)?;
        }
        Ok(out)
    }

    /// The same without blocking the caller's thread.
    ///
    /// # Errors
    /// As [`Context::read`].
    pub async fn read_async<T: Pod>(
        &self,
        buffer: &wgpu::Buffer,
        offset: u64,
        count: usize,
    ) -> Result<Vec<T>> {
        self.check_read::<T>(buffer, offset, count)?;
        let mut out = vec![T::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        for (at, chunk) in (offset..).step_by(CHUNK as usize).zip(bytes.chunks_mut(CHUNK as usize)) {
            let pending = self.start_read(buffer, at, chunk.len() as u64)?;
            // wgpu calls back only while somebody polls, and no executor does that: a thread waits.
            let waiting = (self.clone(), Arc::clone(&pending.answer), pending.submission.clone());
            std::thread::spawn(move || {
                let (context, answer, submission) = waiting;
                let waited = context.wait(Some(submission));
                match waited {
                    Ok(()) => answer.settle(),
                    Err(error) => answer.give(Err(error)),
                }
            });
            let mapped = poll_fn(|cx| match pending.take(Some(cx.waker())) {
                Some(mapped) => Poll::Ready(mapped),
                None => Poll::Pending,
            })
            .await;
            self.finish_read(&pending, mapped, chunk)?;
        }
        Ok(out)
    }

    fn check_read<T>(&self, buffer: &wgpu::Buffer, offset: u64, count: usize) -> Result<()> {
        check(offset.is_multiple_of(4), "offset", "a multiple of 4", offset)?;
        check(
            (count as u64)
                .checked_mul(size_of::<T>() as u64)
                .and_then(|s| s.checked_next_multiple_of(4))
                .and_then(|s| s.checked_add(offset))
                .is_some_and(|end| end <= buffer.size()),
            "count",
            format!("values within the buffer's {} bytes", buffer.size()),
            format!("{count} of {} bytes from byte {offset}", size_of::<T>()),
        )?;
        check(
            buffer.usage().contains(wgpu::BufferUsages::COPY_SRC),
            "buffer",
            "usage COPY_SRC",
            format!("{:?}", buffer.usage()),
        )
    }

    fn start_read(&self, buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> Result<PendingRead> {
        let size = bytes.next_multiple_of(4);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.buffer("readback", size, usage)?;
        let answer = Arc::new(Answer::default());
        let submission = self.scoped("reading from the device", size, || {
            let mut encoder = self.device().create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, size);
            let submission = self.queue().submit([encoder.finish()]);
            let answer = Arc::clone(&answer);
            staging.map_async(wgpu::MapMode::Read, .., move |mapped| {
                answer.give(mapped.map_err(|e| Error::Gpu {
                    what: "reading from the device".into(),
                    reason: e.to_string(),
                }));
            });
            submission
        })?;
        Ok(PendingRead { staging, submission, answer })
    }

    fn finish_read(&self, pending: &PendingRead, mapped: Result<()>, out: &mut [u8]) -> Result<()> {
        if mapped.is_err() {
            self.look_alive()?;
            return mapped;
        }
        let view = match pending.staging.get_mapped_range(..) {
            Ok(view) => view,
            Err(e) => {
                // A device that goes between the mapping and here takes the buffer with it.
                self.look_alive()?;
                return Err(Error::Gpu { what: "reading from the device".into(), reason: e.to_string() });
            }
        };
        out.copy_from_slice(&view[..out.len()]);
        drop(view);
        pending.staging.unmap();
        Ok(())
    }
}

struct PendingRead {
    staging: wgpu::Buffer,
    submission: wgpu::SubmissionIndex,
    answer: Arc<Answer>,
}

impl PendingRead {
    /// The answer when there is one, else keeps the waker for when it comes.
    fn take(&self, waker: Option<&Waker>) -> Option<Result<()>> {
        let mut state = lock(&self.answer.0);
        let answer = state.answer.take();
        if answer.is_none() {
            state.waker = waker.cloned();
        }
        answer
    }

    /// The answer after a wait for the submission.
    fn answered(&self) -> Result<()> {
        self.answer.settle();
        self.take(None).unwrap_or(Ok(()))
    }
}

/// The first answer counts: mapped, failed to map, or the wait failed.
#[derive(Default)]
struct Answer(Mutex<State>);

#[derive(Default)]
struct State {
    answer: Option<Result<()>>,
    given: bool,
    waker: Option<Waker>,
}

impl Answer {
    fn give(&self, answer: Result<()>) {
        let mut state = lock(&self.0);
        if state.given {
            return;
        }
        state.given = true;
        state.answer = Some(answer);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sees to it that there is an answer once the submission is done. Another thread's wait may have picked up the
    /// callback and be about to run it, so that the end of one's own wait does not mean that it has run.
    fn settle(&self) {
        let patience = Instant::now() + Duration::from_secs(10);
        while !lock(&self.0).given {
            if Instant::now() > patience {
                let reason = "no answer".into();
                return self.give(Err(Error::Gpu { what: "reading from the device".into(), reason }));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
