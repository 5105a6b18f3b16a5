//! The sender of commands: an initiator, by a session with a target port.

use std::sync::Arc;

/// A session, for as long as it lasts. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusId(pub u64);

/// An initiator's port (RFC 7143, section 4.4.3): its name, and the initiator's part of the
/// session's identity. It stays the same when the initiator logs in again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Initiator {
    /// The iSCSI name.
    pub name: String,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
}

impl Initiator {
    /// The identity as SPC-5 has it for persistent reservations (section 7.6.4.6).
    #[must_use]
    pub fn transport_id(&self) -> Vec<u8> {
        let isid: String = self.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut name = format!("{},i,0x{isid}\0", self.name).into_bytes();
        name.resize(name.len().next_multiple_of(4).max(20), 0);
        let mut id = vec![0x45, 0];
        id.extend((name.len() as u16).to_be_bytes());
        id.extend(name);
        id
    }

    /// The name and, if it is there, the part of the session's identity that a transport ID has.
    pub(super) fn parse_transport_id(id: &[u8]) -> Option<(String, Option<[u8; 6]>)> {
        let len = usize::from(u16::from_be_bytes([*id.get(2)?, *id.get(3)?]));
        let text = id.get(4..4 + len)?;
        let text = text.split(|&byte| byte == 0).next()?;
        let text = std::str::from_utf8(text).ok()?;
        match id[0] {
            0x05 => Some((text.to_owned(), None)),
            0x45 => {
                let (name, isid) = text.split_once(",i,0x")?;
                let number = u64::from_str_radix(isid, 16).ok().filter(|_| isid.len() == 12)?;
                let [_, _, isid @ ..] = number.to_be_bytes();
                Some((name.to_owned(), Some(isid)))
            }
            _ => None,
        }
    }
}

/// A session between an initiator and this target.
#[derive(Clone, Debug)]
pub struct Nexus {
    /// The session's number.
    pub id: NexusId,
    /// The initiator.
    pub initiator: Arc<Initiator>,
}
