//! The clients of a server: what each of them may do, and what it does.

use std::sync::{Arc, Mutex};

use super::accept::{Answer, Resolve, Shares};
use super::request::{Flags, Request};
use super::rights::{Limits, Place};
use crate::secure::PublicKey;
use crate::transport::Limit;
use crate::wire::{Refusal, Role};
use weft_sys::lock;

/// A client whom a server lets in.
#[derive(Debug)]
pub struct Caller {
    /// The user's name, for the log.
    pub name: Option<String>,
    /// The directories that the client may use.
    pub shares: Shares,
    /// What the client may do at a time, together with others.
    pub limits: Vec<Arc<Limits>>,
}

/// Decides who is let in, and what each client may do.
pub trait Rights: Send + Sync {
    /// Returns the client with this key, which it has proven to have; `None` if it is not let in.
    fn caller(&self, key: &PublicKey) -> Option<Caller>;
}

impl Rights for Shares {
    fn caller(&self, _: &PublicKey) -> Option<Caller> {
        Some(Caller { name: None, shares: self.clone(), limits: Vec::new() })
    }
}

/// What a client has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// What it is.
    pub action: Action,
    /// The paths, as the client has sent them.
    pub paths: Vec<Vec<u8>>,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It reads files.
    Read,
    /// It reads files, and has them removed.
    Move,
    /// It lists what is there.
    List,
    /// It writes files.
    Write,
    /// It asks what a copy would write.
    Compare,
}

impl Action {
    fn of(role: Role, flags: Flags) -> Self {
        match (role, flags.has(Flags::DRY_RUN)) {
            (Role::Sink, true) => Self::List,
            (Role::Sink, false) if flags.has(Flags::REMOVES) => Self::Move,
            (Role::Sink, false) => Self::Read,
            (Role::Source, true) => Self::Compare,
            (Role::Source, false) => Self::Write,
        }
    }
}

/// A copy of a client, with its places within the limits.
#[derive(Debug)]
pub(super) struct Admission {
    caller: Caller,
    state: Mutex<AdmissionState>,
}

#[derive(Debug, Default)]
struct AdmissionState {
    wish: Option<Wish>,
    places: Vec<Place>,
}

impl Admission {
    pub(super) fn new(caller: Caller) -> Self {
        Self { caller, state: Mutex::default() }
    }

    /// Returns the user's name.
    pub(super) fn name(&self) -> Option<&str> {
        self.caller.name.as_deref()
    }

    /// Returns what the client has asked for, if it has.
    pub(super) fn wish(&self) -> Option<Wish> {
        lock(&self.state).wish.clone()
    }
}

impl Resolve for Admission {
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)> {
        let Caller { shares, limits, .. } = &self.caller;
        let mut state = lock(&self.state);
        let action = Action::of(role, request.flags);
        state.wish = Some(Wish { action, paths: request.paths.clone() });
        let of_shares = shares.of(request).into_iter().filter_map(|share| share.limits.as_ref());
        for limits in limits.iter().chain(of_shares) {
            // Several paths may be in one share.
            if !state.places.iter().any(|place| Arc::ptr_eq(&place.limits, limits)) {
                state.places.push(limits.enter()?);
            }
        }
        shares.resolve(role, request)
    }

    fn rates(&self) -> Vec<Limit> {
        lock(&self.state).places.iter().filter_map(|place| place.rate.clone()).collect()
    }
}
