//! Body of the target for the state machines of the MPA exchange: each method is called at any
//! time, with any bytes.
//!
//! The first byte selects what the initiator dials and how. Each record after it is a step:
//!
//! ```text
//! | step, 1 | argument, 1 | length, 1 | bytes |
//! ```

use std::time::{Duration, Instant};

use weft_engine::Errno;
use weft_engine::mpa::dialer::{
    Answer, Awaits, Dialer, Effect, Failure, Path, Plan, Retry, Wanted,
};
use weft_engine::mpa::limits::ASK_AT;
use weft_engine::mpa::responder::{self, Limits, Responder};
use weft_wire::mpa::negotiate::{Params, RtrKinds};

const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(40)];
const RECORD_LEN: usize = 3;
/// After a timeout has fired, at most this many calls lead to a later timeout, or to none.
const STEPS_MAX: usize = ASK_AT.len() + 1;

/// Whatever is called at whatever time, nothing panics, no effect follows the end, and no timeout
/// stays in the past.
pub fn mpa(data: &[u8]) {
    let Some((&how, mut rest)) = data.split_first() else { return };
    let mut now = Instant::now();
    let mut dialing = Dialing::new(how);
    let mut responding = Responding::new(now);
    while let Some((&[step, argument, len], behind)) = rest.split_first_chunk::<RECORD_LEN>() {
        let (bytes, next) = behind.split_at(usize::from(len).min(behind.len()));
        rest = next;
        now += Duration::from_millis(u64::from(argument));
        dialing.step(step, argument, bytes, now);
        responding.step(step, argument, bytes, now);
        // Each side's frames go to the other side, unchanged or changed in one byte.
        let (request, reply) = (dialing.drain(), responding.drain());
        let change = |mut frame: Vec<u8>| {
            if let Some((&at, value)) = bytes.split_first().filter(|_| step & 0x80 != 0)
                && let Some(byte) = frame.get_mut(usize::from(at))
            {
                *byte ^= value.first().copied().unwrap_or(1);
            }
            frame
        };
        for frame in request.into_iter().map(change) {
            responding.machine.received(now, &frame);
        }
        for frame in reply.into_iter().map(change) {
            dialing.machine.received(now, &frame);
        }
        dialing.drain();
        responding.drain();
    }
}

fn params(bits: u8) -> Params {
    let bit = |at: u8| bits & 1 << at != 0;
    Params {
        crc: bit(0),
        markers_wanted: bit(1),
        ird: u16::from(bits) << 6,
        ord: u16::from(!bits) << 6,
        enhanced: bit(2),
        peer_to_peer: bit(3),
        rtr: RtrKinds { send: bit(4), write: bit(5), read: bit(6) },
    }
}

struct Dialing {
    machine: Dialer,
    is_over: bool,
}

impl Dialing {
    fn new(how: u8) -> Self {
        let retry = match how & 1 {
            0 => Retry::Refused(&PAUSES),
            _ => Retry::Always { pause: PAUSES[0], time: Duration::from_secs(1) },
        };
        let machine = Dialer::new(Plan {
            connect_time: (how & 2 != 0).then_some(PAUSES[1]),
            reply_time: (how & 4 != 0).then_some(PAUSES[1]),
            retry,
            wanted: (how & 8 != 0).then_some(Wanted { peer: 1, own: 2 }),
        });
        Self { machine, is_over: false }
    }

    fn step(&mut self, step: u8, argument: u8, bytes: &[u8], now: Instant) {
        let bit = |at: u8| argument & 1 << at != 0;
        match step & 0xf {
            0 => {
                let path = Path { is_local: bit(0), was_closed: bit(1) };
                self.machine.dial(now, (step & 0x10 != 0).then_some(path));
            }
            1 => self.machine.answered(now, Answer::Port(argument.into())),
            2 => self.machine.answered(now, if bit(0) { Answer::Closed } else { Answer::Silence }),
            3 => self.machine.connected(now),
            4 => self.machine.send_request(now, params(argument), bytes),
            5 => self.machine.received(now, bytes),
            6 => self.machine.failed(now, Failure::NobodyListens),
            7 => self.machine.failed(now, Failure::Closed),
            8 => self.machine.system_failed(now, Errno::from_raw_os_error(i32::from(argument) + 1)),
            9 => time_out(&mut self.machine, now, Dialer::timeout, Dialer::timed_out),
            10 if bytes.is_empty() => {
                self.machine.cancel();
                self.is_over = true;
            }
            _ => {}
        }
    }

    /// Returns the frames that the machine wants to send.
    fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(effect) = self.machine.poll_effect() {
            assert!(!self.is_over, "nothing follows the end: {effect:?}");
            match effect {
                Effect::Transmit(frame) => frames.push(frame),
                Effect::Finished(_) => self.is_over = true,
                _ => {}
            }
        }
        if self.is_over {
            assert_eq!((self.machine.timeout(), self.machine.awaits()), (None, Awaits::Nothing));
        }
        frames
    }
}

struct Responding {
    machine: Responder,
    is_over: bool,
}

impl Responding {
    fn new(now: Instant) -> Self {
        let limits = Limits {
            private_data_max: 512,
            request_time: Duration::from_secs(5),
            answer_time: Duration::from_millis(500),
        };
        Self { machine: Responder::new(now, limits), is_over: false }
    }

    fn step(&mut self, step: u8, argument: u8, bytes: &[u8], now: Instant) {
        match step >> 4 & 7 {
            1 => self.machine.received(now, bytes),
            2 => {
                let was_waiting = self.machine.is_waiting();
                let accepted = self.machine.accept(params(argument), bytes);
                assert!(was_waiting || accepted.is_err(), "there was nothing to accept");
                assert_eq!(self.machine.is_waiting(), was_waiting && accepted.is_err());
            }
            3 => self.machine.reject(bytes),
            4 => self.machine.ended(),
            5 => time_out(&mut self.machine, now, Responder::timeout, Responder::timed_out),
            6 if bytes.is_empty() => {
                self.machine.cancel();
                self.is_over = true;
            }
            _ => {}
        }
    }

    /// Returns the frames that the machine wants to send.
    fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(effect) = self.machine.poll_effect() {
            assert!(!self.is_over, "nothing follows the end: {effect:?}");
            match effect {
                responder::Effect::Transmit(frame) => {
                    assert!(self.machine.is_done(), "an answer ends it");
                    self.is_over = true;
                    frames.push(frame);
                }
                responder::Effect::Ended => self.is_over = true,
                responder::Effect::Requested(_) | responder::Effect::Overdue => {}
            }
        }
        if self.is_over {
            assert_eq!((self.machine.timeout(), self.machine.is_waiting()), (None, false));
        }
        frames
    }
}

/// Fires a machine's timeout if it is due.
fn time_out<M>(
    machine: &mut M,
    now: Instant,
    timeout: impl Fn(&M) -> Option<Instant>,
    timed_out: impl Fn(&mut M, Instant),
) {
    for _ in 0..STEPS_MAX {
        timed_out(machine, now);
    }
    let next = timeout(machine);
    assert!(next.is_none_or(|next| next > now), "a timeout in the past");
}
