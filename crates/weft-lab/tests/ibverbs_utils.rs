//! The programs of Debian's `ibverbs-utils`, and the examples and tests of other crates on verbs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::rdma_crates::{Compiled, RdmaCrate};
use weft_lab::{Finished, Program, Stage, ensure_data, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn ibv_devices() -> Result<()> {
    let listed = Program::weft("ibv_devices").run(TIMEOUT)?.success()?;
    let devices: Vec<_> = listed.stdout.lines().skip(2).map(str::split_whitespace).collect();
    ensure!(!devices.is_empty(), listed.error("no device"));
    for mut device in devices {
        let (_name, guid) = (device.next(), device.next());
        let guid = guid.and_then(|guid| u64::from_str_radix(guid, 16).ok());
        ensure!(guid.is_some_and(|guid| guid != 0), listed.error("a device without GUID"));
    }
    Ok(())
}

#[test]
fn ibv_devinfo() -> Result<()> {
    Program::weft("ibv_devinfo")
        .arg("-v")
        .run(TIMEOUT)?
        .success()?
        .expect_output("hca_id:")?
        .expect_output("InfiniBand (0)")?
        .expect_output("PORT_ACTIVE (4)")?
        .expect_output("Ethernet")?
        .expect_output("GID[  0]:")?
        .expect_output("max_qp:")?;
    Ok(())
}

#[test]
fn ibv_devinfo_as_iwarp() -> Result<()> {
    Program::weft("ibv_devinfo")
        .weft_option("--present=iwarp")
        .run(TIMEOUT)?
        .success()?
        .expect_output("iWARP (1)")?;
    Ok(())
}

/// Runs one of the ping-pongs on both sides and checks that every iteration took place.
fn pingpong(stage: &Stage, program: &str, size: u64, iterations: u64, options: &str) -> Result<()> {
    let port = ports::next();
    let program = Program::weft(program)
        .args(["-p", &port.to_string(), "-s", &size.to_string(), "-n", &iterations.to_string()])
        .line(options);
    let client = program.clone().arg(stage.server_address().to_string());
    let (server, client) = stage
        .converse(&program, Port::Tcp(port), &client, TIMEOUT)
        .with_context(|| format!("size {size}, options {options:?}"))?;
    for end in [&server, &client] {
        exchanged(end, 2 * size * iterations, iterations)?;
    }
    Ok(())
}

fn exchanged(end: &Finished, bytes: u64, iterations: u64) -> Result<()> {
    let has = |text: String| end.stdout.lines().any(|line| line.starts_with(&text));
    ensure_data!(has(format!("{bytes} bytes in")), "{}", end.error(format!("not {bytes} bytes")));
    let all = has(format!("{iterations} iters in"));
    ensure_data!(all, "{}", end.error(format!("not {iterations} iterations")));
    ensure_data!(!end.stderr.contains("invalid data"), "{}", end.error("data was damaged"));
    Ok(())
}

#[test]
fn rc_pingpong_by_lid() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_rc_pingpong", 4096, 1000, "-c")
}

#[test]
fn rc_pingpong_by_gid() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_rc_pingpong", 4096, 1000, "-c -g 0")
}

#[test]
fn rc_pingpong_with_events() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_rc_pingpong", 4096, 1000, "-c -e -g 0")
}

#[test]
fn rc_pingpong_with_work_request_builders() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_rc_pingpong", 4096, 1000, "-c -N -g 0")
}

#[test]
fn rc_pingpong_with_time_stamps() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_rc_pingpong", 4096, 1000, "-c -t -g 0")
}

#[test]
fn rc_pingpong_in_device_memory() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_rc_pingpong", 4096, 1000, "-j -g 0")
}

#[test]
fn rc_pingpong_of_many_sizes() -> Result<()> {
    for (size, iterations) in [(1, 1000), (63, 1000), (65_537, 500), (8 << 20, 20)] {
        // The verification of -c writes page numbers, which takes at least a page.
        let check = if size >= 4096 { "-c" } else { "" };
        pingpong(&Stage::loopback(), "ibv_rc_pingpong", size, iterations, check)?;
    }
    Ok(())
}

#[test]
fn uc_pingpong_by_lid() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_uc_pingpong", 4096, 1000, "-c")
}

#[test]
fn uc_pingpong_with_events() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_uc_pingpong", 4096, 1000, "-c -e -g 0")
}

#[test]
fn uc_pingpong_of_a_large_message() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_uc_pingpong", 8 << 20, 20, "-c -g 0")
}

#[test]
fn ud_pingpong_by_lid() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_ud_pingpong", 1024, 1000, "")
}

#[test]
fn ud_pingpong_by_gid() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_ud_pingpong", 4096, 1000, "-g 0")
}

#[test]
fn ud_pingpong_with_events() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_ud_pingpong", 1, 1000, "-e -g 0")
}

#[test]
fn srq_pingpong_by_lid() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_srq_pingpong", 4096, 1000, "-c")
}

#[test]
fn srq_pingpong_with_events() -> Result<()> {
    pingpong(&Stage::loopback(), "ibv_srq_pingpong", 4096, 1000, "-c -e -g 0 -q 8")
}

