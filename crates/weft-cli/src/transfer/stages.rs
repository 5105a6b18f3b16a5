//! What the threads of this end did during a copy, for `--explain`.

use serde_json::{Value, json};
use weft_transfer::end::{Finished, Stage, Work};

/// Returns the busiest resource in words, and its load.
pub(super) fn bound(finished: &Finished) -> (&'static str, u16) {
    let Finished { source, sink, compressed, .. } = finished;
    let (sealing, opening) = if compressed.sent < compressed.plain {
        ("compression and encryption at the source", "decompression and decryption at the sink")
    } else {
        ("encryption at the source", "decryption at the sink")
    };
    let loads = [
        ("reading at the source", source.disk),
        (sealing, source.cpu),
        ("the network", source.network),
        (opening, sink.cpu),
        ("writing at the sink", sink.disk),
    ];
    loads.into_iter().max_by_key(|(_, share)| *share).unwrap_or(("the network", 0))
}

/// The names of a kind of work in events and in text, and what its threads are.
fn words(work: Work) -> (&'static str, &'static str, &'static str) {
    match work {
        Work::Read => ("read", "reading", "threads"),
        Work::Seal => ("seal", "compression and encryption", "of these threads"),
        Work::Send => ("send", "sending", "connections"),
        Work::Open => ("open", "decryption and decompression", "connections"),
        Work::Write => ("write", "writing", "threads"),
    }
}

/// Returns the stages of this end in words, and what bounded the rate. Empty if this end passed no
/// data on from or to files.
pub(super) fn text(finished: &Finished) -> String {
    let mut text = String::new();
    for Stage { work, threads, busy, waited } in finished.stages.into_iter().flatten() {
        let (_, name, of) = words(work);
        let percent = busy / 10;
        text.push_str(&format!("{name}: {threads} {of}, {percent} % of their time"));
        if let Some(waited) = waited {
            let time = waited.as_secs_f64() * 1e3;
            text.push_str(&match work {
                Work::Read => format!("; they waited {time:.2} ms for each block of memory"),
                _ => format!("; a block waited {time:.2} ms for it"),
            });
        }
        text.push('\n');
    }
    let (what, share) = bound(finished);
    if !text.is_empty() {
        text.push_str(&format!("what bounded the rate: {what} ({} %)\n", share / 10));
    }
    text
}

/// Returns the stages for an event.
pub(super) fn value(finished: &Finished) -> Value {
    let stages = finished.stages.into_iter().flatten();
    let stage = |Stage { work, threads, busy, waited }: Stage| {
        json!({"work": words(work).0, "threads": threads, "busy": busy,
            "waited": waited.map(|waited| waited.as_secs_f64())})
    };
    stages.map(stage).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stages_of_this_end_are_described() {
        let stage = |work, threads, busy, waited: Option<u64>| {
            let waited = waited.map(Duration::from_micros);
            Some(Stage { work, threads, busy, waited })
        };
        let stages = [
            stage(Work::Read, 4, 123, Some(1_500)),
            stage(Work::Seal, 4, 20, None),
            stage(Work::Send, 2, 1_000, Some(20)),
        ];
        let mut finished = Finished { stages, ..Finished::default() };
        finished.source.network = 1_000;
        assert_eq!(
            text(&finished),
            "reading: 4 threads, 12 % of their time; they waited 1.50 ms for each block of memory\n\
             compression and encryption: 4 of these threads, 2 % of their time\n\
             sending: 2 connections, 100 % of their time; a block waited 0.02 ms for it\n\
             what bounded the rate: the network (100 %)\n"
        );
        assert_eq!(
            value(&finished)[2],
            json!({"work": "send", "threads": 2, "busy": 1_000, "waited": 0.000_02})
        );
        assert_eq!(text(&Finished::default()), "");
    }
}
