//! The algorithms of CHAP.

use aws_lc_rs::digest::{SHA3_256, SHA256, digest};
use md5::{Digest as _, Md5};

use super::secret::Secret;

/// How a response is computed from a challenge and a secret. The numbers are those of IANA's "PPP
/// Authentication Algorithms".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, number 5, which every initiator knows.
    Md5,
    /// SHA-256, number 7.
    Sha256,
    /// SHA3-256, number 8.
    Sha3,
}

impl Algorithm {
    /// The first known one of a list of numbers, which the initiator orders by preference.
    #[must_use]
    pub fn choose(list: &str) -> Option<Self> {
        list.split(',').find_map(|number| match number {
            "5" => Some(Self::Md5),
            "7" => Some(Self::Sha256),
            "8" => Some(Self::Sha3),
            _ => None,
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
            Self::Sha3 => 8,
        }
    }

    /// The length of a response in bytes. Challenges of the target are as long.
    #[must_use]
    pub fn response_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha256 | Self::Sha3 => 32,
        }
    }

    /// The response to a challenge with an identifier (RFC 1994, section 4.1).
    #[must_use]
    pub fn response(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        let text = [&[identifier], secret.bytes(), challenge].concat();
        match self {
            Self::Md5 => Md5::digest(text).to_vec(),
            Self::Sha256 => digest(&SHA256, &text).as_ref().to_vec(),
            Self::Sha3 => digest(&SHA3_256, &text).as_ref().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::binary;

    /// The expected values are those of Python's hashlib.
    #[test]
    fn responses_are_the_hashes_of_identifier_secret_and_challenge() {
        let secret = Secret::new(b"a secret of 24 bytes ...".to_vec()).unwrap();
        let challenge: Vec<u8> = (0..16).collect();
        for (algorithm, expected) in [
            (Algorithm::Md5, "0xc296386b9d7fbf76071c537501473366"),
            (
                Algorithm::Sha256,
                "0xbbe5b602268d23dadcbce98ee264480cd4c56802c4c17d871298de564d8fb665",
            ),
            (Algorithm::Sha3, "0xcbfc279ec21c75a501ca0c1bad26a7448b9ace1480bc3f9e2005ec72a43a5dbc"),
        ] {
            let response = algorithm.response(0x7f, &secret, &challenge);
            assert_eq!(binary(&response), expected);
            assert_eq!(response.len(), algorithm.response_len());
        }
    }

    #[test]
    fn first_known_algorithm_is_chosen() {
        assert_eq!(Algorithm::choose("6,8,5"), Some(Algorithm::Sha3));
        assert_eq!(Algorithm::choose("5,7"), Some(Algorithm::Md5));
        for list in ["", "6", "05", "5 ,7 ", "0x5", ","] {
            assert_eq!(Algorithm::choose(list), None, "{list}");
        }
    }
}
