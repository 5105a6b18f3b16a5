//! `weft cp` from one `weft serve` to another one: this host passes the data on.

mod common;

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::hosts::{
    Hosts, servers_are_strangers, text_is_compressed_between, two_servers, wait_until,
};
use common::{assert_same, fail, make_tree, noise, output, set_mtime, succeed, weft};
use fastrand::Rng;
use weft_transfer::limits::CONNECTIONS_MAX;

fn write(path: &Path, data: impl AsRef<[u8]>) {
    fs::write(path, data).expect("room");
}

#[test]
fn trees_go_from_one_server_to_another() {
    let (one, two) = two_servers(&[], &[]);
    for (seed, options) in [&[][..], &["--verify"], &["--compress=zstd"]].iter().enumerate() {
        let name = format!("share/tree{seed}");
        make_tree(&one.path(&name), seed as u64);
        let from = one.at(&format!("{name}/"));
        let said = succeed(one.client().args(*options).arg(&from).arg(two.at(&name)));
        assert!(said.starts_with("copied ") && said.contains("busiest"), "{said}");
        assert_same(&one.path(&name), &two.path(&name));
        // The second time nothing is copied.
        let said = succeed(one.client().arg("-u").args(*options).arg(&from).arg(two.at(&name)));
        assert!(said.starts_with("copied 0 files"), "{said}");
    }
    text_is_compressed_between(&one, &two, &mut one.client());
    servers_are_strangers([&one, &two]);
}

/// Others that know no key take all places of a server, and say nothing.
#[test]
fn silent_strangers_do_not_keep_clients_out() {
    let hosts = Hosts::new(&[]);
    write(&hosts.path("share/file"), "one");
    let connect = |_| TcpStream::connect(("127.0.0.1", hosts.port)).expect("it listens");
    let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX + 20).map(connect).collect();
    for name in ["a", "b"] {
        let to = hosts.path(name);
        succeed(hosts.client().arg(hosts.at("share/file")).arg(&to));
        assert_eq!(fs::read_to_string(to).expect("a file"), "one");
    }
    drop(silent);
}

/// Returns the processor time of a process, in ticks of the kernel.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[test]
fn hundred_clients_are_served_at_once_and_none_costs_nothing() {
    const CLIENTS: usize = 100;
    let hosts = Hosts::new(&[]);
    for folder in ["from", "near"] {
        fs::create_dir(hosts.path(folder)).expect("room");
    }
    let mut rng = Rng::with_seed(3);
    for file in 0..8 {
        write(&hosts.path(&format!("from/{file}")), noise(rng.usize(..100_000), &mut rng));
    }
    let copy = |from: &str, to: &str| {
        let mut copy = hosts.client();
        copy.args(["-q", "--verify"]).args([from, to]).stderr(Stdio::piped());
        copy
    };
    let from = hosts.path("from/").display().to_string();
    let place = |client| hosts.at(&format!("share/{client}"));
    // The others find the server's key in the file.
    succeed(&mut copy(&from, &place(CLIENTS)));
    for is_up in [true, false] {
        let clients: Vec<Child> = (0..CLIENTS)
            .map(|client| {
                let near = hosts.path(&format!("near/{client}")).display().to_string();
                let remote = place(client);
                let mut copy = match is_up {
                    true => copy(&from, &remote),
                    false => copy(&format!("{remote}/"), &near),
                };
                copy.spawn().expect("weft starts")
            })
            .collect();
        for client in clients {
            let output = client.wait_with_output().expect("our own");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}");
        }
    }
    for client in 0..CLIENTS {
        assert_same(&hosts.path("from"), &hosts.path(&format!("near/{client}")));
    }
    wait_until("the server takes no processor time", || {
        let before = ticks(hosts.server.id());
        std::thread::sleep(std::time::Duration::from_secs(1));
        ticks(hosts.server.id()) == before
    });
}

