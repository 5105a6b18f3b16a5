//! Bodies of the targets for a peer's bytes, and for a peer that sends any message at any time.
//!
//! [`session`]: the first byte of the input selects the end that is tested (bit 0: the sink) and
//! whether the sink sees arrivals (bit 1). Records follow:
//!
//! ```text
//! byte 0:       the message that the peer sends, or the call that the program makes
//! bytes 1 to 3: small numbers
//! bytes 4 to 7: a large number
//! ```

use weft_transfer::compress::{Decoder, Encoder};
use weft_transfer::session::{
    Arrivals, RemoteBuffer, Sink, SinkSetup, Source, SourceSetup, WriteResult,
};
use weft_transfer::wire::{
    BlockFlags, BlockHeader, Body, Cancel, Code, Complete, Credit, Credits, Message, Notice,
    Preface, Range,
};

const RECORD_LEN: usize = 8;
/// Number of the sink's buffers, and of the source's blocks.
const POOL: u32 = 6;
const BLOCK_SIZE: u32 = 4_096;

/// Parses `input` as each of a peer's messages. A message that parses must be emitted unchanged.
pub fn wire(input: &[u8]) {
    if let Some((bytes, [])) = input.split_first_chunk()
        && let Ok(preface) = Preface::parse(bytes)
    {
        assert_eq!(preface.emit(), *bytes);
    }
    if let Some((bytes, [])) = input.split_first_chunk()
        && let Ok(header) = BlockHeader::parse(bytes)
    {
        assert_eq!(header.emit(), *bytes);
    }
    if let Ok(message) = Message::parse(input) {
        assert_eq!(message.emit(), input);
    }
    compressed(input);
}

/// Expands `input` as a compressed payload, and compresses it. What has been compressed must expand
/// to itself.
fn compressed(input: &[u8]) {
    let mut plain = vec![0; BLOCK_SIZE as usize];
    let mut decoder = Decoder::default();
    if let Ok(len) = decoder.decompress(input, &mut plain) {
        assert!(len <= plain.len());
    }
    let mut encoder = Encoder::default();
    if input.len() <= plain.len()
        && let Some(smaller) = encoder.compress(input)
    {
        assert!(smaller.len() < input.len());
        assert_eq!(decoder.decompress(smaller, &mut plain), Ok(input.len()));
        assert_eq!(&plain[..input.len()], input);
    }
}

/// One record of an input.
struct Record {
    what: u8,
    small: [u8; 3],
    large: u32,
}

impl Record {
    /// Returns a number that is close to the valid ones in half of the cases.
    fn number(&self) -> u64 {
        if self.large & 1 == 0 { self.small[0].into() } else { u64::from(self.large) << 31 }
    }

    /// Returns a message that both ends can send.
    fn body(&self) -> Body {
        match self.what % 6 {
            0 => Body::ChannelLost(self.small[0].into()),
            1 => Body::Complete(Complete { blocks: self.number(), bytes: self.large.into() }),
            2 => Body::Cancel(Cancel { code: Code::of(self.small[0].into()), text: String::new() }),
            3 => Body::Closed,
            4 => Body::Records(vec![0; 1 + usize::from(self.small[0]) * 200]),
            _ => Body::RecordsTaken(self.number()),
        }
    }
}

/// Whatever the peer sends, a session ends or goes on, and its accounts of blocks stay correct.
pub fn session(input: &[u8]) {
    let Some((&setup, records)) = input.split_first() else { return };
    let arrivals = if setup & 2 == 0 { Arrivals::Seen } else { Arrivals::NotSeen };
    let records = records.chunks_exact(RECORD_LEN).map(|bytes| Record {
        what: bytes[0],
        small: [bytes[1], bytes[2], bytes[3]],
        large: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    });
    if setup & 1 == 0 { source(arrivals, records) } else { sink(arrivals, records) }
}

fn sent(message: Option<Message>) -> bool {
    let Some(message) = message else { return false };
    assert_eq!(Message::parse(&message.emit()), Ok(message));
    true
}

