//! A snapshot of this host's TCP connections that may share memory, and their rates between two
//! snapshots.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use weft_stream::Reason;
use weft_stream::datagram::DatagramTotals;

/// TCP carries the connection because the server has not answered the offer, and may never.
const UNANSWERED: &str = "unanswered";
/// TCP carries the connection until the next bytes: both ends have agreed.
const BEGINS: &str = "begins";

/// Returns every reason why TCP carries a connection, with its meaning: one line for each.
pub(crate) fn reasons() -> String {
    let yet = [
        (UNANSWERED, "the server has not answered the offer to share memory, and may never"),
        (BEGINS, "both ends have agreed; the next bytes leave TCP"),
    ];
    let for_good = Reason::ALL.into_iter().map(|why| (why.name(), why.text()));
    yet.into_iter().chain(for_good).map(|(word, text)| format!("  {word:<11} {text}\n")).collect()
}

/// All connections of this user at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) taken: Instant,
    pub(crate) connections: Vec<Connection>,
    pub(crate) totals: Totals,
}

#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) id: Id,
    pub(crate) state: State,
    /// The transport of its bytes once they have left TCP.
    pub(crate) via: &'static str,
    /// Its flow control.
    pub(crate) flow: &'static str,
    pub(crate) client: SampleEnd,
    pub(crate) server: SampleEnd,
    pub(crate) to_server: Direction,
    pub(crate) to_client: Direction,
}

/// Identifies a connection, also among later ones with the same slot of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) registry: u64,
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

/// A connection's state between TCP and shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The client has offered to share memory; the server has not answered, and may never.
    Offered,
    /// The server has agreed; the next bytes move to shared memory.
    Joined,
    /// Shared memory or verbs carry the bytes.
    Shared,
    /// The connection has fallen back to TCP for good.
    FellBack(Reason),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampleEnd {
    /// 0 while no process has come to this end.
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) address: SocketAddr,
}

/// Counters of one direction since the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Direction {
    /// Bytes through shared memory.
    pub(crate) bytes: u64,
    pub(crate) tcp_bytes: u64,
    /// Calls that have written to shared memory.
    pub(crate) messages: u64,
    /// Those of `bytes` that were copied only once.
    pub(crate) zero_copy_bytes: u64,
    /// How often the sender has found no room.
    pub(crate) stalls: u64,
    /// Sums over these stalls: unread bytes, and bytes of available memory.
    pub(crate) stalled_used: u64,
    pub(crate) stalled_allotted: u64,
    /// How often the sender has woken the receiver through the kernel.
    pub(crate) wakeups: u64,
}

/// Counters of all connections so far, including closed ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) offered: u64,
    pub(crate) joined: u64,
    /// Bytes through shared memory; the next two likewise.
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) zero_copy_bytes: u64,
    /// How many connections have fallen back to TCP, or never left it, by reason.
    pub(crate) fallbacks: BTreeMap<&'static str, u64>,
    pub(crate) datagrams: DatagramTotals,
}

/// What one direction does in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) bytes: f64,
    pub(crate) messages: f64,
    pub(crate) stalls: f64,
    pub(crate) wakeups: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    pub(crate) to_server: Rate,
    pub(crate) to_client: Rate,
}

impl Sample {
    /// Returns the rates of each connection since `earlier`. A new connection counts from zero.
    pub(crate) fn rates(&self, earlier: &Self) -> HashMap<Id, Rates> {
        let seconds = self.taken.saturating_duration_since(earlier.taken).as_secs_f64();
        if seconds == 0.0 {
            return HashMap::new();
        }
        let before: HashMap<Id, &Connection> =
            earlier.connections.iter().map(|connection| (connection.id, connection)).collect();
        let rates = self.connections.iter().map(|connection| {
            let before = before.get(&connection.id);
            let since = |direction: fn(&Connection) -> Direction| {
                let before = before.map(|before| direction(before)).unwrap_or_default();
                Rate::between(before, direction(connection), seconds)
            };
            let rates =
                Rates { to_server: since(|c| c.to_server), to_client: since(|c| c.to_client) };
            (connection.id, rates)
        });
        rates.collect()
    }

