//! The experts' part of the suite: the digests of `tests/golden/experts.txt`.

use sha2::{Digest, Sha256};

use super::{Random, hex, random_blocks};
use crate::quant::{Format, Q8Block};
use crate::shape::{ExpertShape, Routing};

/// Expected digests: `case stage digest`, one a line, `#` begins a comment.
pub const EXPECTED: &str = include_str!("../../tests/golden/experts.txt");

/// The stages that are compared, in order.
pub const STAGES: [&str; 5] =
    ["expert_quantize", "expert_gate_up", "expert_swiglu", "expert_down", "expert_combine"];

/// One case of the suite.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique, without blanks.
    pub name: &'static str,
    /// Sizes and formats.
    pub shape: ExpertShape,
    /// Tokens of the window.
    pub tokens: u32,
    /// Experts of a token.
    pub used: u32,
    /// Whether all tokens go to the same experts.
    pub one_choice: bool,
}

/// Matrices of all experts that own their arrays: ggml's blocks, experts outermost.
#[derive(Debug, Clone)]
pub struct OwnedExperts {
    /// Gate matrices `[experts][n_ff][n_embd]`.
    pub gate: Vec<u8>,
    /// Up matrices `[experts][n_ff][n_embd]`.
    pub up: Vec<u8>,
    /// Down matrices `[experts][n_embd][n_ff]`.
    pub down: Vec<u8>,
}

/// Tokens of a window that own their arrays.
#[derive(Debug, Clone)]
pub struct OwnedTokens {
    /// Activations `[tokens][n_embd]`.
    pub x: Vec<f32>,
    /// Experts of a token.
    pub used: u32,
    /// Experts `[tokens][used]`, no one twice for a token.
    pub experts: Vec<u32>,
    /// Weights `[tokens][used]`.
    pub weights: Vec<f32>,
}

impl OwnedTokens {
    /// Where the tokens go.
    pub fn routing(&self) -> Routing<'_> {
        Routing { used: self.used, experts: &self.experts, weights: &self.weights }
    }
}

impl Case {
    /// The case's matrices and tokens.
    pub fn build(&self) -> (OwnedExperts, OwnedTokens) {
        let s = &self.shape;
        let mut random = Random::of_name(self.name);
        let values = (s.experts * s.n_ff * s.n_embd) as usize;
        let mut matrices = |f: Format| random_blocks(&mut random, f, values / f.block_values());
        let experts = OwnedExperts { gate: matrices(s.gate), up: matrices(s.up), down: matrices(s.down) };
        let entries = (self.tokens * self.used) as usize;
        let mut tokens = OwnedTokens {
            x: random.floats((self.tokens * s.n_embd) as usize, 3.0),
            used: self.used,
            experts: Vec::with_capacity(entries),
            weights: random.floats(entries, 1.0),
        };
        let mut choice = random.permutation(s.experts);
        for _ in 0..self.tokens {
            tokens.experts.extend(&choice[..self.used as usize]);
            if !self.one_choice {
                choice = random.permutation(s.experts);
            }
        }
        (experts, tokens)
    }
}

/// All cases: every format as that of gate and up, and as that of down.
pub fn cases() -> Vec<Case> {
    use Format::*;
    let case = |name, [gate, up, down]: [Format; 3], [n_embd, n_ff, experts]: [u32; 3], tokens, used| Case {
        name,
        shape: ExpertShape { n_embd, n_ff, experts, gate, up, down },
        tokens,
        used,
        one_choice: false,
    };
    vec![
        case("iq2_xxs_iq4_nl", [Iq2Xxs, Iq2Xxs, Iq4Nl], [512, 64, 8], 1, 3),
        case("iq2_xs_q2_0", [Iq2Xs, Iq2Xs, Q2_0], [256, 64, 6], 2, 3),
        case("iq2_s_q2_0", [Iq2S, Iq2S, Q2_0], [512, 192, 4], 3, 2),
        case("iq3_xxs_iq4_nl", [Iq3Xxs, Iq3Xxs, Iq4Nl], [256, 96, 8], 4, 3),
        case("iq3_s_iq4_nl", [Iq3S, Iq3S, Iq4Nl], [512, 160, 5], 5, 2),
        case("iq1_m_iq2_xxs", [Iq1M, Iq1M, Iq2Xxs], [256, 256, 4], 2, 2),
        case("iq4_xs_iq2_xs", [Iq4Xs, Iq4Xs, Iq2Xs], [512, 256, 4], 1, 2),
        case("iq4_nl_iq2_s", [Iq4Nl, Iq4Nl, Iq2S], [288, 256, 4], 3, 2),
        case("q2_0_iq3_xxs", [Q2_0, Q2_0, Iq3Xxs], [320, 256, 4], 2, 3),
        case("q4_k_iq3_s", [Q4K, Q4K, Iq3S], [256, 256, 4], 4, 2),
        case("q5_k_iq4_xs", [Q5K, Q5K, Iq4Xs], [256, 256, 4], 5, 2),
        case("q6_k_q4_k", [Q6K, Q6K, Q4K], [512, 256, 4], 2, 2),
        case("q5_1_q5_k", [Q5_1, Q5_1, Q5K], [96, 256, 5], 3, 3),
        case("q8_0_q6_k", [Q8_0, Q8_0, Q6K], [352, 256, 4], 1, 2),
        case("q8_0_iq1_m", [Q8_0, Q8_0, Iq1M], [32, 256, 6], 5, 3),
        case("iq2_xxs_iq3_s_q5_1", [Iq2Xxs, Iq3S, Q5_1], [256, 96, 8], 4, 3),
        case("q4_k_q6_k_q8_0", [Q4K, Q6K, Q8_0], [256, 32, 7], 5, 2),
        Case { one_choice: true, ..case("forty_of_one", [Iq2Xxs, Iq2Xxs, Q2_0], [256, 64, 4], 40, 1) },
    ]
}

/// The digests of a window, as little-endian bytes.
///
/// * `quantised`: the tokens' blocks, `[tokens][n_embd / 32]`: the codes of a block, its scale and its sum;
/// * `gate_up`: `[tokens * used][2][n_ff]`, gate first;
/// * `gated`: the entries' blocks, `[tokens * used][n_ff / 32]`;
/// * `down`: `[tokens * used][n_embd]`;
/// * `y`: `[tokens][n_embd]`.
pub fn digests(
    quantised: &[Q8Block],
    gate_up: &[f32],
    gated: &[Q8Block],
    down: &[f32],
    y: &[f32],
) -> [String; 5] {
    let floats = |values: &[f32]| {
        let mut hash = Sha256::new();
        values.iter().for_each(|x| hash.update(x.to_bits().to_le_bytes()));
        hex(&hash.finalize())
    };
    let blocks = |blocks: &[Q8Block]| {
        let mut hash = Sha256::new();
        for block in blocks {
            hash.update(block.codes.map(|code| code as u8));
            hash.update(block.scale.to_le_bytes());
            hash.update(block.sum.to_le_bytes());
        }
        hex(&hash.finalize())
    };
    [blocks(quantised), floats(gate_up), blocks(gated), floats(down), floats(y)]
}
