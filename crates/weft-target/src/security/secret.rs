//! Secrets, which are never shown.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use thiserror::Error;

use crate::limits::{SECRET_LEN_MAX, SECRET_LEN_MIN};

/// A secret of CHAP.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// Why bytes cannot be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a secret has {SECRET_LEN_MIN} to {SECRET_LEN_MAX} bytes, and this one has {0}")]
pub struct SecretError(usize);

impl Secret {
    /// Returns a secret of these bytes.
    ///
    /// # Errors
    ///
    /// If there are too few or too many.
    pub fn new(bytes: Vec<u8>) -> Result<Self, SecretError> {
        if (SECRET_LEN_MIN..=SECRET_LEN_MAX).contains(&bytes.len()) {
            Ok(Self(bytes))
        } else {
            Err(SecretError(bytes.len()))
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        is_equal(&self.0, &other.0)
    }
}

/// Compares in a time that depends on the lengths only.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A name of CHAP with its secret.
#[derive(Clone, Debug)]
pub struct Account {
    /// The name, which is no iSCSI name in general.
    pub name: String,
    /// The secret.
    pub secret: Secret,
    /// The iSCSI names that it may be used with. `None`: all.
    pub initiators: Option<Vec<String>>,
}
