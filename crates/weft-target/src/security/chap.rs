//! The accounts that a target knows, and the check of a proof.

use std::collections::BTreeMap;

use thiserror::Error;

use super::algorithm::Algorithm;
use super::names::is_named;
use super::secret::{Account, is_equal};
use crate::limits::VALUE_LEN_MAX;

/// The accounts of initiators, and the account by which the target proves itself to them.
#[derive(Debug)]
pub struct Chap {
    initiators: BTreeMap<String, Account>,
    target: Option<Account>,
}

/// Why accounts do not go together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChapError {
    /// No initiator could log in.
    #[error("there is no account of an initiator")]
    NoInitiator,
    /// A name is empty, too long or has a zero byte.
    #[error("{0:?} cannot be the name of an account: from 1 to {VALUE_LEN_MAX} bytes")]
    Name(String),
    /// Two initiators have one name.
    #[error("two accounts have the name {0:?}")]
    Twice(String),
    /// The target would answer an initiator's challenge with the initiator's own secret (RFC 7143,
    /// section 9.2.1).
    #[error("the target and the initiator {0:?} have the same secret")]
    SameSecret(String),
}

impl Chap {
    /// Returns the accounts of `initiators`, and the one of the target, if it has any.
    ///
    /// # Errors
    ///
    /// If they do not go together.
    pub fn new(initiators: Vec<Account>, target: Option<Account>) -> Result<Self, ChapError> {
        let names = initiators.iter().chain(&target).map(|account| &account.name);
        for name in names {
            if name.is_empty() || name.len() > VALUE_LEN_MAX || name.contains('\0') {
                return Err(ChapError::Name(name.clone()));
            }
        }
        let mut accounts = BTreeMap::new();
        for account in initiators {
            if target.as_ref().is_some_and(|target| target.secret.is(&account.secret)) {
                return Err(ChapError::SameSecret(account.name));
            }
            if let Some(before) = accounts.insert(account.name.clone(), account) {
                return Err(ChapError::Twice(before.name));
            }
        }
        if accounts.is_empty() {
            return Err(ChapError::NoInitiator);
        }
        Ok(Self { initiators: accounts, target })
    }

    /// Whether `response` proves that the initiator has the secret of the account `name`.
    #[must_use]
    pub fn is_proven(
        &self,
        algorithm: Algorithm,
        identifier: u8,
        challenge: &[u8],
        name: &str,
        response: &[u8],
    ) -> bool {
        let account = self.initiators.get(name);
        // An unknown name takes as long as a known one.
        let Some(checked) = account.or_else(|| self.initiators.values().next()) else {
            return false;
        };
        let expected = algorithm.response(identifier, &checked.secret, challenge);
        is_equal(&expected, response) && account.is_some()
    }

    /// Whether the account `name` may be used by an initiator with this iSCSI name.
    #[must_use]
    pub fn may_be(&self, name: &str, initiator: &str) -> bool {
        let allowed = |account: &Account| {
            account.initiators.as_ref().is_none_or(|names| is_named(names, initiator))
        };
        self.initiators.get(name).is_some_and(allowed)
    }

    /// The account by which the target proves itself.
    #[must_use]
    pub fn target(&self) -> Option<&Account> {
        self.target.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::Secret;
    use super::*;

    fn account(name: &str, secret: &str) -> Account {
        let secret = Secret::new(secret.as_bytes().to_vec()).unwrap();
        Account { name: name.into(), secret, initiators: None }
    }

    #[test]
    fn accounts_that_do_not_go_together_are_refused() {
        let [a, b] = ["secret of a.", "secret of b."];
        let new = |initiators, target| Chap::new(initiators, target).map(drop);
        assert_eq!(new(Vec::new(), None), Err(ChapError::NoInitiator));
        assert_eq!(new(vec![account("", a)], None), Err(ChapError::Name(String::new())));
        let twice = vec![account("a", a), account("a", b)];
        assert_eq!(new(twice, None), Err(ChapError::Twice("a".into())));
        let both = vec![account("b", b), account("a", a)];
        let target = Some(account("target", a));
        assert_eq!(new(both.clone(), target), Err(ChapError::SameSecret("a".into())));
        assert_eq!(new(both, Some(account("a", "secret of t."))), Ok(()));
    }

    #[test]
    fn only_the_right_secret_of_a_known_name_is_a_proof() {
        let [a, b] = ["secret of a.", "secret of b."];
        let chap = Chap::new(vec![account("a", a), account("b", b)], None).unwrap();
        let response = Algorithm::Md5.response(1, &account("a", a).secret, b"challenge");
        let is_proven = |id, challenge: &[u8], name, response: &[u8]| {
            chap.is_proven(Algorithm::Md5, id, challenge, name, response)
        };
        assert!(is_proven(1, b"challenge", "a", &response));
        assert!(!is_proven(2, b"challenge", "a", &response));
        assert!(!is_proven(1, b"another", "a", &response));
        assert!(!is_proven(1, b"challenge", "b", &response));
        // The first account stands in for an unknown name: its secret must not be enough.
        assert!(!is_proven(1, b"challenge", "c", &response));
        assert!(!is_proven(1, b"challenge", "a", &response[..15]));
        assert!(!is_proven(1, b"challenge", "a", b""));
    }

    #[test]
    fn an_account_may_be_bound_to_names() {
        let names = Some(vec!["iqn.A".into()]);
        let bound = Account { initiators: names, ..account("a", "secret of a.") };
        let chap = Chap::new(vec![bound, account("b", "secret of b.")], None).unwrap();
        assert!(chap.may_be("a", "iqn.a") && chap.may_be("b", "iqn.c"));
        assert!(!chap.may_be("a", "iqn.c") && !chap.may_be("c", "iqn.a"));
    }

    #[test]
    fn secrets_have_a_length_and_are_not_shown() {
        assert!(Secret::new(vec![0; 11]).is_err() && Secret::new(vec![0; 256]).is_err());
        let chap = Chap::new(vec![account("a", "hidden secret")], None).unwrap();
        assert!(!format!("{chap:?}").contains("hidden"));
    }
}