#[test]
fn destinations_follow_the_rules_of_cp() {
    let (one, two) = two_servers(&[], &[]);
    fs::create_dir(one.path("share/dir")).expect("room");
    write(&one.path("share/dir/file"), "in it");
    write(&one.path("share/file"), "one");
    let copy = |from: &[&str], to: &str| {
        let mut copy = one.client();
        copy.args(from.iter().map(|from| one.at(from))).arg(two.at(to));
        copy
    };
    let read = |name: &str| fs::read_to_string(two.path(name)).expect("a file");
    succeed(&mut copy(&["share/file"], "share/new"));
    succeed(&mut copy(&["share/file"], "share"));
    succeed(&mut copy(&["share/file"], "share/made/"));
    let names = ["share/new", "share/file", "share/made/file"].map(read);
    assert_eq!(names, ["one"; 3].map(str::to_owned));
    write(&one.path("share/file"), "other");
    succeed(&mut copy(&["share/file"], "share/new"));
    assert_eq!(read("share/new"), "other");
    for _ in 0..2 {
        succeed(&mut copy(&["share/dir"], "share/to"));
        assert_eq!(read("share/to/dir/file"), "in it");
        assert!(!two.path("share/to/dir/dir").exists());
    }
    succeed(&mut copy(&["share/dir/"], "share/content"));
    assert_eq!(read("share/content/file"), "in it");
    succeed(&mut copy(&["share/file", "share/dir"], "share/both"));
    assert_eq!(
        (read("share/both/file"), read("share/both/dir/file")),
        ("other".into(), "in it".into())
    );
    // No journal and no temporary file is left.
    let names = fs::read_dir(two.path("share")).expect("a folder");
    let hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    assert!(names.flatten().all(|name| !hidden(&name.file_name())));
    let text = fail(&mut copy(&["share/none"], "share/x"), 1);
    assert!(text.contains("share/none: No such file"), "{text}");
    let text = fail(&mut copy(&["share/file"], "share/none/x"), 1);
    assert!(text.contains("share/none/x: No such file"), "{text}");
    // One server as both: its directories are not copied into themselves.
    for to in ["share/dir", "share/dir/sub", "share"] {
        let mut copy = one.client();
        let text = fail(copy.arg(one.at("share/dir")).arg(one.at(to)), 1);
        assert!(text.contains("itself") || text.contains("the same"), "{to}: {text}");
    }
    succeed(one.client().arg(one.at("share/dir")).arg(one.at("share/again")));
    assert_eq!(fs::read(one.path("share/again/dir/file")).expect("a file"), b"in it");
}

#[test]
fn options_work_between_servers() {
    let (one, two) = two_servers(&[], &[]);
    make_tree(&one.path("share/tree"), 4);
    let copy = |options: &[&str]| {
        let mut copy = one.client();
        copy.args(options).arg(one.at("share/tree/")).arg(two.at("share/tree"));
        copy
    };
    let planned = succeed(&mut copy(&["-n"]));
    assert!(planned.contains("would copy") && !two.path("share/tree").exists(), "{planned}");
    succeed(&mut copy(&["--exclude", "*1*"]));
    assert!(planned.lines().count() > 10);
    succeed(&mut copy(&["-u"]));
    assert_same(&one.path("share/tree"), &two.path("share/tree"));
    for name in ["more", "more.o"] {
        write(&two.path(&format!("share/tree/{name}")), "x");
    }
    let plan = succeed(&mut copy(&["-n", "-u", "--delete", "--exclude", "*.o", "--json"]));
    assert!(plan.contains("\"action\":\"delete\"") && !plan.contains("more.o"), "{plan}");
    let said = succeed(&mut copy(&["-u", "--delete", "--exclude", "*.o"]));
    assert!(said.contains("1 deleted") && two.path("share/tree/more.o").exists(), "{said}");
    // The other host's problems are reported here.
    write(&one.path("share/tree/taken"), "x");
    fs::create_dir(two.path("share/tree/taken")).expect("room");
    let text = fail(&mut copy(&["-u"]), 3);
    assert!(text.contains("taken: a directory has its name"), "{text}");
    // A copy under a limit takes its time.
    write(&one.path("share/large"), noise(3_000_000, &mut Rng::with_seed(1)));
    let start = std::time::Instant::now();
    let copy = [one.at("share/large"), two.at("share/large")];
    succeed(one.client().arg("--limit=4MB").args(copy));
    assert!(start.elapsed().as_millis() >= 750, "{:?}", start.elapsed());
}

#[test]
fn servers_that_refuse_are_named() {
    let (one, two) = two_servers(&[], &["--read-only"]);
    write(&one.path("share/file"), "x");
    let copy = |home: &str| {
        let mut copy = weft(&one.path(home));
        copy.args(["cp", "--accept-new"]).arg(one.at("share/file")).arg(two.at("share/file"));
        copy
    };
    let text = fail(&mut copy("client"), 1);
    assert!(text.contains("reading only"), "{text}");
    let text = fail(&mut copy("stranger"), 1);
    let name = format!("127.0.0.1:{} does not let this user in", two.port);
    assert!(text.contains(&name), "{text}");
    assert!(!two.path("share/file").exists());
    let mut known = weft(&one.path("client"));
    fs::remove_file(one.path("client/weft/known-servers")).ok();
    let text = fail(known.arg("cp").arg(one.at("share/file")).arg(two.at("share/file")), 1);
    assert!(text.contains("is not known"), "{text}");
}

