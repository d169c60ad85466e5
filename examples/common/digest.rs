//! The digest that the examples print.

use sha2::{Digest, Sha256};

/// SHA-256 of the ids of all rows (u32), then of the attention of all rows (f32), little endian, as hexadecimal.
pub fn digest(ids: &[Vec<u32>], attention: &[f32]) -> String {
    let mut hash = Sha256::new();
    ids.iter().flatten().for_each(|id| hash.update(id.to_le_bytes()));
    attention.iter().for_each(|y| hash.update(y.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
