//! The states of blocks at the source and of buffers at the sink, and their transitions.
//!
//! The tables are complete: [`SourceState::after`] and [`SinkState::after`] are the only code that
//! changes a state. The diagrams in `docs/transfer-protocol.md` are generated from them.

/// The state of a block at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceState {
    /// The caller owns it.
    Free,
    /// It is submitted and waits for a credit and its turn.
    Loaded,
    /// It waits for its turn to be written again, with the credit of its first write.
    Bound,
    /// The transport is writing it.
    Writing,
    /// The transport has written it, and the sink has not acknowledged it.
    Written,
    /// It is not needed any more, but the transport still reads it.
    Releasing,
    /// Its channel is lost, and the sink has not reported yet whether the block had arrived.
    Lost,
}

/// An event of a block at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// The caller submits it.
    Submit,
    /// The source gives it to a channel.
    Write,
    /// The transport returns it unwritten.
    NotSent,
    /// The transport has written it, and the sink will acknowledge it.
    Sent,
    /// The transport has written it into the sink's memory.
    Placed,
    /// The transport could not write it, because the channel is lost.
    Failed,
    /// The transport has finished with a block that is not needed any more.
    Done,
    /// The sink acknowledges it.
    Acknowledge,
    /// The channel on which it was written is lost.
    ChannelLost,
    /// The sink has closed its end of that channel.
    Fence,
    /// The session is cancelled.
    Abandon,
}

/// Every transition of a block at the source.
pub(super) const SOURCE: &[(SourceState, SourceEvent, SourceState)] = {
    use SourceEvent as On;
    use SourceState::{Bound, Free, Loaded, Lost, Releasing, Writing, Written};
    &[
        (Free, On::Submit, Loaded),
        (Loaded, On::Write, Writing),
        (Loaded, On::Abandon, Free),
        (Bound, On::Write, Writing),
        (Bound, On::Abandon, Free),
        (Writing, On::NotSent, Bound),
        (Writing, On::Sent, Written),
        (Writing, On::Placed, Free),
        (Writing, On::Failed, Lost),
        (Writing, On::Acknowledge, Releasing),
        (Writing, On::Abandon, Releasing),
        (Written, On::Acknowledge, Free),
        (Written, On::ChannelLost, Lost),
        (Written, On::Abandon, Free),
        (Releasing, On::Done, Free),
        (Lost, On::Acknowledge, Free),
        (Lost, On::Fence, Bound),
        (Lost, On::Abandon, Free),
    ]
};

/// The state of a buffer at the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SinkState {
    /// It is unused.
    Free,
    /// The source has a credit for it.
    Granted,
    /// A block is being read into it.
    Arriving,
    /// It holds a block that waits for earlier ones.
    Arrived,
    /// The caller uses its block.
    Draining,
}

/// An event of a buffer at the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SinkEvent {
    /// The sink grants it to the source.
    Grant,
    /// The header of its block has arrived.
    Begin,
    /// The whole block has arrived.
    Finish,
    /// The block did not arrive completely, because its channel is lost.
    ChannelLost,
    /// The source reports that it has written a block into it.
    Notice,
    /// The caller gets its block.
    Deliver,
    /// The caller has processed its block.
    Release,
    /// The session is over, and nothing can be written into it any more.
    Reclaim,
}

/// Every transition of a buffer at the sink.
pub(super) const SINK: &[(SinkState, SinkEvent, SinkState)] = {
    use SinkEvent as On;
    use SinkState::{Arrived, Arriving, Draining, Free, Granted};
    &[
        (Free, On::Grant, Granted),
        (Granted, On::Begin, Arriving),
        (Granted, On::Notice, Arrived),
        (Granted, On::Reclaim, Free),
        (Arriving, On::Finish, Arrived),
        (Arriving, On::ChannelLost, Granted),
        (Arrived, On::Deliver, Draining),
        (Arrived, On::Reclaim, Free),
        (Draining, On::Release, Free),
    ]
};

impl SourceState {
    /// Returns the state after an event; `None` if the event is not allowed in this state.
    #[must_use]
    pub fn after(self, event: SourceEvent) -> Option<Self> {
        SOURCE.iter().find(|(from, on, _)| (*from, *on) == (self, event)).map(|(.., to)| *to)
    }
}

