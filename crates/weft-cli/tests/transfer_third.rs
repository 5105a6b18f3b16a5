//! `weft cp` from one `weft serve` to another one, with the data from server to server.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};

use common::hosts::{
    Hosts, servers_are_strangers, text_is_compressed_between, two_servers, wait_until,
};
use common::{assert_same, fail, make_tree, noise, succeed};
use fastrand::Rng;

const CONNECTS: &[&str] = &["--third-party", "127.0.0.0/8", "--allow-clear"];

/// A copy whose data must go from server to server.
fn direct(one: &Hosts, options: &[&str]) -> Command {
    let mut copy = one.client();
    copy.args(["--between-servers", "direct"]).args(options);
    copy
}

#[test]
fn trees_go_straight_from_one_server_to_another() {
    let (one, two) = two_servers(CONNECTS, &["--allow-clear"]);
    let all: &[&[&str]] = &[&[], &["--verify"], &["--compress=zstd"], &["--clear"]];
    for (seed, options) in all.iter().enumerate() {
        let name = format!("share/tree{seed}");
        make_tree(&one.path(&name), seed as u64);
        let (from, to) = (one.at(&format!("{name}/")), two.at(&name));
        let said = succeed(direct(&one, options).args([&from, &to]));
        assert!(said.starts_with("copied ") && said.contains("; data from server to server"));
        assert_same(&one.path(&name), &two.path(&name));
        // By default it is the same, and the second time nothing is copied.
        let said = succeed(one.client().arg("-u").args(*options).args([&from, &to]));
        assert!(said.starts_with("copied 0 files"), "{said}");
        assert!(said.contains("; data from server to server"), "{said}");
    }
    text_is_compressed_between(&one, &two, &mut direct(&one, &[]));
    servers_are_strangers([&one, &two]);
}

