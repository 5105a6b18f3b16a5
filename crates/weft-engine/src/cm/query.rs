//! Queries for the TCP port of an RDMA port.
//!
//! ```text
//! | magic, 8 | version, 1 | kind, 1 | port, 2 | nonce, 8 |
//! ```
//!
//! A dialler sends a query to UDP port P: which TCP port leads to RDMA port P? The listener answers
//! with the port and the query's nonce, which only a host that has seen the query knows. All fields
//! are big-endian. An answer is as long as a query, so that it cannot amplify a flood with forged
//! sender addresses; anything else than a query gets no answer.

/// Length of a query and of an answer.
pub(super) const LEN: usize = 20;

const MAGIC: [u8; 8] = *b"\xf7WeftPt\x1a";
const VERSION: u8 = 1;
const QUERY: u8 = 0;
const ANSWER: u8 = 1;
const VERSION_AT: usize = 8;
const KIND_AT: usize = 9;
const PORT_AT: usize = 10;
const NONCE_AT: usize = 12;

/// Encodes the query for RDMA port `port`.
pub(super) fn query(port: u16, nonce: u64) -> [u8; LEN] {
    emit(QUERY, port, nonce)
}

/// The answer of a listener on RDMA port `port` whose TCP port is `stream_port`; `None` if the
/// datagram is not a query for that port.
pub(super) fn answer(datagram: &[u8], port: u16, stream_port: u16) -> Option<[u8; LEN]> {
    let (asked, nonce) = parse(datagram, QUERY)?;
    (asked == port).then(|| emit(ANSWER, stream_port, nonce))
}

/// The TCP port in the answer to the query with `nonce`; `None` if the datagram is not that answer.
pub(super) fn answered(datagram: &[u8], nonce: u64) -> Option<u16> {
    let (port, echoed) = parse(datagram, ANSWER)?;
    (echoed == nonce && port != 0).then_some(port)
}

fn emit(kind: u8, port: u16, nonce: u64) -> [u8; LEN] {
    let mut datagram = [0; LEN];
    datagram[..VERSION_AT].copy_from_slice(&MAGIC);
    datagram[VERSION_AT] = VERSION;
    datagram[KIND_AT] = kind;
    datagram[PORT_AT..NONCE_AT].copy_from_slice(&port.to_be_bytes());
    datagram[NONCE_AT..].copy_from_slice(&nonce.to_be_bytes());
    datagram
}

fn parse(datagram: &[u8], kind: u8) -> Option<(u16, u64)> {
    let datagram: &[u8; LEN] = datagram.try_into().ok()?;
    let port = u16::from_be_bytes([datagram[PORT_AT], datagram[PORT_AT + 1]]);
    let mut nonce = [0; 8];
    nonce.copy_from_slice(&datagram[NONCE_AT..]);
    // The fixed fields are right if encoding the parsed fields gives the same bytes.
    let nonce = u64::from_be_bytes(nonce);
    (emit(kind, port, nonce) == *datagram).then_some((port, nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_answered_only_for_its_port() {
        let asked = query(4420, 77);
        let reply = answer(&asked, 4420, 50_000).expect("a query");
        assert_eq!(reply.len(), asked.len());
        assert_eq!(answered(&reply, 77), Some(50_000));
        assert_eq!(answered(&reply, 78), None);
        assert_eq!(answer(&asked, 4421, 50_000), None);
        // An answer is not answered, so two listeners cannot loop. Port 0 is not accepted.
        assert_eq!(answer(&reply, 50_000, 1), None);
        assert_eq!(answered(&asked, 77), None);
        assert_eq!(answered(&answer(&asked, 4420, 0).expect("a query"), 77), None);
    }

    #[test]
    fn malformed_query_is_not_answered() {
        let good = query(1, 2);
        for at in 0..PORT_AT {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(answer(&bad, 1, 9), None, "byte {at}");
        }
        let mut long = good.to_vec();
        long.push(0);
        assert_eq!(answer(&long, 1, 9), None);
        assert_eq!(answer(&good[..LEN - 1], 1, 9), None);
        assert_eq!(answer(&[], 1, 9), None);
    }
}
