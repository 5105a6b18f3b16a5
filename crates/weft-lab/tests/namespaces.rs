//! Programs in two network namespaces that exchange queue pair numbers and addresses themselves.
//! Each kind of address must lead to the right process on the other side.

use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::{Program, Stage, ports, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Programs with the options of both sides, connected by GID and by LID.
const PROGRAMS: [(&str, &str, Option<&str>); 6] = [
    ("ibv_rc_pingpong", "-c -g 0", Some("-c")),
    ("ibv_srq_pingpong", "-c -g 0", Some("-c")),
    ("ib_send_bw", "-F -n 1000 -x 0", None),
    ("ib_write_bw", "-F -n 1000 -x 0", None),
    ("ib_read_bw", "-F -n 1000 -x 0", None),
    ("ib_atomic_bw", "-F -n 1000 -x 0", None),
];

fn converse(stage: &Stage, program: &str, options: &str) -> Result<()> {
    let port = ports::next();
    let server = Program::weft(program).args(["-p", &port.to_string()]).line(options);
    let client = server.clone().arg(stage.server_address().to_string());
    let ends = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT);
    ends.with_context(|| format!("{program} {options}")).map(drop)
}

#[test]
fn by_gid() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    PROGRAMS.iter().try_for_each(|(program, options, _)| converse(&stage, program, options))
}

#[test]
fn by_lid() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let by_lid = PROGRAMS.iter().filter_map(|&(program, _, lid)| Some((program, lid?)));
    by_lid.into_iter().try_for_each(|(program, options)| converse(&stage, program, options))
}

/// Several pairs at once: numbers must not be mixed up between processes.
#[test]
fn several_at_once() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let mut ends = Vec::new();
    for _ in 0..4 {
        let port = ports::next();
        let program = Program::weft("ibv_rc_pingpong").line("-c -e -p").arg(port.to_string());
        ends.push(stage.server(program.clone()).start()?.listening(Port::Tcp(port))?);
        let client = program.arg(stage.server_address().to_string());
        ends.push(stage.client(client).start()?);
    }
    for end in ends {
        end.wait(TIMEOUT)?.success()?.expect_output("1000 iters in")?;
    }
    Ok(())
}
