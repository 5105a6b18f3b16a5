//! Network block devices, with several connections of one client, and rsync's daemon, which answers
//! each connection in a child.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

/// nbdkit serves a connection with 16 threads; nbdcopy and QEMU have many requests in flight.
#[test]
fn nbdkit_serves_nbdcopy_and_qemu() -> Result<()> {
    const LENGTH: usize = 8_000_000;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        let content = sockets.make_file("disk", LENGTH)?;
        let replacement = sockets.make_file("replacement", LENGTH)?;
        let server = sockets.server("nbdkit").line("--foreground --ipaddr 127.0.0.1 --port");
        let server = server.arg(port.to_string()).line("file disk").start()?;
        let mut server = server.listening(Port::Tcp(port))?;
        let device = format!("nbd://127.0.0.1:{port}");
        let mut client = |name: &str, line: &str, arguments: &[&str]| {
            let ended = sockets.client(name).line(line).args(arguments).run(TIMEOUT);
            let ended = ended.and_then(Finished::success);
            ended
                .map_err(|error| error.context(server.account()))
                .with_context(|| format!("weft: {ends:?}: {name} {line}"))
        };
        for connections in ["--connections=1", "--connections=4"] {
            client("nbdcopy", connections, &[&device, "copy"])?;
            sockets.expect_file("copy", &content)?;
        }
        client("nbdcopy", "--connections=4 replacement", &[&device])?;
        sockets.expect_file("disk", &replacement)?;
        client("qemu-img", "compare -f raw -F raw replacement", &[&device])?
            .expect_output("identical")?;
        // nbdcopy alone reads the device twice and writes it once.
        sockets.check(3 * LENGTH as u64)?;
    }
    Ok(())
}

/// The daemon accepts, forks, and accepts the next connection. rsync sends only the changed parts
/// of a file.
#[test]
fn rsync_copies_from_and_to_its_daemon() -> Result<()> {
    const LENGTH: usize = 5_000_000;
    const FILES: usize = 40;
    const CHANGES: usize = 3;
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next());
        for directory in ["source", "target"] {
            fs::create_dir(sockets.path(directory))?;
        }
        let mut content = sockets.make_file("source/big", LENGTH)?;
        let names = (0..FILES).map(|number| format!("{number}"));
        let small =
            names.map(|name| Ok((sockets.make_file(&format!("source/{name}"), 2_000)?, name)));
        let small = small.collect::<Result<Vec<_>>>()?;
        let module = |name: &str| {
            let path = sockets.path(name);
            format!("[{name}]\npath = {}\nread only = no\n", path.display())
        };
        let settings = "use chroot = no\nlog file = /dev/stderr\n";
        // A daemon that root starts would run as nobody, and could not write.
        let user =
            if rustix::process::geteuid().is_root() { "uid = root\ngid = root\n" } else { "" };
        let settings = [settings, user, &module("source"), &module("target")].concat();
        fs::write(sockets.path("rsyncd.conf"), settings)?;
        let server = sockets.server("rsync").line("--daemon --no-detach --address=127.0.0.1");
        let server = server.arg("--config=rsyncd.conf").arg(format!("--port={port}"));
        let mut server = server.start()?.listening(Port::Tcp(port))?;
        let at = |module: &str| format!("rsync://127.0.0.1:{port}/{module}/");
        let mut copy_both = |round: usize, content: &[u8]| -> Result<()> {
            for [from, to] in
                [[at("source"), "copy/".to_owned()], ["copy/".to_owned(), at("target")]]
            {
                let rsync = sockets.client("rsync").line("--recursive --checksum");
                let ended = rsync.args([from, to]).run(TIMEOUT).and_then(Finished::success);
                let ended = ended.map_err(|error| error.context(server.account()));
                ended.with_context(|| format!("weft: {ends:?}, round {round}"))?;
            }
            for directory in ["copy", "target"] {
                sockets.expect_file(&format!("{directory}/big"), content)?;
                for (content, name) in &small {
                    sockets.expect_file(&format!("{directory}/{name}"), content)?;
                }
            }
            Ok(())
        };
        // The daemon forks for each connection.
        sockets.until_shared(2 * LENGTH as u64, || {
            for directory in ["copy", "target"] {
                fs::remove_dir_all(sockets.path(directory)).or_else(|error| {
                    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
                })?;
            }
            fs::create_dir(sockets.path("target"))?;
            copy_both(0, &content)
        })?;
        for round in 1..CHANGES {
            content[LENGTH / 2 + round] ^= 1;
            fs::write(sockets.path("source/big"), &content)?;
            copy_both(round, &content)?;
        }
    }
    Ok(())
}
