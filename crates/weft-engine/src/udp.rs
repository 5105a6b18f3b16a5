//! Outgoing datagrams, collected so that few system calls send them.

use std::net::{IpAddr, SocketAddr};

use weft_sys::{Run, SEGMENTS_MAX, SEND_RUNS_MAX, UdpSocket};

use crate::limits::UDP_RUN_BYTES_MAX;
use crate::{Errno, Result, pool};

/// Buffer bytes that a socket asks the kernel for in each direction. Nothing slows a sender of
/// datagrams down, so the receiver's kernel must hold what the program has not taken yet.
const SOCKET_ROOM: i32 = 8 << 20;

/// Binds a UDP socket on every address of the host.
///
/// # Errors
/// `EADDRINUSE` and similar.
pub(crate) fn bind(port: u16, shared: bool) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(port, shared)?;
    socket.set_room(SOCKET_ROOM);
    Ok(socket)
}

/// Binds a UDP socket on one address of the host, or on every one if it is unspecified.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL` and similar.
pub(crate) fn bind_at(address: SocketAddr) -> Result<UdpSocket> {
    if address.ip().is_unspecified() {
        return bind(address.port(), false);
    }
    let socket = UdpSocket::bind_address(address, true)?;
    socket.set_room(SOCKET_ROOM);
    Ok(socket)
}

/// A queue of datagrams for a socket. Consecutive datagrams of one size to one destination form a
/// run, which the kernel segments (`UDP_SEGMENT`).
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    runs: Vec<Run>,
    /// The first run that has not been sent.
    next: usize,
    /// Longest datagram that the path takes in a run; longer ones are sent singly, in IP fragments.
    segment_max: usize,
    /// Datagrams that have left the queue: sent, or dropped.
    done: u64,
    /// Datagrams that were dropped because the kernel refused to send them.
    dropped: u64,
    /// Whether the kernel has not taken all at once.
    has_failed: bool,
}

impl Outbox {
    pub(crate) fn new(can_segment: bool) -> Self {
        let segment_max = if can_segment { UDP_RUN_BYTES_MAX } else { 0 };
        Self {
            bytes: Vec::new(),
            runs: Vec::new(),
            next: 0,
            segment_max,
            done: 0,
            dropped: 0,
            has_failed: false,
        }
    }

    /// Whether there is room for one more datagram of `len` bytes.
    pub(crate) fn has_room(&mut self, len: usize) -> bool {
        pool::borrow(&mut self.bytes);
        self.runs.len() < SEND_RUNS_MAX && self.bytes.len() + len <= self.bytes.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds the datagram that `write` appends to the buffer; adds nothing if `write` fails.
    pub(crate) fn push<E>(
        &mut self,
        to: SocketAddr,
        from: (IpAddr, u32),
        write: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let start = self.bytes.len();
        if let Err(error) = write(&mut self.bytes) {
            self.bytes.truncate(start);
            return Err(error);
        }
        let end = self.bytes.len();
        let segment = end - start;
        match self.runs.last_mut() {
            Some(run)
                if run.to == to
                    && run.from == from
                    && segment <= run.segment
                    && run.segment <= self.segment_max
                    && run.bytes.len() % run.segment == 0
                    && run.bytes.len() / run.segment < SEGMENTS_MAX
                    && end - run.bytes.start <= UDP_RUN_BYTES_MAX =>
            {
                run.bytes.end = end;
            }
            _ => self.runs.push(Run { bytes: start..end, segment, to, from }),
        }
        Ok(())
    }

    /// Sends the queued datagrams. Returns false if the socket had no room for all.
    pub(crate) fn send(&mut self, socket: &UdpSocket) -> bool {
        let mut is_again = false;
        while let Some(first) = self.runs.get(self.next) {
            match socket.send(&self.bytes, &self.runs[self.next..]) {
                Ok(count) => {
                    is_again = false;
                    self.has_failed |= self.next + count != self.runs.len();
                    let sent = &self.runs[self.next..self.next + count];
                    self.done += sent.iter().map(datagrams_of).sum::<u64>();
                    self.next += count;
                }
                Err(Errno::AGAIN | Errno::INTR) => return false,
                // It may be the error of an earlier datagram, which the kernel reports once.
                Err(_) if !is_again => (is_again, self.has_failed) = (true, true),
                // The run's segments are too long for the path, or the interface cannot segment.
                Err(Errno::INVAL | Errno::MSGSIZE | Errno::IO) if datagrams_of(first) > 1 => {
                    self.segment_max = self.segment_max.min(first.segment - 1);
                    self.split(self.next);
                }
                // Datagrams are unreliable; the next one may get through.
                Err(_) => {
                    let lost = datagrams_of(first);
                    self.done += lost;
                    self.dropped += lost;
                    self.next += 1;
                }
            }
        }
        self.clear();
        true
    }

    /// Splits the run at `index` into runs of one datagram each.
    fn split(&mut self, index: usize) {
        let Run { bytes, segment, to, from } = self.runs[index].clone();
        let singles = bytes.clone().step_by(segment).map(|start| {
            let end = bytes.end.min(start + segment);
            Run { bytes: start..end, segment: end - start, to, from }
        });
        self.runs.splice(index..=index, singles);
    }

    /// Drops what has not been sent.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.next = 0;
        self.bytes.clear();
        if self.bytes.capacity() != 0 {
            pool::give_back(&mut self.bytes);
        }
    }

