//! Users of `weft serve --config`: their rights, quotas and limits, and the log.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::hosts::wait_until;
use common::{fail, noise, output, succeed, weft};
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server that a file describes, and its users, who are called ann, bob, cid and eve.
struct Site {
    folder: tempfile::TempDir,
    server: Child,
    said: BufReader<ChildStdout>,
    port: u16,
}

fn start(folder: &Path) -> (Child, BufReader<ChildStdout>, u16) {
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("server.log"));
    let mut server = weft(&folder.join("server"))
        .args(["serve", "--config"])
        .arg(folder.join("serve.toml"))
        .stdout(Stdio::piped())
        .stderr(log.expect("room"))
        .spawn()
        .expect("weft starts");
    let mut said = BufReader::new(server.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let port = line.split([':', ',']).nth(1).and_then(|port| port.parse().ok());
    (server, said, port.unwrap_or_else(|| panic!("{line}")))
}

impl Site {
    /// Starts a server with these shares. Of the users, eve is not in its file.
    fn new(shares: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["data", "drop", "own"] {
            fs::create_dir(folder.path().join(name)).expect("room");
        }
        write_file(folder.path(), shares);
        let (server, said, port) = start(folder.path());
        Self { folder, server, said, port }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn at(&self, path: &str) -> String {
        format!("127.0.0.1:{}//{path}", self.port)
    }

    fn command(&self, user: &str, command: &str) -> Command {
        let mut it = weft(&self.path(user));
        it.args([command, "--accept-new"]);
        it
    }

    fn cp(&self, user: &str, options: &[&str], from: &str, to: &str) -> Command {
        let mut copy = self.command(user, "cp");
        copy.args(options).args([from, to]);
        copy
    }

    /// Writes another file, and has the server read it.
    fn hang_up(&self, shares: &str) {
        write_file(self.folder.path(), shares);
        let pid = Pid::from_raw(i32::try_from(self.server.id()).expect("a process"));
        kill_process(pid.expect("a process"), Signal::HUP).expect("our own");
    }

    /// Waits until the server has read the file.
    fn wait_for_reload(&mut self) {
        let mut line = String::new();
        while !line.starts_with("reloaded ") {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).expect("a line"), 0, "it has ended");
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("server.log")).expect("a file")
    }

    fn kill_server(&mut self) {
        self.server.kill().expect("our own");
        self.server.wait().expect("our own");
    }

    fn restart(&mut self) {
        self.kill_server();
        (self.server, self.said, self.port) = start(self.folder.path());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the server says:\n{}", self.log());
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Writes the server's file: three users, and these shares.
fn write_file(folder: &Path, shares: &str) {
    let mut text = String::from("bind = \"127.0.0.1\"\nport = 0\n");
    text.push_str(shares.split_once("%\n").map_or("", |(before, _)| before));
    for user in ["ann", "bob", "cid"] {
        let key = succeed(weft(&folder.join(user)).args(["cp", "--show-key"]));
        text.push_str(&format!("[[user]]\nname = \"{user}\"\nkeys = [\"{}\"]\n", key.trim()));
        if user == "bob" {
            text.push_str("copies = 2\n");
        }
    }
    text.push_str(shares.split_once("%\n").map_or(shares, |(_, shares)| shares));
    fs::write(folder.join("serve.toml"), text).expect("room");
}

const SHARES: &str = "[[share]]\nname = \"data\"\npath = \"data\"\nread = [\"*\"]\n\
    write = [\"ann\"]\n\
    [[share]]\nname = \"drop\"\npath = \"drop\"\nread = [\"ann\"]\nwrite = [\"ann\", \"cid\"]\n\
    [[share]]\nname = \"own\"\npath = \"own\"\nread = [\"ann\"]\nwrite = [\"ann\"]\n";

#[test]
fn users_see_and_do_what_the_file_lets_them() {
    let site = Site::new(SHARES);
    let [data, drop] = ["data/report", "drop/report"].map(|name| site.path(name));
    fs::write(&data, "report").expect("room");
    fs::write(&drop, "secret").expect("room");
    let near = site.path("near").display().to_string();
    let ls = |user, path: &str| {
        let mut ls = site.command(user, "ls");
        ls.arg(site.at(path));
        ls
    };
    assert_eq!(succeed(&mut ls("ann", "")), "data/\ndrop/\nown/\n");
    for user in ["bob", "cid"] {
        assert_eq!(succeed(&mut ls(user, "")), "data/\n");
        assert_eq!(succeed(&mut ls(user, "data")), "report\n");
        assert!(fail(&mut ls(user, "own"), 1).contains("no such share"));
    }
    // What bob may not use is as if it were not there.
    let text = fail(&mut ls("bob", "drop"), 1);
    assert!(text.contains("there is no such share; this server has: data"), "{text}");
    assert!(fail(&mut ls("eve", ""), 1).contains("does not let this user in"));
    fs::write(site.path("new"), "new").expect("room");
    let new = site.path("new").display().to_string();
    for (user, from, to, expected) in [
        ("bob", &new, site.at("data/new"), "this share is for reading only"),
        ("cid", &site.at("drop/report"), near.clone(), "this share is for writing only"),
        ("cid", &new, site.at("own/new"), "there is no such share"),
        ("bob", &site.at("drop/report"), near.clone(), "there is no such share"),
    ] {
        let text = fail(&mut site.cp(user, &[], from, &to), 1);
        assert!(text.contains(expected), "{text}");
    }
    // One who may only write gets no answer about what is there.
    for options in [
        &["-u"][..],
        &["--resume"],
        &["-n"],
        &["-v"],
        &["--delete"],
        &["--force"],
        &["-c"],
        &["--size-only"],
        &["--ignore-existing"],
        &["--append"],
        &["--link-dest", "x"],
        &["--clean"],
    ] {
        let text = fail(&mut site.cp("cid", options, &new, &site.at("drop/report")), 1);
        assert!(text.contains("this share is for writing only: nothing"), "{options:?}: {text}");
    }
    assert_eq!(fs::read(&drop).expect("a file"), b"secret");
    for (name, options) in [("a", &[][..]), ("report", &["--verify"]), ("report", &["-b"])] {
        succeed(&mut site.cp("cid", options, &new, &site.at(&format!("drop/{name}"))));
        assert_eq!(fs::read(site.path("drop").join(name)).expect("a file"), b"new");
    }
    assert!(site.path("drop/report~").exists());
    let everything = site.path("everything").display().to_string();
    succeed(&mut site.cp("cid", &[], &site.at(""), &everything));
    assert!(site.path("everything/data/report").exists());
    assert!(!site.path("everything/drop").exists() && !site.path("everything/own").exists());
    // Moving is reading and writing.
    let text = fail(&mut site.cp("bob", &["--remove-source-files"], &site.at("data/"), &near), 1);
    assert!(text.contains("for reading only, so its files stay"), "{text}");
    succeed(&mut site.cp("ann", &["--remove-source-files"], &site.at("data/"), &near));
    assert!(!data.exists() && site.path("near/report").exists());
}

#[test]
fn file_is_read_again_and_copies_go_on() {
    let mut site = Site::new(SHARES);
    let data = noise(8 << 20, &mut Rng::with_seed(5));
    fs::write(site.path("data/large"), &data).expect("room");
    let near = site.path("near").display().to_string();
    let slow = |site: &Site| {
        let mut copy = site.cp("bob", &["-q", "--limit=4M"], &site.at("data/large"), &near);
        copy.spawn().expect("weft starts")
    };
    let is_begun = |name: &str| {
        fs::read_dir(site.folder.path())
            .expect("a folder")
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with(&format!(".{name}.weft-")))
    };
    let mut copy = slow(&site);
    wait_until("a part is written", || is_begun("near"));
    let without = SHARES.replacen("read = [\"*\"]", "read = [\"ann\"]", 1);
    site.hang_up(&without);
    site.wait_for_reload();
    let text = fail(&mut site.cp("bob", &[], &site.at("data/large"), "x"), 1);
    assert!(text.contains("there is no such share"), "{text}");
    assert!(copy.wait().expect("our own").success());
    assert!(fs::read(&near).expect("a file") == data);
    // A file that is wrong, or that takes a restart, changes nothing.
    for (text, expected) in [
        (format!("{without}[[share]]\nnam = 1\n"), "unknown field `nam`"),
        (format!("rdma = true\n%\n{SHARES}"), "another value of rdma takes a restart"),
        (SHARES.replacen("[\"*\"]", "[\"dan\"]", 1), "no [[user]] of the name \\\"dan\\\""),
    ] {
        site.hang_up(&text);
        let expected = expected.replace('\\', "");
        wait_until("it says why not", || site.log().contains(&expected));
        assert!(site.log().contains("not reloaded"));
        fail(&mut site.cp("bob", &[], &site.at("data/large"), "x"), 1);
        let mut check = weft(&site.path("server"));
        let check = check.args(["serve", "--check", "--config"]).arg(site.path("serve.toml"));
        let is_right = expected.contains("restart");
        assert_eq!(output(check).status.success(), is_right, "{text}");
    }
    site.hang_up(SHARES);
    site.wait_for_reload();
    fs::remove_file(&near).expect("it is there");
    succeed(&mut site.cp("bob", &["-q"], &site.at("data/large"), &near));
}

