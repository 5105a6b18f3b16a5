//! Debian's perftest: every operation, connected by the program itself and by `rdma_cm` (`-R`).

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::parse::perftest::{bandwidth, latency};
use weft_lab::{Finished, Program, Stage, compile_library, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The sizes of `-a`: 2 bytes to 8 MiB, in powers of two.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

/// Returns the library with a clock by which perftest measures the processor's in no time. Most of
/// the tests' time would go into that otherwise.
fn quick_clock() -> Result<&'static PathBuf> {
    static CLOCK: OnceLock<PathBuf> = OnceLock::new();
    if CLOCK.get().is_none() {
        let _ = CLOCK.set(compile_library("quick_clock")?); // Another test may have been first.
    }
    CLOCK.get().context("no clock")
}

/// Runs a test on both sides and returns the client's result.
fn run(stage: &Stage, program: &str, options: &str) -> Result<Finished> {
    let port = ports::next();
    let server = Program::weft(program).env("LD_PRELOAD", quick_clock()?);
    let server = server.line("-F -p").arg(port.to_string()).line(options);
    let client = server.clone().arg(stage.server_address().to_string());
    let ends = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT);
    // perftest leaves the files behind. A process that has them open does not need their names.
    for end in ["server", "client"] {
        let _ = fs::remove_file(format!("/tmp/xrc_domain_{end}"));
    }
    Ok(ends.with_context(|| format!("{program} {options}"))?.1)
}

/// Returns the size and the iterations of each row of the result.
fn rows(program: &str, end: &Finished) -> Result<Vec<(u64, u64)>> {
    let rows = if program.ends_with("_bw") {
        bandwidth(&end.stdout).map(|rows| rows.iter().map(|r| (r.bytes, r.iterations)).collect())
    } else {
        latency(&end.stdout).map(|rows| rows.iter().map(|r| (r.bytes, r.iterations)).collect())
    };
    rows.with_context(|| end.error("no result"))
}

/// Runs a test of one size and checks the row of its result.
fn one_size(stage: &Stage, program: &str, size: u64, iterations: u64, options: &str) -> Result<()> {
    // The atomic tests have a fixed size of 8 and no option for it.
    let size_option = if program.contains("atomic") { String::new() } else { format!("-s {size}") };
    let end = run(stage, program, &format!("{size_option} -n {iterations} {options}"))?;
    let rows = rows(program, &end)?;
    // The row counts the iterations of all queue pairs.
    let iterations = iterations * queue_pairs(options);
    let as_asked = rows == [(size, iterations)];
    ensure!(as_asked, end.error(format!("rows {rows:?}, not {size} bytes {iterations} times")));
    Ok(())
}