/// Begins a slow copy of a large file from one server to another one, and waits until a part of it
/// is written.
fn begin(one: &Hosts, two: &Hosts) -> Child {
    write(&one.path("share/large"), noise(40_000_000, &mut Rng::with_seed(7)));
    let mut copy = one.client();
    copy.args(["--limit", "4M"]).arg(one.at("share/large")).arg(two.at("share/large"));
    let child = copy.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("weft starts");
    let is_part = |name: fs::DirEntry| {
        let is_part = name.file_name().as_encoded_bytes().starts_with(b".large");
        is_part
            && name
                .metadata()
                .is_ok_and(|meta| std::os::unix::fs::MetadataExt::blocks(&meta) > 4_096)
    };
    let share = two.path("share");
    wait_until("a part is written", || {
        fs::read_dir(&share).expect("a folder").flatten().any(is_part)
    });
    child
}

#[test]
fn copy_whose_server_or_relay_dies_goes_on() {
    for killed in ["source", "destination", "client"] {
        let (mut one, mut two) = two_servers(&[], &[]);
        let mut client = begin(&one, &two);
        match killed {
            "source" => one.restart(),
            "destination" => two.restart(),
            _ => client.kill().expect("our own"),
        }
        let output = client.wait_with_output().expect("our own");
        let text = String::from_utf8_lossy(&output.stderr);
        if killed != "client" {
            assert_eq!(output.status.code(), Some(1), "{text}");
        }
        if killed == "source" {
            assert!(text.contains("the source: "), "{text}");
        }
        assert!(!two.path("share/large").exists());
        // If the client died, the server may not know it yet.
        wait_until("the copy goes on", || {
            let mut copy = one.client();
            let copy = copy.args(["--resume", "--json"]).arg(one.at("share/large"));
            let said = succeed(copy.arg(two.at("share/large")));
            assert!(said.contains("summary"), "{said}");
            two.path("share/large").exists()
        });
        let [from, to] = [&one, &two].map(|host| fs::read(host.path("share/large")));
        assert!(from.expect("a file") == to.expect("a file"), "{killed}");
    }
}

