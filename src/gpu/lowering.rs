//! How the one WGSL text of a kernel is made exact on one device.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// How additions, subtractions and multiplications are kept from being fused, factored or simplified away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// The kernel is translated to SPIR-V here, every float operation in it is marked `NoContraction`, and the
    /// module asks for subnormals, signed zeros, infinities and NaN to be kept where the device can promise it.
    /// Vulkan with `PASSTHROUGH_SHADERS` only.
    Precise,
    /// Every result is XORed with a zero that the shader compiler cannot know. Works on every adapter.
    Guarded,
}

/// Where `fma` comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FusedMultiplyAdd {
    /// The built-in function, on adapters where it rounds once.
    Native,
    /// An emulation that rounds once by construction, for adapters whose `fma` is a multiplication and an addition.
    Soft,
}

/// A way to make kernels exact: the pieces of WGSL that stand before every kernel, and how the result is handed to
/// the device.
///
/// Written and parsed as `precise`, `guarded`, `precise+soft-fma` or `guarded+soft-fma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lowering {
    /// Addition, subtraction, multiplication.
    pub arithmetic: Arithmetic,
    /// Fused multiply-add.
    pub fma: FusedMultiplyAdd,
}

impl Lowering {
    /// All lowerings, fastest first.
    pub const ALL: [Lowering; 4] = [
        Lowering { arithmetic: Arithmetic::Precise, fma: FusedMultiplyAdd::Native },
        Lowering { arithmetic: Arithmetic::Precise, fma: FusedMultiplyAdd::Soft },
        Lowering { arithmetic: Arithmetic::Guarded, fma: FusedMultiplyAdd::Native },
        Lowering { arithmetic: Arithmetic::Guarded, fma: FusedMultiplyAdd::Soft },
    ];

    /// The name, as it is written and parsed.
    pub fn name(self) -> &'static str {
        match (self.arithmetic, self.fma) {
            (Arithmetic::Precise, FusedMultiplyAdd::Native) => "precise",
            (Arithmetic::Precise, FusedMultiplyAdd::Soft) => "precise+soft-fma",
            (Arithmetic::Guarded, FusedMultiplyAdd::Native) => "guarded",
            (Arithmetic::Guarded, FusedMultiplyAdd::Soft) => "guarded+soft-fma",
        }
    }

    /// The WGSL that stands before a kernel's own sources: the operations, then `fma`.
    pub fn pieces(self) -> [&'static str; 2] {
        let ops = match self.arithmetic {
            Arithmetic::Precise => include_str!("../../wgsl/exact/ops_plain.wgsl"),
            Arithmetic::Guarded => include_str!("../../wgsl/exact/ops_guarded.wgsl"),
        };
        let fma = match (self.fma, self.arithmetic) {
            (FusedMultiplyAdd::Native, Arithmetic::Precise) => {
                include_str!("../../wgsl/exact/fma_plain.wgsl")
            }
            (FusedMultiplyAdd::Native, Arithmetic::Guarded) => {
                include_str!("../../wgsl/exact/fma_guarded.wgsl")
            }
            (FusedMultiplyAdd::Soft, _) => include_str!("../../wgsl/exact/fma_soft.wgsl"),
        };
        [ops, fma]
    }
}

impl fmt::Display for Lowering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Lowering {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Lowering::ALL.into_iter().find(|l| l.name() == s).ok_or_else(|| {
            Error::invalid("lowering", "precise, precise+soft-fma, guarded or guarded+soft-fma", s)
        })
    }
}

/// Which lowerings may be tried on a device.
///
/// Parsed from `auto`, `precise`, `guarded`, `soft-fma`, or one of the compound names of [`Lowering`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoweringChoice {
    /// The fastest one that passes the conformance probe.
    #[default]
    Auto,
    /// Precise arithmetic, with the built-in fma where that fuses, else the emulation.
    Precise,
    /// Guarded arithmetic, with the built-in fma where that fuses, else the emulation.
    Guarded,
    /// Emulated fma, with precise arithmetic where the device takes SPIR-V, else guarded.
    SoftFma,
    /// This one.
    Exactly(Lowering),
}

