//! The connections that speak the Redis protocol, as they see one another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use super::transaction::Transaction;
use crate::access::{Guard, User};

/// What a connection shows of itself.
#[derive(Clone, Debug, Default)]
struct Shown {
    name: String,
    user: User,
    addresses: Addresses,
    since: Duration,
}

/// The addresses of both ends of a connection, as texts.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// That of the client.
    pub peer: String,
    /// That of the server.
    pub local: String,
}

/// All connections of a server.
#[derive(Clone, Debug, Default)]
pub struct Roster(Rc<RefCell<Members>>);

#[derive(Debug, Default)]
struct Members {
    last: u64,
    shown: BTreeMap<u64, Shown>,
}

/// A connection's place in the roster, and what the client has set for it.
#[derive(Debug)]
pub(super) struct Session {
    roster: Roster,
    id: u64,
    pub(super) name: String,
    pub(super) last_command: &'static str,
    pub(super) transaction: Transaction,
    guard: Guard,
    /// Whether the client has shown that it may use the server.
    pub(super) is_admitted: bool,
    /// Whose client it is.
    pub(super) user: User,
}

impl Roster {
    /// Adds a connection whose client has to get past a guard.
    pub(super) fn enter(&self, addresses: Addresses, since: Duration, guard: Guard) -> Session {
        let mut members = self.0.borrow_mut();
        members.last += 1;
        let id = members.last;
        members.shown.insert(id, Shown { addresses, since, ..Shown::default() });
        let is_admitted = guard.is_open();
        Session {
            roster: self.clone(),
            id,
            name: String::new(),
            last_command: "",
            transaction: Transaction::default(),
            guard,
            is_admitted,
            user: User::default(),
        }
    }
}

impl Session {
    /// The number of the connection.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether the server asks for no password.
    pub(super) fn is_open(&self) -> bool {
        self.guard.is_open()
    }

    /// Lets the client in if this is the password of the user. Returns whether it is.
    pub(super) fn log_in(&mut self, user: &[u8], password: &[u8]) -> bool {
        let Some(user) = self.guard.admit(Some(user), password) else { return false };
        self.is_admitted = true;
        self.set_user(user);
        true
    }

    /// Makes the client one that has shown nothing.
    pub(super) fn log_out(&mut self) {
        self.is_admitted = self.guard.is_open();
        self.set_user(User::default());
    }

    fn set_user(&mut self, user: User) {
        if let Some(shown) = self.roster.0.borrow_mut().shown.get_mut(&self.id) {
            shown.user = user.clone();
        }
        self.user = user;
    }

    pub(super) fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        if let Some(shown) = self.roster.0.borrow_mut().shown.get_mut(&self.id) {
            name.clone_into(&mut shown.name);
        }
    }

    /// Describes this connection, as `CLIENT INFO` does.
    pub(super) fn describe(&self, clock: Duration, is_resp3: bool) -> String {
        let members = self.roster.0.borrow();
        let Some(shown) = members.shown.get(&self.id) else { return String::new() };
        let mut line = line(self.id, shown, clock);
        let version = if is_resp3 { 3 } else { 2 };
        let command = self.last_command;
        // Writing to a string does not fail.
        let _ = writeln!(line, " cmd={command} resp={version}");
        line
    }

    /// The numbers of all connections.
    pub(super) fn all(&self) -> Vec<u64> {
        self.roster.0.borrow().shown.keys().copied().collect()
    }

    /// Describes the connections with these numbers, as `CLIENT LIST` does. Those that do not exist
    /// are left out.
    pub(super) fn describe_these(&self, ids: &[u64], clock: Duration, is_resp3: bool) -> String {
        let (mut lines, members) = (String::new(), self.roster.0.borrow());
        for id in ids {
            match members.shown.get(id) {
                Some(_) if *id == self.id => lines.push_str(&self.describe(clock, is_resp3)),
                Some(shown) => {
                    let _ = writeln!(lines, "{}", line(*id, shown, clock));
                }
                None => {}
            }
        }
        lines
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.roster.0.borrow_mut().shown.remove(&self.id);
    }
}

fn line(id: u64, Shown { name, user, addresses, since }: &Shown, clock: Duration) -> String {
    let Addresses { peer, local } = addresses;
    let age = clock.saturating_sub(*since).as_secs();
    let user = user.name();
    format!("id={id} addr={peer} laddr={local} name={name} age={age} db=0 user={user}")
}
