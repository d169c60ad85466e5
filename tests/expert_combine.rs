//! The experts of a token put together: every adapter against the oracle, bytes.

#![cfg(feature = "wgpu")]

mod common;

use common::experts::device::FILL;
use common::{assert_invalid, assert_same, contexts, submit, whole};
use samebits::golden::Random;
use samebits::gpu::Context;
use samebits::stages::ExpertCombine;
use samebits::stages::expert_combine::CombineBuffers;
use samebits::stages::expert_group::NO_SLOT;
use samebits::{reference, wgpu};

/// A window's entries and what their experts gave.
#[derive(Clone)]
struct Window {
    tokens: usize,
    used: usize,
    n_embd: usize,
    experts: Vec<u32>,
    weights: Vec<f32>,
    slots: Vec<u32>,
    outs: Vec<f32>,
    shared: Option<Vec<f32>>,
}

impl Window {
    fn new(random: &mut Random, tokens: usize, used: usize, n_embd: usize, shared: bool) -> Self {
        let entries = tokens * used;
        Window {
            tokens,
            used,
            n_embd,
            experts: (0..entries).map(|_| random.below(7)).collect(),
            weights: random.floats(entries, 1.0),
            slots: random.permutation(7),
            outs: random.floats(entries * n_embd, 8.0),
            shared: shared.then(|| random.floats(tokens * n_embd, 3.0)),
        }
    }

    /// `None` for a token with an expert that is not there.
    fn want(&self, token: usize) -> Option<Vec<f32>> {
        let mut outs = Vec::new();
        let mut weights = Vec::new();
        for entry in token * self.used..(token + 1) * self.used {
            let slot = self.slots.get(self.experts[entry] as usize)?;
            if *slot == NO_SLOT {
                return None;
            }
            outs.push(&self.outs[entry * self.n_embd..][..self.n_embd]);
            weights.push(self.weights[entry]);
        }
        if let Some(shared) = &self.shared {
            // Added as they are.
            outs.push(&shared[token * self.n_embd..][..self.n_embd]);
            weights.push(1.0);
        }
        Some(reference::expert_combine(&outs, &weights))
    }

    fn run(&self, ctx: &Context) -> Vec<f32> {
        let [experts, slots] = [&self.experts, &self.slots].map(|d| ctx.storage("test", d).unwrap());
        let [weights, outs] = [&self.weights, &self.outs].map(|d| ctx.storage("test", d).unwrap());
        let shared = self.shared.as_ref().map(|d| ctx.storage("test", d).unwrap());
        let (n, spare) = (self.tokens * self.n_embd, 300);
        let y = ctx.storage("y", &vec![FILL; n + spare]).unwrap();
        let buffers = CombineBuffers {
            experts: whole(&experts),
            weights: whole(&weights),
            slots: whole(&slots),
            outs: whole(&outs),
            shared: shared.as_ref().map(whole),
            y: whole(&y),
        };
        let [tokens, used, count, n_embd] =
            [self.tokens, self.used, self.slots.len(), self.n_embd].map(|n| n as u32);
        let bound = ExpertCombine::new(ctx).unwrap().bind(tokens, used, count, n_embd, &buffers).unwrap();
        submit(ctx, |pass| bound.encode(pass).unwrap());
        let beyond: Vec<u32> = ctx.read(&y, 4 * n as u64, spare).unwrap();
        assert!(beyond.iter().all(|&word| word == FILL), "something wrote beyond the last token");
        ctx.read(&y, 0, n).unwrap()
    }

    fn check(&self) {
        let want: Vec<_> = (0..self.tokens).map(|token| self.want(token)).collect();
        for (name, ctx) in contexts() {
            let got = self.run(ctx);
            for (token, got) in got.chunks_exact(self.n_embd).enumerate() {
                let what = format!("{name}: token {token} of {}, {} experts", self.tokens, self.used);
                match &want[token] {
                    Some(want) => assert_same(&what, got, want),
                    None => assert!(got.iter().all(|y| y.is_nan()), "{what}: {:?}", &got[..4]),
                }
            }
        }
    }
}

#[test]
fn windows() {
    let mut random = Random::new(1);
    for used in 1..=10 {
        Window::new(&mut random, 3, used, 320, used % 2 == 0).check();
    }
    for tokens in [1, 2, 4, 5, 8, 300] {
        Window::new(&mut random, tokens, 2, 64, tokens % 2 == 0).check();
    }
    for n_embd in [1, 31, 32, 255, 256, 257, 2560] {
        for shared in [false, true] {
            Window::new(&mut random, 2, 3, n_embd, shared).check();
        }
    }
}

/// More tokens than one dimension of a dispatch has workgroups.
#[test]
fn many_tokens() {
    Window::new(&mut Random::new(2), 65_537, 1, 32, true).check();
}

