//! Derives the keys of data channels beside a pipe from the secret that its acceptor has sent.
//!
//! HKDF-Expand with SHA-256 derives the secret of the blocks of each direction of a session, and
//! for each data channel a token, by which the acceptor knows the initiator, and an answer, by
//! which the initiator knows the acceptor. The info is a label, then for blocks the context of six
//! bytes under which TLS would export them ([`super::secrets`]), otherwise the channel's number.

use std::sync::Mutex;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use super::SecureError;
use super::secrets::{Cipher, Direction, Exported, KeyLen, SECRET_LEN, Secret, context};
use crate::wire::{PipeSecret, Token};
use weft_sys::lock;

const BLOCKS: &[u8] = b"weft pipe blocks";
const TOKEN: &[u8] = b"weft pipe token";
const ANSWER: &[u8] = b"weft pipe answer";

/// Length of an acceptor's answer in bytes.
pub const ANSWER_LEN: usize = 16;

/// Returns a new secret.
///
/// # Errors
/// If the system gives no random bytes.
pub fn new_secret() -> Result<PipeSecret, SecureError> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SecureError::Library("no random bytes"))?;
    Ok(PipeSecret(bytes))
}

/// The keys of the data channels beside one pipe.
#[derive(Debug)]
pub struct PipeKeys {
    prk: Prk,
    exported: Mutex<Exported>,
}

impl PipeKeys {
    /// Creates the keys of a secret.
    #[must_use]
    pub fn new(secret: &PipeSecret) -> Self {
        let prk = Prk::new_less_safe(HKDF_SHA256, &secret.0);
        Self { prk, exported: Mutex::default() }
    }

    pub(super) fn derive<const N: usize>(
        &self,
        label: &[u8],
        rest: &[u8],
    ) -> Result<[u8; N], SecureError> {
        let (mut bytes, failed) = ([0; N], |_| SecureError::Library("no key"));
        let info = [label, rest];
        self.prk.expand(&info, KeyLen(N)).map_err(failed)?.fill(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    /// Returns the secret of a session's blocks in one direction, which is the same at both ends.
    /// Each is returned once.
    ///
    /// # Errors
    /// `ExportedBefore`, or a failure of the library.
    pub fn block_secret(
        &self,
        session: u32,
        cipher: Cipher,
        direction: Direction,
    ) -> Result<Secret, SecureError> {
        lock(&self.exported).once(session, direction)?;
        let bytes: [u8; SECRET_LEN] = self.derive(BLOCKS, &context(session, cipher, direction))?;
        Ok(Secret::new(cipher, &bytes))
    }

    /// Returns the token that the initiator's preface of a data channel carries.
    ///
    /// # Errors
    /// A failure of the library.
    pub fn token(&self, channel: u16) -> Result<Token, SecureError> {
        Ok(Token(self.derive(TOKEN, &channel.to_be_bytes())?))
    }

    /// Whether a preface of a data channel carries its token.
    #[must_use]
    pub fn is_token(&self, channel: u16, token: &Token) -> bool {
        let own = self.token(channel);
        own.is_ok_and(|own| verify_slices_are_equal(&own.0, &token.0).is_ok())
    }

    /// Returns the bytes by which the acceptor answers the preface of a data channel.
    ///
    /// # Errors
    /// A failure of the library.
    pub fn answer(&self, channel: u16) -> Result<[u8; ANSWER_LEN], SecureError> {
        self.derive(ANSWER, &channel.to_be_bytes())
    }

    /// Whether these bytes are the acceptor's answer.
    #[must_use]
    pub fn is_answer(&self, channel: u16, answer: &[u8; ANSWER_LEN]) -> bool {
        let own = self.answer(channel);
        own.is_ok_and(|own| verify_slices_are_equal(&own, answer).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secure::{Opener, SEAL_LEN, Sealer};

    fn keys(seed: u8) -> PipeKeys {
        PipeKeys::new(&PipeSecret([seed; 32]))
    }

    #[test]
    fn both_ends_have_the_same_keys_and_others_do_not() {
        let ends = [keys(1), keys(1), keys(2)];
        let [near, remote, other] = &ends;
        for channel in [0, 1] {
            assert!(remote.is_token(channel, &near.token(channel).expect("a token")));
            assert!(near.is_answer(channel, &remote.answer(channel).expect("an answer")));
            assert!(!remote.is_token(channel, &near.token(channel + 1).expect("a token")));
            assert!(!remote.is_token(channel, &other.token(channel).expect("a token")));
            assert!(!near.is_answer(channel, &other.answer(channel).expect("an answer")));
            // Who has seen the token cannot answer with it.
            assert!(!near.is_answer(channel, &near.token(channel).expect("a token").0));
        }
        let secret = |keys: &PipeKeys, direction| {
            keys.block_secret(1, Cipher::Aes128Gcm, direction).expect("the first time")
        };
        let sealer = Sealer::new(secret(near, Direction::ToServer));
        let mut block = [7; 10 + SEAL_LEN];
        let ticket = sealer.begin().expect("a counter");
        let counter = ticket.counter();
        ticket.seal_in_place(b"head", &mut block, 10).expect("room");
        for (end, direction, opens) in [
            (remote, Direction::ToServer, true),
            (remote, Direction::ToClient, false),
            (other, Direction::ToServer, false),
        ] {
            let opener = Opener::new(secret(end, direction));
            let opened = opener.open_in_place(counter, b"head", &mut block.clone(), block.len());
            assert_eq!(opened.is_ok(), opens, "{direction:?}");
        }
    }

    #[test]
    fn secret_of_blocks_is_given_out_once() {
        let keys = keys(1);
        let export = |direction| keys.block_secret(1, Cipher::Aes128Gcm, direction);
        assert!(export(Direction::ToServer).is_ok() && export(Direction::ToClient).is_ok());
        let again = export(Direction::ToServer);
        assert!(matches!(again, Err(SecureError::ExportedBefore(1))), "{again:?}");
        assert_ne!(new_secret().expect("random bytes"), new_secret().expect("random bytes"));
    }
}