    pub(crate) fn to_json(&self, rates: Option<&HashMap<Id, Rates>>) -> Value {
        let connections = self.connections.iter().map(|connection| {
            let mut value = connection.to_json();
            if let Some(rates) = rates.and_then(|rates| rates.get(&connection.id)) {
                value["rates"] = rates.to_json();
            }
            value
        });
        json!({ "connections": connections.collect::<Vec<_>>(), "totals": self.totals.to_json() })
    }
}

impl Connection {
    /// Returns what carries the bytes now.
    pub(crate) fn transport(&self) -> &'static str {
        match self.state {
            State::Shared => self.via,
            State::Offered | State::Joined | State::FellBack(_) => "tcp",
        }
    }

    fn to_json(&self) -> Value {
        let both = |count: fn(&Direction) -> u64| {
            let (to_server, to_client) = (count(&self.to_server), count(&self.to_client));
            json!({ "to_server": to_server, "to_client": to_client })
        };
        json!({
            "transport": self.transport(),
            "state": self.state.name(),
            "why": self.state.why(),
            "flow": self.flow,
            "client": self.client.to_json(),
            "server": self.server.to_json(),
            "bytes": both(|direction| direction.bytes),
            "tcp_bytes": both(|direction| direction.tcp_bytes),
            "messages": both(|direction| direction.messages),
            "zero_copy_bytes": both(|direction| direction.zero_copy_bytes),
            "stalls": both(|direction| direction.stalls),
            "stalled_used": both(|direction| direction.stalled_used),
            "stalled_allotted": both(|direction| direction.stalled_allotted),
            "wakeups": both(|direction| direction.wakeups),
        })
    }
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Joined => "joined",
            Self::Shared => "shared",
            Self::FellBack(_) => "fell-back",
        }
    }

    /// Returns why TCP carries the bytes now, if it does.
    pub(crate) fn why(self) -> Option<&'static str> {
        match self {
            Self::Offered => Some(UNANSWERED),
            Self::Joined => Some(BEGINS),
            Self::Shared => None,
            Self::FellBack(why) => Some(why.name()),
        }
    }
}

impl SampleEnd {
    fn to_json(&self) -> Value {
        json!({ "pid": self.pid, "program": self.program, "address": self.address.to_string() })
    }
}

impl Direction {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.tcp_bytes += other.tcp_bytes;
        self.messages += other.messages;
        self.zero_copy_bytes += other.zero_copy_bytes;
        self.stalls += other.stalls;
        self.stalled_used += other.stalled_used;
        self.stalled_allotted += other.stalled_allotted;
        self.wakeups += other.wakeups;
    }
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.joined += other.joined;
        self.bytes += other.bytes;
        self.messages += other.messages;
        self.zero_copy_bytes += other.zero_copy_bytes;
        for (&reason, count) in &other.fallbacks {
            *self.fallbacks.entry(reason).or_default() += count;
        }
        self.datagrams.add(other.datagrams);
    }

    fn to_json(&self) -> Value {
        json!({
            "offered": self.offered,
            "joined": self.joined,
            "bytes": self.bytes,
            "messages": self.messages,
            "zero_copy_bytes": self.zero_copy_bytes,
            "fallbacks": self.fallbacks,
            "datagrams": {
                "datagrams": self.datagrams.datagrams,
                "bytes": self.datagrams.bytes,
                "dropped": self.datagrams.dropped,
                "by_kernel": self.datagrams.by_kernel,
            },
        })
    }
}