fn sink(arrivals: Arrivals, records: impl Iterator<Item = Record>) {
    let buffers = vec![RemoteBuffer::default(); POOL as usize];
    let first_grant = POOL / 2;
    let setup = SinkSetup { session: 1, buffers, block_size: BLOCK_SIZE, arrivals, first_grant };
    let mut sink = Sink::new(setup);
    let mut next = 0;
    for record in records {
        let [a, b, c] = record.small;
        let (channel, buffer) = (u16::from(a % 4), u32::from(b % 8));
        let (seq, generation, len) = (record.number(), u32::from(c), record.large % 5_000);
        match record.what / 16 {
            0..=2 => drop(sink.handle_control(record.body())),
            3 => drop(sink.handle_control(Body::CreditRequest)),
            4 => drop(sink.handle_control(Body::Notice(Notice { seq, buffer, generation, len }))),
            5 | 6 => {
                let flags = BlockFlags::default();
                let (session, nonce, table_len) = (1, 0, 0);
                let header =
                    BlockHeader { session, flags, seq, nonce, len, table_len, buffer, generation };
                let _ = sink.begin_arrival(channel, &header);
            }
            7 | 8 => drop(sink.finish_arrival(channel, buffer)),
            9 => drop(sink.abort_arrival(channel, buffer)),
            10 => drop(sink.channel_up(channel)),
            11 => sink.channel_down(channel),
            12 => drop(sink.release(buffer)),
            13 => drop(sink.finish()),
            14 => drop(sink.send_records(vec![0; usize::from(a)])),
            _ => sink.cancel(Cancel { code: Code::Stopped, text: String::new() }),
        }
        while sent(sink.poll_control()) {}
        while let Some(ready) = sink.poll_ready() {
            assert_eq!(ready.seq, next, "out of order");
            assert!(ready.buffer < POOL && ready.len <= BLOCK_SIZE);
            next += 1;
        }
        while sink.poll_close().is_some() || sink.poll_records().is_some() {}
        let counts = sink.counts();
        let sum = counts.free + counts.granted + counts.arriving + counts.arrived + counts.draining;
        assert_eq!(sum, POOL, "{counts:?}");
    }
}

fn source(arrivals: Arrivals, records: impl Iterator<Item = Record>) {
    let (session, block_size, writes_max) = (1, BLOCK_SIZE, 3);
    let setup = SourceSetup { session, blocks: POOL, block_size, arrivals, writes_max };
    let mut source = Source::new(setup);
    let mut is_ours = [true; POOL as usize];
    for record in records {
        let [a, b, c] = record.small;
        let (channel, block) = (u16::from(a % 4), u32::from(b % 8));
        match record.what / 16 {
            0..=2 => drop(source.handle_control(record.body())),
            3..=6 => {
                let credit = |index| Credit {
                    buffer: record.large.wrapping_add(index) % 64,
                    generation: 1,
                    address: 0,
                    key: 0,
                };
                let (cumulative, from) = (record.number() / 4, u64::from(b));
                let range = Range { from, until: from + u64::from(c % 3) };
                let ranges = if c % 3 == 0 { Vec::new() } else { vec![range] };
                let credits = (0..u32::from(c % 5)).map(credit).collect();
                let body = Body::Credits(Credits { cumulative, ranges, credits });
                let _ = source.handle_control(body);
            }
            7 | 8 => {
                if source.submit(record.number(), block, record.large % 5_000).is_ok() {
                    assert!(std::mem::take(&mut is_ours[block as usize]));
                }
            }
            9 => drop(source.handle_written(block, WriteResult::Sent)),
            10 => drop(source.handle_written(block, WriteResult::NotSent)),
            11 => drop(source.handle_written(block, WriteResult::Failed)),
            12 => drop(source.channel_up(channel)),
            13 => source.channel_down(channel),
            14 => drop(source.finish()),
            _ => source.cancel(Cancel { code: Code::Stopped, text: String::new() }),
        }
        while sent(source.poll_control()) {}
        while let Some(write) = source.poll_write() {
            assert!(write.block < POOL && !is_ours[write.block as usize]);
        }
        while let Some(freed) = source.poll_free() {
            let was_ours = std::mem::replace(&mut is_ours[freed.block as usize], true);
            assert!(!was_ours, "freed twice");
        }
        while source.poll_close().is_some() || source.poll_records().is_some() {}
        assert!(source.granted() >= source.credits() && source.granted() <= 64);
    }
}
