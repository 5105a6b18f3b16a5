//! A proof that a process has the stream. Only the two ends of a connection know the first bytes in
//! both directions; other users of their hosts do not.
//!
//! The ends of a stream find each other by a second connection, which any user of either host could
//! have made. So each end sends a keyed hash (HMAC with SHA-256) over its message there, with the
//! first bytes of the stream as the key. Nothing is added to the stream for that. The proof is as
//! strong as these bytes are hard to guess.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use weft_sys::{Buffers, SectionLock};

use crate::Role;
use crate::limits::PROOF_BYTES_MAX;

/// Minimum number of bytes of the key, both directions together.
pub const BYTES_MIN: usize = 16;
/// Length of a proof in bytes.
pub const PROOF_LEN: usize = 32;

/// How many bytes of the stream are the key: those to the acceptor, and those to the connector.
pub type Moved = [usize; 2];

/// The first bytes of a direction.
#[derive(Debug)]
struct Start {
    bytes: Box<[u8; PROOF_BYTES_MAX]>,
    len: usize,
}

impl Start {
    fn add(&mut self, buffers: Buffers<'_>, count: usize) {
        let mut left = count.min(PROOF_BYTES_MAX - self.len);
        for region in buffers.regions() {
            let Some(part) = region.part(0, left.min(region.len())) else { return };
            part.fill(&mut self.bytes[self.len..]);
            self.len += part.len();
            left -= part.len();
        }
    }
}

/// The first bytes of a stream that its end has sent and received.
#[derive(Debug)]
pub(super) struct Starts {
    sent: SectionLock<Option<Start>>,
    received: SectionLock<Option<Start>>,
}

impl Starts {
    pub(super) fn new() -> Self {
        let none =
            || SectionLock::new(Some(Start { bytes: Box::new([0; PROOF_BYTES_MAX]), len: 0 }));
        Self { sent: none(), received: none() }
    }

    /// Adds the first `count` bytes of the buffers, which have been sent.
    pub(super) fn sent(&self, buffers: Buffers<'_>, count: usize) {
        if let Some(start) = &mut *self.sent.lock() {
            start.add(buffers, count);
        }
    }

    /// Adds the first `count` bytes of the buffers, which have been received.
    pub(super) fn received(&self, buffers: Buffers<'_>, count: usize) {
        if let Some(start) = &mut *self.received.lock() {
            start.add(buffers, count);
        }
    }

    /// Records that bytes were received without being seen, so nothing can be proved any more.
    pub(super) fn skipped(&self) {
        *self.received.lock() = None;
    }

    /// How many bytes of each direction the end `own` knows.
    pub(super) fn moved(&self, own: Role) -> Option<Moved> {
        let sent = self.sent.lock().as_ref()?.len;
        let received = self.received.lock().as_ref()?.len;
        Some(in_order(own, sent, received))
    }

    /// The proof of the end `prover` for `message`. `None` if this end, `own`, does not know that
    /// much of the stream, or if it is too little.
    pub(super) fn proof(
        &self,
        own: Role,
        prover: Role,
        moved: Moved,
        message: &[u8],
    ) -> Option<Proof> {
        if moved[0].checked_add(moved[1])? < BYTES_MIN {
            return None;
        }
        let [own_sent, own_received] = in_order(own, moved[0], moved[1]);
        let hash = |start: &SectionLock<Option<Start>>, len: usize| {
            let start = start.lock();
            start.as_ref()?.bytes[..start.as_ref()?.len].get(..len).map(Sha256::digest)
        };
        let sent = hash(&self.sent, own_sent)?;
        let received = hash(&self.received, own_received)?;
        let key = in_order(own, sent, received).concat();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
        mac.update(match prover {
            Role::Connector => b"connector",
            Role::Acceptor => b"acceptor.",
        });
        mac.update(message);
        Some(Proof(mac))
    }
}

/// Orders what an end has sent and received: first to the acceptor, then to the connector.
fn in_order<T>(own: Role, sent: T, received: T) -> [T; 2] {
    match own {
        Role::Connector => [sent, received],
        Role::Acceptor => [received, sent],
    }
}

/// A proof computed by this end, to be sent or to be compared with the peer's.
#[derive(Debug)]
pub struct Proof(Hmac<Sha256>);

