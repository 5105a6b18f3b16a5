//! A relay: it is the sink of one session and the source of another one, and passes the blocks of
//! the first on. The answers of the second session's sink go back. So the two other ends copy to
//! each other, and this one holds no more than a pool of blocks.

use std::fmt;
use std::sync::Arc;
use std::thread;

use super::driver::{self, SessionEnd as _};
use super::shared::{Channels, EndError, Finished, Observer, Opened, SinkChannel, SourceChannel};
use super::sink::{Arrived, SinkEnd, SinkSettings};
use super::source::SourceEnd;
use crate::compress::Decoder;
use crate::secure::{Opener, Sealer};
use crate::tree::apply::{ApplyError, Asked};
use crate::wire::Code;
use crate::wire::record_table;

/// The parameters of a relay whose sessions are open.
pub struct RelayPlan {
    /// The session in which this end is the sink.
    pub from: Opened,
    /// Opens its blocks; `None` if they are not sealed.
    pub opener: Option<Opener>,
    /// The session in which this end is the source. Its block size is not smaller.
    pub to: Opened,
    /// Seals its blocks; `None` if they are not sealed.
    pub sealer: Option<Sealer>,
    /// Whether the source may compress blocks.
    pub may_be_compressed: bool,
    /// The only names that the source may create in the destination; `None` allows all.
    pub asked: Option<Asked>,
    /// Receives problems.
    pub observer: Arc<dyn Observer>,
    /// Whether the sink lists changes: those that it predicts or makes.
    pub lists_changes: bool,
}

impl fmt::Debug for RelayPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayPlan").finish_non_exhaustive()
    }
}

/// Runs a relay until both sessions end.
///
/// # Errors
/// If one of them fails.
pub fn run(
    plan: RelayPlan,
    from_channels: Channels<SinkChannel>,
    to_channels: Channels<SourceChannel>,
) -> Result<Finished, EndError> {
    let RelayPlan { from, opener, to, sealer, may_be_compressed, asked, observer, lists_changes } =
        plan;
    let settings = SinkSettings {
        opener,
        may_be_compressed,
        expands: false,
        observer: Some(Arc::clone(&observer)),
        buffers: None,
    };
    let sink = &SinkEnd::new(from, settings)?;
    let source = &SourceEnd::relaying(to, Arc::clone(sink), sealer, observer, lists_changes);
    thread::scope(|scope| {
        sink.receive(scope, from_channels);
        source.send(scope, to_channels);
        scope.spawn(|| pass_all(sink, source, asked.as_ref()));
        // The end of each session ends the other one.
        scope.spawn(|| {
            if let Some(why) = driver::wait_for_failure(&sink.driver) {
                source.fail(Code::Source, why.of("the source"));
            }
        });
        scope.spawn(|| match driver::wait_for_failure(&source.driver) {
            Some(why) => {
                sink.fail(Code::Sink, why.of("the destination"));
            }
            None => {
                let Finished { outcome, sink: loads, .. } = source.finished();
                sink.finish(outcome, loads);
            }
        });
        scope.spawn(|| {
            driver::send(&**sink);
            driver::close(&sink.driver, true);
        });
        driver::send(source);
        driver::close(&source.driver, false);
    });
    // All data has been written when the second session is complete.
    driver::result(&source.driver)?;
    let compressed = sink.compressed();
    Ok(Finished { source: sink.source_loads(), compressed, ..source.finished() })
}

/// Passes on all blocks, in order.
fn pass_all(sink: &Arc<SinkEnd>, source: &SourceEnd, asked: Option<&Asked>) {
    let (mut decoder, mut scratch) = (Decoder::default(), Vec::new());
    while let Some((ready, arrived)) = sink.next() {
        // This bounds the answers that wait for the source to take them.
        sink.wait_for_room();
        let checked = match asked {
            Some(asked) => check(&arrived, asked, &mut decoder, &mut scratch),
            None => Ok(()),
        };
        let Arrived { block, len, table_len, is_compressed, .. } = arrived;
        let held = sink.hold(ready.buffer, block, len);
        if let Err(error) = checked {
            return sink.fail(Code::Protocol, error);
        }
        if let Err(error) = source.relay(ready.seq, held, table_len, len, is_compressed) {
            return source.fail(Code::Internal, error);
        }
    }
    if !sink.driver.lock().is_over() {
        driver::finish(source);
    }
}

/// Checks that a block contains only entries that the source was asked for.
fn check(
    arrived: &Arrived,
    asked: &Asked,
    decoder: &mut Decoder,
    scratch: &mut Vec<u8>,
) -> Result<(), EndError> {
    let wrong = |error: &dyn fmt::Display| EndError::Protocol(error.to_string());
    let bytes = arrived.block.bytes();
    let mut payload = &bytes[..arrived.len.min(bytes.len())];
    if arrived.is_compressed {
        scratch.resize(arrived.block.len(), 0);
        let len = decoder.decompress(payload, scratch).map_err(|error| wrong(&error))?;
        payload = &scratch[..len];
    }
    let placed = record_table::parse(payload, arrived.table_len).map_err(|error| wrong(&error))?;
    match placed.iter().find_map(|placed| asked.refused(&placed.record)) {
        Some(number) => Err(wrong(&ApplyError::NotAsked(number))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::blocks::Pool;
    use crate::compress::Encoder;
    use crate::wire::record::{Entry, Kind, ROOT, Record, Time};
    use crate::wire::record_name::Name;

    fn name(name: &[u8]) -> Name {
        Name::new(name).expect("a name")
    }

    fn entry(parent: u64, of: Option<Name>) -> Box<Entry> {
        Box::new(Entry {
            number: 7,
            parent,
            name: of,
            kind: Kind::Directory,
            mode: 0o700,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            atime: Time::default(),
            size: 0,
            is_linked: false,
            is_unsized: false,
            xattrs: None,
            hash: None,
        })
    }

    #[test]
    fn source_sends_only_what_it_was_asked_for_compressed_or_not() {
        let pool = Pool::new(1, 1 << 16).expect("memory");
        let asked = Asked([name(b"asked")].into());
        for (entry, is_fine) in [
            (entry(ROOT, Some(name(b"asked"))), true),
            (entry(5, Some(name(b"other"))), true),
            (entry(ROOT, Some(name(b"other"))), false),
            (entry(ROOT, None), false),
        ] {
            for is_compressed in [false, true] {
                let mut payload = Vec::new();
                Record::Entry(entry.clone()).emit(&mut payload);
                let (file, offset, len, digest) = (9, 0, 1_000, None);
                Record::Data { file, offset, len, digest }.emit(&mut payload);
                let table_len = payload.len();
                payload.resize(table_len + 1_000, 0);
                if is_compressed {
                    payload = Encoder::default().compress(&payload).expect("zeros").to_vec();
                }
                let mut block = pool.try_take().expect("the one");
                block.bytes_mut()[..payload.len()].copy_from_slice(&payload);
                let (len, at) = (payload.len(), Instant::now());
                let arrived = Arrived { block, len, table_len, is_compressed, at };
                let checked = check(&arrived, &asked, &mut Decoder::default(), &mut Vec::new());
                assert_eq!(checked.is_ok(), is_fine, "{checked:?} {entry:?}");
            }
        }
    }
}
