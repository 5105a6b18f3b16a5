//! A program passes a connection with unread bytes to a program without Weft, or of another user:
//! Weft first moves the bytes to the kernel's socket.

use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{ports, source};

const TIMEOUT: Duration = Duration::from_secs(60);
/// More bytes than a direction's small ring holds.
const BYTES_MIN: u64 = 60_000;

/// Runs a Python program that passes its connection on in the given way. The receiving program has
/// no Weft.
fn handed(way: &str, reason: &str) -> Result<()> {
    for end in ["whole", "half"] {
        for ends in Ends::ALL {
            let (sockets, port) = (Sockets::new(ends)?, ports::next());
            let python = "/usr/bin/python3";
            let server = sockets.server(python).arg(source("programs/unread.py"));
            let server = server.args([way, &port.to_string()]);
            let mut server = server.start()?.listening(Port::Tcp(port))?;
            let client = sockets.client(python).arg(source("programs/unread.py"));
            let client = client.args(["client", &port.to_string(), end]).run(TIMEOUT);
            let client = client.and_then(weft_lab::Finished::success);
            let client = client.map_err(|error| error.context(server.account()));
            let client = client.with_context(|| format!("{way}, {end}, weft: {ends:?}"))?;
            client.expect_output("answered")?;
            server.wait(TIMEOUT)?.success()?;
            if ends == Ends::Both {
                sockets.check(BYTES_MIN)?;
                if end == "whole" {
                    sockets.check_fallback(reason)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_program_that_a_server_becomes_reads_what_is_unread() -> Result<()> {
    // The server makes the connection its standard input before it executes the other program.
    handed("exec", "stdio")
}

#[test]
fn another_users_program_reads_what_is_unread() -> Result<()> {
    handed("user", "user")
}

#[test]
fn a_child_of_another_user_reads_what_is_unread() -> Result<()> {
    handed("fork", "user")
}

#[test]
fn a_child_without_weft_reads_what_is_unread() -> Result<()> {
    handed("popen", "started")
}

#[test]
fn a_receiver_without_weft_reads_what_is_unread() -> Result<()> {
    handed("rights", "passed-on")
}
