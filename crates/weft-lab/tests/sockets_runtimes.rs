//! Language runtimes with special uses of sockets: Go makes its system calls itself and stays on
//! TCP; Node waits in epoll; tokio, Boost.Asio, gRPC and Erlang have several threads for one epoll
//! instance; uvloop changes its epoll instance through io_uring if that is allowed.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{
    Finished, Program, Venv, compile_cargo, compile_cpp, compile_erlang, compile_go, compile_java,
    locate, note_skip, ports, source,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const BYTES: u64 = 3_000_000;
const CLIENTS: u64 = 2;

/// A language runtime with an echo program, whose roles are `serve` and `connect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Go,
    Node,
    Python,
    Tokio,
    Asio,
    Java,
    Erlang,
    Uvloop,
    Grpc,
}

impl Runtime {
    /// Returns the beginning of the command line, or `None`, with a note, if what the program needs
    /// was not fetched.
    fn words(self) -> Result<Option<Vec<OsString>>> {
        let python = |program: &str| -> Result<Option<Vec<OsString>>> {
            let venv = Venv::for_test(program)?;
            Ok(venv.map(|venv| vec![venv.program("python").into(), source(program).into()]))
        };
        Ok(Some(match self {
            Self::Go => vec![compile_go("echo")?.into()],
            Self::Node => vec![locate("node")?.into(), source("programs/echo.js").into()],
            Self::Python => vec![locate("python3")?.into(), source("programs/echo.py").into()],
            Self::Tokio => match compile_cargo("tokio-echo")? {
                Ok(program) => vec![program.into()],
                Err(not_fetched) => {
                    note_skip("tokio", &not_fetched);
                    return Ok(None);
                }
            },
            Self::Asio => vec![compile_cpp("echo")?.into()],
            Self::Java => {
                let classes = compile_java("Echo")?.into();
                vec![locate("java")?.into(), "-cp".into(), classes, "Echo".into()]
            }
            Self::Erlang => {
                let modules = compile_erlang("echo")?.into();
                let mut words = vec![locate("erl")?.into(), "-noshell".into(), "-pa".into()];
                words.push(modules);
                words.extend(["-run", "echo", "main"].map(OsString::from));
                words
            }
            Self::Uvloop => return python("programs/echo_uvloop.py"),
            Self::Grpc => return python("programs/echo_grpc.py"),
        }))
    }

    /// Returns whether connections must be in shared memory, or `None` if both are right.
    fn shares(self) -> Option<bool> {
        match self {
            Self::Go => Some(false),
            // They change or watch epoll instances in ways for which Weft may fall back to TCP.
            Self::Uvloop | Self::Erlang => None,
            _ => Some(true),
        }
    }
}

/// Runs clients that check that a server returns all bytes that they send.
fn echo(ends: Ends, server: Runtime, client: Runtime) -> Result<()> {
    let sockets = Sockets::new(ends)?;
    let port = ports::next().to_string();
    let (Some(serve), Some(connect)) = (server.words()?, client.words()?) else { return Ok(()) };
    let serve = sockets.server(&serve[0]).args(&serve[1..]).args(["serve", &port]);
    let serve = serve.arg(CLIENTS.to_string()).start()?.listening(Port::Tcp(port.parse()?));
    let mut serve = serve?;
    let connect = sockets.client(&connect[0]).args(&connect[1..]).args(["connect", &port]);
    let connect = connect.arg(BYTES.to_string());
    let clients: Vec<_> = (0..CLIENTS).map(|_| connect.start()).collect::<Result<_>>()?;
    for client in clients {
        let ended = client.wait(TIMEOUT).and_then(Finished::success);
        // The server's output may explain the failure.
        ended
            .map_err(|error| error.context(serve.account()))?
            .expect_output(&format!("echoed {BYTES}"))?;
    }
    serve.wait(TIMEOUT)?.success()?;
    match [server.shares(), client.shares()] {
        [Some(false), _] | [_, Some(false)] => sockets.check_none(),
        // Bytes of both directions, except those that went over TCP before both ends had agreed.
        [Some(true), Some(true)] => sockets.check(CLIENTS * BYTES / 2),
        _ => sockets.check(0),
    }
}

#[test]
fn each_talks_to_each() -> Result<()> {
    const ALL: [Runtime; 3] = [Runtime::Go, Runtime::Node, Runtime::Python];
    for server in ALL {
        for client in ALL {
            echo(Ends::Both, server, client)
                .with_context(|| format!("{server:?} serves, {client:?} connects"))?;
        }
    }
    Ok(())
}

/// Connects a runtime to itself, and to Python, which waits in blocking calls.
fn echoes(runtime: Runtime) -> Result<()> {
    echo(Ends::Both, runtime, runtime)?;
    if runtime != Runtime::Grpc {
        echo(Ends::Both, runtime, Runtime::Python).context("serves Python")?;
        echo(Ends::Both, Runtime::Python, runtime).context("connects to Python")?;
    }
    Ok(())
}

#[test]
#[ignore = "soak: TCP carries these connections, and some runtimes start slowly"]
fn one_end_has_no_weft() -> Result<()> {
    use Runtime::{Asio, Erlang, Go, Grpc, Java, Node, Python, Tokio, Uvloop};
    for runtime in [Go, Node, Python, Tokio, Asio, Java, Erlang, Uvloop, Grpc] {
        for ends in [Ends::Server, Ends::Client] {
            echo(ends, runtime, runtime).with_context(|| format!("{runtime:?}, weft: {ends:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn tokio() -> Result<()> {
    echoes(Runtime::Tokio)
}

#[test]
fn boost_asio_with_threads() -> Result<()> {
    echoes(Runtime::Asio)
}

#[test]
fn java_nio() -> Result<()> {
    echoes(Runtime::Java)
}

/// A server by NIO and TLS, to which clients on Weft and others connect.
#[test]
fn java_tls() -> Result<()> {
    let classes = compile_java("SecureEcho")?;
    for ends in [Ends::Server, Ends::Both] {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let keys = sockets.path("keys");
        let make =
            Program::plain("keytool").line("-genkeypair -alias echo -keyalg EC -dname CN=echo");
        let make = make.line("-storetype PKCS12 -storepass password -keystore").arg(&keys);
        make.run(TIMEOUT)?.success()?;
        let serve = sockets.server("java").arg("-cp").arg(&classes).arg("SecureEcho");
        let serve = serve.args([&port.to_string(), &CLIENTS.to_string()]).arg(&keys);
        let mut serve = serve.start()?.listening(Port::Tcp(port))?;
        let connect = sockets.client("python3").arg(source("programs/echo_tls.py"));
        let connect = connect.args([&port.to_string(), &BYTES.to_string()]);
        let clients: Vec<_> = (0..CLIENTS).map(|_| connect.start()).collect::<Result<_>>()?;
        for client in clients {
            let ended = client.wait(TIMEOUT).and_then(Finished::success);
            let ended = ended.map_err(|error| error.context(serve.account()))?;
            ended.expect_output(&format!("echoed {BYTES}"))?;
        }
        serve.wait(TIMEOUT)?.success()?;
        if ends == Ends::Both {
            sockets.check(CLIENTS * BYTES / 2)?;
        }
    }
    Ok(())
}

#[test]
fn erlang_gen_tcp() -> Result<()> {
    echoes(Runtime::Erlang)
}

#[test]
fn uvloop() -> Result<()> {
    echoes(Runtime::Uvloop)
}

#[test]
fn grpc() -> Result<()> {
    echoes(Runtime::Grpc)
}
