//! The keys of a grant: the permission that a client gives one server to send another one the data
//! of one copy.
//!
//! The secret of a grant goes from the destination's server to the client, and from the client to
//! the source's server, over TLS. For each data channel both servers prove that they have the
//! secret and the keys by which the client knows them: each signs, by its Ed25519 key, a text that
//! contains its role, a value derived from the secret, both keys, the channel's number, and a
//! random number of each. So a grant is of no use to another server, and a proof of none for
//! another channel, another grant, or a second time.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use super::identity::SIGNATURE_LEN;
use super::{Cipher, Direction, Identity, PipeKeys, PublicKey, Secret, SecureError};
use crate::wire::{PipeSecret, Token};

/// Length of a random number in bytes.
pub const NONCE_LEN: usize = 32;
/// Length of the acceptor's proof in bytes: its random number and its signature.
pub const ACCEPTOR_PROOF_LEN: usize = NONCE_LEN + SIGNATURE_LEN;
/// Length of the initiator's proof in bytes: its signature.
pub const INITIATOR_PROOF_LEN: usize = SIGNATURE_LEN;

const TEXT: &[u8] = b"weft grant v1\0";
const BINDER: &[u8] = b"weft grant binder";
/// The session of the blocks: a grant has one.
const SESSION: u32 = 1;

/// A random number of one end for one data channel.
pub type Nonce = [u8; NONCE_LEN];

/// Returns a random number.
///
/// # Errors
/// If the system gives no random bytes.
pub fn nonce() -> Result<Nonce, SecureError> {
    let mut bytes = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SecureError::Library("no random bytes"))?;
    Ok(bytes)
}

/// Which end proves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prover {
    /// The source's server, which connects.
    Initiator = 1,
    /// The destination's server, which accepts.
    Acceptor = 2,
}

/// The keys of one grant.
#[derive(Debug)]
pub struct GrantKeys {
    keys: PipeKeys,
    from: PublicKey,
    to: PublicKey,
}

impl GrantKeys {
    /// Creates the keys of a secret, for blocks from one server to another one.
    #[must_use]
    pub fn new(secret: &PipeSecret, from: PublicKey, to: PublicKey) -> Self {
        Self { keys: PipeKeys::new(secret), from, to }
    }

    /// Returns the token of a data channel's preface. It says which grant is meant, and proves
    /// nothing.
    ///
    /// # Errors
    /// A failure of the library.
    pub fn token(&self, channel: u16) -> Result<Token, SecureError> {
        self.keys.token(channel)
    }

    /// Returns the secret of the blocks, which is given out once.
    ///
    /// # Errors
    /// `ExportedBefore`, or a failure of the library.
    pub fn block_secret(&self, cipher: Cipher) -> Result<Secret, SecureError> {
        self.keys.block_secret(SESSION, cipher, Direction::ToServer)
    }

    fn text(
        &self,
        prover: Prover,
        channel: u16,
        [initiator, acceptor]: [&Nonce; 2],
    ) -> Result<Vec<u8>, SecureError> {
        let binder: [u8; 32] = self.keys.derive(BINDER, &[])?;
        let (from, to) = (self.from.to_bytes(), self.to.to_bytes());
        let parts: [&[u8]; 8] = [
            TEXT,
            &[prover as u8],
            &binder,
            &from,
            &to,
            &channel.to_be_bytes(),
            initiator,
            acceptor,
        ];
        Ok(parts.concat())
    }

    /// Returns the acceptor's proof for a data channel, and the random number in it.
    ///
    /// # Errors
    /// A failure of the library, or of the system's random numbers.
    pub fn prove_acceptor(
        &self,
        own: &Identity,
        channel: u16,
        initiator: &Nonce,
    ) -> Result<(Nonce, [u8; ACCEPTOR_PROOF_LEN]), SecureError> {
        let acceptor = nonce()?;
        let signature =
            own.sign(&self.text(Prover::Acceptor, channel, [initiator, &acceptor])?)?;
        let mut proof = [0; ACCEPTOR_PROOF_LEN];
        proof[..NONCE_LEN].copy_from_slice(&acceptor);
        proof[NONCE_LEN..].copy_from_slice(&signature);
        Ok((acceptor, proof))
    }

