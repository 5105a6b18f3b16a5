//! Messages to a peer, and the segments that they are split into.

use weft_wire::ddp::Header as Ddp;
use weft_wire::rd::{ReadFailure, Reason};
use weft_wire::rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest, queue};

use super::memory::{Memory, Party};
use super::request::{Buffer, Data};

/// The kind of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageKind {
    Send,
    Write {
        key: u32,
        addr: u64,
    },
    Read {
        read: u32,
        into: Buffer,
        key: u32,
        addr: u64,
    },
    /// Its data is the payload.
    Atomic {
        read: u32,
        into: Buffer,
    },
    Response {
        read: u32,
        sink: u32,
    },
    Failure(ReadFailure),
}

impl MessageKind {
    /// The number of what waits for a response, and where that goes.
    pub(super) fn asks(&self) -> Option<(u32, Buffer)> {
        match *self {
            Self::Read { read, into, .. } | Self::Atomic { read, into } => Some((read, into)),
            _ => None,
        }
    }
}

/// The request for an atomic operation on the peer's memory.
pub(super) fn atomic(
    id: u64,
    read: u32,
    into: Buffer,
    op: AtomicOp,
    (key, addr): (u32, u64),
) -> Message {
    let request = AtomicRequest { op, request_id: read, remote_stag: key, remote_to: addr };
    let mut payload = [0; AtomicRequest::LEN];
    request.emit(&mut payload);
    Message::new(id, MessageKind::Atomic { read, into }, Data::Bytes(payload.into()))
}

/// A message to a peer.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) kind: MessageKind,
    pub(super) data: Data,
    pub(super) len: u32,
    /// Number of bytes that have been put into segments.
    pub(super) cut: u32,
    pub(super) msn: u32,
    /// The sequence of its last segment, once there is one; if it is `over`, of its last segment so
    /// far.
    pub(super) last: Option<u32>,
    /// Whether its end has been reported to the program. The rest of it only fills sequences.
    pub(super) over: bool,
}

impl Message {
    pub(super) fn new(id: u64, kind: MessageKind, data: Data) -> Self {
        let len = match (&kind, &data) {
            (MessageKind::Read { .. }, _) => ReadRequest::LEN as u32,
            (MessageKind::Failure(_), _) => ReadFailure::LEN as u32,
            // Lengths are checked when requests are posted.
            (_, Data::Bytes(bytes)) => bytes.len() as u32,
            (_, Data::Registered(buffer)) => buffer.len,
        };
        Self { id, kind, data, len, cut: 0, msn: 0, last: None, over: false }
    }

    /// Bytes of the program that it owns.
    pub(super) fn own_bytes(&self) -> usize {
        match (&self.kind, &self.data) {
            (MessageKind::Send | MessageKind::Write { .. }, Data::Bytes(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.last.is_some() && self.cut == self.len
    }

    /// Appends a segment with header and payload.
    pub(super) fn segment(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        len: u32,
        buf: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let end = offset + len;
        let last = end == self.len && !self.over;
        let untagged = |opcode: Opcode, queue, ulp_word| Ddp::Untagged {
            last,
            ulp: opcode.control(),
            ulp_word,
            qn: queue,
            msn: self.msn,
            mo: offset,
        };
        let tagged =
            |opcode: Opcode, stag, to| Ddp::Tagged { last, ulp: opcode.control(), stag, to };
        let header = match self.kind {
            // A message that failed here: each of its segments becomes a Write of no bytes.
            MessageKind::Write { .. } | MessageKind::Response { .. } if self.over => {
                tagged(Opcode::Write, 0, 0)
            }
            MessageKind::Send => untagged(Opcode::Send, queue::SEND, self.len),
            MessageKind::Read { .. } => self.asking(Opcode::ReadRequest),
            MessageKind::Atomic { .. } => self.asking(Opcode::AtomicRequest),
            MessageKind::Failure(_) => untagged(Opcode::Terminate, queue::TERMINATE, 0),
            MessageKind::Write { key, addr } => {
                tagged(Opcode::Write, key, addr.wrapping_add(offset.into()))
            }
            MessageKind::Response { read, sink } => {
                let to = u64::from(read) << 32 | u64::from(offset);
                tagged(Opcode::ReadResponse, sink, to)
            }
        };
        let start = buf.len();
        buf.resize(start + header.len(), 0);
        header.emit(&mut buf[start..]);
        let body = buf.len();
        match (&self.kind, &self.data) {
            (&MessageKind::Read { read, into, key, addr }, _) => {
                let request = ReadRequest {
                    sink_stag: 0,
                    sink_to: u64::from(read) << 32,
                    size: into.len,
                    source_stag: key,
                    source_to: addr,
                };
                buf.resize(body + ReadRequest::LEN, 0);
                request.emit(&mut buf[body..]);
            }
            (MessageKind::Failure(failure), _) => {
                buf.resize(body + ReadFailure::LEN, 0);
                failure.emit(&mut buf[body..]);
            }
            (MessageKind::Atomic { .. }, Data::Bytes(payload)) => buf.extend_from_slice(payload),
            _ if self.over || len == 0 => {}
            (_, Data::Bytes(bytes)) => {
                buf.extend_from_slice(&bytes[offset as usize..end as usize]);
            }
            (kind, &Data::Registered(Buffer { key, addr, .. })) => {
                let party = match kind {
                    MessageKind::Response { .. } => Party::Remote,
                    _ => Party::Local,
                };
                memory.read(party, key, addr.wrapping_add(offset.into()), len as usize, buf)?;
            }
        }
        Ok(())
    }

    /// The header of a request for a response. It is one segment.
    fn asking(&self, opcode: Opcode) -> Ddp {
        Ddp::Untagged {
            last: true,
            ulp: opcode.control(),
            ulp_word: 0,
            qn: queue::READ_REQUEST,
            msn: self.msn,
            mo: 0,
        }
    }
}
