//! The entries of a window by expert.

/// Groups of up to `per_group` (1 to 4) entries of one expert: word 0 their number, three zeros, then 8 words a group: the
/// slot of the expert's weights, the number of entries, two zeros, the entries, zeros where there are fewer than four.
///
/// In the order of experts; within an expert, in the order of entries. An entry whose expert has no slot is in no group.
///
/// * `experts`: of each entry;
/// * `slots`: of each expert; `u32::MAX` and an expert beyond the last one: no slot.
pub fn expert_group(experts: &[u32], slots: &[u32], per_group: usize) -> Vec<u32> {
    let mut words = vec![0; 4];
    for (expert, &slot) in slots.iter().enumerate() {
        if slot == u32::MAX {
            continue;
        }
        let entries: Vec<u32> =
            (0..experts.len()).filter(|&i| experts[i] as usize == expert).map(|i| i as u32).collect();
        for group in entries.chunks(per_group) {
            words[0] += 1;
            words.extend([slot, group.len() as u32, 0, 0]);
            words.extend((0..4).map(|i| group.get(i).copied().unwrap_or(0)));
        }
    }
    words
}