#[test]
fn memory_of_the_relay_is_bounded() {
    const LEN: usize = 200 << 20;
    let (one, two) = two_servers(&[], &[]);
    write(&one.path("share/large"), vec![7; LEN]);
    let mut client = one
        .client()
        .arg("-q")
        .arg(one.at("share/large"))
        .arg(two.at("share/large"))
        .spawn()
        .expect("weft starts");
    let mut peak = 0;
    while client.try_wait().expect("our own").is_none() {
        let path = format!("/proc/{}/status", client.id());
        let status = fs::read_to_string(path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(kib.unwrap_or(0_usize));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(client.wait().expect("our own").success());
    assert_eq!(fs::metadata(two.path("share/large")).expect("a file").len(), LEN as u64);
    assert!((32 << 10..100 << 10).contains(&peak), "{peak} KiB");
}

/// Returns the only key in a text.
fn key_in(text: &str) -> String {
    let keys: Vec<&str> = text.split("ed25519:").skip(1).collect();
    assert_eq!(keys.len(), 1, "{text}");
    keys[0].chars().take_while(char::is_ascii_hexdigit).collect()
}

#[test]
fn refused_client_learns_its_key_and_so_does_the_server() {
    let hosts = Hosts::new(&[]);
    write(&hosts.path("share/file"), "x");
    let fetch = |options: &[&str]| {
        let mut command = weft(&hosts.path("stranger"));
        command.arg("cp").args(options).arg(hosts.at("share/file")).arg(hosts.path("got"));
        command
    };
    // The server proves its key before it refuses the client, which remembers it.
    let text = fail(&mut fetch(&["--accept-new"]), 1);
    let own = succeed(weft(&hosts.path("stranger")).args(["cp", "--show-key"]));
    assert_eq!(key_in(&text), key_in(&own));
    assert!(text.contains("does not let this user in"), "{text}");
    assert!(text.contains("authorised-clients") && !text.contains("TLS"), "{text}");
    let text = fail(&mut fetch(&[]), 1);
    assert!(text.contains("does not let this user in"), "{text}");
    // What the server's log says is what its owner has to write.
    let log = || fs::read_to_string(hosts.path("server.log")).expect("a file");
    wait_until("the server logs it", || log().matches("refused the key").count() == 2);
    let line = log().lines().next().expect("a line").to_owned();
    assert_eq!(key_in(&line), key_in(&own));
    fs::create_dir_all(hosts.path("server/weft")).expect("room");
    write(&hosts.path("server/weft/authorised-clients"), own);
    succeed(&mut fetch(&[]));
}

#[test]
fn server_says_what_it_shares_and_whom_it_lets_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let share = folder.path().join("photos");
    fs::create_dir(&share).expect("room");
    let said = |options: &[&str]| {
        let mut server = weft(&folder.path().join("config"))
            .args(["serve", "--bind", "127.0.0.1", "--port", "0"])
            .args(options)
            .arg(&share)
            .stdout(Stdio::piped())
            .spawn()
            .expect("weft starts");
        let out = BufReader::new(server.stdout.take().expect("a pipe"));
        let lines: Vec<String> = out.lines().take(3).map(|line| line.expect("text")).collect();
        server.kill().expect("our own");
        server.wait().expect("our own");
        lines
    };
    let lines = said(&["--read-only"]);
    let sharing = format!("sharing photos: {}, for reading", share.display());
    assert!(lines[0].starts_with("listening on 127.0.0.1:"), "{lines:?}");
    assert_eq!(lines[1], sharing);
    assert!(lines[2].starts_with("letting in nobody: put the keys"), "{lines:?}");
    let key = succeed(weft(&folder.path().join("client")).args(["cp", "--show-key"]));
    write(&folder.path().join("config/weft/authorised-clients"), &key);
    let lines = said(&[]);
    assert_eq!(lines[1], sharing + " and writing");
    assert!(lines[2].starts_with("letting in the clients of "), "{lines:?}");
    assert!(lines[2].ends_with("authorised-clients, 1 now"), "{lines:?}");
    let lines = said(&["--allow", key.trim()]);
    assert!(lines[2].starts_with("letting in 1 clients by --allow"), "{lines:?}");
}

/// Each failure is one message, with its cause once and without keys that have nothing to do with
/// it, and one event.
#[test]
fn failures_are_said_once_and_as_an_event() {
    let hosts = Hosts::new(&["proc=/proc"]);
    let file = hosts.path("file");
    write(&file, "x");
    let file = file.display().to_string();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = closed.local_addr().expect("bound").port();
    drop(closed);
    // Nobody may create files in /proc.
    for (from, to, expected) in [
        (&file[..], "/proc/new", "/proc/new: cannot create files there: "),
        (&file, &hosts.at("proc/new"), ": cannot create files there: "),
        (&file, "/proc", "/proc: cannot create files there: "),
        (&file, &file, ": source and destination are the same"),
        (&file, &format!("127.0.0.1:{port}//share"), ": does weft serve run there?"),
        (&file, &hosts.at("none/x"), "no such share; this server has: proc, share"),
        (&hosts.at("share/none"), &file, "share/none: No such file or directory"),
        ("/none/at/all", &file, "/none/at/all: No such file or directory"),
    ] {
        for options in [&[][..], &["--json"]] {
            let output = output(hosts.client().args(options).args([from, to]));
            let [said, events] =
                [&output.stderr, &output.stdout].map(|it| String::from_utf8_lossy(it));
            assert_eq!(output.status.code(), Some(1), "{to}: {said}");
            assert!(said.contains(expected) && !said.contains("ed25519"), "{to}: {said}");
            assert_eq!(said.lines().count(), 1, "{to}: {said}");
            assert!(said.matches("os error").count() <= 1, "{to}: {said}");
            if options.is_empty() {
                assert_eq!(events, "", "{to}");
                continue;
            }
            let all: Vec<serde_json::Value> = events
                .lines()
                .map(|line| serde_json::from_str(line).expect("JSON"))
                .filter(|event: &serde_json::Value| event["event"] == "failed")
                .collect();
            assert_eq!(all.len(), 1, "{to}: {events}");
            let text = all[0]["text"].as_str().expect("a text");
            assert_eq!(said.trim_end(), format!("weft: {text}"));
        }
    }
}

/// A server with few descriptors keeps enough of them for its clients.
#[test]
fn silent_strangers_leave_descriptors_for_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let share = folder.path().join("share");
    fs::create_dir_all(share.join("from")).expect("room");
    for number in 0..40 {
        write(&share.join(format!("from/{number}")), "x");
    }
    let key = succeed(weft(&folder.path().join("client")).args(["cp", "--show-key"]));
    let serving = weft(&folder.path().join("server"));
    let mut server = Command::new("prlimit");
    server.arg("--nofile=200:200").arg(serving.get_program());
    server.args(["serve", "--bind", "127.0.0.1", "--port", "0", "--allow", key.trim()]);
    server.envs(serving.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut server = server
        .arg(&share)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("prlimit starts");
    let mut line = String::new();
    let out = server.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let port = line.split([':', ',']).nth(1).expect("a port");
    let connect = |_| TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    for round in 0..3 {
        let silent: Vec<TcpStream> = (0..150).map(connect).collect();
        let mut copy = weft(&folder.path().join("client"));
        copy.args(["cp", "--accept-new", &format!("127.0.0.1:{port}//share/from")]);
        succeed(copy.arg(folder.path().join(format!("to{round}"))));
        drop(silent);
    }
    server.kill().expect("our own");
    server.wait().expect("our own");
}

fn ls(hosts: &Hosts) -> Command {
    let mut command = weft(&hosts.path("client"));
    command.args(["ls", "--accept-new"]);
    command
}

/// Returns the lines of `weft ls` in JSON.
fn listed(hosts: &Hosts, place: &str) -> Vec<serde_json::Value> {
    let text = succeed(ls(hosts).arg("--json").arg(hosts.at(place)));
    let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{text}: {error}"));
    text.lines().map(value).collect()
}

#[test]
fn listing_has_what_is_there_and_nothing_below_it() {
    let hosts = Hosts::new(&[]);
    let share = hosts.path("share");
    fs::create_dir_all(share.join("folder/below/deep")).expect("room");
    for (name, len) in [("b", 0), ("folder/a", 12_345), ("folder/other", 7), ("folder/below/x", 1)]
    {
        write(&share.join(name), vec![7; len]);
    }
    fs::hard_link(share.join("folder/a"), share.join("folder/z")).expect("a file system");
    symlink("nowhere", share.join("folder/link")).expect("a file system");
    let _socket = UnixListener::bind(share.join("folder/socket")).expect("a file system");
    fs::set_permissions(share.join("folder/a"), Permissions::from_mode(0o4750)).expect("our own");
    set_mtime(&share.join("folder/other"), 951_782_400, 0);
    let listing = |place: &str| {
        let text = succeed(ls(&hosts).arg(hosts.at(place)));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listing(""), ["share/"]);
    assert_eq!(listing("share"), ["b", "folder/"]);
    let in_folder = ["a", "below/", "link", "other", "socket", "z"];
    for place in ["share/folder", "share/folder/", "share//folder/."] {
        assert_eq!(listing(place), in_folder, "{place}");
    }
    assert_eq!(listing("share/folder/other"), ["other"]);
    assert_eq!(listing("share/folder/below/deep"), [""; 0]);
    // The facts are those of the file system.
    for value in listed(&hosts, "share/folder") {
        let path = share.join("folder").join(value["path"].as_str().expect("a path"));
        let meta = fs::symlink_metadata(&path).expect("it is there");
        let kind = match () {
            () if meta.is_dir() => "directory",
            () if meta.is_symlink() => "symlink",
            () if meta.is_file() => "file",
            () => "special",
        };
        let target = fs::read_link(&path).ok().map(|target| target.display().to_string());
        let size = if meta.is_file() { meta.len() } else { 0 };
        let expected = serde_json::json!({"path": value["path"], "kind": kind, "size": size,
            "mode": meta.mode() & 0o7777, "mtime": meta.mtime(),
            "mtime_nanoseconds": meta.mtime_nsec(), "target": target});
        assert_eq!(value, expected);
    }
    let text = succeed(ls(&hosts).args(["-l", &hosts.at("share/folder")]));
    assert!(text.contains("-rwsr-x---        12345 "), "{text}");
    assert!(text.contains("            7 2000-02-29 00:00:00 other\n"), "{text}");
    assert!(text.contains("link -> nowhere\n"), "{text}");
    // What is not there, and what is outside.
    for place in ["share/none", "none", "share/../server", "share/folder/link/x"] {
        fail(ls(&hosts).arg(hosts.at(place)), 1);
    }
    fail(ls(&hosts).arg(&share), 1);
    fs::remove_file(share.join("folder/socket")).expect("our own");
    // All shares can be copied as they are listed, and nothing can be copied to where they are.
    succeed(hosts.client().args(["-aq", &hosts.at("")]).arg(hosts.path("all")));
    assert_same(&share, &hosts.path("all/share"));
    fail(hosts.client().arg(share.join("b")).arg(hosts.at("")), 1);
}
