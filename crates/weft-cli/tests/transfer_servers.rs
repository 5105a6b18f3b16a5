//! `weft cp` from one `weft serve` to another one: this host passes the data on.

mod common;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use common::hosts::{Hosts, wait_until};
use common::{assert_same, fail, make_tree, noise, succeed, weft};
use fastrand::Rng;
use weft_transfer::limits::CONNECTIONS_MAX;

/// Returns two servers. The client of the first one may use both.
fn two(options: &[&str]) -> (Hosts, Hosts) {
    let one = Hosts::new(&[]);
    let key = succeed(weft(&one.path("client")).args(["cp", "--show-key"]));
    let options = [&["--allow", key.trim()], options].concat();
    (one, Hosts::new(&options))
}

fn write(path: &Path, data: impl AsRef<[u8]>) {
    fs::write(path, data).expect("room");
}

#[test]
fn trees_go_from_one_server_to_another() {
    let (one, two) = two(&[]);
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
    let text = "a line like the one before\n".repeat(50_000);
    write(&one.path("share/text"), &text);
    let copy = [one.at("share/text"), two.at("share/text")];
    let said = succeed(one.client().arg("--compress=zstd").args(&copy));
    assert!(said.contains("sent as"), "{said}");
    assert_eq!(fs::read_to_string(two.path("share/text")).expect("a file"), text);
    // Neither server has made the other's acquaintance.
    for server in [&one, &two] {
        assert!(!server.path("server/weft/known-servers").exists());
    }
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
    let (one, two) = two(&[]);
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
    let (one, two) = two(&[]);
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
    let (one, two) = two(&["--read-only"]);
    write(&one.path("share/file"), "x");
    let copy = |home: &str| {
        let mut copy = weft(&one.path(home));
        copy.args(["cp", "--accept-new"]).arg(one.at("share/file")).arg(two.at("share/file"));
        copy
    };
    let text = fail(&mut copy("client"), 1);
    assert!(text.contains("reading only"), "{text}");
    let text = fail(&mut copy("stranger"), 1);
    assert!(text.contains("this user's key, for it to know"), "{text}");
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
        let (mut one, mut two) = two(&[]);
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
    let (one, two) = two(&[]);
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
