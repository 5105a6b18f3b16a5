//! Measures how many round trips it takes until the whole pool of the sink is in use.

use super::super::{Arrivals, RemoteBuffer, Sink, SinkSetup, Source, SourceSetup, WriteResult};
use super::path::header;

const POOL: u32 = 100;

/// Returns the number of blocks that are written in each round trip. The sink's messages of one
/// round trip reach the source in the next; a block arrives in the round trip in which it is
/// written.
fn blocks_of_round_trips(first_grant: u32, rounds: usize) -> Vec<usize> {
    let buffers = vec![RemoteBuffer::default(); POOL as usize];
    let arrivals = Arrivals::Seen;
    let sink = SinkSetup { session: 1, buffers, block_size: 1, arrivals, first_grant };
    let setup =
        SourceSetup { session: 1, blocks: 1_000, block_size: 1, arrivals, writes_max: 1_000 };
    let (mut source, mut sink) = (Source::new(setup), Sink::new(sink));
    assert!(source.channel_up(1) && sink.channel_up(1));
    for block in 0..1_000 {
        source.submit(block.into(), block, 1).unwrap();
    }
    let mut counts = Vec::new();
    for _ in 0..rounds {
        while let Some(message) = source.poll_control() {
            sink.handle_control(message.body).unwrap();
        }
        while let Some(message) = sink.poll_control() {
            source.handle_control(message.body).unwrap();
        }
        let mut count = 0;
        while let Some(write) = source.poll_write() {
            source.handle_written(write.block, WriteResult::Sent).unwrap();
            let header = header(1, &write);
            sink.begin_arrival(1, &header).unwrap();
            sink.finish_arrival(1, write.credit.buffer).unwrap();
            count += 1;
        }
        while let Some(ready) = sink.poll_ready() {
            sink.release(ready.buffer).unwrap();
        }
        counts.push(count);
    }
    counts
}

/// Credits double in each round trip until the pool is in use, and then the pool stays in use.
#[test]
fn credits_double_each_round_trip_until_the_pool_is_in_use() {
    assert_eq!(blocks_of_round_trips(0, 9), [1, 2, 4, 8, 16, 32, 64, 100, 100]);
    assert_eq!(blocks_of_round_trips(16, 5), [16, 32, 64, 100, 100]);
    assert_eq!(blocks_of_round_trips(POOL, 3), [100, 100, 100]);
}
