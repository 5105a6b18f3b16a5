//! `weft cp` with `-`: standard input becomes a file, and a file goes to standard output.

mod common;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::hosts::{Hosts, wait_until};
use common::{fail, noise, succeed};
use fastrand::Rng;

/// Runs a command with these bytes in a pipe as its standard input.
fn feed(command: &mut Command, data: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft starts");
    let mut input = child.stdin.take().expect("a pipe");
    thread::scope(|scope| {
        // The process may end before it has read everything.
        scope.spawn(move || drop(input.write_all(data)));
        child.wait_with_output().expect("our own")
    })
}

#[track_caller]
fn assert_fed(command: &mut Command, data: &[u8]) {
    let output = feed(command, data);
    assert!(output.status.success(), "{output:?}");
}

/// Returns what a command has written to its standard output.
#[track_caller]
fn output_of(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("weft starts");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Returns the names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        names.map(|name| name.expect("a name").file_name().display().to_string()).collect();
    names.sort();
    names
}

#[test]
fn input_of_any_length_comes_back_on_standard_output() {
    let hosts = Hosts::new(&[]);
    let mut rng = Rng::with_seed(1);
    let (there, here) = (hosts.at("share/file"), hosts.path("file"));
    // Lengths around the grain of hashes and the length of a block, and several blocks.
    for len in [0, 1, 1023, 1024, 1025, (1 << 20) - 1024, 1 << 20, (1 << 20) + 1, 5_000_000] {
        let data = noise(len, &mut rng);
        for options in [&[][..], &["--verify"]] {
            let mut cp = hosts.client();
            assert_fed(cp.args(options).args(["-", &there]), &data);
            assert!(fs::read(hosts.path("share/file")).expect("a file") == data, "{len}");
            let back = output_of(hosts.client().args(options).args([&there, "-"]));
            assert!(back == data, "{len} {options:?}: {} bytes", back.len());
            assert_fed(hosts.client().args(options).arg("-").arg(&here), &data);
            assert!(fs::read(&here).expect("a file") == data, "{len}");
            assert!(output_of(hosts.client().args(options).arg(&here).arg("-")) == data, "{len}");
        }
    }
    assert_eq!(names(&hosts.path("share")), ["file"]);
}

#[test]
fn standard_streams_can_be_files_and_devices() {
    let hosts = Hosts::new(&[]);
    let (from, to) = (hosts.path("from"), hosts.path("to"));
    let data = noise(3_000_000, &mut Rng::with_seed(2));
    fs::write(&from, &data).expect("room");
    let there = hosts.at("share/file");
    let input = || Stdio::from(File::open(&from).expect("a file"));
    succeed(hosts.client().stdin(input()).args(["-", &there]));
    let output = File::create(&to).expect("room");
    assert!(hosts.client().args([&there, "-"]).stdout(output).status().expect("weft").success());
    assert!(fs::read(&to).expect("a file") == data);
    // The bytes that another program has read do not come again.
    let mut file = File::open(&from).expect("a file");
    file.read_exact(&mut [0; 1000]).expect("long enough");
    succeed(hosts.client().stdin(file).args(["-", &there]));
    assert!(fs::read(hosts.path("share/file")).expect("a file") == data[1000..]);
    // The client's default input in these tests is /dev/null.
    succeed(hosts.client().args(["-", &hosts.at("share/empty")]));
    assert_eq!(fs::read(hosts.path("share/empty")).expect("a file"), b"");
    assert!(
        hosts.client().args([&there, "-"]).stdout(Stdio::null()).status().expect("weft").success()
    );
    let full = File::options().write(true).open("/dev/full").expect("a device");
    let text = fail_to(hosts.client().args([&there, "-"]), full.into());
    assert!(text.contains("standard output: No space left"), "{text}");
    // A hole goes to standard output as zeros.
    let sparse = File::create(&from).expect("room");
    sparse.set_len(3_000_000).expect("room");
    let back = output_of(hosts.client().arg(&from).arg("-"));
    assert!(back.len() == 3_000_000 && back.iter().all(|&byte| byte == 0));
    // A link of this user leads to its file.
    symlink(&to, hosts.path("link")).expect("room");
    assert!(output_of(hosts.client().arg(hosts.path("link")).arg("-")) == data);
}