impl LoweringChoice {
    /// The lowerings to try, best first. Empty when the choice needs SPIR-V and `passthrough` is false.
    pub fn candidates(self, passthrough: bool) -> Vec<Lowering> {
        let wanted = |l: &Lowering| match self {
            LoweringChoice::Auto => true,
            LoweringChoice::Precise => l.arithmetic == Arithmetic::Precise,
            LoweringChoice::Guarded => l.arithmetic == Arithmetic::Guarded,
            LoweringChoice::SoftFma => {
                l.fma == FusedMultiplyAdd::Soft && (l.arithmetic == Arithmetic::Precise) == passthrough
            }
            LoweringChoice::Exactly(exactly) => *l == exactly,
        };
        let possible = |l: &Lowering| passthrough || l.arithmetic == Arithmetic::Guarded;
        Lowering::ALL.into_iter().filter(|l| wanted(l) && possible(l)).collect()
    }
}

impl fmt::Display for LoweringChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LoweringChoice::Auto => "auto",
            LoweringChoice::Precise => "precise",
            LoweringChoice::Guarded => "guarded",
            LoweringChoice::SoftFma => "soft-fma",
            LoweringChoice::Exactly(lowering) => lowering.name(),
        })
    }
}

impl FromStr for LoweringChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(LoweringChoice::Auto),
            "precise" => Ok(LoweringChoice::Precise),
            "guarded" => Ok(LoweringChoice::Guarded),
            "soft-fma" => Ok(LoweringChoice::SoftFma),
            _ => s.parse().map(LoweringChoice::Exactly).map_err(|_| {
                Error::invalid(
                    "lowering",
                    "auto, precise, guarded, soft-fma, precise+soft-fma or guarded+soft-fma",
                    s,
                )
            }),
        }
    }
}

/// What the conformance probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every result has the bits that the definition gives.
    Exact,
    /// The same, as long as no input, result or intermediate is subnormal: the device flushes those to zero.
    ExactNormal,
    /// Some results differ; kernels do not run here unless the caller insists.
    Refused {
        /// The operation that failed.
        case: String,
        /// Its inputs, what the definition gives, and what came.
        detail: String,
    },
}

impl Verdict {
    /// Whether kernels may run.
    pub fn passed(&self) -> bool {
        !matches!(self, Verdict::Refused { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Exact => f.pad("exact"),
            Verdict::ExactNormal => f.pad("exact for normal numbers"),
            Verdict::Refused { case, detail } => write!(f, "refused: {case}: {detail}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for lowering in Lowering::ALL {
            assert_eq!(lowering.to_string().parse::<Lowering>().unwrap(), lowering);
            // The compound names mean one lowering; the short ones leave the fma to the probe.
            let choice: LoweringChoice = lowering.name().parse().unwrap();
            assert!(choice.candidates(true).contains(&lowering));
        }
        for name in ["auto", "precise", "guarded", "soft-fma", "precise+soft-fma", "guarded+soft-fma"] {
            assert_eq!(name.parse::<LoweringChoice>().unwrap().to_string(), name);
        }
        for bad in ["", "Auto", "soft", "precise+native"] {
            assert!(matches!(bad.parse::<LoweringChoice>(), Err(Error::Invalid { .. })), "{bad}");
        }
    }

    #[test]
    fn candidates_follow_the_device() {
        let names = |choice: LoweringChoice, passthrough| {
            choice.candidates(passthrough).iter().map(|l| l.name()).collect::<Vec<_>>()
        };
        assert_eq!(
            names(LoweringChoice::Auto, true),
            ["precise", "precise+soft-fma", "guarded", "guarded+soft-fma"]
        );
        assert_eq!(names(LoweringChoice::Auto, false), ["guarded", "guarded+soft-fma"]);
        assert_eq!(names(LoweringChoice::Precise, true), ["precise", "precise+soft-fma"]);
        assert!(names(LoweringChoice::Precise, false).is_empty());
        assert_eq!(names(LoweringChoice::SoftFma, true), ["precise+soft-fma"]);
        assert_eq!(names(LoweringChoice::SoftFma, false), ["guarded+soft-fma"]);
        assert!(LoweringChoice::Exactly(Lowering::ALL[0]).candidates(false).is_empty());
    }
}
