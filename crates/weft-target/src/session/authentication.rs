//! The security stage of a login: an initiator proves who it is, and may ask the target for the
//! same (RFC 7143, section 12.1).
//!
//! | initiator | target |
//! | --- | --- |
//! | `AuthMethod=CHAP,None` | `AuthMethod=CHAP` |
//! | `CHAP_A=7,5`: algorithms | `CHAP_A=7`, `CHAP_I`, `CHAP_C`: identifier and challenge |
//! | `CHAP_N`, `CHAP_R`: name and response | |
//! | in the same request, if it asks the target: `CHAP_I`, `CHAP_C` | `CHAP_N`, `CHAP_R` |
//!
//! Keys at another place end the login.

use super::portal::Random;
use crate::limits::VALUE_LEN_MAX;
use crate::security::{Access, Algorithm, Chap};
use crate::wire::{binary, login_status, parse_binary, push_pair};

/// How far an initiator has come.
#[derive(Debug, Default)]
pub(super) enum Authentication {
    /// No method is chosen.
    #[default]
    Open,
    /// The method is to do without.
    Without,
    /// The method is CHAP, and the initiator proposes algorithms next.
    Chap,
    /// The initiator has a challenge to respond to.
    Challenged(Challenge),
    /// The initiator has proven who it is.
    Proven,
}

/// A challenge of the target.
#[derive(Debug)]
pub(super) struct Challenge {
    algorithm: Algorithm,
    identifier: u8,
    bytes: Vec<u8>,
}

/// The keys of the security stage in one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SecurityKeys<'a> {
    methods: Option<&'a str>,
    algorithms: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
}

impl<'a> SecurityKeys<'a> {
    /// Takes a key if it is one of this stage, and returns whether it is.
    ///
    /// # Errors
    ///
    /// If the request has it twice.
    pub(super) fn take(&mut self, key: &str, value: &'a str) -> Result<bool, u16> {
        let place = match key {
            "AuthMethod" => &mut self.methods,
            "CHAP_A" => &mut self.algorithms,
            "CHAP_N" => &mut self.name,
            "CHAP_R" => &mut self.response,
            "CHAP_I" => &mut self.identifier,
            "CHAP_C" => &mut self.challenge,
            _ => return Ok(false),
        };
        match place.replace(value) {
            None => Ok(true),
            Some(_) => Err(login_status::INITIATOR_ERROR),
        }
    }

    /// There are none.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Authentication {
    /// Whether the initiator may leave the security stage.
    pub(super) fn is_enough(&self, access: &Access) -> bool {
        access.chap.is_none() || matches!(self, Self::Proven)
    }

    /// Whether the initiator has to go on.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::Chap | Self::Challenged(_))
    }

    /// Takes the keys of a request of `initiator`, and appends the answer.
    ///
    /// # Errors
    ///
    /// The status of the refusal.
    pub(super) fn advance(
        &mut self,
        keys: &SecurityKeys<'_>,
        access: &Access,
        initiator: &str,
        random: Random,
        answer: &mut Vec<u8>,
    ) -> Result<(), u16> {
        if keys.is_empty() {
            return Ok(());
        }
        let expected = match self {
            Self::Open => SecurityKeys { methods: keys.methods, ..SecurityKeys::default() },
            Self::Chap => SecurityKeys { algorithms: keys.algorithms, ..SecurityKeys::default() },
            Self::Challenged(_) => SecurityKeys { methods: None, algorithms: None, ..*keys },
            Self::Without | Self::Proven => SecurityKeys::default(),
        };
        if *keys != expected {
            return Err(login_status::INITIATOR_ERROR);
        }
        *self = match (&*self, &access.chap) {
            (Self::Open, chap) => {
                let methods = keys.methods.unwrap_or_default();
                let method = if chap.is_some() { "CHAP" } else { "None" };
                if !methods.split(',').any(|each| each == method) {
                    return Err(login_status::AUTHENTICATION_FAILURE);
                }
                push_pair(answer, "AuthMethod", method);
                if chap.is_some() { Self::Chap } else { Self::Without }
            }
            (Self::Chap, Some(_)) => {
                let algorithm = Algorithm::choose(keys.algorithms.unwrap_or_default());
                let algorithm = algorithm.ok_or(login_status::AUTHENTICATION_FAILURE)?;
                Self::Challenged(Challenge::new(algorithm, random, answer)?)
            }
            (Self::Challenged(challenge), Some(chap)) => {
                challenge.check(keys, chap, initiator, answer)?;
                Self::Proven
            }
            _ => return Err(login_status::INITIATOR_ERROR),
        };
        Ok(())
    }
}

impl Challenge {
    /// Makes a challenge, and appends it.
    fn new(algorithm: Algorithm, random: Random, answer: &mut Vec<u8>) -> Result<Self, u16> {
        let mut bytes = vec![0; algorithm.response_len() + 1];
        if !(random.0)(&mut bytes) {
            return Err(login_status::TARGET_ERROR);
        }
        let identifier = bytes.pop().unwrap_or_default();
        push_pair(answer, "CHAP_A", &algorithm.number().to_string());
        push_pair(answer, "CHAP_I", &identifier.to_string());
        push_pair(answer, "CHAP_C", &binary(&bytes));
        Ok(Self { algorithm, identifier, bytes })
    }

    /// Checks the initiator's proof, and appends the target's if it is asked for one.
    fn check(
        &self,
        keys: &SecurityKeys<'_>,
        chap: &Chap,
        initiator: &str,
        answer: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let (Some(name), Some(response)) = (keys.name, keys.response) else {
            return Err(login_status::INITIATOR_ERROR);
        };
        let response = parse_binary(response).ok_or(login_status::INITIATOR_ERROR)?;
        if name.len() > VALUE_LEN_MAX {
            return Err(login_status::INITIATOR_ERROR);
        }
        if !chap.is_proven(self.algorithm, self.identifier, &self.bytes, name, &response) {
            return Err(login_status::AUTHENTICATION_FAILURE);
        }
        if !chap.may_be(name, initiator) {
            return Err(login_status::AUTHORIZATION_FAILURE);
        }
        let (identifier, challenge) = match (keys.identifier, keys.challenge) {
            (None, None) => return Ok(()),
            (Some(identifier), Some(challenge)) => (identifier, challenge),
            _ => return Err(login_status::INITIATOR_ERROR),
        };
        let identifier = byte(identifier).ok_or(login_status::INITIATOR_ERROR)?;
        let challenge = parse_binary(challenge).ok_or(login_status::INITIATOR_ERROR)?;
        if challenge.is_empty() {
            return Err(login_status::INITIATOR_ERROR);
        }
        // The target does not answer its own challenge: an initiator without the secret could pass
        // the answer back.
        if challenge == self.bytes {
            return Err(login_status::AUTHENTICATION_FAILURE);
        }
        let account = chap.target().ok_or(login_status::AUTHENTICATION_FAILURE)?;
        let response = self.algorithm.response(identifier, &account.secret, &challenge);
        push_pair(answer, "CHAP_N", &account.name);
        push_pair(answer, "CHAP_R", &binary(&response));
        Ok(())
    }
}

/// A number of one byte, in decimal or hexadecimal (RFC 7143, section 6.1).
fn byte(value: &str) -> Option<u8> {
    let hexadecimal = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let (digits, radix) = hexadecimal.map_or((value, 10), |digits| (digits, 16));
    // `from_str_radix` would accept a sign.
    if digits.starts_with('+') {
        return None;
    }
    u8::from_str_radix(digits, radix).ok()
}