impl Rate {
    fn between(before: Direction, now: Direction, seconds: f64) -> Self {
        // Counters grow while they are read, but must never appear to shrink.
        let since = |count: fn(&Direction) -> u64| count(&now).saturating_sub(count(&before));
        let per_second = |count| since(count) as f64 / seconds;
        Self {
            bytes: per_second(|direction| direction.bytes),
            messages: per_second(|direction| direction.messages),
            stalls: per_second(|direction| direction.stalls),
            wakeups: per_second(|direction| direction.wakeups),
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.messages += other.messages;
        self.stalls += other.stalls;
        self.wakeups += other.wakeups;
    }
}

impl Rates {
    fn to_json(self) -> Value {
        let both = |rate: fn(&Rate) -> f64| {
            let (to_server, to_client) = (rate(&self.to_server), rate(&self.to_client));
            json!({ "to_server": to_server, "to_client": to_client })
        };
        json!({
            "bytes": both(|rate| rate.bytes),
            "messages": both(|rate| rate.messages),
            "stalls": both(|rate| rate.stalls),
            "wakeups": both(|rate| rate.wakeups),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a connection of `redis-cli` to `redis-server` in slot `slot`, with `bytes` in each
    /// direction in messages of 100.
    pub(crate) fn connection(slot: usize, bytes: u64) -> Connection {
        let end = |pid, program: &str, port| SampleEnd {
            pid,
            program: program.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        };
        let direction = Direction { bytes, messages: bytes / 100, ..Direction::default() };
        Connection {
            id: Id { registry: 0, slot, generation: 1 },
            state: State::Shared,
            via: "shm",
            flow: "packed",
            client: end(100 + slot as u32, "redis-cli", 40_000 + slot as u16),
            server: end(10, "redis-server", 6379),
            to_server: direction,
            to_client: direction,
        }
    }

    pub(crate) fn sample(taken: Instant, connections: Vec<Connection>) -> Sample {
        let fallbacks = [("peer", 2)].into();
        let totals = Totals { offered: 7, joined: 5, bytes: 9, fallbacks, ..Totals::default() };
        Sample { taken, connections, totals }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let start = Instant::now();
        let before = sample(start, vec![connection(1, 1000)]);
        let mut again = connection(2, 800);
        again.id.generation = 2;
        let after = sample(
            start + Duration::from_secs(2),
            vec![connection(1, 5000), connection(2, 600), again.clone(), connection(3, 0)],
        );
        let rates = after.rates(&before);
        assert_eq!(rates[&connection(1, 0).id].to_server.bytes, 2000.0);
        assert_eq!(rates[&connection(1, 0).id].to_client.messages, 20.0);
        assert_eq!(
            rates[&connection(2, 0).id].to_server.bytes,
            300.0,
            "a new connection counts from zero"
        );
        assert_eq!(rates[&again.id].to_server.bytes, 400.0, "a later connection in the same slot");
        assert_eq!(rates[&connection(3, 0).id].to_server, Rate::default());
        assert!(before.rates(&before).is_empty(), "no time, no rate");
        let backwards = sample(start + Duration::from_secs(3), vec![connection(1, 10)]);
        assert_eq!(backwards.rates(&after)[&connection(1, 0).id].to_server.bytes, 0.0);
    }

    #[test]
    fn json_has_the_documented_fields() {
        let start = Instant::now();
        let mut back = connection(2, 200);
        back.state = State::FellBack(Reason::Urgent);
        let before = sample(start, vec![connection(1, 0)]);
        let after = sample(start + Duration::from_secs(1), vec![connection(1, 300), back]);
        let value = after.to_json(Some(&after.rates(&before)));
        let first = &value["connections"][0];
        assert_eq!((&first["transport"], &first["flow"]), (&json!("shm"), &json!("packed")));
        assert_eq!(first["client"]["program"], "redis-cli");
        assert_eq!(first["server"]["address"], "127.0.0.1:6379");
        assert_eq!(first["bytes"], json!({ "to_server": 300, "to_client": 300 }));
        assert_eq!(first["rates"]["bytes"]["to_client"], 300.0);
        assert_eq!(value["connections"][1]["transport"], "tcp");
        assert_eq!(value["connections"][1]["state"], "fell-back");
        assert_eq!(
            (&first["why"], &value["connections"][1]["why"]),
            (&json!(null), &json!("urgent"))
        );
        let totals = &value["totals"];
        assert_eq!((&totals["offered"], &totals["joined"]), (&json!(7), &json!(5)));
        assert_eq!((&totals["bytes"], &totals["fallbacks"]), (&json!(9), &json!({ "peer": 2 })));
        assert!(after.to_json(None)["connections"][0].get("rates").is_none());
    }

    #[test]
    fn totals_of_several_registries_add_up() {
        let mut totals = sample(Instant::now(), Vec::new()).totals;
        totals.add(&Totals { fallbacks: [("peer", 1), ("room", 4)].into(), ..totals.clone() });
        assert_eq!((totals.offered, totals.joined, totals.bytes), (14, 10, 18));
        assert_eq!(totals.fallbacks, [("peer", 3), ("room", 4)].into());
    }
}
