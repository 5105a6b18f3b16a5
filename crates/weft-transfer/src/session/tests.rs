//! How each end reacts to a peer that breaks the protocol, and cases that the simulation rarely
//! reaches.

use super::*;
use crate::wire::{
    BlockFlags, BlockHeader, Body, Cancel, Code, Complete, Credit, Credits, Notice, Range,
};

fn sink(pool: u32, arrivals: Arrivals) -> Sink {
    let buffers = vec![RemoteBuffer::default(); pool as usize];
    let mut sink =
        Sink::new(SinkSetup { session: 1, buffers, block_size: 100, arrivals, first_grant: pool });
    assert!(sink.channel_up(1) && sink.channel_up(2));
    assert!(matches!(sink.poll_control().map(|m| m.body), Some(Body::Credits(_))));
    sink
}

fn source(arrivals: Arrivals) -> Source {
    let setup = SourceSetup { session: 1, blocks: 4, block_size: 100, arrivals, writes_max: 4 };
    let mut source = Source::new(setup);
    assert!(source.channel_up(1));
    for block in 0..4 {
        source.submit(block.into(), block, 100).unwrap();
    }
    source
}

/// Returns credits for these buffers in their first generation.
fn grants(buffers: std::ops::Range<u32>) -> Body {
    let credit = |buffer| Credit { buffer, generation: 1, address: 0, key: 0 };
    let credits = buffers.map(credit).collect();
    Body::Credits(Credits { credits, ..Credits::default() })
}

fn acknowledgement(cumulative: u64, ranges: Vec<Range>) -> Body {
    Body::Credits(Credits { cumulative, ranges, credits: Vec::new() })
}

fn header(seq: u64, buffer: u32) -> BlockHeader {
    let flags = BlockFlags::default();
    let (nonce, len, table_len, generation) = (0, 100, 0, 1);
    BlockHeader { session: 1, flags, seq, nonce, len, table_len, buffer, generation }
}

fn stop() -> Cancel {
    Cancel { code: Code::Stopped, text: "enough".into() }
}

/// Checks that the session sends the peer a cancellation for the fault.
fn assert_cancelled(message: Option<crate::wire::Message>, fault: Fault) {
    assert_eq!(message.map(|message| message.body), Some(Body::Cancel(fault.cancel())));
}

#[test]
fn a_block_that_breaks_the_rules_cancels_the_session() {
    type Case = (fn() -> BlockHeader, Fault);
    let cases: [Case; 6] = [
        (|| header(0, 4), Fault::Buffer(4)),
        (
            || BlockHeader { generation: 2, ..header(0, 3) },
            Fault::NotGranted { buffer: 3, generation: 2 },
        ),
        (|| header(1, 0), Fault::NotGranted { buffer: 0, generation: 1 }),
        (|| BlockHeader { len: 101, ..header(1, 1) }, Fault::Length(101)),
        (|| header(0, 1), Fault::Repeated(0)),
        (|| header(5, 1), Fault::Ahead(5)),
    ];
    for (header_of, fault) in cases {
        let mut sink = sink(4, Arrivals::Seen);
        sink.begin_arrival(1, &header(0, 0)).unwrap();
        let is_first = fault == Fault::Repeated(0);
        if !is_first {
            sink.finish_arrival(1, 0).unwrap();
        }
        assert_eq!(sink.begin_arrival(1, &header_of()), Err(BlockRefused::Fault(fault)));
        if is_first {
            sink.finish_arrival(1, 0).unwrap();
        }
        assert_cancelled(sink.poll_control(), fault);
        assert_eq!(sink.begin_arrival(1, &header(1, 1)), Err(BlockRefused::Over));
    }
}

#[test]
fn a_block_of_another_session_or_on_a_closed_channel_is_refused() {
    let mut sink = sink(1, Arrivals::Seen);
    assert_eq!(sink.begin_arrival(3, &header(0, 0)), Err(BlockRefused::Channel(3)));
    let other = BlockHeader { session: 2, ..header(0, 0) };
    assert_eq!(sink.begin_arrival(1, &other), Err(BlockRefused::Fault(Fault::Session(2))));
}

