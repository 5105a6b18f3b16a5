//! Weft and the kernel's soft iWARP (siw), an independent implementation, in both directions.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::capture::{self, Capture};
use weft_lab::endpoint::Port;
use weft_lab::guest::{self, Guest, Job, Offload};
use weft_lab::{Finished, Program, Running, ensure_data, note_skip, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for many programs at once.
const LONG_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for what either side has to notice, which the lab does not extend itself.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(240);
/// How long no ping comes before the link counts as silent.
const SILENCE: Duration = Duration::from_millis(300);
/// perftest's client connects a second time just when its server begins to listen a second time.
/// This race also exists between two hosts with siw.
const PERFTEST_TRIES: usize = 4;
/// Attempts at a run of rping whose end is disturbed by [`RPING_END_RACE`].
const RPING_TRIES: usize = 3;
/// What siw can send beside the four bytes of RFC 6581 before its count of them, a byte, is full.
const SIW_PRIVATE_DATA_MAX: usize = 251;

/// Boots a machine, or returns `None` with a note if no machine can run here.
fn boot(test: &str) -> Result<Option<Guest>> {
    if let Some(why) = guest::unavailable(&["iwarp_peer"])? {
        note_skip(&format!("siw::{test}"), &why);
        return Ok(None);
    }
    Guest::boot(Offload::On).map(Some)
}

/// A program on Weft, by its command line.
fn weft(guest: &Guest, command: &str) -> Program {
    let (name, options) = command.split_once(' ').unwrap_or((command, ""));
    // The lab's own programs are not in PATH.
    let path = weft_lab::scratch("programs").map(|folder| folder.join(name));
    let path = path.ok().filter(|path| path.is_file());
    let program = path.map_or_else(|| Program::weft(name), Program::weft);
    let program = program.line(options).env("WEFT_LOG", "info").within(Some(&guest.host));
    // ib_send_bw expects credits of its peer if its own device is an iWARP device, and gives some.
    if name.starts_with("ib_") { program.weft_option("--present=iwarp") } else { program }
}

/// A server on Weft that is ready.
fn serve(guest: &Guest, command: &str, port: u16) -> Result<Running> {
    weft(guest, command).start()?.listening(Port::Udp(port))
}

/// A program's server on Weft and its client in the guest; what both printed.
fn from_siw(guest: &Guest, server: &str, client: &str, port: u16) -> Result<(Finished, String)> {
    let mut server = serve(guest, server, port)?;
    let client = guest.start(client)?.success(TIMEOUT);
    let client = client.map_err(|error| error.context(server.account()))?;
    Ok((server.wait(TIMEOUT)?.success()?, client))
}

/// A program's server in the guest and its client on Weft; what both printed.
fn to_siw(guest: &Guest, server: &str, client: &str, port: u16) -> Result<(String, Finished)> {
    let server = guest.serve(server, port)?;
    let client = weft(guest, client).run(TIMEOUT)?.success();
    let client = client.map_err(|error| error.context(server.output().unwrap_or_default()))?;
    Ok((server.success(TIMEOUT)?, client))
}

/// A pair of programs in both directions.
fn both_ways(
    guest: &Guest,
    server: &str,
    client: impl Fn(&str) -> String,
    port: u16,
) -> Result<()> {
    let outcome = from_siw(guest, server, &client(&guest.host.ipv4.to_string()), port);
    outcome.with_context(|| format!("{server}, client on siw"))?;
    let outcome = to_siw(guest, server, &client(&guest.address.to_string()), port);
    outcome.with_context(|| format!("{server}, server on siw"))?;
    Ok(())
}

/// When rping ends, one of its threads destroys the event channel while another one waits in it. On
/// a kernel's device the second thread may then report this, and ends the program with an error.
const RPING_END_RACE: &str = "rdma_get_cm_event: Bad file descriptor";

fn rping(guest: &Guest, options: &str) -> Result<()> {
    let port = ports::next();
    let common = format!("-V {options} -p {port}");
    let server = format!("rping -s -a 0.0.0.0 {common}");
    until_rping_ends_well(|| {
        both_ways(guest, &server, |address| format!("rping -c -a {address} {common}"), port)
    })
}

/// Runs a pair of rping once more where its end was lost to that race.
fn until_rping_ends_well<T>(pair: impl Fn() -> Result<T>) -> Result<T> {
    let has_raced = |done: &Result<T>| {
        done.as_ref().is_err_and(|error| format!("{error:#}").contains(RPING_END_RACE))
    };
    (1..RPING_TRIES).map(|_| pair()).find(|done| !has_raced(done)).unwrap_or_else(pair)
}

fn ucmatose(guest: &Guest, options: &str) -> Result<()> {
    let port = ports::next();
    let server = format!("ucmatose -p {port} {options}");
    both_ways(guest, &server, |address| format!("{server} -s {address}"), port)
}

/// Checks that siw has logged no error.
fn ensure_silent(guest: &Guest) -> Result<()> {
    let errors = guest.siw_messages()?;
    ensure!(errors.is_empty(), "siw logged errors: {errors:#?}");
    Ok(())
}

/// Boots a machine for each group of cases, because siw keeps state between them.
#[test]
fn programs() -> Result<()> {
    let Some(guest) = boot("programs")? else { return Ok(()) };
    rping_and_ucmatose_both_ways(&guest, &[64, 65_535])?;
    perftest_both_ways(&guest, &["ib_send_bw", "ib_write_bw", "ib_read_bw"])
}

#[test]
#[ignore = "soak: more sizes, and programs that take long in a guest"]
fn more_programs() -> Result<()> {
    let Some(guest) = boot("more_programs")? else { return Ok(()) };
    rping_and_ucmatose_both_ways(&guest, &[64, 1000, 65_535])?;
    perftest_both_ways(&guest, &["ib_send_lat", "ib_write_lat", "ib_read_lat"])
}

/// perftest sleeps for its completions. Its credits are small messages that nothing else drives.
#[test]
#[ignore = "soak: one more way to wait"]
fn events() -> Result<()> {
    let Some(guest) = boot("events")? else { return Ok(()) };
    for options in ["-s 4096", "-b -q 4 -s 16384"] {
        let port = ports::next();
        let server = format!("ib_send_bw -R -e -F -n 1000 -p {port} {options}");
        to_siw(&guest, &server, &format!("{server} {}", guest.address), port)
            .with_context(|| options.to_owned())?;
    }
    ensure_silent(&guest)
}

#[test]
fn setups() -> Result<()> {
    let Some(guest) = boot("setups")? else { return Ok(()) };
    checksums_are_used_if_either_side_asks(&guest)?;
    every_ready_to_receive_message_and_none(&guest, |guest| ucmatose(guest, "-c 2 -C 5 -S 3000"))
}

#[test]
#[ignore = "soak: each setup with one more program"]
fn setups_of_rping() -> Result<()> {
    let Some(guest) = boot("setups_of_rping")? else { return Ok(()) };
    every_ready_to_receive_message_and_none(&guest, |guest| rping(guest, "-C 10 -S 3000"))
}

#[test]
fn ends() -> Result<()> {
    let Some(guest) = boot("ends")? else { return Ok(()) };
    private_data_is_the_programs_alone(&guest, &[0, SIW_PRIVATE_DATA_MAX], &[197])?;
    the_link_goes_down_and_comes_up(&guest)?;
    either_side_may_die(&guest)?;
    siw_understands_our_terminate(&guest)
}

#[test]
#[ignore = "soak: more lengths of private data"]
fn private_data() -> Result<()> {
    let Some(guest) = boot("private_data")? else { return Ok(()) };
    let lengths = [0, 1, 196, 197, 198, 250, SIW_PRIVATE_DATA_MAX];
    private_data_is_the_programs_alone(&guest, &lengths, &lengths)
}

#[test]
fn load() -> Result<()> {
    let Some(guest) = boot("load")? else { return Ok(()) };
    a_mixed_load_is_sound_to_the_last_checksum(&guest)
}

fn rping_and_ucmatose_both_ways(guest: &Guest, sizes: &[usize]) -> Result<()> {
    for size in sizes {
        rping(guest, &format!("-C 20 -S {size}"))?;
    }
    ucmatose(guest, "-c 3 -C 10 -S 3000")?;
    ensure_silent(guest)
}

fn perftest_both_ways(guest: &Guest, programs: &[&str]) -> Result<()> {
    for program in programs {
        let pair = || {
            let port = ports::next();
            let server = format!("{program} -R -F -p {port} -n 100 -s 5000");
            both_ways(guest, &server, |address| format!("{server} {address}"), port)
        };
        // A hang is not the race.
        let is_final = |done: &Result<()>| match done {
            Ok(()) => true,
            Err(error) => format!("{error:#}").contains("DEFECT: "),
        };
        (1..PERFTEST_TRIES).map(|_| pair()).find(is_final).unwrap_or_else(pair)?;
    }
    ensure_silent(guest)
}

/// Which side requests CRCs, and whether the connection uses them.
fn checksums_are_used_if_either_side_asks(guest: &Guest) -> Result<()> {
    for (ours, theirs) in [("0", "0"), ("0", "1"), ("1", "0")] {
        guest.set("mpa_crc_required", theirs)?;
        for passive in [true, false] {
            // A listener of siw uses CRCs if the peer requests them.
            let is_on = ours == "1" || passive && theirs == "1";
            let expected = if is_on { "on" } else { "off" };
            let port = ports::next();
            let common = format!("-V -C 10 -S 5000 -p {port}");
            let server = format!("rping -s -a 0.0.0.0 {common}");
            let weft_end = until_rping_ends_well(|| {
                if passive {
                    let server = weft(guest, &server).env("WEFT_CRC", ours).start()?;
                    let server = server.listening(Port::Udp(port))?;
                    let client = format!("rping -c -a {} {common}", guest.host.ipv4);
                    guest.start(&client)?.success(TIMEOUT)?;
                    return server.wait(TIMEOUT)?.success();
                }
                let server = guest.serve(&server, port)?;
                let client = format!("rping -c -a {} {common}", guest.address);
                let client = weft(guest, &client).env("WEFT_CRC", ours).run(TIMEOUT)?.success()?;
                server.success(TIMEOUT)?;
                Ok(client)
            })?;
            weft_end.expect_output(&format!("a foreign iwarp peer, crc {expected}"))?;
        }
    }
    ensure_silent(guest)
}

/// siw's choices of who may send first, see RFC 6581 section 9.2: a Write, a Read, both, or none of
/// them, and MPA of RFC 5044, which has none. The server of ucmatose sends first in each.
fn every_ready_to_receive_message_and_none(
    guest: &Guest,
    pair: impl Fn(&Guest) -> Result<()>,
) -> Result<()> {
    let kinds = [
        ("1", "128", "2"),
        ("1", "64", "2"),
        ("1", "192", "2"),
        ("0", "192", "2"),
        ("0", "192", "1"),
    ];
    for (peer_to_peer, kind, revision) in kinds {
        guest.set("peer_to_peer", peer_to_peer)?;
        guest.set("rtr_type", kind)?;
        guest.set("mpa_version", revision)?;
        let setup = || format!("peer to peer {peer_to_peer}, kinds {kind}, revision {revision}");
        pair(guest).with_context(setup)?;
    }
    ensure_silent(guest)
}

fn private_data_line(length: usize) -> String {
    format!("private data: {length} bytes, right")
}

/// Exchanges `length` bytes of private data in both directions.
fn iwarp_peer(guest: &Guest, length: usize, mode: &str) -> Result<()> {
    let port = ports::next();
    let expected = private_data_line(length);
    let server = format!("iwarp_peer {port} {length} {mode}");
    let client = |address| format!("iwarp_peer {address} {port} {length} hello");
    let (weft, siw) = from_siw(guest, &server, &client(guest.host.ipv4), port)?;
    ensure_data!(weft.stdout.contains(&expected), "{}", weft.error("another request"));
    // siw ignores a reply if the connection was closed right after it.
    let is_cut = mode == "reject" && siw.contains(&private_data_line(0));
    ensure_data!(is_cut || siw.contains(&expected), "the client on siw got: {siw}");
    ensure!(siw.contains("REJECTED") == (mode == "reject"), "{siw}");
    let (siw, weft) = to_siw(guest, &server, &client(guest.address), port)?;
    ensure_data!(siw.contains(&expected), "the server on siw got: {siw}");
    let rejected = weft.stdout.contains("REJECTED");
    ensure!(rejected == (mode == "reject"), weft.error("another outcome"));
    ensure_data!(weft.stdout.contains(&expected), "{}", weft.error("another reply"));
    Ok(())
}

fn private_data_is_the_programs_alone(
    guest: &Guest,
    accepted: &[usize],
    rejected: &[usize],
) -> Result<()> {
    for (mode, lengths) in [("accept", accepted), ("reject", rejected)] {
        for &length in lengths {
            iwarp_peer(guest, length, mode).with_context(|| format!("{mode}, {length} bytes"))?;
        }
    }
    ensure_silent(guest)
}

fn either_side_may_die(guest: &Guest) -> Result<()> {
    let port = ports::next();
    let common = format!("-V -v -S 5000 -p {port}");
    let server = format!("rping -s -a 0.0.0.0 {common}");
    let client = |address| format!("rping -c -a {address} {common}");

    let mut weft_server = serve(guest, &server, port)?;
    let siw_client = guest.start(&client(guest.host.ipv4))?;
    weft_server.printed("server ping data", TIMEOUT)?;
    weft_server.kill()?;
    notices_the_end(guest, &siw_client)?;

    let siw_server = guest.serve(&server, port)?;
    let mut weft_client = weft(guest, &client(guest.address)).start()?;
    weft_client.printed("ping data", TIMEOUT)?;
    guest.run("killall -9 rping")?;
    weft_client.wait(TIMEOUT)?.expect_output("DISCONNECT")?;
    siw_server.wait(TIMEOUT)?;
    ensure_silent(guest)
}

fn the_link_goes_down_and_comes_up(guest: &Guest) -> Result<()> {
    let port = ports::next();
    let common = format!("-V -v -S 5000 -p {port}");
    let mut server = serve(guest, &format!("rping -s -a 0.0.0.0 {common}"), port)?;
    let client = guest.start(&format!("rping -c -a {} {common}", guest.host.ipv4))?;
    let pings = |server: &Running| server.output().0.lines().count();
    for _ in 0..2 {
        let before = pings(&server);
        until(|| Ok(pings(&server) > before + 20)).context("no pings")?;
        guest.host.set_link(false)?;
        // Once all packets in flight have arrived, no ping comes.
        until(|| {
            let down = pings(&server);
            std::thread::sleep(SILENCE);
            Ok(pings(&server) == down)
        })
        .context("pings without a link")?;
        guest.host.set_link(true)?;
    }
    let before = pings(&server);
    until(|| Ok(pings(&server) > before + 20)).context("no pings afterwards")?;
    ensure!(server.is_running()?, "{}", server.account());
    server.signal(Signal::KILL)?;
    notices_the_end(guest, &client)?;
    ensure_silent(guest)
}

/// siw reports to its `rping` that the peer has died. Afterwards `rping`'s completion thread
/// sometimes waits for a completion for ever, so the test does not wait for the program's end.
fn notices_the_end(guest: &Guest, rping: &Job<'_>) -> Result<()> {
    until(|| Ok(rping.output()?.contains("DISCONNECT EVENT")))?;
    guest.run("killall -9 rping; true")?;
    rping.wait(TIMEOUT)?;
    Ok(())
}

fn until(mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + NOTICE_TIMEOUT;
    while !condition()? {
        ensure!(Instant::now() < deadline, "not within {NOTICE_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A Write to memory that was not granted ends the connection with a Terminate.
fn siw_understands_our_terminate(guest: &Guest) -> Result<()> {
    let port = ports::next();
    let mut server = serve(guest, &format!("iwarp_peer {port} 0 accept"), port)?;
    let client = guest.start(&format!("iwarp_peer {} {port} 0 badkey", guest.host.ipv4))?;
    let ended = client.success(TIMEOUT);
    ended.map_err(|error| error.context(server.account()))?;
    server.wait(TIMEOUT)?.success()?;
    let log = guest.siw_messages()?;
    let is_reported = |line: &String| line.contains("got TERMINATE. layer 1, type 1, code 0");
    ensure!(log.iter().any(is_reported), "{log:#?}");
    Ok(())
}

/// Several programs at once, in both directions: one round, or as many as `WEFT_SIW_ROUNDS` says.
/// All their frames are captured and checked.
fn a_mixed_load_is_sound_to_the_last_checksum(guest: &Guest) -> Result<()> {
    let rounds = std::env::var("WEFT_SIW_ROUNDS").ok().and_then(|text| text.parse().ok());
    for round in 0..rounds.unwrap_or(1) {
        let capture = Capture::start(&guest.host, "siw-load", "tcp")?;
        round_of_load(guest, round)?;
        let file = capture.stop()?;
        let seen = capture::opcodes(&file).with_context(|| file.display().to_string())?;
        for opcode in ["0x00", "0x01", "0x02", "0x03"] {
            ensure!(seen.contains(opcode), "no opcode {opcode} among {seen:?}");
        }
        ensure_silent(guest)?;
    }
    Ok(())
}

/// One round of the mixed load: a pair of each kind in each direction, all at once.
fn round_of_load(guest: &Guest, round: usize) -> Result<()> {
    // Odd lengths, so that frames end anywhere in a segment.
    let size = 1001 + 1237 * (round % 17);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for options in [format!("-C 60 -S {size}"), format!("-C 60 -S {}", size / 7)] {
        let port = ports::next();
        let common = format!("-V {options} -p {port}");
        ours.push(serve(guest, &format!("rping -s -a 0.0.0.0 {common}"), port)?);
        theirs.push(guest.start(&format!("rping -c -a {} {common}", guest.host.ipv4))?);
        let port = ports::next();
        let common = format!("-V {options} -p {port}");
        theirs.push(guest.serve(&format!("rping -s -a 0.0.0.0 {common}"), port)?);
        ours.push(weft(guest, &format!("rping -c -a {} {common}", guest.address)).start()?);
    }
    let port = ports::next();
    let server = format!("ucmatose -p {port} -c 4 -C 50 -S {size}");
    theirs.push(guest.serve(&server, port)?);
    ours.push(weft(guest, &format!("{server} -s {}", guest.address)).start()?);
    let port = ports::next();
    let server = format!("ucmatose -p {port} -c 4 -C 50 -S {size}");
    ours.push(serve(guest, &server, port)?);
    theirs.push(guest.start(&format!("{server} -s {}", guest.host.ipv4))?);
    for program in ours {
        program.wait(LONG_TIMEOUT)?.success()?;
    }
    theirs.iter().try_for_each(|program| program.success(LONG_TIMEOUT).map(drop))
}