#[test]
fn client_sees_progress_changes_problems_and_the_result() {
    let (one, two) = two_servers(CONNECTS, &[]);
    make_tree(&one.path("share/tree"), 4);
    let copy = |options: &[&str]| {
        let mut copy = direct(&one, options);
        copy.arg(one.at("share/tree/")).arg(two.at("share/tree"));
        copy
    };
    let planned = succeed(one.client().args(["-n", &one.at("share/tree/"), &two.at("share/tree")]));
    assert!(planned.contains("would copy") && !two.path("share/tree").exists(), "{planned}");
    let said = succeed(&mut copy(&["-v", "--explain"]));
    assert!(said.contains("data: from server to server by TCP"), "{said}");
    // The destination itself is made before the copy.
    let is_change = |line: &&str| line.starts_with("copy ") && !line.ends_with(" ./");
    let changes = |text: &str| text.lines().filter(is_change).count();
    assert_eq!(changes(&said), changes(&planned));
    assert_same(&one.path("share/tree"), &two.path("share/tree"));
    fs::write(two.path("share/tree/more"), "x").expect("room");
    let said = succeed(&mut copy(&["-u", "--delete"]));
    assert!(said.contains("1 deleted"), "{said}");
    fs::write(one.path("share/tree/taken"), "x").expect("room");
    fs::create_dir(two.path("share/tree/taken")).expect("room");
    let text = fail(&mut copy(&["-u"]), 3);
    assert!(text.contains("taken: a directory has its name"), "{text}");
    // Of several sources one is missing, which its server reports.
    let mut both = direct(&one, &[]);
    both.args([one.at("share/none"), one.at("share/tree"), two.at("share/both")]);
    let text = fail(&mut both, 3);
    assert!(text.contains("none: "), "{text}");
    assert!(two.path("share/both/tree/taken").exists());
    fs::write(one.path("share/large"), noise(4_000_000, &mut Rng::with_seed(1))).expect("room");
    let start = std::time::Instant::now();
    let mut slow = direct(&one, &["--json", "--limit=4MB"]);
    let said = succeed(slow.arg(one.at("share/large")).arg(two.at("share/large")));
    assert!(start.elapsed().as_millis() >= 900, "{:?}", start.elapsed());
    let bytes = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        (value["event"] == "progress").then(|| value["bytes"].as_u64().expect("a number"))
    };
    let most = said.lines().filter_map(bytes).max();
    assert!(most.is_some_and(|most| (1..=4_100_000).contains(&most)), "{said}");
    assert!(said.contains(r#""data":"direct""#), "{said}");
}

#[test]
fn data_goes_through_the_client_where_it_cannot_go_straight() {
    for (first, why) in [
        (&[][..], "the source's server does not offer it: weft serve --third-party"),
        (&["--third-party", "192.0.2.0/24"], "the source's server may not connect to 127.0.0.1"),
        (&["--third-party", "all"], "the source's server may not connect to 127.0.0.1"),
    ] {
        let (one, two) = two_servers(first, &[]);
        fs::write(one.path("share/file"), "text").expect("room");
        let places = [one.at("share/file"), two.at("share/file")];
        let said = succeed(one.client().args(&places));
        let expected = format!("; data through this host ({why})");
        assert!(said.contains(&expected), "{said}");
        assert_eq!(fs::read(two.path("share/file")).expect("a file"), b"text");
        fs::remove_file(two.path("share/file")).expect("our own");
        let text = fail(direct(&one, &[]).args(&places), 1);
        assert!(text.contains("the data cannot go from server to server"), "{text}");
        assert!(text.contains(why) && !two.path("share/file").exists(), "{text}");
    }
    let (one, two) = two_servers(CONNECTS, &["--read-only"]);
    fs::write(one.path("share/file"), "text").expect("room");
    fs::create_dir(two.path("share/made")).expect("room");
    // The way that the user has chosen.
    let mut copy = one.client();
    copy.args(["--between-servers", "relay", &one.at("share/file"), &one.at("share/copy")]);
    let said = succeed(&mut copy);
    assert!(said.trim_end().ends_with("; data through this host"), "{said}");
    // The rights are those of the client at each server.
    let text = fail(direct(&one, &[]).arg(one.at("share/file")).arg(two.at("share/made")), 1);
    assert!(text.contains("reading only"), "{text}");
    let text = fail(direct(&one, &[]).arg(one.at("share/none")).arg(one.at("share/made")), 1);
    assert!(text.contains("share/none: No such file"), "{text}");
    // One server as both.
    fs::create_dir_all(one.path("share/dir/sub")).expect("room");
    for to in ["share/dir", "share/dir/sub", "share"] {
        let text = fail(direct(&one, &[]).arg(one.at("share/dir")).arg(one.at(to)), 1);
        assert!(text.contains("itself") || text.contains("the same"), "{to}: {text}");
    }
    succeed(direct(&one, &[]).arg(one.at("share/dir")).arg(one.at("share/again")));
    assert!(one.path("share/again/dir/sub").is_dir() || one.path("share/again/sub").is_dir());
}

/// Begins a slow copy of a large file, and waits until a part of it is written.
fn begin(one: &Hosts, two: &Hosts) -> Child {
    let noise = noise(40_000_000, &mut Rng::with_seed(7));
    fs::write(one.path("share/large"), noise).expect("room");
    let mut copy = direct(one, &["--limit", "4M"]);
    copy.arg(one.at("share/large")).arg(two.at("share/large"));
    let child = copy.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("weft starts");
    wait_until("a part is written", || {
        fs::read_dir(two.path("share")).expect("a folder").flatten().any(|name| {
            let is_part = name.file_name().as_encoded_bytes().starts_with(b".large");
            is_part && name.metadata().is_ok_and(|meta| meta.blocks() > 4_096)
        })
    });
    child
}

/// The TCP connections between a process and others, as the kernel counts its sockets.
fn sockets(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:")).count()
}

#[test]
fn copy_of_which_one_of_three_processes_dies_ends_at_all_and_goes_on() {
    for killed in ["source", "destination", "client"] {
        let (mut one, mut two) = two_servers(CONNECTS, &[]);
        let idle = [&one, &two].map(|host| sockets(host.server.id()));
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
            assert!(text.contains(&format!("the {killed}: ")), "{text}");
        }
        assert!(!two.path("share/large").exists());
        // The copy has ended at the servers, too: their connections are closed.
        wait_until("the servers have ended it", || {
            [&one, &two].map(|host| sockets(host.server.id())) == idle
        });
        let mut copy = direct(&one, &["--resume", "--json"]);
        let said = succeed(copy.arg(one.at("share/large")).arg(two.at("share/large")));
        assert!(said.contains("summary"), "{said}");
        let [from, to] = [&one, &two].map(|host| fs::read(host.path("share/large")));
        assert!(from.expect("a file") == to.expect("a file"), "{killed}");
    }
}
