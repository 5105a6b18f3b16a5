//! What every carrier of the fabric does alike: messages, one-sided operations, atomics, and how
//! they fail.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use common::{Side, between, pattern, small, unconnected};
use weft_fabric::limits::VALUE_MAX;
use weft_fabric::{Carrier, Errno, Error, Fabric, Message, Options, RemoteKey, Rights, Stop};

/// Bytes of a hundred messages or so, more than what any queue holds.
const MANY: usize = 2_000;

/// A message that holds a key.
fn key_of(message: &Message) -> Result<RemoteKey> {
    RemoteKey::from_bytes(message).context("no key")
}

#[test]
fn messages_arrive_whole_and_in_order() -> Result<()> {
    let len_of = |number: usize, max: usize| (number * 131) % (max + 1);
    between(
        "messages_arrive_whole_and_in_order",
        &small(),
        |Side { endpoint, greeting, .. }| {
            ensure!(greeting == b"from the client");
            let mut random = fastrand::Rng::with_seed(1);
            let mut held = Vec::new();
            for number in 0..MANY {
                let message = endpoint.receive().wait()?;
                let max = if number % 3 == 0 { 3_000 } else { VALUE_MAX };
                ensure!(*message == *pattern(number, len_of(number, max)), "message {number}");
                ensure!(message.immediate().is_none());
                // Some are kept for a while, but never all of the window.
                held.push(message);
                while held.len() > random.usize(..4) {
                    held.swap_remove(random.usize(..held.len()));
                }
            }
            drop(held);
            endpoint.send(b"done")?.wait()?;
            Ok(())
        },
        |Side { fabric, endpoint, greeting }| {
            ensure!(greeting == b"from the server");
            ensure!(endpoint.message_max() == 3_000);
            let mut under_way = Vec::new();
            let mut lent = Vec::new();
            for number in 0..MANY {
                if number % 3 == 0 {
                    let bytes = pattern(number, len_of(number, 3_000));
                    let mut buffer = fabric.alloc(5_000)?;
                    buffer[1_000..1_000 + bytes.len()].copy_from_slice(&bytes);
                    lent.push(endpoint.send_buffer(buffer, 1_000..1_000 + bytes.len())?);
                } else {
                    let bytes = pattern(number, len_of(number, VALUE_MAX));
                    under_way.push(endpoint.send(&bytes)?);
                }
            }
            for operation in under_way {
                operation.wait()?;
            }
            for operation in lent {
                ensure!(operation.wait()?.len() == 5_000);
            }
            ensure!(*endpoint.receive().wait()? == *b"done");
            Ok(())
        },
    )
}

#[test]
fn both_ends_send_at_once() -> Result<()> {
    let both = |Side { endpoint, .. }: Side| {
        let mut sent = Vec::new();
        for number in 0..MANY {
            sent.push(endpoint.send(&pattern(number, 100))?);
        }
        for number in 0..MANY {
            ensure!(*endpoint.receive().wait()? == *pattern(number, 100), "message {number}");
        }
        for operation in sent {
            operation.wait()?;
        }
        Ok(endpoint.close().wait()?)
    };
    between("both_ends_send_at_once", &small(), both, both)
}

