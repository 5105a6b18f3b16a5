//! Derives the keys of blocks from a TLS session.
//!
//! For each direction of each session, TLS exports 32 bytes (RFC 8446, section 7.5), with the label
//! `EXPORTER-weft-transfer-block-v1` and a context of six bytes: the session's number (4, big
//! endian), the cipher's (1), the direction (1). HKDF-Expand with SHA-256 derives one key for each
//! epoch of 16,384 counters; the info is `weft block key`, the cipher (1) and the epoch (8). So no
//! key seals more than 2^40 bytes of blocks of up to 64 MiB. Within this limit the advantage of an
//! attacker on AES-GCM is below 2^-57, the bound that RFC 8446 sets for records.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};

use super::SecureError;

/// The label under which TLS exports the secrets of blocks.
pub(super) const LABEL: &[u8] = b"EXPORTER-weft-transfer-block-v1";
/// The HKDF info of the keys of epochs.
const INFO: &[u8] = b"weft block key";
/// Length of an exported secret in bytes.
pub(super) const SECRET_LEN: usize = 32;

/// An algorithm that seals blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cipher {
    /// AES-GCM with keys of 128 bits.
    Aes128Gcm = 1,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// The cipher with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Aes128Gcm, Self::ChaCha20Poly1305].into_iter().find(|it| *it as u8 == number)
    }

    /// The cipher that is faster on this processor.
    #[must_use]
    pub fn preferred() -> Self {
        if has_aes() { Self::Aes128Gcm } else { Self::ChaCha20Poly1305 }
    }

    /// The cipher for two ends with these preferences: AES only if both have instructions for it.
    #[must_use]
    pub fn agree(one: Self, other: Self) -> Self {
        one.max(other)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// The direction of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the end that connected to the end that listened.
    ToServer = 0,
    /// From the end that listened to the end that connected.
    ToClient = 1,
}

/// Returns the context under which TLS exports a secret.
pub(super) fn context(session: u32, cipher: Cipher, direction: Direction) -> [u8; 6] {
    let mut context = [0; 6];
    context[..4].copy_from_slice(&session.to_be_bytes());
    context[4] = cipher as u8;
    context[5] = direction as u8;
    context
}

/// The sessions whose secrets have been exported, by direction. A second sealer of one of them
/// would repeat nonces.
#[derive(Debug, Default)]
pub(super) struct Exported([u32; 2]);

impl Exported {
    /// Records an export. Sessions come in the order of their numbers.
    pub(super) fn once(&mut self, session: u32, direction: Direction) -> Result<(), SecureError> {
        let last = &mut self.0[direction as usize];
        if session <= *last {
            return Err(SecureError::ExportedBefore(session));
        }
        *last = session;
        Ok(())
    }
}

/// The secret from which the keys of one direction of one session are derived. It is not `Clone`:
/// it makes one sealer or one opener.
pub struct Secret {
    cipher: Cipher,
    prk: Prk,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

impl Secret {
    pub(super) fn new(cipher: Cipher, bytes: &[u8; SECRET_LEN]) -> Self {
        Self { cipher, prk: Prk::new_less_safe(HKDF_SHA256, bytes) }
    }

    /// The cipher.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Derives the key of an epoch.
    pub(super) fn key(&self, epoch: u64) -> Result<LessSafeKey, SecureError> {
        let algorithm = self.cipher.algorithm();
        let failed = |_| SecureError::Library("no key");
        let mut bytes = [0; 32];
        let bytes = &mut bytes[..algorithm.key_len()];
        let info = [INFO, &[self.cipher as u8], &epoch.to_be_bytes()];
        let expanded = self.prk.expand(&info, KeyLen(bytes.len())).map_err(failed)?;
        expanded.fill(bytes).map_err(failed)?;
        Ok(LessSafeKey::new(UnboundKey::new(algorithm, bytes).map_err(failed)?))
    }
}

/// The length of a key, as HKDF takes it.
pub(super) struct KeyLen(pub(super) usize);

impl KeyType for KeyLen {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_have_their_numbers() {
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
            assert_eq!(Cipher::from_number(cipher as u8), Some(cipher));
        }
        assert_eq!([0, 3].map(Cipher::from_number), [None, None]);
    }

    #[test]
    fn aes_is_chosen_only_if_both_ends_prefer_it() {
        use Cipher::{Aes128Gcm, ChaCha20Poly1305};
        assert_eq!(Cipher::agree(Aes128Gcm, Aes128Gcm), Aes128Gcm);
        assert_eq!(Cipher::agree(Aes128Gcm, ChaCha20Poly1305), ChaCha20Poly1305);
        assert_eq!(Cipher::agree(ChaCha20Poly1305, Aes128Gcm), ChaCha20Poly1305);
    }

    #[test]
    fn context_is_as_documented() {
        let context = context(0x0102, Cipher::ChaCha20Poly1305, Direction::ToClient);
        assert_eq!(context, [0, 0, 1, 2, 2, 1]);
    }
}
