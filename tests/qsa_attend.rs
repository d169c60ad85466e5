//! Chunked attention: every target against the oracle, bytes.

mod common;

use common::{assert_same, targets};
use samebits::golden::{OwnedCache, OwnedKv, Random};
use samebits::{KvFormat, QsaShape, Step, reference};

const SHAPE: QsaShape = QsaShape::QWEN38_FLASH_NEXT;

/// Distinct cells below `n_kv`, ascending, as many as a row selects.
fn some_ids(random: &mut Random, step: &Step) -> Vec<u32> {
    let mut ids = random.permutation(step.n_kv);
    ids.truncate(step.width as usize);
    ids.sort_unstable();
    ids
}

fn check(shape: &QsaShape, format: KvFormat, cells: u32, positions: &[u32], seed: u64) {
    let mut random = Random::new(seed);
    let cache = OwnedCache::random(&mut random, shape, format, cells);
    check_cache(shape, &cache, positions, &mut random);
}

fn check_cache(shape: &QsaShape, cache: &OwnedCache, positions: &[u32], random: &mut Random) {
    let steps: Vec<Step> = positions.iter().map(|&p| shape.step(p).unwrap()).collect();
    let row = (shape.q_heads * shape.head_dim) as usize;
    let queries = random.floats(row * steps.len(), 2.0);
    let ids: Vec<Vec<u32>> = steps.iter().map(|s| some_ids(random, s)).collect();
    let view = cache.view();
    let slots = view.slots(shape) as u32;
    for target in targets() {
        let got = target.attend(shape, &steps, &ids, &view.kv, slots, view.page_table, &queries, -3.0);
        for (r, step) in steps.iter().enumerate() {
            let query = &queries[r * row..][..row];
            let want = reference::qsa_attend(shape, step, &ids[r], &view.kv, view.page_table, query);
            let what = format!("{}: {:?} row {r} at {}", target.name, shape, step.pos);
            assert_same(&what, &got[r][..want.len()], &want);
            assert!(got[r][want.len()..].iter().all(|&x| x == -3.0), "{what}: wrote beyond its chunks");
        }
    }
}

#[test]
fn every_length_of_the_last_chunk() {
    let shape = QsaShape { q_heads: 12, kv_heads: 1, budget: 128, ..SHAPE };
    for (i, cells) in
        [1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 131, 500].into_iter().enumerate()
    {
        let format = if i % 2 == 0 { KvFormat::F16 } else { KvFormat::Int8 };
        check(&shape, format, cells, &[cells - 1], i as u64);
    }
}

#[test]
fn the_full_shape() {
    check(&SHAPE, KvFormat::Int8, 2300, &[2299, 2298], 20);
    check(&SHAPE, KvFormat::F16, 2300, &[2299, 70], 21);
}

#[test]
fn other_heads_and_dims() {
    for (q_heads, kv_heads, head_dim) in
        [(1, 1, 128), (4, 4, 128), (13, 1, 256), (32, 2, 128), (25, 1, 256), (6, 3, 256)]
    {
        let shape = QsaShape { q_heads, kv_heads, head_dim, budget: 80, ..SHAPE };
        check(&shape, KvFormat::F16, 201, &[200, 60], 30);
        check(&shape, KvFormat::Int8, 201, &[200, 60], 31);
    }
}

/// Where a cell lies does not matter: the bytes are those of the contiguous cache.
#[test]
fn pages_of_every_size_give_the_same_bytes() {
    let contiguous = QsaShape { page_size: 520, q_heads: 6, kv_heads: 1, budget: 200, ..SHAPE };
    let mut random = Random::new(40);
    let mut cache = OwnedCache::random(&mut random, &contiguous, KvFormat::F16, 520);
    cache.page_table = vec![0];
    let step = contiguous.step(511).unwrap();
    let query = random.floats(6 * 256, 2.0);
    let ids = some_ids(&mut random, &step);
    let view = cache.view();
    let want = reference::qsa_attend(&contiguous, &step, &ids, &view.kv, view.page_table, &query);
    let OwnedKv::F16(k, v) = &cache.kv else { unreachable!("made as f16") };
    for page_size in [1u32, 4, 64, 512] {
        let shape = QsaShape { page_size, ..contiguous };
        let pages = 520u32.div_ceil(page_size);
        let table = random.permutation(pages);
        let mut paged = [
            vec![0xffffu16; (pages * page_size * 256) as usize],
            vec![0xffff; (pages * page_size * 256) as usize],
        ];
        for cell in 0..520u32 {
            let slot = (table[(cell / page_size) as usize] * page_size + cell % page_size) as usize * 256;
            paged[0][slot..slot + 256].copy_from_slice(&k[cell as usize * 256..][..256]);
            paged[1][slot..slot + 256].copy_from_slice(&v[cell as usize * 256..][..256]);
        }
        let kv = samebits::KvCells::F16 { k: &paged[0], v: &paged[1] };
        for target in targets() {
            let got = target.attend(
                &shape,
                &[step],
                std::slice::from_ref(&ids),
                &kv,
                pages * page_size,
                &table,
                &query,
                0.0,
            );
            assert_same(&format!("{}: pages of {page_size}", target.name), &got[0][..want.len()], &want);
        }
    }
}