/// What is in a directory: the bytes of files, and the number of names but those of journals.
fn usage(folder: &Path) -> (u64, u64) {
    let (mut bytes, mut names) = (0, 0);
    // A copy may remove what is listed.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
        if entry.file_name().to_string_lossy().starts_with(".weft-") {
            continue;
        }
        names += 1;
        if metadata.is_dir() {
            let (more, others) = usage(&entry.path());
            (bytes, names) = (bytes + more, names + others);
        } else {
            bytes += metadata.size();
        }
    }
    (bytes, names)
}

/// The same when nothing changes: a server may still write for a client that was killed.
fn settled_usage(folder: &Path) -> (u64, u64) {
    let mut before = usage(folder);
    wait_until("nothing changes", || {
        thread::sleep(Duration::from_millis(20));
        let now = usage(folder);
        let is_same = now == before;
        before = now;
        is_same
    });
    before
}

/// Three users replace each other's files, and are killed, while a long copy keeps the server from
/// counting anew.
#[test]
fn quotas_hold_while_copies_race_resume_and_are_killed() {
    const BYTES: u64 = 6_000_000;
    const NAMES: u64 = 40;
    let shares = SHARES.replace("copies = 2\n", "").replacen(
        "path = \"data\"\n",
        &format!("path = \"data\"\nquota = \"{BYTES}\"\nquota-files = {NAMES}\n"),
        1,
    );
    let shares = shares.replacen("write = [\"ann\"]", "write = [\"*\"]", 1);
    let mut site = Site::new(&shares);
    let mut rng = Rng::with_seed(7);
    let data = noise(3_000_000, &mut rng);
    for tree in 0..3 {
        let folder = site.path(&format!("from{tree}"));
        fs::create_dir(&folder).expect("room");
        for file in 0..8 {
            // The same names have large and small files.
            let len = if rng.bool() { rng.usize(..400_000) } else { rng.usize(..100) };
            fs::write(folder.join(file.to_string()), &data[..len]).expect("room");
        }
    }
    fs::write(site.path("long"), &data[..1_000_000]).expect("room");
    let within = |site: &Site| {
        let (bytes, names) = settled_usage(&site.path("data"));
        assert!(bytes <= BYTES && names <= NAMES, "{bytes} bytes, {names} names");
    };
    let (mut refused, mut ended) = (0, 0);
    for round in 0..6 {
        let long = site.path("long").display().to_string();
        let mut long = site
            .cp("ann", &["-q", "--limit=64K"], &long, &site.at("data/long"))
            .spawn()
            .expect("weft starts");
        wait_until("the long copy is under way", || usage(&site.path("data")).1 > 0);
        for turn in 0..5 {
            let mut copies: Vec<Child> = ["ann", "bob", "cid"]
                .into_iter()
                .enumerate()
                .map(|(number, user)| {
                    let tree = (number + turn + round) % 3;
                    let from = format!("{}/", site.path(&format!("from{tree}")).display());
                    let options: &[&str] = match rng.u8(..4) {
                        0 => &["--resume"],
                        1 => &["--inplace"],
                        2 => &["-b", "--backup-dir=old"],
                        _ => &[],
                    };
                    let to = if rng.bool() { "data/" } else { "data/sub" };
                    let mut copy = site.cp(user, options, &from, &site.at(to));
                    copy.arg("-q").stderr(Stdio::piped()).spawn().expect("weft starts")
                })
                .collect();
            for copy in &mut copies {
                if rng.u8(..4) == 0 {
                    copy.kill().expect("our own");
                }
            }
            for copy in copies {
                let output = copy.wait_with_output().expect("our own");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                match output.status.code() {
                    Some(0) => ended += 1,
                    Some(_) => {
                        let is_one = |what| said.contains(&format!("shared directory, {what}"));
                        let (bytes, names) = (format!("{BYTES} bytes"), format!("{NAMES} files"));
                        assert!(is_one(bytes) || is_one(names), "{said}");
                        refused += 1;
                    }
                    None => {}
                }
            }
            within(&site);
        }
        long.kill().expect("our own");
        long.wait().expect("our own");
        site.restart();
        within(&site);
        // Room is made.
        let folder = fs::read_dir(site.path("data")).expect("a folder");
        for entry in folder.flatten() {
            let _ = match entry.path().is_dir() {
                true => fs::remove_dir_all(entry.path()),
                false => fs::remove_file(entry.path()),
            };
        }
    }
    assert!(refused > 0 && ended > 0, "{refused} refused, {ended} ended");
}

