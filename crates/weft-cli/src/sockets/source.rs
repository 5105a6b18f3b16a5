//! Takes samples from this user's registries in shared memory.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use weft_stream::datagram::{DatagramTotals, Datagrams};
use weft_stream::{ConnectionSnapshot, DirectionSnapshot, Reason, Registry, SideSnapshot};

use super::sample::{Connection, Direction, Id, Sample, SampleEnd, State, Totals};

/// Takes a sample of all connections. Without a registry there are none.
pub(crate) fn sample() -> Sample {
    let mut sample =
        Sample { taken: Instant::now(), connections: Vec::new(), totals: Totals::default() };
    for registry in Registry::existing(&weft_stream::directory()) {
        sample.totals.add(&totals(&registry));
        let mut hasher = DefaultHasher::new();
        registry.path().hash(&mut hasher);
        let name = hasher.finish();
        let connections = registry.connections().map(|seen| connection(name, seen));
        sample.connections.extend(connections);
    }
    for datagrams in Datagrams::existing(&weft_stream::directory()) {
        sample.totals.datagrams.add(datagrams.totals());
    }
    sample
}

fn totals(registry: &Registry) -> Totals {
    let totals = registry.totals();
    let fallbacks = Reason::ALL.iter().zip(totals.fallbacks).filter(|(_, count)| *count > 0);
    Totals {
        offered: totals.offered,
        joined: totals.joined,
        bytes: totals.bytes,
        messages: totals.messages,
        zero_copy_bytes: totals.pulled,
        fallbacks: fallbacks.map(|(why, count)| (why.name(), count)).collect(),
        datagrams: DatagramTotals::default(),
    }
}

fn connection(registry: u64, seen: ConnectionSnapshot) -> Connection {
    let ways = [&seen.to_server, &seen.to_client];
    let state = if let Some(why) = seen.fallback {
        State::FellBack(why)
    } else if !seen.joined {
        State::Offered
    } else if ways.iter().any(|way| way.in_memory) {
        State::Shared
    } else {
        State::Joined
    };
    Connection {
        id: Id { registry, slot: seen.slot, generation: seen.generation },
        state,
        via: seen.transport,
        flow: seen.flow.name(),
        client: end(seen.client),
        server: end(seen.server),
        to_server: direction(&seen.to_server),
        to_client: direction(&seen.to_client),
    }
}

fn end(seen: SideSnapshot) -> SampleEnd {
    SampleEnd { pid: seen.pid, program: seen.program, address: seen.address }
}

fn direction(seen: &DirectionSnapshot) -> Direction {
    Direction {
        bytes: seen.bytes,
        tcp_bytes: seen.tcp_bytes,
        messages: seen.messages,
        zero_copy_bytes: seen.pulled,
        stalls: seen.stalls,
        stalled_used: seen.stalled_used,
        stalled_allotted: seen.stalled_allotted,
        wakeups: seen.wakeups,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use weft_stream::Flow;

    use super::*;

    fn way(in_memory: bool, bytes: u64) -> DirectionSnapshot {
        DirectionSnapshot {
            in_memory,
            bytes,
            tcp_bytes: 3,
            messages: 2,
            stalls: 0,
            stalled_used: 0,
            stalled_allotted: 0,
            wakeups: 1,
            pulled: 0,
            unread: 0,
        }
    }

    fn snapshot(joined: bool, there: DirectionSnapshot) -> ConnectionSnapshot {
        let side = SideSnapshot {
            pid: 7,
            program: "nc".into(),
            address: SocketAddr::from(([127, 0, 0, 1], 80)),
            sleepers: 0,
        };
        ConnectionSnapshot {
            slot: 5,
            generation: 6,
            flow: Flow::Credit,
            transport: "verbs",
            joined,
            fallback: None,
            client: side.clone(),
            server: side,
            to_server: there,
            to_client: way(false, 0),
        }
    }

    #[test]
    fn state_follows_from_the_directions() {
        for (joined, there, state) in [
            (false, way(false, 0), State::Offered),
            (true, way(false, 0), State::Joined),
            (true, way(true, 0), State::Shared),
            (true, way(true, 9), State::Shared),
        ] {
            let seen = connection(1, snapshot(joined, there));
            assert_eq!((seen.state, seen.flow), (state, "credit"));
            let via = if state == State::Shared { "verbs" } else { "tcp" };
            assert_eq!(seen.transport(), via);
            assert_eq!(seen.id, Id { registry: 1, slot: 5, generation: 6 });
            assert_eq!((seen.to_server.tcp_bytes, seen.to_client.wakeups), (3, 1));
        }
        let left =
            ConnectionSnapshot { fallback: Some(Reason::Urgent), ..snapshot(true, way(true, 9)) };
        assert_eq!(connection(1, left).state, State::FellBack(Reason::Urgent));
    }
}