#[test]
fn a_notice_that_breaks_the_rules_cancels_the_session() {
    let notice = |seq, buffer, len| Body::Notice(Notice { seq, buffer, generation: 1, len });
    let cases = [
        (notice(0, 9, 100), Fault::Buffer(9)),
        (notice(0, 1, 101), Fault::Length(101)),
        (notice(4, 1, 1), Fault::Ahead(4)),
        (Body::Closed, Fault::Closed),
        (Body::RecordsTaken(1), Fault::Taken(1)),
        (Body::Credits(Credits::default()), Fault::Message(6)),
        (Body::Ping(0), Fault::Message(14)),
    ];
    for (body, fault) in cases {
        let mut sink = sink(4, Arrivals::NotSeen);
        assert_eq!(sink.handle_control(body), Err(fault));
        assert_cancelled(sink.poll_control(), fault);
    }
    let mut sink = sink(4, Arrivals::Seen);
    assert_eq!(sink.handle_control(notice(0, 0, 1)), Err(Fault::Message(7)));
}

#[test]
fn totals_have_to_agree_with_the_blocks() {
    let total = |blocks, bytes| Body::Complete(Complete { blocks, bytes });
    let arrived = || {
        let mut sink = sink(4, Arrivals::Seen);
        sink.begin_arrival(1, &header(1, 0)).unwrap();
        sink.finish_arrival(1, 0).unwrap();
        sink
    };
    assert_eq!(arrived().handle_control(total(1, 100)), Err(Fault::Totals(1)));
    let mut twice = arrived();
    assert_eq!(twice.handle_control(total(2, 200)), Ok(()));
    assert_eq!(twice.handle_control(total(2, 200)), Err(Fault::Totals(2)));
    let mut beyond = arrived();
    assert_eq!(beyond.handle_control(total(2, 200)), Ok(()));
    let refused = beyond.begin_arrival(1, &header(2, 1));
    assert_eq!(refused, Err(BlockRefused::Fault(Fault::Totals(2))));
    let mut other_bytes = arrived();
    assert_eq!(other_bytes.handle_control(total(2, 201)), Ok(()));
    other_bytes.begin_arrival(1, &header(0, 1)).unwrap();
    other_bytes.finish_arrival(1, 1).unwrap_err();
    assert!(matches!(other_bytes.poll_control().map(|m| m.body), Some(Body::Cancel(_))));
}

#[test]
fn a_message_of_the_sink_that_breaks_the_rules_cancels_the_session() {
    let range = |from, until| vec![Range { from, until }];
    let cases = [
        (acknowledgement(3, Vec::new()), Fault::Acknowledged(3)),
        (acknowledgement(0, range(1, 3)), Fault::Acknowledged(2)),
        (acknowledgement(0, range(1, u64::MAX)), Fault::Acknowledged(u64::MAX - 1)),
        (grants(1..2), Fault::GrantedTwice(1)),
        (grants(5..5 + crate::limits::BUFFERS_MAX), Fault::Credits),
        (Body::Complete(Complete { blocks: 4, bytes: 400 }), Fault::Totals(4)),
        (Body::CreditRequest, Fault::Message(5)),
        (Body::Closed, Fault::Closed),
    ];
    for (body, fault) in cases {
        let mut source = source(Arrivals::Seen);
        source.handle_control(grants(0..2)).unwrap();
        assert!(source.poll_write().is_some() && source.poll_write().is_some());
        assert_eq!(source.handle_control(body), Err(fault));
        assert_cancelled(source.poll_control(), fault);
    }
    let mut source = source(Arrivals::NotSeen);
    source.handle_control(grants(0..2)).unwrap();
    assert!(source.poll_write().is_some());
    let fault = Fault::Acknowledged(1);
    assert_eq!(source.handle_control(acknowledgement(1, Vec::new())), Err(fault));
}

