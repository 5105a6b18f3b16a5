//! Payloads of requests that a hand-written peer sends.

use weft_wire::rdmap::{AtomicOp, AtomicRequest, ReadRequest};

/// A Read Request for `size` bytes of the victim's memory.
pub fn read_request(source_stag: u32, source_to: u64, size: u32) -> [u8; ReadRequest::LEN] {
    let request = ReadRequest { sink_stag: 9, sink_to: 0, size, source_stag, source_to };
    let mut payload = [0; ReadRequest::LEN];
    request.emit(&mut payload);
    payload
}

/// An Atomic Request that adds 1 to a word of the victim's memory.
pub fn atomic_request(remote_stag: u32, remote_to: u64) -> [u8; AtomicRequest::LEN] {
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let request = AtomicRequest { op, request_id: 5, remote_stag, remote_to };
    let mut payload = [0; AtomicRequest::LEN];
    request.emit(&mut payload);
    payload
}
