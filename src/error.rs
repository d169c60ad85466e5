//! The one error type of the crate.

/// What went wrong. Every variant that reports bad input names the field, what was expected and what came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that the caller passed does not fit; nothing was submitted.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The field, as the API spells it.
        what: String,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// No adapter matches the request.
    #[error("no adapter: {reason}; the CPU backend runs everywhere")]
    NoAdapter {
        /// Why none was taken.
        reason: String,
    },
    /// The adapter did not pass the conformance probe.
    #[error(
        "adapter {adapter} refused: {case} under lowering {lowering}: {detail}; use the CPU backend instead"
    )]
    Refused {
        /// The adapter's name.
        adapter: String,
        /// The lowering that came closest.
        lowering: String,
        /// The probe case that failed.
        case: String,
        /// Inputs, expected and actual result.
        detail: String,
    },
    /// A limit of the device is too small for the request.
    #[error("{what} needs {asked}, the device allows {allowed}")]
    Limit {
        /// The limit, as wgpu spells it.
        what: String,
        /// What the request needs.
        asked: u64,
        /// What the device offers.
        allowed: u64,
    },
    /// The device could not provide the memory.
    #[error("out of memory: {what} asked for {asked} bytes: {reason}")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        asked: u64,
        /// What the device said.
        reason: String,
    },
    /// The device is gone; what the caller holds is still valid and can be imported again.
    #[error("device lost: {reason}")]
    DeviceLost {
        /// What the device said.
        reason: String,
    },
    /// The graphics API reported an error that is none of the above.
    #[error("{what}: {reason}")]
    Gpu {
        /// What was being done.
        what: String,
        /// What the API said.
        reason: String,
    },
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    pub(crate) fn invalid(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        Error::Invalid { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }
}

/// `Ok` when `ok`, else [`Error::Invalid`].
pub(crate) fn check(ok: bool, what: &str, expected: impl ToString, got: impl ToString) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::invalid(what, expected, got)) }
}