#[track_caller]
fn fail_to(command: &mut Command, output: Stdio) -> String {
    let child = command.stdout(output).stderr(Stdio::piped()).spawn().expect("weft starts");
    let output = child.wait_with_output().expect("our own");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn standard_output_carries_the_file_alone() {
    let hosts = Hosts::new(&[]);
    let path = hosts.path("share/file");
    fs::write(&path, "content").expect("room");
    for options in [&[][..], &["--json"]] {
        let mut cp = hosts.client();
        let output = cp.args(options).args([&hosts.at("share/file"), "-"]).output().expect("weft");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"content"[..]));
        assert!(text.contains("copied"), "{text}");
    }
    let quiet = hosts.client().args(["-q", &hosts.at("share/file"), "-"]).output().expect("weft");
    assert_eq!((&quiet.stdout[..], &quiet.stderr[..]), (&b"content"[..], &b""[..]));
    // A new file has the mode that a redirection gives it.
    let data = b"content";
    let script = format!("umask 027; exec {} cp -q - \"$0\"", common::WEFT);
    let mut sh = Command::new("sh");
    assert_fed(sh.args(["-c", &script]).arg(hosts.path("made")), data);
    let mode = fs::metadata(hosts.path("made")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn arguments_that_do_not_fit_a_stream_are_refused() {
    let hosts = Hosts::new(&[]);
    fs::create_dir(hosts.path("share/dir")).expect("room");
    fs::write(hosts.path("share/file"), "x").expect("room");
    symlink("file", hosts.path("share/link")).expect("room");
    let at = |path: &str| hosts.at(path);
    let dir = hosts.path("share/dir").display().to_string();
    for (args, word) in [
        (vec!["-".into(), "-".into()], "both"),
        (vec!["-".into(), dir.clone(), at("share/x")], "only source"),
        (vec![at("share/file"), at("share/file"), "-".into()], "single source"),
        (vec!["-".into(), at("share/dir/")], "name it"),
        (vec![at("share/dir/"), "-".into()], "takes a file"),
    ] {
        let text = fail(hosts.client().args(&args), 2);
        assert!(text.contains(word), "{args:?}: {text}");
    }
    for option in ["-n", "--resume", "-u", "--delete", "--owners", "--xattrs", "--exclude=x"] {
        for args in [["-", &at("share/x")], [&at("share/file"), "-"]] {
            let text = fail(hosts.client().arg(option).args(args), 2);
            assert!(text.contains("cannot be used with standard"), "{option}: {text}");
        }
    }
    succeed(Command::new("mkfifo").arg(hosts.path("share/pipe")));
    // Only the other end knows that these are no files.
    for (args, word) in [
        (["-", &at("share/dir")], "is a directory"),
        (["-", &at("share")], "is a directory"),
        (["-", &dir], "is a directory"),
        ([&at("share/dir"), "-"], "not a regular file"),
        ([&at("share"), "-"], "not a regular file"),
        ([&at("share/link"), "-"], "not a regular file"),
        ([&at("share/pipe"), "-"], "not a regular file"),
        (["-", &at("share/pipe")], "not a regular file"),
        (["-", &hosts.path("share/pipe").display().to_string()], "not a regular file"),
        ([&dir, "-"], "not a regular file"),
        ([&at("share/none"), "-"], "No such file"),
    ] {
        let output = hosts.client().args(args).output().expect("weft starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{args:?}");
        assert!(text.contains(word), "{args:?}: {text}");
    }
    assert_eq!(names(&hosts.path("share")), ["dir", "file", "link", "pipe"]);
    assert!(names(&hosts.path("share/dir")).is_empty());
}

#[test]
fn input_that_cannot_be_read_leaves_no_file() {
    let hosts = Hosts::new(&[]);
    fs::write(hosts.path("share/old"), "old").expect("room");
    for to in
        [hosts.at("share/new"), hosts.at("share/old"), hosts.path("new").display().to_string()]
    {
        let directory = File::open(hosts.path("share")).expect("a folder");
        let text = fail(hosts.client().stdin(directory).args(["-", &to]), 3);
        assert!(text.contains("cannot be read at the source: Is a directory"), "{text}");
    }
    assert_eq!(names(&hosts.path("share")), ["old"]);
    assert_eq!(fs::read(hosts.path("share/old")).expect("a file"), b"old");
    assert!(!hosts.path("new").exists());
}

/// Starts a copy of a pipe to the server, and waits until a part of it is on the server's disk.
fn begin(hosts: &Hosts) -> Child {
    let mut client = hosts
        .client()
        .args(["-", &hosts.at("share/file")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft starts");
    let input = client.stdin.as_mut().expect("a pipe");
    input.write_all(&noise(8_000_000, &mut Rng::with_seed(3))).expect("a reader");
    let share = hosts.path("share");
    let has_part = |name: &String| {
        let is_part = name.starts_with(".file.weft-");
        is_part && fs::metadata(share.join(name)).is_ok_and(|it| it.len() > 1_000_000)
    };
    wait_until("a part is written", || names(&share).iter().any(has_part));
    client
}

#[test]
fn killed_client_leaves_nothing_of_its_input() {
    let hosts = Hosts::new(&[]);
    let mut client = begin(&hosts);
    client.kill().expect("our own");
    client.wait().expect("our own");
    let share = hosts.path("share");
    // The input cannot come again, so its part is of no use. The next copy removes the journal.
    wait_until("the server notices", || names(&share).iter().all(|name| !name.contains("file")));
    assert_fed(hosts.client().args(["-", &hosts.at("share/file")]), b"again");
    assert_eq!(names(&share), ["file"]);
}

#[test]
fn killed_server_ends_a_client_that_waits_for_input() {
    let mut hosts = Hosts::new(&[]);
    let client = begin(&hosts);
    hosts.restart();
    // The input stays open and idle.
    let output = wait_without_closing_input(client);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!hosts.path("share/file").exists());
    assert_fed(hosts.client().args(["-", &hosts.at("share/file")]), b"again");
    assert_eq!(names(&hosts.path("share")), ["file"]);
}

fn wait_without_closing_input(mut child: Child) -> Output {
    let _input = child.stdin.take();
    child.wait_with_output().expect("our own")
}

#[test]
fn reader_that_goes_away_is_an_error() {
    let hosts = Hosts::new(&[]);
    fs::write(hosts.path("share/file"), noise(5_000_000, &mut Rng::with_seed(4))).expect("room");
    for from in [hosts.at("share/file"), hosts.path("share/file").display().to_string()] {
        let mut client = hosts
            .client()
            .args([&from, "-"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weft starts");
        let mut reader = client.stdout.take().expect("a pipe");
        reader.read_exact(&mut [0; 100]).expect("long enough");
        drop(reader);
        let output = client.wait_with_output().expect("our own");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("its reader has gone"), "{text}");
    }
}

#[test]
fn slow_reader_bounds_the_memory_of_the_client() {
    const LEN: usize = 160 << 20;
    let hosts = Hosts::new(&[]);
    fs::write(hosts.path("share/file"), vec![7; LEN]).expect("room");
    let mut client = hosts
        .client()
        .args([&hosts.at("share/file"), "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("weft starts");
    let mut reader = client.stdout.take().expect("a pipe");
    let mut rest = vec![0; LEN];
    // The reader stops before the last bytes, which do not fit into the pipe: the client is alive.
    let (first, last) = rest.split_at_mut(LEN - (1 << 20));
    reader.read_exact(&mut first[..1]).expect("long enough");
    let kib = |field: &str| -> usize {
        let path = format!("/proc/{}/status", client.id());
        let status = fs::read_to_string(path).expect("the client is alive");
        let value = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        value.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    wait_until("the client has filled its blocks", || kib("RssAnon:") > 31 << 10);
    reader.read_exact(&mut first[1..]).expect("long enough");
    let peak = kib("VmHWM:");
    reader.read_exact(last).expect("long enough");
    assert_eq!(reader.read(&mut [0]).expect("a pipe"), 0);
    assert!(client.wait().expect("our own").success());
    assert!(rest.iter().all(|&byte| byte == 7));
    assert!(peak < 100 << 10, "{peak} KiB");
}

#[test]
fn limit_holds_for_standard_streams() {
    const RATE: u64 = 4_000_000;
    let hosts = Hosts::new(&[]);
    let data = vec![7; 3_000_000];
    let least = Duration::from_nanos(3_000_000 * 1_000_000_000 / RATE);
    let there = hosts.at("share/file");
    let start = Instant::now();
    assert_fed(hosts.client().args(["--limit", "4MB", "-", &there]), &data);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    let start = Instant::now();
    assert!(output_of(hosts.client().args(["--limit", "4MB", &there, "-"])) == data);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

/// What `tar` writes on one side of a copy, `tar` reads on the other.
#[test]
fn archives_pass_through() {
    let hosts = Hosts::new(&[]);
    let from = hosts.path("from");
    common::make_tree(&from, 6);
    fs::create_dir(hosts.path("to")).expect("room");
    let script = r#"set -e
        tar --format=posix -c -C "$1" . | "$0" cp -q --accept-new - "$3"
        "$0" cp -q "$3" - | tar -x -p -C "$2""#;
    let mut sh = Command::new("sh");
    sh.env("XDG_CONFIG_HOME", hosts.path("client"));
    sh.args(["-c", script, common::WEFT]).arg(&from).arg(hosts.path("to"));
    succeed(sh.arg(hosts.at("share/archive")));
    common::assert_same(&from, &hosts.path("to"));
}
