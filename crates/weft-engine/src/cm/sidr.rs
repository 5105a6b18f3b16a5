//! Messages for looking up the queue pair of a datagram service. InfiniBand calls this service ID
//! resolution (InfiniBand Architecture vol. 1, section 12.11); the messages are our own.
//!
//! ```text
//! | magic, 8 | version, 1 | kind, 1 | port, 2 | nonce, 8 | status, 1 | length, 1 | zero, 2 |
//! | queue pair, 4 | Q_Key, 4 | private data, 224 |
//! ```
//!
//! A client sends a request to UDP port P of the host; the process that listens on RDMA port P of
//! the datagram port space replies with its queue pair, or with a status. All fields are
//! big-endian. Every message is 256 bytes long, as InfiniBand's are, so that a reply cannot amplify
//! a flood with forged sender addresses.

/// Length of every message.
pub(super) const LEN: usize = 256;
/// Room for private data in bytes.
pub(super) const DATA_ROOM: usize = LEN - DATA_AT;

const MAGIC: [u8; 8] = *b"\xf7WeftSd\x1a";
const VERSION: u8 = 1;
const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const VERSION_AT: usize = 8;
const KIND_AT: usize = 9;
const PORT_AT: usize = 10;
const NONCE_AT: usize = 12;
const STATUS_AT: usize = 20;
const DATA_LEN_AT: usize = 21;
const QP_AT: usize = 24;
const QKEY_AT: usize = 28;
const DATA_AT: usize = 32;

/// The service accepts the client.
pub(super) const SUCCESS: u8 = 0;
/// The program rejects the client (`IB_SIDR_REJECT`).
pub(super) const REJECTED: u8 = 2;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The RDMA port.
    pub(super) port: u16,
    /// Matches the reply to the request; only the client and the service know it.
    pub(super) nonce: u64,
    /// At most [`DATA_ROOM`] bytes.
    pub(super) private_data: Vec<u8>,
}

/// The service's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The request's nonce.
    pub(super) nonce: u64,
    /// [`SUCCESS`], or the reason of a failure.
    pub(super) status: u8,
    /// The queue pair to send to.
    pub(super) qp_num: u32,
    /// Its Q_Key.
    pub(super) qkey: u32,
    /// At most [`DATA_ROOM`] bytes.
    pub(super) private_data: Vec<u8>,
}

impl Request {
    pub(super) fn emit(&self) -> [u8; LEN] {
        let mut message = header(REQUEST, self.nonce, &self.private_data);
        message[PORT_AT..NONCE_AT].copy_from_slice(&self.port.to_be_bytes());
        message
    }

    /// Parses a request; `None` if the message is something else.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let (message, nonce, private_data) = parse(message, REQUEST)?;
        let port = u16::from_be_bytes([message[PORT_AT], message[PORT_AT + 1]]);
        Some(Self { port, nonce, private_data })
    }
}

impl Reply {
    pub(super) fn emit(&self) -> [u8; LEN] {
        let mut message = header(REPLY, self.nonce, &self.private_data);
        message[STATUS_AT] = self.status;
        message[QP_AT..QKEY_AT].copy_from_slice(&self.qp_num.to_be_bytes());
        message[QKEY_AT..DATA_AT].copy_from_slice(&self.qkey.to_be_bytes());
        message
    }

    /// Parses a reply; `None` if the message is something else.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let (message, nonce, private_data) = parse(message, REPLY)?;
        let word = |at: usize| {
            u32::from_be_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]])
        };
        let (qp_num, qkey) = (word(QP_AT) & 0xff_ffff, word(QKEY_AT));
        Some(Self { nonce, status: message[STATUS_AT], qp_num, qkey, private_data })
    }
}

fn header(kind: u8, nonce: u64, private_data: &[u8]) -> [u8; LEN] {
    let mut message = [0; LEN];
    message[..VERSION_AT].copy_from_slice(&MAGIC);
    message[VERSION_AT] = VERSION;
    message[KIND_AT] = kind;
    message[NONCE_AT..STATUS_AT].copy_from_slice(&nonce.to_be_bytes());
    // The callers have checked the length; longer data would be cut.
    let len = private_data.len().min(DATA_ROOM);
    message[DATA_LEN_AT] = len as u8;
    message[DATA_AT..DATA_AT + len].copy_from_slice(&private_data[..len]);
    message
}

fn parse(message: &[u8], kind: u8) -> Option<(&[u8; LEN], u64, Vec<u8>)> {
    let message: &[u8; LEN] = message.try_into().ok()?;
    if message[..VERSION_AT] != MAGIC || message[VERSION_AT] != VERSION || message[KIND_AT] != kind
    {
        return None;
    }
    let mut nonce = [0; 8];
    nonce.copy_from_slice(&message[NONCE_AT..STATUS_AT]);
    let private_data = message[DATA_AT..].get(..usize::from(message[DATA_LEN_AT]))?;
    Some((message, u64::from_be_bytes(nonce), private_data.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_and_reply_survive_encoding() {
        let request = Request { port: 7174, nonce: 77, private_data: vec![1, 2, 3] };
        assert_eq!(Request::parse(&request.emit()), Some(request.clone()));
        assert_eq!(Reply::parse(&request.emit()), None);
        let private_data = vec![9; DATA_ROOM];
        let reply = Reply { nonce: 77, status: REJECTED, qp_num: 0xabcdef, qkey: 5, private_data };
        assert_eq!(Reply::parse(&reply.emit()), Some(reply.clone()));
        assert_eq!(Request::parse(&reply.emit()), None);
    }

    #[test]
    fn malformed_message_is_refused() {
        let good = Request { port: 1, nonce: 2, private_data: vec![] }.emit();
        for at in 0..PORT_AT {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(Request::parse(&bad), None, "byte {at}");
        }
        let mut bad = good;
        bad[DATA_LEN_AT] = DATA_ROOM as u8 + 1;
        assert_eq!(Request::parse(&bad), None);
        assert_eq!(Request::parse(&good[..LEN - 1]), None);
        assert_eq!(Request::parse(&[]), None);
    }
}
