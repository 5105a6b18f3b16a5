//! Language runtimes that use sockets in ways of their own: Go makes its system calls itself and
//! stays on TCP; Node waits in epoll. Each talks to each, and to Python.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, compile_go, locate, ports, source};

const TIMEOUT: Duration = Duration::from_secs(30);
const BYTES: u64 = 3_000_000;
const CLIENTS: u64 = 2;

/// What has the roles `serve` and `connect` of an echo, in each language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Go,
    Node,
    Python,
}

impl Runtime {
    /// The command line's beginning.
    fn words(self) -> Result<Vec<PathBuf>> {
        Ok(match self {
            Self::Go => vec![compile_go("echo")?],
            Self::Node => vec![locate("node")?, source("programs/echo.js")],
            Self::Python => vec![locate("python3")?, source("programs/echo.py")],
        })
    }
}

/// Has clients get all that they send back from a server; both run under `weft run`.
fn echo(server: Runtime, client: Runtime) -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let port = ports::next().to_string();
    let [serve, connect] = [server, client].map(Runtime::words);
    let (serve, connect) = (serve?, connect?);
    let serve = sockets.server(&serve[0]).args(&serve[1..]).args(["serve", &port]);
    let serve = serve.arg(CLIENTS.to_string()).start()?.listening(Port::Tcp(port.parse()?))?;
    let connect = sockets.client(&connect[0]).args(&connect[1..]).args(["connect", &port]);
    let connect = connect.arg(BYTES.to_string());
    let clients: Vec<_> = (0..CLIENTS).map(|_| connect.start()).collect::<Result<_>>()?;
    for client in clients {
        client.wait(TIMEOUT).and_then(Finished::success)?.said(&format!("echoed {BYTES}"))?;
    }
    serve.wait(TIMEOUT)?.success()?;
    if [server, client].contains(&Runtime::Go) {
        sockets.check_none()
    } else {
        // Both ways, but for what went over TCP before both ends had agreed.
        sockets.check(CLIENTS * BYTES / 2)
    }
}

#[test]
fn each_talks_to_each() -> Result<()> {
    const ALL: [Runtime; 3] = [Runtime::Go, Runtime::Node, Runtime::Python];
    for server in ALL {
        for client in ALL {
            echo(server, client)
                .with_context(|| format!("{server:?} serves, {client:?} connects"))?;
        }
    }
    Ok(())
}
