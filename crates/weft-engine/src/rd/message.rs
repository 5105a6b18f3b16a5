//! A message on its way to a peer, and the segments that it is cut into.

use weft_wire::ddp::Header as Ddp;
use weft_wire::rd::{ReadFailure, Reason};
use weft_wire::rdmap::{Opcode, ReadRequest, queue};

use super::memory::{Memory, Party};
use super::request::{Buffer, Data};

/// What a message is.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Send,
    Write { key: u32, addr: u64 },
    Read { read: u32, into: Buffer, key: u32, addr: u64 },
    Response { read: u32, sink: u32 },
    Failure(ReadFailure),
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) what: What,
    pub(super) data: Data,
    pub(super) len: u32,
    /// Bytes that segments have been cut from.
    pub(super) cut: u32,
    pub(super) msn: u32,
    /// The sequence of its last segment, once there is one; of that so far, if it is `over`.
    pub(super) last: Option<u32>,
    /// Its end has been reported to the program: what is left is to keep the sequence whole.
    pub(super) over: bool,
}

impl Message {
    pub(super) fn new(id: u64, what: What, data: Data) -> Self {
        let len = match (&what, &data) {
            (What::Read { .. }, _) => ReadRequest::LEN as u32,
            (What::Failure(_), _) => ReadFailure::LEN as u32,
            // Lengths are checked when requests are made.
            (_, Data::Bytes(bytes)) => bytes.len() as u32,
            (_, Data::Registered(buffer)) => buffer.len,
        };
        Self { id, what, data, len, cut: 0, msn: 0, last: None, over: false }
    }

    pub(super) fn own_bytes(&self) -> usize {
        match &self.data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Registered(_) => 0,
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.last.is_some() && self.cut == self.len
    }

    /// Appends a segment: header and payload.
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
        let header = match self.what {
            // A message that failed at home: a Write of nothing in the place of each segment.
            What::Write { .. } | What::Response { .. } if self.over => tagged(Opcode::Write, 0, 0),
            What::Send => untagged(Opcode::Send, queue::SEND, self.len),
            What::Read { .. } => Ddp::Untagged {
                last: true,
                ulp: Opcode::ReadRequest.control(),
                ulp_word: 0,
                qn: queue::READ_REQUEST,
                msn: self.msn,
                mo: 0,
            },
            What::Failure(_) => untagged(Opcode::Terminate, queue::TERMINATE, 0),
            What::Write { key, addr } => {
                tagged(Opcode::Write, key, addr.wrapping_add(offset.into()))
            }
            What::Response { read, sink } => {
                let to = u64::from(read) << 32 | u64::from(offset);
                tagged(Opcode::ReadResponse, sink, to)
            }
        };
        let start = buf.len();
        buf.resize(start + header.len(), 0);
        header.emit(&mut buf[start..]);
        let body = buf.len();
        match (&self.what, &self.data) {
            (&What::Read { read, into, key, addr }, _) => {
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
            (What::Failure(failure), _) => {
                buf.resize(body + ReadFailure::LEN, 0);
                failure.emit(&mut buf[body..]);
            }
            _ if self.over || len == 0 => {}
            (_, Data::Bytes(bytes)) => {
                buf.extend_from_slice(&bytes[offset as usize..end as usize]);
            }
            (what, &Data::Registered(Buffer { key, addr, .. })) => {
                let party = match what {
                    What::Response { .. } => Party::Remote,
                    _ => Party::Local,
                };
                memory.read(party, key, addr.wrapping_add(offset.into()), len as usize, buf)?;
            }
        }
        Ok(())
    }
}
