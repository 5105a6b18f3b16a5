//! What a block is at the source, what a buffer is at the sink, and how that changes.
//!
//! The tables are all there is: the machines change a state by [`SourceState::after`] and
//! [`SinkState::after`] only. The diagrams in `docs/transfer-protocol.md` are made of them.

/// What a block is at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceState {
    /// It is the caller's.
    Free,
    /// It is full, and waits for its turn and for a credit.
    Loaded,
    /// The same, with the credit of a write that came to nothing.
    Bound,
    /// The transport writes it.
    Writing,
    /// The transport has written it, and it is not acknowledged.
    Written,
    /// It is not needed any more, and the transport still reads it.
    Releasing,
    /// Its channel is lost, and the sink has not said yet whether it had arrived.
    Lost,
}

/// What happens to a block at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// The caller submits it.
    Submit,
    /// It is given to a channel.
    Write,
    /// The transport gives it back without having written it.
    NotSent,
    /// The transport has written it. The sink will acknowledge it.
    Sent,
    /// The transport has placed it in the sink's memory.
    Placed,
    /// The transport could not write it, and the channel is lost.
    Failed,
    /// The transport is done with a block that is not needed any more.
    Done,
    /// The sink says that it has arrived.
    Acknowledge,
    /// The channel that it was written on is lost.
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

/// What a buffer is at the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SinkState {
    /// Nobody uses it.
    Free,
    /// The source has a credit for it.
    Granted,
    /// A block is being read into it.
    Arriving,
    /// A block is in it that waits for its turn.
    Arrived,
    /// The caller has it.
    Draining,
}

/// What happens to a buffer at the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SinkEvent {
    /// A credit is given.
    Grant,
    /// The header of a block for it has come.
    Begin,
    /// The block is there.
    Finish,
    /// The block did not come wholly: its channel is lost.
    ChannelLost,
    /// The source says that a block has been written into it.
    Notice,
    /// The caller gets it.
    Deliver,
    /// The caller does not need it any more.
    Release,
    /// The session is over, and nothing writes into it any more.
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
    /// The state after an event; none if the event cannot happen in this state.
    #[must_use]
    pub fn after(self, event: SourceEvent) -> Option<Self> {
        SOURCE.iter().find(|(from, on, _)| (*from, *on) == (self, event)).map(|(.., to)| *to)
    }
}

impl SinkState {
    /// The state after an event; none if the event cannot happen in this state.
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

    /// The table as a diagram of Mermaid.
    fn diagram<S: Debug, E: Debug>(table: &[(S, E, S)]) -> String {
        let mut text = String::from("```mermaid\nstateDiagram-v2\n    [*] --> Free\n");
        for (from, event, to) in table {
            writeln!(text, "    {from:?} --> {to:?}: {event:?}").unwrap();
        }
        text + "```\n"
    }

    /// What stands in the document between the marks of a name.
    fn in_document(document: &str, name: &str) -> String {
        let (from, until) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let start = document.find(&from).map(|at| at + from.len());
        let start = start.unwrap_or_else(|| panic!("no {from}"));
        let len = document[start..].find(&until).unwrap_or_else(|| panic!("no {until}"));
        document[start..start + len].to_owned()
    }

    /// The document has the diagrams that the tables make. A failure prints the right ones.
    #[test]
    fn the_document_has_the_diagrams() {
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
            // From every state there is a way on, and back to the start.
            assert!(table.iter().any(|(next, ..)| next == to), "{to:?} is never left");
        }
    }

    #[test]
    fn a_state_and_an_event_have_one_result() {
        is_a_function(SOURCE);
        is_a_function(SINK);
    }

    /// All pairs of state and event, with `-` for those that cannot be.
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

    /// A change of the tables is a change of the protocol, and has to be made here, too.
    #[test]
    fn the_transitions_are_these() {
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