fn queue_pairs(options: &str) -> u64 {
    let mut words = options.split_whitespace().skip_while(|&word| word != "-q").skip(1);
    words.next().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// Runs a test of every size and checks that each has its row.
fn all_sizes(stage: &Stage, program: &str, iterations: u64, options: &str) -> Result<()> {
    let end = run(stage, program, &format!("-a -n {iterations} {options}"))?;
    let rows = rows(program, &end)?;
    let expected: Vec<_> = ALL_SIZES.map(|power| (1 << power, iterations)).collect();
    ensure!(rows == expected, end.error(format!("rows {rows:?}")));
    Ok(())
}

/// Runs a test of a few sizes up to the largest.
fn some_sizes(stage: &Stage, program: &str, options: &str) -> Result<()> {
    [4096, 1 << 20, 8 << 20]
        .iter()
        .try_for_each(|&size| one_size(stage, program, size, 20, options))
}

/// Each operation once with each kind of option: connected by the program itself and by `rdma_cm`,
/// inline, with several queue pairs, both ways, with events. The tests below have all of them.
mod main_path {
    use super::*;

    fn every(program: &str, size: u64, all: &[&str]) -> Result<()> {
        all.iter().try_for_each(|options| one_size(&Stage::loopback(), program, size, 400, options))
    }

    /// All sizes, and the options with one of them.
    fn bandwidth(program: &str, all: &[&str]) -> Result<()> {
        all_sizes(&Stage::loopback(), program, 5, "")?;
        one_size(&Stage::loopback(), program, 1, 400, "-R")?;
        every(program, 64, all)
    }

    #[test]
    fn send() -> Result<()> {
        bandwidth("ib_send_bw", &["-R -I 64", "-R -q 4", "-b", "-e", "--use-srq -q 4"])?;
        every("ib_send_lat", 64, &["", "-R", "-e"])
    }

    #[test]
    fn write() -> Result<()> {
        bandwidth("ib_write_bw", &["-R -I 64", "-R -q 4", "-b", "-l 8"])?;
        every("ib_write_lat", 64, &["", "-R"])
    }

    #[test]
    fn read() -> Result<()> {
        bandwidth("ib_read_bw", &["-R -q 4", "-b", "-e"])?;
        every("ib_read_lat", 64, &["", "-R"])
    }

    #[test]
    fn atomics() -> Result<()> {
        every("ib_atomic_bw", 8, &["-A CMP_AND_SWAP", "-R -A FETCH_AND_ADD", "-q 4", "-b"])?;
        every("ib_atomic_lat", 8, &["-A CMP_AND_SWAP", "-R -A FETCH_AND_ADD"])
    }

    #[test]
    fn unreliable_connections() -> Result<()> {
        let sends = format!("-c UC {NO_LOSS}");
        every("ib_send_bw", 64, &[&sends])?;
        every("ib_send_lat", 64, &[&sends])?;
        every("ib_write_bw", 64, &["-c UC"])?;
        every("ib_write_lat", 64, &["-c UC"])
    }

    #[test]
    fn extended_connections() -> Result<()> {
        for (program, size) in [
            ("ib_send_bw", 64),
            ("ib_send_lat", 64),
            ("ib_write_bw", 64),
            ("ib_write_lat", 64),
            ("ib_read_bw", 64),
            ("ib_read_lat", 64),
            ("ib_atomic_bw", 8),
            ("ib_atomic_lat", 8),
        ] {
            every(program, size, &["-c XRC"])?;
        }
        Ok(())
    }

    #[test]
    fn datagrams() -> Result<()> {
        for program in ["ib_send_bw", "ib_send_lat"] {
            let plain = format!("-c UD {NO_LOSS}");
            every(program, 64, &[&plain, &format!("{plain} -R")])?;
            every(program, 4096, &[&plain])?;
        }
        Ok(())
    }
}

/// perftest waits for each message, also for those that may be lost: datagrams, and Sends of
/// unreliable connections. On one host they are lost only without a receive. With this option a
/// test of up to 400 messages posts all receives before the first message is sent.
const NO_LOSS: &str = "-r 400";

/// The tests of one program: what it has in common with its family, and its own options.
macro_rules! family {
    ($program:ident, $sizes:ident, $($name:ident: $options:literal,)*) => {
        mod $program {
            use super::*;

            const PROGRAM: &str = stringify!($program);

            $sizes!();

            $(
                #[test]
                #[ignore = "soak: every option of every program"]
                fn $name() -> Result<()> {
                    one_size(&Stage::loopback(), PROGRAM, SIZE, 1000, $options)?;
                    one_size(&Stage::loopback(), PROGRAM, SIZE, 1000, concat!("-R ", $options))
                }
            )*
        }
    };
}

macro_rules! any_size {
    () => {
        const SIZE: u64 = 64;

        #[test]
        #[ignore = "soak: every option of every program"]
        fn sizes() -> Result<()> {
            // The same operations carry every size in the tests of bandwidth.
            match PROGRAM.ends_with("_lat") {
                true => some_sizes(&Stage::loopback(), PROGRAM, ""),
                false => all_sizes(&Stage::loopback(), PROGRAM, 20, ""),
            }
        }

        #[test]
        #[ignore = "soak: every option of every program"]
        fn sizes_with_rdma_cm() -> Result<()> {
            some_sizes(&Stage::loopback(), PROGRAM, "-R")
        }

        #[test]
        #[ignore = "soak: every option of every program"]
        fn one_byte() -> Result<()> {
            one_size(&Stage::loopback(), PROGRAM, 1, 1000, "")?;
            one_size(&Stage::loopback(), PROGRAM, 1, 1000, "-R")
        }
    };
}

macro_rules! eight_bytes {
    () => {
        const SIZE: u64 = 8;

        #[test]
        #[ignore = "soak: every option of every program"]
        fn plain() -> Result<()> {
            one_size(&Stage::loopback(), PROGRAM, SIZE, 1000, "")?;
            one_size(&Stage::loopback(), PROGRAM, SIZE, 1000, "-R")
        }
    };
}

family!(ib_send_bw, any_size,
    inline: "-I 64",
    many_queue_pairs: "-q 4",
    bidirectional: "-b",
    events: "-e",
    every_completion: "-Q 1",
    lists_of_requests: "-l 8",
    shared_receive_queue: "--use-srq -q 4",
    old_post_send: "--use_old_post_send",
    shallow_queues: "-t 1 -r 2",
);

family!(ib_send_lat, any_size,
    inline: "-I 64",
    not_inline: "-I 0",
    events: "-e",
);

family!(ib_write_bw, any_size,
    inline: "-I 64",
    many_queue_pairs: "-q 4",
    bidirectional: "-b",
    lists_of_requests: "-l 8",
    region_per_queue_pair: "-q 4 --mr_per_qp",
);

family!(ib_write_lat, any_size,
    inline: "-I 64",
    not_inline: "-I 0",
);

family!(ib_read_bw, any_size,
    many_queue_pairs: "-q 4",
    bidirectional: "-b",
    events: "-e",
    one_outstanding: "-o 1",
);

family!(ib_read_lat, any_size,
    events: "-e",
);

family!(ib_atomic_bw, eight_bytes,
    compare_and_swap: "-A CMP_AND_SWAP",
    fetch_and_add: "-A FETCH_AND_ADD",
    many_queue_pairs: "-q 4",
    bidirectional: "-b",
    events: "-e",
);

family!(ib_atomic_lat, eight_bytes,
    compare_and_swap: "-A CMP_AND_SWAP",
    fetch_and_add: "-A FETCH_AND_ADD",
    events: "-e",
);

/// Connection types that perftest does not connect by `rdma_cm`.
macro_rules! tests_of_type {
    ($type:literal, $($program:ident: $($options:literal)*;)*) => { $(
        #[test]
        #[ignore = "soak: every option of every program"]
        fn $program() -> Result<()> {
            let (stage, program) = (Stage::loopback(), stringify!($program));
            let size = if program.contains("atomic") { 8 } else { 64 };
            let may_lose = $type == "UC" && program.contains("send");
            let no_loss = if may_lose { NO_LOSS } else { "" };
            $(
                let options = concat!("-c ", $type, " ", $options);
                one_size(&stage, program, size, 400, &format!("{options} {no_loss}"))?;
            )*
            if size == 8 {
                return Ok(());
            }
            for size in [4096, 1 << 20] {
                let options = concat!("-c ", $type);
                one_size(&stage, program, size, 50, &format!("{options} {no_loss}"))?;
            }
            Ok(())
        }
    )* };
}

mod unreliable_connection {
    use super::*;

    tests_of_type! { "UC",
        ib_send_bw: "" "-q 4" "-b" "-I 64" "-l 8" "-e";
        ib_send_lat: "" "-I 0";
        ib_write_bw: "" "-q 4" "-b" "-I 64" "-l 8";
        ib_write_lat: "" "-I 0";
    }
}

mod extended_reliable_connection {
    use super::*;

    // Not `ib_send_lat -e`: it polls for a send's completion once, and if there is none yet, as on
    // a busy machine, it reads an uninitialized work completion on its stack.
    tests_of_type! { "XRC",
        ib_send_bw: "" "--use-srq" "-q 4" "-b" "-l 8" "-e";
        ib_send_lat: "";
        ib_write_bw: "" "-q 4" "-b" "-l 8";
        ib_write_lat: "";
        ib_read_bw: "" "-q 4" "-b" "-e";
        ib_read_lat: "" "-e";
        ib_atomic_bw: "-A CMP_AND_SWAP" "-A FETCH_AND_ADD" "-q 4";
        ib_atomic_lat: "-A CMP_AND_SWAP" "-A FETCH_AND_ADD";
    }
}

/// Datagrams of at most the port's MTU.
mod datagrams {
    use super::*;

    macro_rules! tests {
        ($($program:ident: $($options:literal)*;)*) => { $(
            #[test]
            #[ignore = "soak: every option of every program"]
            fn $program() -> Result<()> {
                let (stage, program) = (Stage::loopback(), stringify!($program));
                let run = |size, options: &str| {
                    one_size(&stage, program, size, 400, &format!("-c UD {NO_LOSS} {options}"))
                };
                for size in [1, 64, 4096] {
                    run(size, "")?;
                }
                $( run(64, $options)?; )*
                Ok(())
            }
        )* };
    }

    tests! {
        ib_send_bw: "-q 4" "-b" "-I 64" "-l 8" "-e" "-x 0" "--use-srq" "-R";
        ib_send_lat: "-I 0" "-e" "-x 0" "-R";
    }
}

/// Sends to a multicast group of the link, which reaches the other host. perftest's own choice does
/// not leave the host, and it refuses to combine an IPv4 GID with its group (docs/limitations.md).
#[test]
fn multicast_across_namespaces() -> Result<()> {
    const GROUP: &str = "255:2:0:0:0:2:201:133:0:0:0:0:0:0:0:0";
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for program in ["ib_send_bw", "ib_send_lat"] {
        one_size(&stage, program, 64, 400, &format!("-c UD {NO_LOSS} -g -M {GROUP} -x 1"))?;
    }
    Ok(())
}

/// perftest ends with its own message, and does not wait.
#[test]
fn multicast_with_an_ipv4_gid_is_refused_by_perftest() -> Result<()> {
    let port = ports::next();
    let server = Program::weft("ib_send_bw").env("LD_PRELOAD", quick_clock()?);
    let server = server.line("-F -c UD -g -x 0 -n 100 -s 64 -p").arg(port.to_string());
    let client = server.clone().arg(Stage::loopback().server_address().to_string());
    let server = server.start()?.listening(Port::Tcp(port))?;
    for end in [client.run(TIMEOUT)?, server.wait(TIMEOUT)?] {
        ensure!(!end.status.success(), end.error("it has not refused"));
        end.expect_output("Incompatibility issue with GID types")?;
    }
    Ok(())
}

/// By the real clock, unlike the others.
#[test]
fn without_crc() -> Result<()> {
    let port = ports::next();
    let server = Program::weft("ib_send_bw").weft_option("--no-crc").args([
        "-F",
        "-n",
        "1000",
        "-p",
        &port.to_string(),
    ]);
    let client = server.clone().arg("127.0.0.1");
    Stage::loopback().converse(&server, Port::Tcp(port), &client, TIMEOUT)?;
    Ok(())
}

#[test]
fn each_operation_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for (program, options) in [
        ("ib_send_bw", "-R"),
        ("ib_write_bw", ""),
        ("ib_read_bw", "-R"),
        ("ib_send_lat", "-x 0 -c XRC"),
        ("ib_write_lat", "-x 0 -c UC"),
    ] {
        one_size(&stage, program, 65_536, 100, options)?;
    }
    one_size(&stage, "ib_atomic_bw", 8, 100, "-x 0 -R")?;
    // One datagram at a time, so that the kernel has room for it. The larger goes in IP fragments.
    for size in [1024, 4096] {
        one_size(&stage, "ib_send_lat", size, 100, "-x 0 -c UD")?;
    }
    all_sizes(&stage, "ib_send_bw", 5, "-b")
}

#[test]
#[ignore = "soak: every option of every program, and datagrams that the kernel may lose"]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_write_lat"] {
        for options in ["", "-R"] {
            one_size(&stage, program, 65_536, 1000, options)?;
        }
    }
    for options in ["-x 0", "-x 0 -R"] {
        one_size(&stage, "ib_atomic_bw", 8, 1000, options)?;
        one_size(&stage, "ib_read_lat", 8, 1000, options)?;
    }
    for program in ["ib_send_bw", "ib_write_bw", "ib_send_lat", "ib_write_lat"] {
        one_size(&stage, program, 65_536, 1000, "-x 0 -c UC")?;
        one_size(&stage, program, 65_536, 1000, "-x 0 -c XRC")?;
    }
    for program in ["ib_send_bw", "ib_send_lat"] {
        // The larger goes in IP fragments, and in no runs.
        for size in [1024, 4096] {
            one_size(&stage, program, size, 1000, "-x 0 -c UD")?;
        }
    }
    all_sizes(&stage, "ib_send_bw", 20, "-b")?;
    some_sizes(&stage, "ib_write_bw", "-R -b")
}