#[test]
fn a_repeated_acknowledgement_is_a_fault() {
    let mut source = source(Arrivals::Seen);
    source.handle_control(grants(0..2)).unwrap();
    while let Some(write) = source.poll_write() {
        source.handle_written(write.block, WriteResult::Sent).unwrap();
    }
    let second = || acknowledgement(0, vec![Range { from: 1, until: 2 }]);
    assert_eq!(source.handle_control(second()), Ok(()));
    assert_eq!(source.poll_free(), Some(Freed { block: 1, seq: 1, has_arrived: true }));
    assert_eq!(source.handle_control(second()), Err(Fault::Acknowledged(1)));
}

#[test]
fn calls_at_the_wrong_time_change_nothing() {
    let mut source = source(Arrivals::Seen);
    assert_eq!(source.submit(9, 0, 100), Err(Misuse::State(0)));
    assert_eq!(source.submit(9, 4, 100), Err(Misuse::Number(4)));
    assert_eq!(source.handle_written(0, WriteResult::Sent), Err(Misuse::State(0)));
    source.finish().unwrap();
    assert_eq!(source.finish(), Err(Misuse::Over));
    assert_eq!(source.submit(9, 0, 100), Err(Misuse::Over));
    let mut sink = sink(1, Arrivals::Seen);
    assert_eq!(sink.release(0), Err(Misuse::State(0)));
    assert_eq!(sink.release(1), Err(Misuse::Number(1)));
    assert_eq!(sink.finish_arrival(1, 0), Err(Misuse::State(0)));
    assert_eq!(sink.finish(), Err(Misuse::Incomplete));
}

#[test]
fn a_missing_sequence_number_holds_up_all_later_blocks() {
    let setup = SourceSetup {
        session: 1,
        blocks: 4,
        block_size: 100,
        arrivals: Arrivals::Seen,
        writes_max: 4,
    };
    let mut source = Source::new(setup);
    assert!(source.channel_up(1));
    source.handle_control(grants(0..4)).unwrap();
    source.submit(1, 0, 100).unwrap();
    assert_eq!(source.submit(1, 1, 100), Err(Misuse::Sequence(1)));
    assert_eq!(source.submit(2, 1, 101), Err(Misuse::Length(101)));
    assert_eq!(source.poll_write(), None);
    assert_eq!(source.finish(), Err(Misuse::Incomplete));
    source.submit(0, 1, 100).unwrap();
    let written = std::iter::from_fn(|| source.poll_write()).map(|write| write.seq);
    assert_eq!(written.collect::<Vec<_>>(), [0, 1]);
    assert_eq!(source.submit(0, 2, 100), Err(Misuse::Sequence(0)));
    source.finish().unwrap();
}

#[test]
fn writes_go_to_the_channel_with_the_fewest_bytes_outstanding() {
    let mut source = source(Arrivals::Seen);
    assert!(source.channel_up(2));
    source.handle_control(grants(0..4)).unwrap();
    let channels: Vec<u16> =
        std::iter::from_fn(|| source.poll_write()).map(|write| write.channel).collect();
    assert_eq!(channels, [1, 2, 1, 2]);
    // The blocks of channel 2 are acknowledged, so it has the fewest outstanding bytes.
    for block in 0..4 {
        source.handle_written(block, WriteResult::Sent).unwrap();
    }
    let second = vec![Range { from: 1, until: 2 }, Range { from: 3, until: 4 }];
    source.handle_control(acknowledgement(0, second)).unwrap();
    source.handle_control(grants(4..6)).unwrap();
    source.submit(4, 1, 100).unwrap();
    source.submit(5, 3, 100).unwrap();
    let channels: Vec<u16> =
        std::iter::from_fn(|| source.poll_write()).map(|write| write.channel).collect();
    assert_eq!(channels, [2, 2]);
}

/// The source rewrites the blocks of a lost channel only after the sink has closed its end, with
/// the same credits, and before other blocks.
#[test]
fn a_lost_block_keeps_its_number_and_credit_and_waits_for_the_sink() {
    let mut source = source(Arrivals::Seen);
    source.handle_control(grants(0..3)).unwrap();
    let first = source.poll_write().unwrap();
    let second = source.poll_write().unwrap();
    source.handle_written(first.block, WriteResult::Sent).unwrap();
    assert!(source.channel_up(2));
    source.channel_down(1);
    source.handle_written(second.block, WriteResult::Failed).unwrap();
    assert_eq!(source.poll_control().map(|m| m.body), Some(Body::ChannelLost(1)));
    assert_eq!(source.poll_write().map(|write| (write.seq, write.channel)), Some((2, 2)));
    source.handle_control(Body::ChannelLost(1)).unwrap();
    for lost in [first, second] {
        assert_eq!(source.poll_write(), Some(Write { channel: 2, ..lost }));
    }
    assert!(!source.channel_up(1), "a number is not used again");
}