#[test]
fn weights_of_every_kind() {
    let mut random = Random::new(3);
    let weights = [0.0, -0.0, 1.0, -1.0, 1e20, -1e20, 3e-10, 1.5];
    for shared in [false, true] {
        let mut window = Window::new(&mut random, 16, 4, 64, shared);
        window.weights = (0..64).map(|i| weights[(i + i / 8) % 8]).collect();
        let special = [0.0, -0.0, 1.0, -1.0, 1e10, -1e10];
        window.outs.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0).for_each(|(i, x)| {
            *x = special[i / 3 % 6];
        });
        if let Some(shared) = &mut window.shared {
            shared.iter_mut().step_by(5).for_each(|x| *x = -0.0);
        }
        window.check();
    }
    // Infinite where it overflows.
    let mut large = Window::new(&mut random, 2, 2, 64, false);
    large.weights.fill(3e38);
    large.outs.iter_mut().for_each(|x| *x = x.abs() + 2.0);
    assert!(large.want(0).unwrap().iter().all(|y| y.is_infinite()));
    large.check();
}

/// A token whose expert is not there is NaN as a whole; the others are as they are without it.
#[test]
fn experts_that_are_not_there() {
    let mut random = Random::new(4);
    for shared in [false, true] {
        let mut window = Window::new(&mut random, 9, 3, 257, shared);
        window.experts.iter_mut().for_each(|e| *e %= 5);
        window.slots[5] = NO_SLOT;
        // First, middle and last place; once a weight of 0; beyond the last expert.
        window.experts[3] = 5;
        window.experts[3 * 4 + 1] = 5;
        window.weights[3 * 4 + 1] = 0.0;
        window.experts[3 * 5 + 2] = 5;
        window.experts[3 * 6] = 7;
        window.experts[3 * 8 + 2] = u32::MAX;
        let missing: Vec<usize> = (0..9).filter(|&t| window.want(t).is_none()).collect();
        assert_eq!(missing, [1, 4, 5, 6, 8]);
        window.check();
    }
}

/// A NaN of one expert stays in its token and place.
#[test]
fn values_that_are_not_finite() {
    let mut random = Random::new(5);
    let clean = Window::new(&mut random, 3, 2, 64, true);
    let mut window = clean.clone();
    window.outs[2 * 64 + 5] = f32::NAN;
    window.outs[3 * 64 + 9] = f32::INFINITY;
    for (name, ctx) in contexts() {
        let (mut got, mut want) = (window.run(ctx), clean.run(ctx));
        assert!(got[64 + 5].is_nan(), "{name}");
        assert!(!got[64 + 9].is_finite(), "{name}");
        for i in [64 + 5, 64 + 9] {
            (got[i], want[i]) = (0.0, 0.0);
        }
        assert_same(name, &got, &want);
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let Some((_, ctx)) = contexts().next() else { return };
    let stage = ExpertCombine::new(ctx).unwrap();
    let uniform = ctx.uniform("test", &[0u32; 1024]).unwrap();
    // Of experts, weights, slots, outs, shared and y; 0: a buffer of another usage.
    let bind = |[tokens, used, experts, n_embd]: [u32; 4], sizes: [u64; 6]| {
        let make = |bytes| if bytes == 0 { uniform.clone() } else { ctx.zeros("test", bytes).unwrap() };
        let b: [wgpu::Buffer; 6] = sizes.map(make);
        let buffers = CombineBuffers {
            experts: whole(&b[0]),
            weights: whole(&b[1]),
            slots: whole(&b[2]),
            outs: whole(&b[3]),
            shared: Some(whole(&b[4])),
            y: whole(&b[5]),
        };
        stage.bind(tokens, used, experts, n_embd, &buffers).map(drop)
    };
    let numbers = [4, 3, 9, 32];
    let sizes = [48, 48, 36, 12 * 128, 512, 512];
    bind(numbers, sizes).unwrap();
    for (i, what) in ["tokens", "used", "experts", "n_embd"].into_iter().enumerate() {
        let mut zero = numbers;
        zero[i] = 0;
        assert_invalid(what, bind(zero, sizes));
    }
    let names = ["routing.experts", "routing.weights", "slots", "outs", "shared", "y"];
    for (i, what) in names.into_iter().enumerate() {
        let mut short = sizes;
        short[i] -= 4;
        assert_invalid(what, bind(numbers, short));
        short[i] = 0;
        assert_invalid(what, bind(numbers, short));
    }
    // Sizes that are more than 64 bits hold, the first of which is 0 in 64 bits.
    assert_invalid("tokens", bind([1 << 31, 1 << 31, 9, 32], sizes));
    assert_invalid("tokens", bind([u32::MAX, u32::MAX, 9, u32::MAX], sizes));
    assert_invalid("outs", bind([4, 3, 9, u32::MAX], sizes));
}
