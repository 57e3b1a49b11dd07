//! Digests that identify content.

use sha2::{Digest, Sha256};

/// How long a digest is, in characters.
pub const LENGTH: usize = 16;

/// The first 16 hexadecimal digits of the SHA-256 of `content`.
pub fn short(content: impl AsRef<[u8]>) -> String {
    Sha256::digest(content).iter().take(LENGTH / 2).map(|byte| format!("{byte:02x}")).collect()
}