    /// Checks the acceptor's proof. Returns the initiator's.
    ///
    /// # Errors
    /// `NotGranted` if the acceptor is another one; a failure of the library.
    pub fn prove_initiator(
        &self,
        own: &Identity,
        channel: u16,
        initiator: &Nonce,
        proof: &[u8; ACCEPTOR_PROOF_LEN],
    ) -> Result<[u8; INITIATOR_PROOF_LEN], SecureError> {
        let (acceptor, signature) = proof.split_first_chunk().ok_or(SecureError::NotGranted)?;
        let signature = signature.first_chunk().ok_or(SecureError::NotGranted)?;
        let text = self.text(Prover::Acceptor, channel, [initiator, acceptor])?;
        if !self.to.has_signed(&text, signature) {
            return Err(SecureError::NotGranted);
        }
        own.sign(&self.text(Prover::Initiator, channel, [initiator, acceptor])?)
    }

    /// Checks the initiator's proof.
    ///
    /// # Errors
    /// `NotGranted` if the initiator is another one; a failure of the library.
    pub fn check_initiator(
        &self,
        channel: u16,
        nonces: [&Nonce; 2],
        proof: &[u8; INITIATOR_PROOF_LEN],
    ) -> Result<(), SecureError> {
        let text = self.text(Prover::Initiator, channel, nonces)?;
        self.from.has_signed(&text, proof).then_some(()).ok_or(SecureError::NotGranted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities() -> [Identity; 3] {
        [(); 3].map(|()| Identity::generate().expect("a key"))
    }

    fn keys(secret: u8, from: &Identity, to: &Identity) -> GrantKeys {
        GrantKeys::new(&PipeSecret([secret; 32]), from.public(), to.public())
    }

    /// Whether two ends with these keys and identities let each other in: the initiator lets the
    /// acceptor in first.
    fn meet(
        (initiator, source): (&GrantKeys, &Identity),
        (acceptor, sink): (&GrantKeys, &Identity),
        channels: [u16; 2],
    ) -> (bool, bool) {
        let first = nonce().expect("random bytes");
        let (second, proof) =
            acceptor.prove_acceptor(sink, channels[1], &first).expect("a signature");
        match initiator.prove_initiator(source, channels[0], &first, &proof) {
            Ok(proof) => {
                (true, acceptor.check_initiator(channels[1], [&first, &second], &proof).is_ok())
            }
            Err(_) => (false, false),
        }
    }

    #[test]
    fn grant_is_for_its_two_servers_and_its_secret_alone() {
        let [source, sink, other] = &identities();
        let own = || keys(1, source, sink);
        assert_eq!(meet((&own(), source), (&own(), sink), [0, 0]), (true, true));
        // Another server has got the secret and says that it is the source.
        assert_eq!(meet((&own(), other), (&own(), sink), [0, 0]), (true, false));
        // The client has named another source to the destination.
        let others = keys(1, other, sink);
        assert_eq!(meet((&own(), source), (&others, sink), [0, 0]), (false, false));
        // Another server answers at the destination's address.
        assert_eq!(meet((&own(), source), (&own(), other), [0, 0]), (false, false));
        let others = keys(1, source, other);
        assert_eq!(meet((&own(), source), (&others, other), [0, 0]), (false, false));
        // Another grant, another channel.
        let second = keys(2, source, sink);
        assert_eq!(meet((&own(), source), (&second, sink), [0, 0]), (false, false));
        assert_eq!(meet((&own(), source), (&own(), sink), [0, 1]), (false, false));
    }

    #[test]
    fn proofs_of_one_connection_are_of_no_use_in_another_one() {
        let [source, sink, _] = &identities();
        let keys = keys(1, source, sink);
        let first = nonce().expect("random bytes");
        let (second, proof) = keys.prove_acceptor(sink, 0, &first).expect("a signature");
        let answer = keys.prove_initiator(source, 0, &first, &proof).expect("its own");
        assert!(keys.check_initiator(0, [&first, &second], &answer).is_ok());
        let (third, _) = keys.prove_acceptor(sink, 0, &first).expect("a signature");
        for nonces in [[&first, &third], [&third, &second], [&second, &first]] {
            let replayed = keys.check_initiator(0, nonces, &answer);
            assert!(matches!(replayed, Err(SecureError::NotGranted)), "{replayed:?}");
        }
        // The acceptor's proof is for the random number that it has got, and is no initiator's.
        assert!(keys.prove_initiator(source, 0, &third, &proof).is_err());
        let signature = proof.last_chunk().expect("a signature");
        assert!(keys.check_initiator(0, [&first, &second], signature).is_err());
    }
}