#[test]
fn writes_and_reads_reach_shared_memory() -> Result<()> {
    const LEN: usize = 3 << 20;
    between(
        "writes_and_reads_reach_shared_memory",
        &Options::default(),
        |Side { fabric, endpoint, .. }| {
            let shared = fabric.alloc(LEN)?.share(Rights::ALL, 4_096..)?;
            endpoint.send(&shared.key().to_bytes())?.wait()?;
            let message = endpoint.receive().wait()?;
            ensure!(message.immediate() == Some(0xfeed_f00d) && message.is_empty());
            let buffer = shared.end();
            ensure!(buffer[..4_196].iter().all(|&byte| byte == 0), "before the range");
            ensure!(buffer[4_196..LEN - 1] == pattern(7, LEN - 4_197), "what was written");
            ensure!(buffer[LEN - 1] == 0, "behind what was written");
            Ok(endpoint.close().wait()?)
        },
        |Side { fabric, endpoint, .. }| {
            let key = key_of(&endpoint.receive().wait()?)?;
            ensure!(key.len() == (LEN - 4_096) as u64);
            let len = LEN - 4_197;
            let mut source = fabric.alloc(LEN)?;
            source[11..11 + len].copy_from_slice(&pattern(7, len));
            let source = endpoint.write(source, 11..11 + len, &key, 100)?.wait()?;
            let target = endpoint.read(fabric.alloc(LEN)?, 5..5 + len, &key, 100)?.wait()?;
            ensure!(target[5..5 + len] == pattern(7, len), "what was read");
            ensure!(target[..5] == [0; 5] && target[5 + len..].iter().all(|&byte| byte == 0));
            endpoint.write_with_immediate(source, 11..12, &key, 100, 0xfeed_f00d)?.wait()?;
            ensure!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

#[test]
fn a_write_is_there_before_what_tells_of_it() -> Result<()> {
    between(
        "a_write_is_there_before_what_tells_of_it",
        &small(),
        |Side { fabric, endpoint, .. }| {
            let shared = fabric.alloc(100_000)?.share(Rights::WRITE, ..)?;
            endpoint.send(&shared.key().to_bytes())?.wait()?;
            let mut bytes = vec![0; 50_000];
            for round in 0..200_u32 {
                let message = endpoint.receive().wait()?;
                ensure!(message.immediate() == Some(round));
                shared.read(50_000, &mut bytes)?;
                ensure!(bytes.iter().all(|&byte| byte == round as u8), "round {round}");
                endpoint.send(b"next")?.wait()?;
            }
            Ok(endpoint.close().wait()?)
        },
        |Side { fabric, endpoint, .. }| {
            let key = key_of(&endpoint.receive().wait()?)?;
            let mut buffer = fabric.alloc(50_000)?;
            for round in 0..200_u32 {
                buffer.fill(round as u8);
                buffer = endpoint.write_with_immediate(buffer, .., &key, 50_000, round)?.wait()?;
                ensure!(*endpoint.receive().wait()? == *b"next");
            }
            Ok(())
        },
    )
}

#[test]
fn atomics_are_in_one_step() -> Result<()> {
    const TIMES: u64 = 500;
    between(
        "atomics_are_in_one_step",
        &small(),
        |Side { fabric, endpoint, .. }| {
            let shared = fabric.alloc(64)?.share(Rights::ALL, ..)?;
            endpoint.send(&shared.key().to_bytes())?.wait()?;
            // The owner adds, too.
            for _ in 0..TIMES {
                shared.update(8, |value| value + 1)?;
            }
            ensure!(*endpoint.receive().wait()? == *b"done");
            ensure!(shared.update(8, |value| value)? == TIMES * 4);
            ensure!(shared.update(16, |value| value)? == 7);
            let mut other = [0; 8];
            shared.read(24, &mut other)?;
            ensure!(other == [0; 8]);
            ensure!(matches!(shared.update(12, |value| value), Err(Error::Range { .. })));
            Ok(endpoint.close().wait()?)
        },
        |Side { endpoint, .. }| {
            let key = key_of(&endpoint.receive().wait()?)?;
            let all: Result<Vec<_>, _> =
                (0..TIMES).map(|_| endpoint.fetch_add(&key, 8, 3)).collect();
            let mut last = None;
            for operation in all? {
                let before = operation.wait()?;
                ensure!(last.is_none_or(|last| before >= last + 3), "{before} after {last:?}");
                last = Some(before);
            }
            ensure!(endpoint.compare_swap(&key, 16, 1, 9)?.wait()? == 0, "not 1, so not swapped");
            ensure!(endpoint.compare_swap(&key, 16, 0, 7)?.wait()? == 0);
            ensure!(endpoint.compare_swap(&key, 16, 0, 8)?.wait()? == 7);
            for offset in [4, 64, u64::MAX] {
                let refused = endpoint.fetch_add(&key, offset, 1).map(drop);
                ensure!(matches!(refused, Err(Error::RemoteRange { .. })), "{offset}");
            }
            endpoint.send(b"done")?.wait()?;
            ensure!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

/// Peers of one host learn only after a while how to reach memory themselves, and what they begin
/// then must not overtake what is on its way to the owner.
#[test]
fn atomics_keep_their_order_on_new_memory() -> Result<()> {
    const TIMES: u64 = 100;
    const COUNT: u64 = 48;
    between(
        "atomics_keep_their_order_on_new_memory",
        &Options { depth: COUNT as usize, ..small() },
        |Side { fabric, endpoint, .. }| {
            for _ in 0..TIMES {
                let shared = fabric.alloc(64)?.share(Rights::ALL, ..)?;
                endpoint.send(&shared.key().to_bytes())?.wait()?;
                ensure!(*endpoint.receive().wait()? == *b"done");
                ensure!(shared.update(8, |value| value)? == COUNT + 1_000);
            }
            Ok(endpoint.close().wait()?)
        },
        |Side { fabric, endpoint, .. }| {
            let mut buffer = fabric.alloc(8)?;
            for _ in 0..TIMES {
                let key = key_of(&endpoint.receive().wait()?)?;
                let all: Result<Vec<_>, _> =
                    (0..COUNT).map(|_| endpoint.fetch_add(&key, 8, 1)).collect();
                let read = endpoint.read(buffer, .., &key, 8)?;
                buffer = fabric.alloc(8)?;
                buffer.copy_from_slice(&(COUNT + 1_000).to_ne_bytes());
                let written = endpoint.write(buffer, .., &key, 8)?;
                for (number, operation) in all?.into_iter().enumerate() {
                    let before = operation.wait()?;
                    ensure!(before == number as u64, "{before} before addition {number}");
                }
                let seen = read.wait()?;
                // The Write may be done before the Read, but not before an addition.
                let seen = u64::from_ne_bytes(seen[..8].try_into()?);
                ensure!(seen == COUNT || seen == COUNT + 1_000, "{seen} is read");
                buffer = written.wait()?;
                endpoint.send(b"done")?.wait()?;
            }
            ensure!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

/// Runs an access to memory of a peer that does not allow it.
fn denied(
    test: &str,
    rights: Rights,
    is_over: bool,
    access: impl Fn(&Side, RemoteKey) -> Result<(), Error>,
) -> Result<()> {
    between(
        test,
        &small(),
        |Side { fabric, endpoint, .. }| {
            let mut buffer = fabric.alloc(8_192)?;
            buffer.fill(1);
            let shared = buffer.share(rights, ..4_096)?;
            let key = shared.key();
            let (shared, buffer) =
                if is_over { (None, Some(shared.end())) } else { (Some(shared), None) };
            endpoint.send(&key.to_bytes())?.wait()?;
            ensure!(endpoint.receive().wait().is_err());
            let buffer = buffer.or_else(|| shared.map(weft_fabric::SharedBuffer::end));
            ensure!(buffer.context("no buffer")?.iter().all(|&byte| byte == 1), "it was changed");
            Ok(())
        },
        |end| {
            let key = key_of(&end.endpoint.receive().wait()?)?;
            let result = access(&end, key);
            ensure!(matches!(result, Err(Error::Denied { .. })), "{result:?}");
            // The connection has ended, and says so.
            ensure!(end.endpoint.receive().wait().is_err());
            ensure!(end.endpoint.send(b"more").is_err());
            Ok(())
        },
    )
}

#[test]
fn an_ended_key_is_refused() -> Result<()> {
    denied("an_ended_key_is_refused", Rights::ALL, true, |end, key| {
        end.endpoint.write(end.fabric.alloc(10)?, .., &key, 0)?.wait().map(drop)
    })
}

#[test]
fn a_right_that_was_not_given_is_refused() -> Result<()> {
    denied("a_right_that_was_not_given_is_refused", Rights::READ, false, |end, key| {
        end.endpoint.write(end.fabric.alloc(10)?, .., &key, 0)?.wait().map(drop)
    })
}

#[test]
fn reading_what_may_only_be_written_is_refused() -> Result<()> {
    denied("reading_what_may_only_be_written_is_refused", Rights::WRITE, false, |end, key| {
        end.endpoint.read(end.fabric.alloc(10)?, .., &key, 0)?.wait().map(drop)
    })
}

#[test]
fn bytes_outside_of_the_shared_range_are_refused() -> Result<()> {
    denied("bytes_outside_of_the_shared_range_are_refused", Rights::ALL, false, |end, key| {
        let bytes = key.to_bytes();
        let address = u64::from_be_bytes(*bytes.first_chunk().unwrap_or(&[0; 8]));
        let number = u32::from_be_bytes(*bytes.last_chunk().unwrap_or(&[0; 4]));
        let wider = RemoteKey::from_raw(address, 8_192, number);
        end.endpoint.write(end.fabric.alloc(10)?, .., &wider, 4_090)?.wait().map(drop)
    })
}

#[test]
fn arguments_that_do_not_fit_change_nothing() -> Result<()> {
    between(
        "arguments_that_do_not_fit_change_nothing",
        &small(),
        |Side { endpoint, .. }| {
            ensure!(*endpoint.receive().wait()? == *b"well");
            Ok(endpoint.close().wait()?)
        },
        |Side { fabric, endpoint, .. }| {
            let too_long = endpoint.send(&[0; VALUE_MAX + 1]).map(drop);
            ensure!(matches!(too_long, Err(Error::TooLong { max: VALUE_MAX, .. })));
            let mut buffer = fabric.alloc(4_000)?;
            buffer.fill(3);
            let returned = endpoint.send_buffer(buffer, ..3_001).map(drop);
            let Err(returned) = returned else { bail!("too long, but sent") };
            ensure!(matches!(returned.error, Error::TooLong { len: 3_001, max: 3_000 }));
            let returned = endpoint.send_buffer(returned.buffer, 4_000..4_001).map(drop);
            let Err(returned) = returned else { bail!("outside, but sent") };
            ensure!(matches!(returned.error, Error::Range { len: 4_000 }));
            let key = RemoteKey::from_raw(4_096, 10, 1);
            let returned = endpoint.write(returned.buffer, ..4, &key, 7).map(drop);
            let Err(returned) = returned else { bail!("outside of the key, but written") };
            ensure!(matches!(returned.error, Error::RemoteRange { offset: 7, len: 4, of: 10 }));
            ensure!(returned.buffer.iter().all(|&byte| byte == 3), "the buffer came back changed");
            endpoint.send(b"well")?.wait()?;
            ensure!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

#[test]
fn what_was_sent_before_a_close_arrives() -> Result<()> {
    between(
        "what_was_sent_before_a_close_arrives",
        &small(),
        |Side { endpoint, .. }| {
            for number in 0..MANY {
                ensure!(*endpoint.receive().wait()? == *pattern(number, 64), "message {number}");
            }
            let end = endpoint.receive().wait();
            ensure!(matches!(end, Err(Error::Closed { .. })), "{end:?}");
            Ok(())
        },
        |Side { endpoint, .. }| {
            for number in 0..MANY {
                // Nobody asks for these operations: they take place nevertheless.
                drop(endpoint.send(&pattern(number, 64))?);
            }
            endpoint.clone().close().wait()?;
            ensure!(matches!(endpoint.send(b"late").map(drop), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

#[test]
fn an_aborted_endpoint_wakes_those_who_wait_at_both_ends() -> Result<()> {
    between(
        "an_aborted_endpoint_wakes_those_who_wait_at_both_ends",
        &small(),
        |Side { endpoint, .. }| {
            let end = endpoint.receive().wait();
            ensure!(matches!(end, Err(Error::Closed { .. })), "{end:?}");
            Ok(())
        },
        |Side { endpoint, .. }| {
            let waiting = {
                let endpoint = endpoint.clone();
                std::thread::spawn(move || endpoint.receive().wait().map(drop))
            };
            endpoint.abort();
            let end = waiting.join().map_err(|_| anyhow!("a panic"))?;
            ensure!(matches!(end, Err(Error::Closed { .. })), "{end:?}");
            ensure!(matches!(endpoint.send(b"late").map(drop), Err(Error::Closed { .. })));
            endpoint.abort();
            Ok(())
        },
    )
}

#[test]
fn a_killed_peer_ends_what_is_under_way() -> Result<()> {
    unconnected(
        "a_killed_peer_ends_what_is_under_way",
        &small(),
        |fabric, address| {
            let listener = fabric.listen(address)?;
            common::announce(listener.address())?;
            let endpoint = listener.accept().wait()?.accept(b"")?;
            let _first = endpoint.receive().wait()?;
            std::process::abort();
        },
        |fabric, address| {
            let endpoint = fabric.connect(address, b"")?.wait()?.endpoint;
            // More than the window, so that some wait, some are under way, and nobody receives.
            let all: Vec<_> = (0..50).map(|_| endpoint.send(b"anybody?")).collect();
            let results: Vec<_> = all.into_iter().map(|sent| sent?.wait()).collect();
            ensure!(results.iter().any(Result::is_err), "all messages of 50 arrived");
            let mut after = results.iter().skip_while(|result| result.is_ok());
            ensure!(after.all(Result::is_err), "one succeeded after one that had failed");
            ensure!(endpoint.receive().wait().is_err());
            Ok(())
        },
        |[server, client]| {
            use std::os::unix::process::ExitStatusExt as _;
            ensure!(server.signal() == Some(6) && client.success(), "{server}, {client}");
            Ok(())
        },
    )
}

#[test]
fn connections_are_refused_with_a_reason() -> Result<()> {
    unconnected(
        "connections_are_refused_with_a_reason",
        &small(),
        |fabric, address| {
            let listener = fabric.listen(address)?;
            common::announce(listener.address())?;
            let incoming = listener.accept().wait()?;
            // The carriers of the two ends may differ.
            let len = incoming.private_data().len();
            ensure!(len != 0 && *incoming.private_data() == *pattern(0, len));
            incoming.refuse(b"not today")?;
            // Dropping it refuses it, too.
            drop(listener.accept().wait()?);
            Ok(())
        },
        |fabric, address| {
            let max = fabric.private_data_max();
            let private_data = pattern(0, common::private_data_max(&fabric));
            let refused = fabric.connect(address, &private_data)?.wait().map(drop);
            let Err(Error::Refused { reason, .. }) = &refused else { bail!("{refused:?}") };
            ensure!(reason == b"not today", "{}", reason.escape_ascii());
            let refused = fabric.connect(address, b"")?.wait().map(drop);
            ensure!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
            let too_long = fabric.connect(address, &vec![0; max + 1]).map(drop);
            ensure!(matches!(too_long, Err(Error::TooLong { .. })));
            Ok(())
        },
        |[server, client]| {
            ensure!(server.success() && client.success(), "{server}, {client}");
            Ok(())
        },
    )
}

#[test]
fn addresses_of_both_families_connect() -> Result<()> {
    common::alone("addresses_of_both_families_connect", || {
        let fabric = common::open(Options::default())?;
        for (at, to) in [("0.0.0.0:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "::1")] {
            let listener = fabric.listen(at.parse()?)?;
            let address = SocketAddr::new(to.parse()?, listener.address().port());
            let connecting = fabric.connect(address, b"")?;
            let server = listener.accept().wait()?.accept(b"")?;
            let client = connecting.wait()?.endpoint;
            let sent = client.send(to.as_bytes())?;
            ensure!(*server.receive().wait()? == *to.as_bytes());
            sent.wait()?;
        }
        Ok(())
    })
}

#[test]
fn nobody_listens() -> Result<()> {
    common::alone("nobody_listens", || {
        let fabric = common::open(Options::default())?;
        let address = fabric.listen("127.0.0.1:0".parse()?)?.address();
        // The listener has been dropped.
        let refused = fabric.connect(address, b"")?.wait().map(drop);
        ensure!(matches!(refused, Err(Error::NotListening { .. })), "{refused:?}");
        Ok(())
    })
}

#[test]
fn addresses_have_ports_of_their_own() -> Result<()> {
    common::alone("addresses_have_ports_of_their_own", || {
        let fabric = common::open(Options::default())?;
        let first = fabric.listen("127.0.0.1:0".parse()?)?;
        let port = first.address().port();
        let second = fabric.listen(SocketAddr::new("127.0.0.2".parse()?, port))?;
        let taken = fabric.listen(first.address()).map(drop);
        ensure!(matches!(taken, Err(Error::System { cause: Errno::ADDRINUSE, .. })), "{taken:?}");
        for listener in [&second, &first] {
            let address = listener.address();
            let connecting = fabric.connect(address, address.to_string().as_bytes())?;
            let incoming = listener.accept().wait()?;
            ensure!(incoming.private_data() == address.to_string().as_bytes());
            let server = incoming.accept(b"")?;
            let client = connecting.wait()?.endpoint;
            let sent = client.send(b"hello")?;
            ensure!(*server.receive().wait()? == *b"hello");
            sent.wait()?;
        }
        Ok(())
    })
}

#[test]
fn a_device_is_used_where_there_is_one() -> Result<()> {
    common::alone("a_device_is_used_where_there_is_one", || {
        let open = |carrier| Fabric::open(Options { carrier, ..Options::default() });
        ensure!(open(Carrier::Engine)?.carrier() == Carrier::Engine);
        let automatic = open(Carrier::Automatic)?.carrier();
        match open(Carrier::System) {
            Ok(system) => ensure!([system.carrier(), automatic] == [Carrier::System; 2]),
            Err(Error::NoCard { reason }) => {
                ensure!(automatic == Carrier::Engine && !common::is_of_the_lab(), "{reason}");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })
}

#[test]
fn options_out_of_range_are_named() -> Result<()> {
    common::alone("options_out_of_range_are_named", || {
        let wrong = Fabric::open(Options { window: 0, ..Options::default() }).map(drop);
        ensure!(wrong == Err(Error::Option { option: "window", value: 0, min: 1, max: 4_096 }));
        let wrong = Fabric::open(Options { interface: Some("none9".into()), ..Options::default() });
        ensure!(matches!(wrong.map(drop), Err(Error::NoDevice { .. })));
        Ok(())
    })
}

#[test]
fn waits_have_limits() -> Result<()> {
    between(
        "waits_have_limits",
        &small(),
        |Side { endpoint, .. }| {
            ensure!(endpoint.receive().wait_for(Duration::from_millis(20)).is_none());
            ensure!(endpoint.receive().try_wait().is_none());
            endpoint.send(b"go")?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"gone");
            Ok(endpoint.close().wait()?)
        },
        |Side { endpoint, .. }| {
            ensure!(*endpoint.receive().wait()? == *b"go");
            // The peer receives it when it is sent: the limit is one of a hang.
            let mut operation = endpoint.send(b"gone")?;
            ensure!(operation.wait_for(Duration::from_secs(240)) == Some(Ok(())));
            ensure!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

#[test]
fn another_thread_ends_a_wait_and_nothing_is_lost() -> Result<()> {
    between(
        "another_thread_ends_a_wait_and_nothing_is_lost",
        &small(),
        |Side { fabric, endpoint, .. }| {
            let stop = Stop::new();
            std::thread::scope(|scope| {
                let waiting =
                    scope.spawn(|| fabric.wait_until(endpoint.receive(), &stop).is_none());
                stop.stop();
                ensure!(waiting.join().map_err(|_| anyhow!("a panic"))?);
                Ok(())
            })?;
            endpoint.send(b"go")?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"first");
            // A wait that was stopped takes nothing, although the message may be there.
            ensure!(fabric.wait_until(endpoint.receive(), &stop).is_none());
            ensure!(*endpoint.receive().wait()? == *b"second");
            let closed = fabric.wait_until(endpoint.close(), &no_hang());
            Ok(closed.context("the close hangs")??)
        },
        |Side { fabric, endpoint, .. }| {
            let soon = Stop::new().at(Instant::now() + Duration::from_millis(20));
            let nothing = fabric.wait_until(async { endpoint.receive().await.map(drop) }, &soon);
            ensure!(nothing.as_ref().is_none_or(Result::is_ok), "{nothing:?}");
            if nothing.is_none() {
                ensure!(*endpoint.receive().wait()? == *b"go");
            }
            let sent = [endpoint.send(b"first")?, endpoint.send(b"second")?];
            for sent in sent {
                fabric.wait_until(sent, &no_hang()).context("a message hangs")??;
            }
            ensure!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })));
            Ok(())
        },
    )
}

/// The deadline of waits that end by themselves.
fn no_hang() -> Stop {
    Stop::new().at(Instant::now() + Duration::from_secs(240))
}

#[test]
fn waits_for_connections_end() -> Result<()> {
    common::alone("waits_for_connections_end", || {
        let fabric = common::open(Options::default())?;
        let listener = fabric.listen("127.0.0.1:0".parse()?)?;
        let stop = Stop::new();
        let accepted = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| fabric.wait_until(listener.accept(), &stop).is_some());
            stop.stop();
            accepting.join().map_err(|_| anyhow!("a panic"))
        })?;
        ensure!(!accepted);
        // The listener does not answer.
        let soon = Stop::new().at(Instant::now() + Duration::from_millis(20));
        let connecting = fabric.connect(listener.address(), b"given up")?;
        ensure!(fabric.wait_until(connecting, &soon).is_none());
        let connecting = fabric.connect(listener.address(), b"kept")?;
        let server = loop {
            let incoming = fabric.wait_until(listener.accept(), &no_hang()).context("a hang")??;
            if incoming.private_data() == b"kept" {
                break incoming.accept(b"")?;
            }
        };
        let client = fabric.wait_until(connecting, &no_hang()).context("a hang")??.endpoint;
        let sent = client.send(b"hello")?;
        ensure!(*server.receive().wait()? == *b"hello");
        Ok(sent.wait()?)
    })
}
