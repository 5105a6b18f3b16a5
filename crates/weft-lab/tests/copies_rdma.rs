//! `weft cp` and `weft serve` with data over RDMA, on Weft's own libraries in the place of the
//! system's: between two network namespaces over TCP, and on one host through shared memory.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{
    Folder, Namespace, NamespacePair, Program, Running, compile, ensure_data, ports,
    skip_without_namespaces, weft,
};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for what the lab itself does not limit. It detects a hang.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A folder with the keys of two hosts, and the port of a server.
struct Place {
    folder: Folder,
    port: u16,
}

impl Place {
    /// Makes the folder, an empty share and a tree to copy.
    fn new() -> Result<Self> {
        let place = Self { folder: Folder::new(0o700)?, port: two_ports() };
        fs::create_dir(place.path("share"))?;
        make_tree(&place.path("from"))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns `weft` on Weft's libraries. It makes many system calls without the C library, so its
    /// own TCP connections stay on TCP.
    fn weft(&self, host: &str) -> Result<Program> {
        let weft = Program::weft(weft()?).weft_option("--no-sockets");
        Ok(weft.env("XDG_CONFIG_HOME", self.path(host)))
    }

    /// Starts a server of the share. `options` are those of `weft serve`.
    fn serve(&self, options: &[&str], within: Option<&Namespace>) -> Result<Running> {
        let key = Program::plain(weft()?).args(["cp", "--show-key"]);
        let key = key.env("XDG_CONFIG_HOME", self.path("client"));
        let key = key.run(TIMEOUT)?.success()?.stdout;
        let server = self.weft("server")?.args(["serve", "--port", &self.port.to_string()]);
        let server = server.args(["--allow", key.trim()]).args(options).arg(self.path("share"));
        let mut server = server.within(within).start()?.listening(Port::Tcp(self.port))?;
        server.printed("listening on", TIMEOUT)?;
        Ok(server)
    }

    fn cp(&self, over: &str) -> Result<Program> {
        let copy = self.weft("client")?.args(["cp", "--json", "--accept-new", "--verify"]);
        Ok(copy.args(["--data", over]))
    }

    fn at(&self, address: IpAddr, path: &str) -> String {
        match address {
            IpAddr::V4(address) => format!("{address}:{}//share/{path}", self.port),
            IpAddr::V6(address) => format!("[{address}]:{}//share/{path}", self.port),
        }
    }
}

/// Returns a port that is free like the one after it.
fn two_ports() -> u16 {
    let mut last = ports::next();
    loop {
        let next = ports::next();
        if next == last + 1 {
            return last;
        }
        last = next;
    }
}

/// Creates many small files, a large one that no repetition hides errors of, and an empty one.
fn make_tree(root: &Path) -> Result<()> {
    for folder in 0..3 {
        let path = root.join(format!("folder-{folder}"));
        fs::create_dir_all(&path)?;
        for file in 0..100 {
            fs::write(path.join(format!("file-{file}")), vec![b'x'; file * 97 % 4_097])?;
        }
    }
    let large: Vec<u8> = (0..12_000_000_u32).flat_map(|word| word.to_ne_bytes()).collect();
    fs::write(root.join("large"), large)?;
    fs::write(root.join("empty"), "")?;
    Ok(())
}

fn assert_same(one: &Path, other: &Path) -> Result<()> {
    let diff = Program::plain("diff").args(["-r", "--no-dereference"]).arg(one).arg(other);
    let diff = diff.run(TIMEOUT)?;
    ensure_data!(diff.status.success(), "{}", diff.error("the trees differ"));
    Ok(())
}

/// Parts of the summary that tell what has carried the data, and why.
const OVER_RDMA: &str = r#""data":"rdma","data_reason":null"#;
const OVER_TCP: &str = r#""data":"tcp","data_reason":"the server does not offer RDMA"#;
const FELL_BACK: &str = r#""data":"tcp","data_reason":"RDMA by weft_"#;

/// Copies the tree to the server and back, and compares.
fn copy_both_ways(place: &Place, address: IpAddr, client: Option<&Namespace>) -> Result<()> {
    let (from, name) = (place.path("from"), address.to_string());
    let copy = place.cp("rdma")?.within(client).arg(from.join("")).arg(place.at(address, &name));
    copy.run(TIMEOUT)?.success()?.expect_output(OVER_RDMA)?;
    assert_same(&from, &place.path("share").join(&name))?;
    let back = place.path(&name);
    let there = place.at(address, &format!("{name}/"));
    let copy = place.cp("auto")?.within(client).arg(there).arg(&back);
    copy.run(TIMEOUT)?.success()?.expect_output(OVER_RDMA)?;
    assert_same(&from, &back)
}

#[test]
fn trees_go_both_ways_over_rdma_between_two_hosts() -> Result<()> {
    skip_without_namespaces!();
    let (pair, place) = (NamespacePair::new()?, Place::new()?);
    let _server = place.serve(&["--rdma"], Some(&pair.left))?;
    for address in [IpAddr::V4(pair.left.ipv4), IpAddr::V6(pair.left.ipv6)] {
        copy_both_ways(&place, address, Some(&pair.right))?;
    }
    Ok(())
}

#[test]
fn trees_go_both_ways_over_rdma_on_one_host() -> Result<()> {
    let place = Place::new()?;
    let _server = place.serve(&["--rdma"], None)?;
    copy_both_ways(&place, LOCALHOST, None)?;
    // A compressed copy, and one of a stream.
    let to = place.at(LOCALHOST, "compressed");
    let copy = place.cp("rdma")?.arg("--compress=zstd").arg(place.path("from").join("")).arg(to);
    copy.run(TIMEOUT)?.success()?.expect_output(OVER_RDMA)?;
    assert_same(&place.path("from"), &place.path("share/compressed"))?;
    let copy = place.cp("rdma")?.arg(place.at(LOCALHOST, "compressed/folder-0/file-40")).arg("-");
    let file = copy.run(TIMEOUT)?.success()?.expect_output(OVER_RDMA)?.stdout;
    let expected = fs::read(place.path("from/folder-0/file-40"))?;
    ensure_data!(file.as_bytes() == expected, "another content");
    Ok(())
}

#[test]
fn several_clients_copy_over_rdma_at_once() -> Result<()> {
    let place = Place::new()?;
    let _server = place.serve(&["--rdma"], None)?;
    // The first client learns the server's key.
    copy_both_ways(&place, LOCALHOST, None)?;
    let start = |name: &String| {
        let to = place.at(LOCALHOST, name);
        place.cp("rdma")?.arg(place.path("from").join("")).arg(to).start()
    };
    let names: Vec<String> = (0..6).map(|client| format!("client-{client}")).collect();
    let clients: Vec<Running> = names.iter().map(start).collect::<Result<_>>()?;
    for (client, name) in clients.into_iter().zip(&names) {
        client.wait(TIMEOUT)?.success()?.expect_output(OVER_RDMA)?;
        assert_same(&place.path("from"), &place.path("share").join(name))?;
    }
    Ok(())
}

/// Starts a copy that takes half a minute, and waits until the sink has a part of the large file.
fn begin(place: &Place, to: &Path) -> Result<Running> {
    let copy = place.cp("rdma")?.args(["--limit", "1600K"]).arg(place.path("from").join(""));
    let mut copy = copy.arg(place.at(LOCALHOST, "to")).start()?;
    let is_begun = || {
        let entries = fs::read_dir(to).into_iter().flatten().flatten();
        let is_part = |it: &fs::DirEntry| it.file_name().as_encoded_bytes().starts_with(b".large");
        let mut parts = entries.filter(is_part);
        parts.any(|part| part.metadata().is_ok_and(|it| it.len() > 0))
    };
    let start = Instant::now();
    while !is_begun() {
        ensure!(start.elapsed() < LONG_TIMEOUT, "no part of the file: {}", copy.account());
        thread::sleep(Duration::from_millis(5));
    }
    Ok(copy)
}

fn resume(place: &Place) -> Result<()> {
    let copy = place.cp("rdma")?.arg("--resume").arg(place.path("from").join(""));
    let copy = copy.arg(place.at(LOCALHOST, "to"));
    copy.run(TIMEOUT)?.success()?.expect_output(OVER_RDMA)?;
    assert_same(&place.path("from"), &place.path("share/to"))
}

#[test]
fn copy_over_rdma_resumes_after_either_end_was_killed() -> Result<()> {
    let place = Place::new()?;
    let mut server = place.serve(&["--rdma"], None)?;
    let to = place.path("share/to");
    begin(&place, &to)?.kill()?;
    ensure!(!to.join("large").exists(), "a part of a file has its name");
    // The server has noticed, and goes on to serve.
    server.printed("weft: ", TIMEOUT)?;
    resume(&place)?;
    fs::remove_dir_all(&to)?;
    let copy = begin(&place, &to)?;
    server.signal(Signal::KILL)?;
    let failed = copy.wait(TIMEOUT)?;
    ensure!(failed.status.code() == Some(1), failed.error("did not fail"));
    drop(server);
    ensure!(!to.join("large").exists(), "a part of a file has its name");
    let _server = place.serve(&["--rdma"], None)?;
    resume(&place)
}

#[test]
fn strangers_get_no_data_channel() -> Result<()> {
    let place = Place::new()?;
    let _server = place.serve(&["--rdma"], None)?;
    let port = (place.port + 1).to_string();
    // No preface, and that of data channel 0 with a token that the server has not given.
    let preface = "895745465443500a00010001020000004141414141414141";
    let unknown = format!("{preface}4141414141414141");
    for data in ["00", preface, &unknown] {
        let stranger = Program::weft(compile("rdma_stranger")?);
        let stranger = stranger.args(["127.0.0.1", &port, data]);
        stranger.run(TIMEOUT)?.success()?.expect_lines("refused\n")?;
    }
    copy_both_ways(&place, LOCALHOST, None)
}

#[test]
fn copy_without_rdma_at_one_end_goes_over_tcp_or_fails_with_the_reason() -> Result<()> {
    let place = Place::new()?;
    let from = place.path("from").join("");
    let server = place.serve(&[], None)?;
    let copy = |over, name| anyhow::Ok(place.cp(over)?.arg(&from).arg(place.at(LOCALHOST, name)));
    copy("auto", "one")?.run(TIMEOUT)?.success()?.expect_output(OVER_TCP)?;
    let failed = copy("rdma", "two")?.run(TIMEOUT)?;
    ensure!(failed.status.code() == Some(1), failed.error("did not fail"));
    failed.expect_output("the server does not offer RDMA (weft serve --rdma)")?;
    drop(server);
    let _server = place.serve(&["--rdma"], None)?;
    let by_tcp = copy("tcp", "three")?.run(TIMEOUT)?.success()?;
    ensure!(!by_tcp.stdout.contains(OVER_RDMA), by_tcp.error("not by TCP"));
    // A client whose libraries cannot be loaded.
    let libraries = place.path("libraries");
    fs::create_dir(&libraries)?;
    fs::write(libraries.join("libibverbs.so.1"), "no library")?;
    let plain = |over, name| {
        let copy = Program::plain(weft()?).env("XDG_CONFIG_HOME", place.path("client"));
        let copy = copy.env("LD_LIBRARY_PATH", &libraries);
        let copy = copy.args(["cp", "--json", "--accept-new", "--data", over]);
        anyhow::Ok(copy.arg(&from).arg(place.at(LOCALHOST, name)))
    };
    let by_tcp = plain("auto", "four")?.run(TIMEOUT)?.success()?;
    ensure!(!by_tcp.stdout.contains(OVER_RDMA), by_tcp.error("not by TCP"));
    let failed = plain("rdma", "five")?.run(TIMEOUT)?;
    ensure!(failed.status.code() == Some(1), failed.error("did not fail"));
    failed.expect_output("libibverbs1")?;
    for name in ["one", "three", "four"] {
        assert_same(&from, &place.path("share").join(name))?;
    }
    Ok(())
}

/// Passes TCP connections from a port on to another one.
fn relay(from: u16, to: u16) -> Result<()> {
    let listener = TcpListener::bind((LOCALHOST, from))?;
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a client");
            let server = TcpStream::connect((LOCALHOST, to)).expect("the server");
            let pairs = [(&client, &server), (&server, &client)];
            for (from, to) in pairs.map(|(from, to)| (from.try_clone(), to.try_clone())) {
                let (mut from, mut to) = (from.expect("a copy"), to.expect("a copy"));
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    Ok(())
}

#[test]
fn copy_whose_rdma_connection_fails_goes_over_tcp() -> Result<()> {
    let mut place = Place::new()?;
    let mut server = place.serve(&["--rdma"], None)?;
    // The server agrees to RDMA, but nothing listens for it at the relay's next port.
    let port = std::mem::replace(&mut place.port, two_ports());
    relay(place.port, port)?;
    let from = place.path("from").join("");
    let copy = |over, name| anyhow::Ok(place.cp(over)?.arg(&from).arg(place.at(LOCALHOST, name)));
    copy("auto", "to")?.run(TIMEOUT)?.success()?.expect_output(FELL_BACK)?;
    assert_same(&from, &place.path("share/to"))?;
    // The way back, where the client has granted the memory.
    let back = place.cp("auto")?.arg(place.at(LOCALHOST, "to/")).arg(place.path("back"));
    back.run(TIMEOUT)?.success()?.expect_output(FELL_BACK)?;
    assert_same(&from, &place.path("back"))?;
    let failed = copy("rdma", "not")?.run(TIMEOUT)?;
    ensure!(failed.status.code() == Some(1), failed.error("did not fail"));
    let error = failed.stderr.lines().last().context("no error")?;
    ensure!(error.contains("RDMA by"), "{error}");
    ensure!(server.is_running()?, server.account());
    Ok(())
}

/// The server agrees to RDMA, but what listens in its place ends each connection as soon as it is
/// established. No block has arrived there, so all of them go over TCP.
#[test]
fn copy_whose_rdma_connections_end_goes_on_over_tcp() -> Result<()> {
    let mut place = Place::new()?;
    let mut server = place.serve(&["--rdma"], None)?;
    let port = std::mem::replace(&mut place.port, two_ports());
    relay(place.port, port)?;
    let refuser = Program::weft(compile("rdma_refuser")?);
    let mut refuser = refuser.args(["127.0.0.1", &(place.port + 1).to_string()]).start()?;
    refuser.printed("listening", TIMEOUT)?;
    let from = place.path("from").join("");
    let copy = |over, name| anyhow::Ok(place.cp(over)?.arg(&from).arg(place.at(LOCALHOST, name)));
    copy("auto", "to")?.run(TIMEOUT)?.success()?.expect_output(FELL_BACK)?;
    assert_same(&from, &place.path("share/to"))?;
    // So small that the source has nothing more to write when the connections end.
    let small = place.cp("auto")?.arg(from.join("empty")).arg(place.at(LOCALHOST, "small"));
    small.run(TIMEOUT)?.success()?.expect_output(FELL_BACK)?;
    let back = place.cp("auto")?.arg(place.at(LOCALHOST, "to/")).arg(place.path("back"));
    back.run(TIMEOUT)?.success()?.expect_output(FELL_BACK)?;
    assert_same(&from, &place.path("back"))?;
    let failed = copy("rdma", "not")?.run(TIMEOUT)?;
    ensure!(failed.status.code() == Some(1), failed.error("did not fail"));
    ensure!(server.is_running()? && refuser.is_running()?, server.account());
    Ok(())
}