impl Proof {
    /// The bytes to send.
    #[must_use]
    pub fn bytes(self) -> [u8; PROOF_LEN] {
        self.0.finalize().into_bytes().into()
    }

    /// Whether the peer has sent the same proof. The time that this takes does not depend on the
    /// bytes.
    #[must_use]
    pub fn is(self, shown: &[u8; PROOF_LEN]) -> bool {
        self.0.verify_slice(shown).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSliceMut;

    /// Both ends of a stream over which these texts have gone, in two pieces each.
    fn ends(to_acceptor: &str, to_connector: &str) -> [Starts; 2] {
        let ends = [Starts::new(), Starts::new()];
        let pieces = |text: &str, mut add: Box<dyn FnMut(Buffers<'_>, usize) + '_>| {
            let (first, second) = text.split_at(text.len() / 3);
            for piece in [first, second] {
                let mut bytes = format!("{piece}, not sent").into_bytes();
                let (one, two) = bytes.split_at_mut(2);
                let mut slices = [IoSliceMut::new(one), IoSliceMut::new(two)];
                add(Buffers::of(&mut slices), piece.len());
            }
        };
        pieces(to_acceptor, Box::new(|buffers, count| ends[0].sent(buffers, count)));
        pieces(to_acceptor, Box::new(|buffers, count| ends[1].received(buffers, count)));
        pieces(to_connector, Box::new(|buffers, count| ends[1].sent(buffers, count)));
        pieces(to_connector, Box::new(|buffers, count| ends[0].received(buffers, count)));
        ends
    }

    #[test]
    fn each_end_can_verify_the_proof_of_the_other() {
        let [connector, acceptor] = ends("a question with a secret", "an answer");
        let moved = acceptor.moved(Role::Acceptor).expect("all is known");
        assert_eq!(moved, [24, 9]);
        for prover in [Role::Acceptor, Role::Connector] {
            let shown = acceptor.proof(Role::Acceptor, prover, moved, b"message").map(Proof::bytes);
            let shown = shown.expect("enough has been moved");
            let known = connector.proof(Role::Connector, prover, moved, b"message");
            assert!(known.expect("the same").is(&shown));
            let other = connector.proof(Role::Connector, prover, moved, b"Message");
            assert!(!other.expect("of something else").is(&shown));
        }
    }

    #[test]
    fn proof_of_other_bytes_or_of_the_other_end_is_refused() {
        let [connector, _] = ends("a question with a secret", "an answer");
        let [_, guesser] = ends("a question with a secreT", "an answer");
        let moved = [24, 9];
        let proof = |starts: &Starts, own, prover| starts.proof(own, prover, moved, b"message");
        let shown = proof(&guesser, Role::Acceptor, Role::Acceptor).expect("long enough").bytes();
        let known = proof(&connector, Role::Connector, Role::Acceptor).expect("long enough");
        assert!(!known.is(&shown));
        let reflected = proof(&connector, Role::Connector, Role::Connector).expect("long enough");
        let known = proof(&connector, Role::Connector, Role::Acceptor).expect("long enough");
        assert!(!known.is(&reflected.bytes()));
    }

    #[test]
    fn too_few_or_unknown_bytes_prove_nothing() {
        let [connector, _] = ends("a question with a secret", "an answer");
        let proof = |moved| connector.proof(Role::Connector, Role::Acceptor, moved, b"").is_some();
        assert!(proof([BYTES_MIN, 0]) && !proof([BYTES_MIN - 1, 0]) && !proof([0, 0]));
        assert!(proof([24, 9]) && !proof([25, 9]) && !proof([24, 10]));
        assert!(!proof([usize::MAX, usize::MAX]) && !proof([PROOF_BYTES_MAX + 1, 0]));
        connector.skipped();
        assert!(!proof([24, 0]) && connector.moved(Role::Connector).is_none());
    }

    #[test]
    fn proof_uses_no_more_bytes_than_the_maximum() {
        let text = "x".repeat(3 * PROOF_BYTES_MAX);
        let [connector, acceptor] = ends(&text, &text);
        assert_eq!(connector.moved(Role::Connector), Some([PROOF_BYTES_MAX; 2]));
        assert_eq!(acceptor.moved(Role::Acceptor), Some([PROOF_BYTES_MAX; 2]));
    }
}
