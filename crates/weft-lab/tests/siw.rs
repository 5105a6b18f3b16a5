//! Weft and the kernel's soft iWARP (siw), which shares no code with it, in both directions.

use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::guest::{self, Guest, Offload};
use weft_lab::{Program, note_skip, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A machine, or `None` and a note where there can be none.
fn boot(test: &str) -> Result<Option<Guest>> {
    if let Some(why) = guest::unavailable(&[])? {
        note_skip(&format!("siw::{test}"), &why);
        return Ok(None);
    }
    Guest::boot(Offload::On).map(Some)
}

/// A program on Weft.
fn weft(guest: &Guest, name: &str) -> Program {
    Program::weft(name).within(Some(&guest.host))
}

/// A program's server on Weft and its client in the guest.
fn from_siw(guest: &Guest, server: &str, client: &str, port: u16) -> Result<()> {
    let (name, options) = server.split_once(' ').unwrap_or((server, ""));
    let server = weft(guest, name).line(options).start()?.listening(Port::Udp(port))?;
    guest.start(client)?.success(TIMEOUT)?;
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

/// A program's server in the guest and its client on Weft.
fn to_siw(guest: &Guest, server: &str, client: &str, port: u16) -> Result<()> {
    let server = guest.serve(server, port)?;
    let (name, options) = client.split_once(' ').unwrap_or((client, ""));
    weft(guest, name).line(options).run(TIMEOUT)?.success()?;
    server.success(TIMEOUT)?;
    Ok(())
}

/// A pair of programs, in both directions, that differ in their address only.
fn both_ways(
    guest: &Guest,
    server: &str,
    client: impl Fn(&str) -> String,
    port: u16,
) -> Result<()> {
    from_siw(guest, server, &client(&guest.host.ipv4.to_string()), port)?;
    to_siw(guest, server, &client(&guest.address.to_string()), port)
}

#[test]
fn rping_with_verification() -> Result<()> {
    let Some(guest) = boot("rping_with_verification")? else { return Ok(()) };
    let port = ports::next();
    for size in [64, 1000, 65_535] {
        let common = format!("-V -C 20 -S {size} -p {port}");
        let server = format!("rping -s -a 0.0.0.0 {common}");
        both_ways(&guest, &server, |address| format!("rping -c -a {address} {common}"), port)?;
    }
    let complaints = guest.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}