#[test]
fn limits_bound_copies_and_rates() {
    let limits = "[limits]\nrate = \"1M\"\n%\n";
    let site = Site::new(&format!("{limits}{SHARES}"));
    let data = noise(3 << 20, &mut Rng::with_seed(6));
    fs::write(site.path("data/large"), &data).expect("room");
    let begun = Instant::now();
    let fetch = |name: &str| {
        let near = site.path(name).display().to_string();
        site.cp("bob", &["-q", "--compress=none"], &site.at("data/large"), &near)
    };
    let copies: Vec<Child> =
        ["one", "two"].map(|name| fetch(name).spawn().expect("weft starts")).into();
    // Both run when each has begun.
    wait_until("both have begun", || {
        let names = fs::read_dir(site.folder.path()).expect("a folder").flatten();
        let names: Vec<_> = names.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        ["one", "two"].iter().all(|name| {
            names.iter().any(|it| it == name || it.starts_with(&format!(".{name}.weft-")))
        })
    });
    let text = fail(&mut fetch("three"), 1);
    assert!(text.contains("the user bob has 2 copies at a time: try again later"), "{text}");
    // Others have places.
    succeed(&mut site.cp(
        "ann",
        &["-q"],
        &site.at("data/large"),
        &site.path("x").display().to_string(),
    ));
    for mut copy in copies {
        assert!(copy.wait().expect("our own").success());
    }
    // Three copies of 3 MiB pass at 1 MiB a second, whose last blocks need not be waited for.
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    for name in ["one", "two", "x"] {
        assert!(fs::read(site.path(name)).expect("a file") == data);
    }
    succeed(&mut fetch("three"));
}

