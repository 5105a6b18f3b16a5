//! memcached, whose threads serve connections with epoll, and the clients of libmemcached.

use std::time::Duration;

use anyhow::Result;
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, Running, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

fn server(sockets: &Sockets, port: u16) -> Result<Running> {
    let server = sockets.server("memcached").line("-u root -l 127.0.0.1 -U 0 -t 2 -m 64 -p");
    server.arg(port.to_string()).start()?.listening(Port::Tcp(port))
}

fn client(sockets: &Sockets, name: &str, port: u16) -> Program {
    sockets.client(name).arg(format!("--servers=127.0.0.1:{port}"))
}

#[test]
fn values_arrive() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = server(&sockets, port)?;
        // Up to the server's maximum, less the key.
        let lengths = [1, 100, 4_096, 16_384, 70_000, 300_000, 1_000_000];
        for mode in ["", "--binary", "--non-blocking", "--buffer"] {
            for length in lengths {
                let name = format!("value-{length}");
                let value = sockets.make_file(&name, length)?;
                let copy = client(&sockets, "memccp", port).line(mode).args(["--set", &name]);
                copy.run(TIMEOUT)?.success()?;
                let fetch = client(&sockets, "memccat", port);
                fetch.line("--file=copy").arg(&name).run(TIMEOUT)?.success()?;
                sockets.expect_file("copy", &value)?;
            }
        }
        // Each value has its own connection. How much of it is sent over TCP before both ends have
        // agreed on shared memory depends on the machine.
        sockets.check(1)?;
    }
    Ok(())
}

#[test]
fn many_threads() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let _server = server(&sockets, port)?;
        for mode in ["--test=get", "--test=set", "--test=mget", "--test=get --binary"] {
            let slap = client(&sockets, "memcslap", port).line("--concurrency=16");
            let slap = slap.line("--initial-load=500 --execute-number=300").line(mode);
            slap.run(TIMEOUT)?.success()?.expect_output("Time total")?;
        }
        // Values have 400 bytes, and a half goes each way.
        sockets.check(16 * 300 * 400)?;
    }
    Ok(())
}

/// memcached's protocol tests, which also send requests in the wrong place.
#[test]
fn conformance() -> Result<()> {
    // The tests pause for seconds for each placement of Weft.
    let (sockets, port) = (Sockets::new(Ends::Both)?, ports::next());
    let _server = server(&sockets, port)?;
    let test = sockets.client("memccapable").args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    test.run(TIMEOUT)?.success()?.expect_output("All tests passed")?;
    sockets.check(1)
}
