//! The benchmarks: each is a pattern with a sweep, which makes a list of plans, and a function that
//! reads a plan's results.

mod definitions;
mod reading;
mod sweep;

pub(crate) use definitions::benchmarks;
use sweep::{Axis, Defaults, Point, either, exchange, flow, job, plan, slots};
pub(crate) use sweep::{Benchmark, Case, Request, Value};

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::args::BenchArgs;
    use crate::plan::{Operation, Over};
    use crate::session::{Outcome, Plan};

    fn benchmarks_of(line: &[&str]) -> Vec<Benchmark> {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let matches = command.try_get_matches_from([&["bench"], line].concat()).expect("sound");
        let args = BenchArgs::from_arg_matches(&matches).expect("sound");
        benchmarks(&args.bench, &Request::of(&args.bench).expect("a benchmark"))
    }

    #[test]
    fn every_benchmark_is_valid_by_default() {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let names = command.get_subcommands().map(|command| command.get_name().to_owned());
        for name in names.filter(|name| !["serve", "peer"].contains(&name.as_str())) {
            for benchmark in benchmarks_of(&[&name]) {
                assert!(!benchmark.cases.is_empty(), "{name}");
                for case in &benchmark.cases {
                    let Plan { server, clients, beside, .. } = &case.plan;
                    for job in server.iter().chain(clients).chain(beside) {
                        job.check().expect("within bounds");
                    }
                    let nothing = Outcome { server: None, clients: Vec::new() };
                    let values = (benchmark.read)(case, &nothing);
                    assert!(values.iter().any(|value| value.name == benchmark.primary), "{name}");
                }
            }
        }
    }

    #[test]
    fn transport_gets_only_operations_and_sizes_that_it_supports() {
        let over = "rc,ud,rd,tcp-sockets,udp-sockets";
        let line = ["latency", "--over", over, "--sizes", "8,64k", "--wait", "cpu,latency"];
        let benchmark = benchmarks_of(&line).remove(0);
        let has = |over, operation, x| {
            let like = |case: &&Case| (case.over, case.operation, case.x) == (over, operation, x);
            benchmark.cases.iter().filter(like).count()
        };
        assert_eq!(has(Over::Rc, Operation::Read, 65_536), 2, "one for each policy");
        assert_eq!(has(Over::Rc, Operation::Atomic, 65_536), 0, "an atomic has a fixed size");
        assert_eq!(has(Over::Rd, Operation::Atomic, 8), 0);
        assert_eq!(has(Over::Ud, Operation::Write, 8), 0);
        assert_eq!(has(Over::TcpSockets, Operation::Send, 8), 1, "sockets have no wait policy");
        assert_eq!(has(Over::UdpSockets, Operation::Send, 65_536), 0, "no datagram is that long");
    }

    #[test]
    fn local_transports_are_left_out_between_hosts() {
        let there = ["latency", "--connect", "127.0.0.1:9", "--sizes", "8"];
        let over = |case: &Case| case.over;
        let found: Vec<_> = benchmarks_of(&there)[0].cases.iter().map(over).collect();
        assert!(!found.contains(&Over::UnixSockets) && !found.contains(&Over::RcTcp));
        assert!(found.contains(&Over::Rc) && found.contains(&Over::TcpSockets));
    }

    #[test]
    fn policies_and_transports_reach_the_workers() {
        let line = ["latency", "--over", "rc-shm", "--wait", "cpu", "--congestion", "reno"];
        let plan = &benchmarks_of(&line)[0].cases[0].plan;
        let expected =
            [("WEFT_TRANSPORT", "shm"), ("WEFT_WAIT", "cpu"), ("WEFT_CONGESTION", "reno")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(plan.environment, expected);
    }
}