/// Cells that a row does not select may hold anything.
#[test]
fn unused_cells_are_not_read() {
    let shape = QsaShape { q_heads: 12, kv_heads: 1, budget: 100, page_size: 4, ..SHAPE };
    let mut random = Random::new(50);
    let cache = OwnedCache::random(&mut random, &shape, KvFormat::F16, 400);
    let steps = [shape.step(399).unwrap(), shape.step(69).unwrap()];
    let queries = random.floats(2 * 12 * 256, 2.0);
    let ids: Vec<Vec<u32>> = steps.iter().map(|s| some_ids(&mut random, s)).collect();
    let mut spoiled = cache.clone();
    let OwnedKv::F16(k, v) = &mut spoiled.kv else { unreachable!("made as f16") };
    for cell in 0..400u32 {
        if ids.iter().all(|ids| !ids.contains(&cell)) {
            let slot = (cache.page_table[(cell / 4) as usize] * 4 + cell % 4) as usize * 256;
            k[slot..slot + 256].fill(0x7e00);
            v[slot..slot + 256].fill(0x7e00);
        }
    }
    assert_ne!(
        k,
        &{
            let OwnedKv::F16(k, _) = &cache.kv else { unreachable!() };
            k.clone()
        },
        "something was spoiled"
    );
    for target in targets() {
        let run = |cache: &OwnedCache| {
            target.attend(&shape, &steps, &ids, &cache.view().kv, 400, &cache.page_table, &queries, 0.0)
        };
        assert_eq!(run(&cache), run(&spoiled), "{}", target.name);
    }
}

/// Subnormal and extreme halves, and logits that differ by more than exp can tell.
#[test]
fn extreme_values() {
    let shape = QsaShape { q_heads: 3, kv_heads: 1, budget: 64, ..SHAPE };
    let mut random = Random::new(60);
    let mut cache = OwnedCache::random(&mut random, &shape, KvFormat::F16, 67);
    let OwnedKv::F16(k, v) = &mut cache.kv else { unreachable!("made as f16") };
    for (i, x) in k.iter_mut().chain(v).enumerate() {
        *x = match i % 11 {
            0 => 0x0001,
            1 => 0x83ff,
            2 => 0x7bff,
            3 => 0xfbff,
            4 => 0x8000,
            _ => *x,
        };
    }
    check_cache(&shape, &cache, &[66, 40], &mut random);
}

/// A wrong id on the device gives wrong numbers, never a read outside the cache.
#[test]
fn ids_beyond_the_context_are_clamped() {
    let shape = QsaShape { q_heads: 2, kv_heads: 1, head_dim: 128, budget: 64, ..SHAPE };
    let mut random = Random::new(70);
    let cache = OwnedCache::random(&mut random, &shape, KvFormat::Int8, 128);
    let step = shape.step(100).unwrap();
    let query = random.floats(256, 1.0);
    let ids = vec![u32::MAX; step.width as usize];
    let view = cache.view();
    let want = reference::qsa_attend(&shape, &step, &ids, &view.kv, view.page_table, &query);
    for target in targets() {
        let got = target.attend(
            &shape,
            &[step],
            std::slice::from_ref(&ids),
            &view.kv,
            128,
            view.page_table,
            &query,
            0.0,
        );
        assert_same(&target.name, &got[0][..want.len()], &want);
    }
}