#[test]
fn log_says_who_did_what() {
    let mut site = Site::new(&format!("log = \"log\"\n%\n{SHARES}"));
    let hostile = "a\n{\"user\":\"root\"}\u{1b}[2J\\";
    fs::write(site.path("new"), "12345").expect("room");
    let (new, near) = (site.path("new").display().to_string(), site.path("near"));
    let near = near.display().to_string();
    let lines = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(site.path(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    // The server may learn of the end of a copy later than the client.
    let wait = |count: usize| wait_until("it is logged", || lines("log").len() == count);
    succeed(&mut site.cp("ann", &[], &new, &site.at(&format!("data/{hostile}"))));
    wait(1);
    succeed(&mut site.cp("bob", &["--compress=none"], &site.at(&format!("data/{hostile}")), &near));
    wait(2);
    fail(&mut site.cp("cid", &[], &new, &site.at("data/x")), 1);
    wait(3);
    succeed(site.command("bob", "ls").arg(site.at("data")));
    wait(4);
    let escaped = r#"data/a\n{"user":"root"}\u{1b}[2J\\"#;
    let rows = [
        ("ann", "write", escaped, "ended"),
        ("bob", "read", escaped, "ended"),
        ("cid", "write", "data/x", "failed"),
        ("bob", "list", "data", "ended"),
    ];
    for (line, (user, action, path, result)) in lines("log").iter().zip(rows) {
        let found = ["user", "action", "result"].map(|key| line[key].as_str().expect("a text"));
        assert_eq!(found, [user, action, result], "{line}");
        assert_eq!(line["paths"][0], path, "{line}");
        assert!(line["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:")));
        assert!(line["key"].as_str().is_some_and(|key| key.starts_with("ed25519:")));
    }
    let log = lines("log");
    assert_eq!((&log[0]["files"], &log[0]["bytes"]), (&1.into(), &5.into()));
    assert!(log[1]["moved"].as_u64() > Some(4) && log[1]["files"].is_null(), "{}", log[1]);
    assert!(log[2]["error"].as_str().is_some_and(|it| it.contains("reading only")));
    assert_eq!(fs::metadata(site.path("log")).expect("a file").mode() & 0o777, 0o600);
    // A log that was moved away is begun anew.
    fs::rename(site.path("log"), site.path("log.1")).expect("it is there");
    site.hang_up(&format!("log = \"log\"\n%\n{SHARES}"));
    site.wait_for_reload();
    succeed(site.command("ann", "ls").arg(site.at("own")));
    let lines = |name: &str| fs::read_to_string(site.path(name)).unwrap_or_default();
    wait_until("it is logged", || lines("log").contains(r#""user":"ann""#));
    assert_eq!(lines("log.1").lines().count(), 4);
}