impl SinkState {
    /// Returns the state after an event; `None` if the event is not allowed in this state.
    #[must_use]
    pub fn after(self, event: SinkEvent) -> Option<Self> {
        SINK.iter().find(|(from, on, _)| (*from, *on) == (self, event)).map(|(.., to)| *to)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::fmt::Write as _;

    use super::{SINK, SOURCE};

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/transfer-protocol.md");

    /// Returns the table as a Mermaid diagram.
    fn diagram<S: Debug, E: Debug>(table: &[(S, E, S)]) -> String {
        let mut text = String::from("```mermaid\nstateDiagram-v2\n    [*] --> Free\n");
        for (from, event, to) in table {
            writeln!(text, "    {from:?} --> {to:?}: {event:?}").unwrap();
        }
        text + "```\n"
    }

    /// Returns the text of the document between the marks of a name.
    fn in_document(document: &str, name: &str) -> String {
        let (from, until) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let start = document.find(&from).map(|at| at + from.len());
        let start = start.unwrap_or_else(|| panic!("no {from}"));
        let len = document[start..].find(&until).unwrap_or_else(|| panic!("no {until}"));
        document[start..start + len].to_owned()
    }

    /// The document contains the generated diagrams. A failure prints them.
    #[test]
    fn the_document_has_the_generated_diagrams() {
        let document = std::fs::read_to_string(DOCUMENT).unwrap();
        let diagrams =
            [("states of the source", diagram(SOURCE)), ("states of the sink", diagram(SINK))];
        for (name, diagram) in diagrams {
            assert_eq!(in_document(&document, name), diagram, "{name} should be:\n{diagram}");
        }
    }

    fn is_a_function<S: Debug + PartialEq, E: Debug + PartialEq>(table: &[(S, E, S)]) {
        for (index, (from, event, to)) in table.iter().enumerate() {
            let others = &table[index + 1..];
            assert!(!others.iter().any(|other| (&other.0, &other.1) == (from, event)), "{from:?}");
            // Each state can be left, and each leads back to the first one.
            assert!(table.iter().any(|(next, ..)| next == to), "{to:?} is never left");
        }
    }

    #[test]
    fn each_state_and_event_have_one_result() {
        is_a_function(SOURCE);
        is_a_function(SINK);
    }

    /// Returns the results of all pairs of state and event, without those that are not allowed.
    fn matrix<S: Debug + Copy + PartialEq, E: Debug + Copy + PartialEq>(
        table: &[(S, E, S)],
        after: impl Fn(S, E) -> Option<S>,
    ) -> String {
        let (mut states, mut events): (Vec<S>, Vec<E>) = (Vec::new(), Vec::new());
        for &(from, event, _) in table {
            if !states.contains(&from) {
                states.push(from);
            }
            if !events.contains(&event) {
                events.push(event);
            }
        }
        let mut text = String::new();
        for &state in &states {
            let mut line = format!("{:10}", format!("{state:?}"));
            for &event in &events {
                if let Some(to) = after(state, event) {
                    write!(line, " {event:?}>{to:?}").unwrap();
                }
            }
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        text
    }

    /// The transitions are part of the protocol, so a change of the tables must be repeated here.
    #[test]
    fn the_transitions_are_those_of_the_protocol() {
        let source = "\
Free       Submit>Loaded
Loaded     Write>Writing Abandon>Free
Bound      Write>Writing Abandon>Free
Writing    Abandon>Releasing NotSent>Bound Sent>Written Placed>Free Failed>Lost \
Acknowledge>Releasing
Written    Abandon>Free Acknowledge>Free ChannelLost>Lost
Releasing  Done>Free
Lost       Abandon>Free Acknowledge>Free Fence>Bound
";
        let sink = "\
Free       Grant>Granted
Granted    Begin>Arriving Notice>Arrived Reclaim>Free
Arriving   Finish>Arrived ChannelLost>Granted
Arrived    Reclaim>Free Deliver>Draining
Draining   Release>Free
";
        assert_eq!(matrix(SOURCE, super::SourceState::after), source);
        assert_eq!(matrix(SINK, super::SinkState::after), sink);
    }
}
