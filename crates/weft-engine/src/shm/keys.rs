//! The initiator's side of one-sided operations: what it knows of the peer's keys.
//!
//! The first operation on a key goes through the ring, where the target checks it, and asks for the
//! key beside. A grant tells where the memory is; it holds as long as a word in the shared segment
//! says so, which is looked at for each operation.

use std::collections::HashMap;

use super::segment::{GrantWords, Rings};
use super::session::Session;
use crate::access::Access;

/// Uses of a key after which an answer that has not come is asked for again.
const PATIENCE: u32 = 1_024;
/// Keys that are remembered; then all are forgotten, and asked for again when they are used.
const KEYS_MAX: usize = 1_024;

/// Memory of the peer's that a key names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    /// The word that says whether this still holds.
    pub(super) slot: usize,
    /// What the peer grants.
    pub(super) rights: Access,
    /// What the first byte is called.
    pub(super) iova: u64,
    /// In bytes.
    pub(super) len: u64,
    /// The first byte's address in the peer.
    pub(super) addr: u64,
}

impl Granted {
    /// The address in the peer of `len` bytes that are called `at`; `None` when they do not lie
    /// inside or `needs` is not granted. Then the target itself is asked, which knows the error.
    fn address_of(&self, at: u64, len: u64, needs: Access) -> Option<u64> {
        let offset = at.checked_sub(self.iova)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        (inside && self.rights.contains(needs)).then(|| self.addr.wrapping_add(offset))
    }
}

#[derive(Debug)]
enum Known {
    Asked { uses: u32 },
    Denied,
    Granted(Granted),
}

/// How to reach memory of the peer's.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// At this address in the peer, while the value lives.
    Direct(u64, InUse<'a>),
    /// Only the target can.
    Ring,
}

/// The target is told that a key is in use, until this is dropped: it waits for that with the
/// deregistration.
#[derive(Debug)]
pub(crate) struct InUse<'a>(&'a GrantWords);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.set_in_use(0);
    }
}

/// What is known of the peer's keys.
#[derive(Debug)]
pub(crate) struct PeerKeys {
    words: GrantWords,
    known: HashMap<u32, Known>,
    last: Option<(u32, Granted)>,
}

impl PeerKeys {
    pub(crate) fn new(rings: &Rings) -> Self {
        Self { words: rings.peer_grants(), known: HashMap::new(), last: None }
    }

    /// How to reach `len` bytes that are called `at` by a key; asks the peer if nothing is known.
    pub(crate) fn find(
        &mut self,
        session: &Session,
        key: u32,
        at: u64,
        len: u64,
        needs: Access,
    ) -> Found<'_> {
        let granted = match self.last {
            Some((last, granted)) if last == key => granted,
            _ => match self.look_up(session, key) {
                Some(granted) => granted,
                None => return Found::Ring,
            },
        };
        let Some(address) = granted.address_of(at, len, needs) else { return Found::Ring };
        // First say, then look: the target first revokes, then looks.
        self.words.set_in_use(key);
        if !self.words.grants(granted.slot, key) {
            self.words.set_in_use(0);
            self.known.remove(&key);
            self.last = None;
            return Found::Ring;
        }
        Found::Direct(address, InUse(&self.words))
    }

    /// The peer's answer to a question for a key.
    pub(crate) fn learn(&mut self, key: u32, granted: Option<Granted>) {
        if let Some(known) = self.known.get_mut(&key) {
            *known = granted.map_or(Known::Denied, Known::Granted);
        }
    }

    #[cold]
    fn look_up(&mut self, session: &Session, key: u32) -> Option<Granted> {
        match self.known.get_mut(&key) {
            Some(Known::Granted(granted)) => {
                self.last = Some((key, *granted));
                return Some(*granted);
            }
            Some(Known::Denied) => return None,
            Some(Known::Asked { uses }) => {
                *uses += 1;
                if *uses < PATIENCE {
                    return None;
                }
                *uses = 0;
            }
            None => {
                if self.known.len() >= KEYS_MAX {
                    self.known.clear();
                }
                self.known.insert(key, Known::Asked { uses: 0 });
            }
        }
        session.ask_for_key(key);
        None
    }
}