/// The source cannot know whether a failed write still reaches the sink's memory. So the sink may
/// not reuse that memory before it has closed its end of the channel.
#[test]
fn the_memory_of_a_cancelled_session_is_free_when_its_lost_channels_are_closed() {
    let mut source = source(Arrivals::NotSeen);
    let mut sink = sink(2, Arrivals::NotSeen);
    source.handle_control(grants(0..2)).unwrap();
    let write = source.poll_write().unwrap();
    source.cancel(stop());
    source.handle_written(write.block, WriteResult::Failed).unwrap();
    while let Some(message) = source.poll_control() {
        sink.handle_control(message.body).unwrap();
    }
    while let Some(message) = sink.poll_control() {
        source.handle_control(message.body).unwrap();
    }
    assert_eq!(source.ending(), Some(&Ending::Cancelled(stop())));
    assert!(!sink.is_memory_free() && sink.ending().is_none());
    assert_eq!(sink.poll_close(), Some(1));
    sink.channel_down(1);
    assert!(sink.is_memory_free());
    assert_eq!(sink.ending(), Some(&Ending::CancelledByPeer(stop())));
    assert_eq!(sink.counts().free, 2);
}

/// The sink has confirmed that the channel is closed although it was never up, so it must refuse
/// it.
#[test]
fn a_channel_that_was_lost_before_it_was_up_is_refused() {
    let mut sink = sink(1, Arrivals::NotSeen);
    sink.handle_control(Body::ChannelLost(3)).unwrap();
    assert_eq!(sink.poll_control().map(|m| m.body), Some(Body::ChannelLost(3)));
    assert!(!sink.channel_up(3));
}

/// The sink acknowledges the complete block of a lost channel before it confirms the loss.
#[test]
fn arrivals_on_a_channel_are_acknowledged_before_its_loss() {
    let mut sink = sink(2, Arrivals::Seen);
    sink.begin_arrival(1, &header(1, 0)).unwrap();
    sink.finish_arrival(1, 0).unwrap();
    sink.begin_arrival(1, &header(0, 1)).unwrap();
    sink.channel_down(1);
    assert_eq!(sink.finish_arrival(1, 1), Err(Misuse::State(1)));
    let acknowledged = vec![Range { from: 1, until: 2 }];
    assert_eq!(sink.poll_control().map(|m| m.body), Some(acknowledgement(0, acknowledged)));
    assert_eq!(sink.poll_control().map(|m| m.body), Some(Body::ChannelLost(1)));
    sink.begin_arrival(2, &header(0, 1)).unwrap();
    sink.finish_arrival(2, 1).unwrap();
    assert_eq!(sink.poll_ready().map(|ready| (ready.seq, ready.buffer)), Some((0, 1)));
}

#[test]
fn a_credit_request_is_answered_as_soon_as_a_buffer_is_free() {
    let mut sink = sink(1, Arrivals::Seen);
    sink.begin_arrival(1, &header(0, 0)).unwrap();
    sink.finish_arrival(1, 0).unwrap();
    sink.handle_control(Body::CreditRequest).unwrap();
    assert_eq!(sink.poll_control().map(|m| m.body), Some(acknowledgement(1, Vec::new())));
    let ready = sink.poll_ready().unwrap();
    assert_eq!(sink.poll_control(), None);
    sink.release(ready.buffer).unwrap();
    let Some(Body::Credits(credits)) = sink.poll_control().map(|m| m.body) else {
        panic!("no answer")
    };
    let granted: Vec<_> = credits.credits.iter().map(|c| (c.buffer, c.generation)).collect();
    assert_eq!(granted, [(0, 2)]);
}
