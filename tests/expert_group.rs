//! Grouping of entries by expert: every adapter against the oracle, the whole list.

#![cfg(feature = "wgpu")]

mod common;

use common::{assert_invalid, contexts, submit, whole};
use samebits::golden::Random;
use samebits::gpu::Context;
use samebits::shape::{MAX_ENTRIES, MAX_EXPERTS};
use samebits::stages::expert_group::NO_SLOT;
use samebits::stages::{ExpertGroup, ExpertGroups};
use samebits::{reference, wgpu};

/// The list of groups that an adapter makes, in a buffer that held `fill`.
fn grouped(ctx: &Context, experts: &[u32], slots: &[u32], per_group: u32, fill: Option<u32>) -> Vec<u32> {
    let count = slots.len() as u32;
    let groups = ExpertGroups::new(ctx, experts.len() as u32, count, per_group).unwrap();
    let words = (groups.buffer().size() / 4) as usize;
    if let Some(fill) = fill {
        ctx.write(groups.buffer(), 0, &vec![fill; words]).unwrap();
    }
    let ids = ctx.storage("experts", experts).unwrap();
    let slots = ctx.storage("slots", slots).unwrap();
    let stage = ExpertGroup::new(ctx).unwrap();
    let bound = stage.bind(&whole(&ids), &whole(&slots), count, &groups).unwrap();
    submit(ctx, |pass| bound.encode(pass).unwrap());
    ctx.read(groups.buffer(), 0, words).unwrap()
}

fn check(what: &str, experts: &[u32], slots: &[u32]) {
    for (name, ctx) in contexts() {
        for per_group in 1..=4 {
            let mut want = reference::expert_group(experts, slots, per_group as usize);
            let n = want.len();
            let got = grouped(ctx, experts, slots, per_group, None);
            assert!(n <= got.len(), "{name}: {what}: there is room for every group");
            want.resize(got.len(), 0);
            assert!(got == want, "{name}: {what}, groups of {per_group}");
        }
    }
}

#[test]
fn windows_of_every_kind() {
    let mut random = Random::new(1);
    let up = |n: u32| (0..n).collect::<Vec<u32>>();
    let down = |n: u32| (0..n).rev().collect::<Vec<u32>>();
    check("one entry", &[0], &[0]);
    check("one entry of the last expert", &[511], &down(512));
    check("one expert", &[0; 41], &[0]);
    check("all entries one expert's", &[300; 41], &up(512));
    check("one entry each", &random.permutation(512), &down(512));
    check("one entry each, twice", &[up(256), down(256)].concat(), &up(256));
    for entries in [2, 3, 4, 5, 255, 256, 257, 513] {
        let ids: Vec<u32> = (0..entries).map(|_| random.below(7)).collect();
        check("few experts", &ids, &down(7));
    }
    for experts in [2, 255, 256, 257, 512, 513] {
        let ids: Vec<u32> = (0..300).map(|_| random.below(experts)).collect();
        check("many experts", &ids, &random.permutation(experts));
    }
}

#[test]
fn long_windows() {
    let mut random = Random::new(2);
    let ids: Vec<u32> = (0..10_000).map(|_| random.below(512)).collect();
    check("10,000 entries", &ids, &random.permutation(512));
    // Half of them to one expert.
    let ids: Vec<u32> = (0..10_000).map(|i| if i % 2 == 0 { 77 } else { random.below(512) }).collect();
    check("10,000 entries, one expert with half of them", &ids, &random.permutation(512));
}

/// Entries of experts that are not there, or have no slot, are in no group; others are as without them.
#[test]
fn entries_without_weights() {
    let mut random = Random::new(3);
    let mut slots = random.permutation(300);
    slots[0] = NO_SLOT;
    slots[7] = NO_SLOT;
    slots[255..258].fill(NO_SLOT);
    let ids: Vec<u32> = (0..500).map(|_| random.below(330)).collect();
    check("some without", &ids, &slots);
    check("beyond the last", &[300, 5, u32::MAX, 5, 0x8000_0005, 299, 301, 5, 5, 5], &slots);
    check("nothing to do", &[300, u32::MAX, 7, 7, 0], &slots);
    check("no slots", &[0, 1, 2, 3], &[NO_SLOT; 4]);
    // A slot is not looked at here; the stages of rows skip one that they do not have.
    check("any slot", &[0, 1, 2, 3], &[9, 9, NO_SLOT - 1, 0]);
}

/// What a list held before changes none of its groups, and the same window gives the same list every time.
#[test]
fn lists_are_used_again() {
    let mut random = Random::new(4);
    let ids: Vec<u32> = (0..600).map(|_| random.below(90)).collect();
    let slots = random.permutation(80);
    let want = reference::expert_group(&ids, &slots, 4);
    for (name, ctx) in contexts() {
        for fill in [0xdead_beef, u32::MAX] {
            let got = grouped(ctx, &ids, &slots, 4, Some(fill));
            assert_eq!(got[0], want[0], "{name}");
            for (i, (got, want)) in got[4..].chunks_exact(8).zip(want[4..].chunks_exact(8)).enumerate() {
                let n = want[1] as usize;
                assert_eq!((&got[..2], &got[4..4 + n]), (&want[..2], &want[4..4 + n]), "{name}: group {i}");
            }
            let beyond = &got[want.len()..];
            assert!(beyond.iter().all(|&word| word == fill), "{name}: beyond the last group");
        }
        let first = grouped(ctx, &ids, &slots, 3, None);
        for _ in 0..50 {
            assert!(grouped(ctx, &ids, &slots, 3, None) == first, "{name}: repeated");
        }
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let Some((_, ctx)) = contexts().next() else { return };
    let new = |entries, experts, per_group| ExpertGroups::new(ctx, entries, experts, per_group).map(drop);
    assert_invalid("entries", new(0, 1, 1));
    assert_invalid("entries", new(MAX_ENTRIES as u32 + 1, 1, 1));
    assert_invalid("experts", new(1, 0, 1));
    assert_invalid("experts", new(1, MAX_EXPERTS + 1, 1));
    assert_invalid("per_group", new(1, 1, 0));
    assert_invalid("per_group", new(1, 1, 5));
    new(MAX_ENTRIES as u32, MAX_EXPERTS, 1).unwrap();

    let groups = ExpertGroups::new(ctx, 10, 8, 4).unwrap();
    let stage = ExpertGroup::new(ctx).unwrap();
    let buffer = |words: u64| ctx.zeros("test", 4 * words).unwrap();
    let bind = |ids: &wgpu::Buffer, slots: &wgpu::Buffer, count| {
        stage.bind(&whole(ids), &whole(slots), count, &groups).map(drop)
    };
    assert_invalid("routing.experts", bind(&buffer(9), &buffer(8), 8));
    assert_invalid("slots", bind(&buffer(10), &buffer(7), 8));
    // There would not be room for the groups of more experts than the list was made for.
    assert_invalid("experts", bind(&buffer(10), &buffer(9), 9));
    assert_invalid("experts", bind(&buffer(10), &buffer(8), 0));
    assert_invalid("experts", bind(&buffer(10), &buffer(8), u32::MAX));
    let uniform = ctx.uniform("test", &[0u32; 16]).unwrap();
    assert_invalid("routing.experts", bind(&uniform, &buffer(8), 8));
    assert_invalid("slots", bind(&buffer(10), &uniform, 8));
    bind(&buffer(10), &buffer(8), 8).unwrap();
    bind(&buffer(10), &buffer(8), 5).unwrap();
}