    /// Whether the kernel has failed to take datagrams since the last call.
    pub(crate) fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Number of datagrams that have left this outbox since its creation.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Number of those that the network refused.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn datagrams_of(run: &Run) -> u64 {
    run.bytes.len().div_ceil(run.segment) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_sys::RecvBatch;

    const FROM: (IpAddr, u32) = (IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn push(outbox: &mut Outbox, to: SocketAddr, bytes: &[u8]) {
        assert!(outbox.has_room(bytes.len()));
        let pushed = outbox.push(to, FROM, |out| {
            out.extend_from_slice(bytes);
            Ok::<(), ()>(())
        });
        pushed.expect("written");
    }

    fn lengths(outbox: &Outbox) -> Vec<(usize, usize)> {
        outbox.runs.iter().map(|run| (run.bytes.len(), run.segment)).collect()
    }

    #[test]
    fn equal_datagrams_to_one_destination_make_a_run() {
        let mut outbox = Outbox::new(true);
        let [one, other] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        for (to, length) in
            [(one, 10), (one, 10), (one, 4), (one, 4), (one, 5), (other, 5), (one, 5)]
        {
            push(&mut outbox, to, &vec![0; length]);
        }
        // A shorter datagram ends a run, and so does another destination.
        assert_eq!(lengths(&outbox), [(24, 10), (4, 4), (5, 5), (5, 5), (5, 5)]);
        outbox.clear();
        for _ in 0..SEGMENTS_MAX + 1 {
            push(&mut outbox, one, &[0; 8]);
        }
        assert_eq!(lengths(&outbox), [(8 * SEGMENTS_MAX, 8), (8, 8)]);
        outbox.clear();
        let failed = outbox.push(one, FROM, |out| {
            out.extend_from_slice(b"half a datagram");
            Err(())
        });
        assert!(failed.is_err() && outbox.is_empty() && outbox.bytes.is_empty());
    }

    #[test]
    fn run_that_the_path_refuses_is_sent_singly() {
        let (sender, receiver) = (bind(0, false).expect("free"), bind(0, false).expect("free"));
        let port = receiver.port().expect("bound");
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let mut outbox = Outbox::new(true);
        for first in 0..3 {
            push(&mut outbox, to, &[first; 100]);
        }
        push(&mut outbox, to, &[3; 20]);
        outbox.split(0);
        assert_eq!(lengths(&outbox), [(100, 100), (100, 100), (100, 100), (20, 20)]);
        // A path with a smaller MTU sets this value.
        outbox.segment_max = 99;
        assert!(outbox.send(&sender), "there is room");
        assert_eq!((outbox.done(), outbox.dropped()), (4, 0));
        push(&mut outbox, to, &[4; 100]);
        push(&mut outbox, to, &[5; 100]);
        assert_eq!(lengths(&outbox), [(100, 100), (100, 100)], "no runs of that size any more");
        assert!(outbox.send(&sender), "there is room");
        let (mut batch, mut found) = (RecvBatch::default(), Vec::new());
        while found.len() < 6 {
            receiver.receive(&mut batch).expect("it has come over loopback");
            found.extend(batch.datagrams().map(|(_, bytes)| (bytes[0], bytes.len())));
        }
        assert_eq!(found, [(0, 100), (1, 100), (2, 100), (3, 20), (4, 100), (5, 100)]);
    }

    #[test]
    fn datagram_that_the_network_refuses_is_dropped_and_counted() {
        let sender = bind(0, false).expect("free");
        let mut outbox = Outbox::new(true);
        // No datagram can be sent to port 0.
        push(&mut outbox, SocketAddr::from(([127, 0, 0, 1], 0)), b"lost");
        push(&mut outbox, SocketAddr::from(([127, 0, 0, 1], 9)), b"sent");
        assert!(outbox.send(&sender), "there is room");
        assert_eq!((outbox.done(), outbox.dropped()), (2, 1));
    }
}