/// Runs the ping-pong of extended reliable connections. It verifies only the number of messages;
/// each side prints this word at its end.
fn xsrq_pingpong(stage: &Stage, options: &str) -> Result<()> {
    let port = ports::next();
    let server = Program::weft("ibv_xsrq_pingpong").args(["-p", &port.to_string()]).line(options);
    let client = server.clone().arg(stage.server_address().to_string());
    let ends = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT);
    // The programs leave the file behind. A process that has it open does not need its name.
    let _ = fs::remove_file("/tmp/xrc_domain");
    let (server, client) = ends?;
    server.expect_output("success")?;
    client.expect_output("success")?;
    Ok(())
}

#[test]
fn xsrq_pingpong_by_lid_by_gid_and_with_events() -> Result<()> {
    let options = ["", "-g 0 -n 100", "-e -n 100", "-s 1000000 -n 20"];
    options.iter().try_for_each(|options| xsrq_pingpong(&Stage::loopback(), options))
}

#[test]
fn xsrq_pingpong_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    ["-n 100", "-g 0 -n 100"].iter().try_for_each(|options| xsrq_pingpong(&stage, options))
}

#[test]
fn rc_pingpong_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for options in ["-c", "-c -g 0", "-c -e", "-c -e -g 0"] {
        pingpong(&stage, "ibv_rc_pingpong", 4096, 1000, options)?;
    }
    Ok(())
}

#[test]
fn uc_pingpong_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for options in ["-c", "-c -g 0", "-c -e"] {
        pingpong(&stage, "ibv_uc_pingpong", 4096, 1000, options)?;
    }
    Ok(())
}

#[test]
fn ud_pingpong_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    // The largest message is sent in IP fragments; the second GID is an IPv6 address.
    for (size, options) in
        [(1024, ""), (1024, "-g 0"), (4096, "-e"), (4096, "-e -g 0"), (1024, "-g 1")]
    {
        pingpong(&stage, "ibv_ud_pingpong", size, 1000, options)?;
    }
    Ok(())
}

#[test]
fn srq_pingpong_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    for options in ["-c", "-c -g 0"] {
        pingpong(&stage, "ibv_srq_pingpong", 4096, 1000, options)?;
    }
    Ok(())
}

/// Compiles what a crate has, and runs its test programs on Weft, except for those in `left_out`.
/// Returns its examples.
fn tests_of_crate(test: &str, name: &str, left_out: &[&str]) -> Result<Option<Vec<Compiled>>> {
    let Some(of_others) = RdmaCrate::for_test(test, name)? else { return Ok(None) };
    let (mut tests, examples): (Vec<_>, Vec<_>) =
        of_others.compile()?.into_iter().partition(|compiled| compiled.has_tests);
    tests.retain(|compiled| !left_out.contains(&compiled.name.as_str()));
    ensure!(!tests.is_empty(), "{name} has no tests");
    for Compiled { name, executable, .. } in tests {
        let tests = Program::weft(executable).arg("--test-threads=1").run(TIMEOUT)?.success()?;
        tests.expect_output("test result: ok").context(name)?;
    }
    Ok(Some(examples))
}

fn example<'a>(all: &'a [Compiled], name: &str) -> Result<&'a Path> {
    let found = all.iter().find(|compiled| compiled.name == name);
    Ok(&found.with_context(|| format!("no example {name}"))?.executable)
}

#[test]
#[ignore = "soak: a crate of others, which is compiled first"]
fn crate_ibverbs() -> Result<()> {
    let Some(examples) = tests_of_crate("crate_ibverbs", "ibverbs-0.9.2", &[])? else {
        return Ok(());
    };
    let loopback = Program::weft(example(&examples, "loopback")?).run(TIMEOUT)?.success()?;
    loopback.expect_output("sent")?.expect_output("received")?;
    Ok(())
}

#[test]
#[ignore = "soak: a crate of others, which is compiled first"]
fn crate_sideway() -> Result<()> {
    // It has the compiler refuse programs.
    let left_out = ["compiletest"];
    let Some(examples) = tests_of_crate("crate_sideway", "sideway-0.4.3", &left_out)? else {
        return Ok(());
    };
    for (name, text) in [("ibv_devinfo", "hca_id:"), ("show_gids", "weft_")] {
        let listed = Program::weft(example(&examples, name)?).run(TIMEOUT)?.success()?;
        listed.expect_output(text)?;
    }
    let stage = Stage::loopback();
    for name in ["rc_pingpong", "rc_pingpong_split"] {
        let port = ports::next();
        let program = Program::weft(example(&examples, name)?).args(["-p", &port.to_string()]);
        let client = program.clone().arg(stage.server_address().to_string());
        stage.converse(&program, Port::Tcp(port), &client, TIMEOUT).context(name)?;
    }
    let port = ports::next();
    let cmtime = Program::weft(example(&examples, "cmtime")?).args(["-p", &port.to_string()]);
    let client = cmtime.clone().args(["-s", &stage.server_address().to_string()]);
    stage.converse(&cmtime, Port::Tcp(port), &client, TIMEOUT)?;
    Ok(())
}
