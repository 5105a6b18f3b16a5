//! `weft cp --rsh`: copies by a remote shell. The tests use a script as the shell, which runs the
//! command on this host.

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{WEFT, assert_same, fail, make_tree, noise, set_mtime, succeed, weft};
use fastrand::Rng;

/// A remote shell that works like ssh: it passes all words of the command to a shell in the user's
/// home directory. It knows one host.
const SHELL: &str = r#"#!/bin/sh
[ "$1" = "me@host" ] || { echo "no such host: $1" >&2; exit 255; }
shift
cd "$HOME" && exec sh -c "$*"
"#;

struct Hosts {
    folder: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let hosts = Self { folder };
        fs::create_dir(hosts.path("home")).expect("room");
        hosts.script("rsh", SHELL);
        hosts
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("room");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("our own");
        path.display().to_string()
    }

    fn cp(&self) -> Command {
        self.cp_by(&self.path("rsh").display().to_string())
    }

    fn cp_by(&self, shell: &str) -> Command {
        let mut command = weft(&self.path("config"));
        command.args(["cp", "--remote-weft", WEFT, "--rsh", shell]).env("HOME", self.path("home"));
        // The tests themselves may run by ssh.
        command.env_remove("SSH_CONNECTION");
        command
    }
}

#[test]
fn trees_go_both_ways_by_a_remote_shell() {
    let hosts = Hosts::new();
    for seed in 0..2 {
        let from = hosts.path(&format!("from {seed}"));
        make_tree(&from, seed);
        // The path is relative to the home directory, and a shell would expand its name if it were
        // not quoted.
        let there = hosts.path(&format!("home/to {seed} $HOME;'\""));
        let place = format!("me@host:{}", there.file_name().expect("a name").display());
        succeed(hosts.cp().arg(from.join("")).arg(&place));
        assert_same(&from, &there);
        let back = hosts.path(&format!("back{seed}"));
        succeed(hosts.cp().arg("--verify").arg(format!("{place}/")).arg(&back));
        assert_same(&from, &back);
        // With an absolute path, a directory keeps its name.
        let place = format!("me@host:{}", hosts.path("").display());
        succeed(hosts.cp().arg(format!("{place}from {seed}")).arg(hosts.path("into")));
        assert_same(&from, &hosts.path(&format!("into/from {seed}")));
    }
    // No end has created a key.
    assert!(!hosts.path("config").exists());
}

#[test]
fn places_by_a_remote_shell_are_as_those_of_scp() {
    let hosts = Hosts::new();
    let file = hosts.path("file");
    fs::write(&file, "one").expect("room");
    let read = |name: &str| fs::read_to_string(hosts.path(name)).expect("a file");
    succeed(hosts.cp().arg(&file).arg("me@host:"));
    assert_eq!(read("home/file"), "one");
    succeed(hosts.cp().arg(&file).arg("me@host:new"));
    succeed(hosts.cp().arg(&file).arg("me@host:~/newer"));
    assert_eq!((read("home/new"), read("home/newer")), ("one".into(), "one".into()));
    succeed(hosts.cp().arg("me@host:~/new").arg(hosts.path("got")));
    succeed(hosts.cp().args(["me@host:new", "me@host:./newer"]).arg(hosts.path("both")));
    assert_eq!((read("got"), read("both/newer")), ("one".into(), "one".into()));
    // A path of the user may contain symbolic links and `..`.
    symlink(hosts.path("both"), hosts.path("home/link")).expect("room");
    succeed(hosts.cp().arg(&file).arg("me@host:link/../linked"));
    assert_eq!(read("linked"), "one");
    // The error of the remote end names the path.
    let text = fail(hosts.cp().arg("me@host:none/such").arg(hosts.path("got")), 1);
    assert!(text.contains("none/such: No such file"), "{text}");
}

#[test]
fn standard_streams_go_by_a_remote_shell() {
    let hosts = Hosts::new();
    let (from, to) = (hosts.path("from"), hosts.path("to"));
    let data = noise(3_000_001, &mut Rng::with_seed(1));
    fs::write(&from, &data).expect("room");
    let input = File::open(&from).expect("a file");
    succeed(hosts.cp().stdin(input).args(["-", "me@host:there"]));
    assert!(fs::read(hosts.path("home/there")).expect("a file") == data);
    // A link of the remote user leads to its file.
    symlink("there", hosts.path("home/link")).expect("room");
    let output = File::create(&to).expect("room");
    assert!(
        hosts.cp().args(["me@host:link", "-"]).stdout(output).status().expect("weft").success()
    );
    assert!(fs::read(&to).expect("a file") == data);
    for [from, to] in [["me@host:", "-"], ["me@host:.", "-"], ["-", "me@host:"]] {
        let text = fail(hosts.cp().args([from, to]), 1);
        assert!(text.contains("not a regular file") || text.contains("is a directory"), "{text}");
    }
}

/// A remote shell with two hosts, each a home directory. It records the connections.
const SHELL_OF_TWO: &str = r#"#!/bin/sh
case "$1" in one|two) ;; *) echo "no such host: $1" >&2; exit 255;; esac
echo "${HOST:-here} $1" >> "$HOSTS/log"
HOST="$1"; HOME="$HOSTS/$1"; export HOST HOME
shift
cd "$HOME" && exec sh -c "$*"
"#;

#[test]
fn one_host_copies_to_another_without_this_one() {
    let hosts = Hosts::new();
    let rsh = hosts.script("two hosts", SHELL_OF_TWO);
    let rsh = format!("'{rsh}'");
    for home in ["one", "two"] {
        fs::create_dir(hosts.path(home)).expect("room");
    }
    let cp = || {
        let mut cp = hosts.cp_by(&rsh);
        cp.env("HOSTS", hosts.path(""));
        cp
    };
    let log = || fs::read_to_string(hosts.path("log")).expect("a log");
    let from = hosts.path("one/it's $HOME;");
    make_tree(&from, 8);
    let place = "one:it's $HOME;";
    succeed(cp().arg(format!("{place}/")).arg("two:~/to"));
    assert_same(&from, &hosts.path("two/to"));
    assert_eq!(log(), "here one\none two\n");
    // Options and patterns arrive, and so does the exit status with the errors.
    fs::write(hosts.path("two/to/more"), "x").expect("room");
    fs::write(hosts.path("two/to/kept.o"), "x").expect("room");
    let mut update = cp();
    update.args(["-u", "--delete", "--limit", "10MB", "--exclude", "*.o"]);
    let said = succeed(update.arg(format!("{place}/")).arg("two:to"));
    assert!(said.starts_with("copied 0 files") && said.contains("1 deleted"), "{said}");
    assert!(hosts.path("two/to/kept.o").exists());
    fs::write(hosts.path("one/log"), "a line like the one before\n".repeat(10_000)).expect("room");
    let said = succeed(cp().args(["--compress=zstd", "one:log", "two:log"]));
    assert!(said.contains("sent as"), "{said}");
    fs::create_dir(hosts.path("two/taken")).expect("room");
    fs::create_dir(hosts.path("two/taken/a")).expect("room");
    fs::write(hosts.path("one/a"), "x").expect("room");
    let text = fail(cp().args(["one:a", "two:taken"]), 3);
    assert!(text.contains("a: a directory has its name"), "{text}");
    let text = fail(cp().args(["one:none", "two:x"]), 1);
    assert!(text.contains("none: No such file"), "{text}");
    // Within one host there is no second connection.
    fs::remove_file(hosts.path("log")).expect("it is there");
    succeed(cp().args(["one:a", "one:b"]));
    assert_eq!(
        (log(), &fs::read(hosts.path("one/b")).expect("a file")[..]),
        ("here one\n".into(), &b"x"[..])
    );
    // Hosts that do not answer, and sources on several hosts.
    let text = fail(cp().args(["none:a", "two:x"]), 1);
    assert!(text.contains("no such host: none") && text.contains("exit status: 255"), "{text}");
    let text = fail(cp().args(["one:a", "none:x"]), 1);
    assert!(text.contains("no such host: none"), "{text}");
    let text = fail(cp().args(["one:a", "two:to", "one:x"]), 1);
    assert!(text.contains("all sources have to be on one host"), "{text}");
}

#[test]
fn options_work_by_a_remote_shell() {
    let hosts = Hosts::new();
    let from = hosts.path("from");
    make_tree(&from, 5);
    let copy = |options: &[&str]| {
        let mut copy = hosts.cp();
        copy.args(options).arg(from.join("")).arg("me@host:to");
        copy
    };
    let said = succeed(&mut copy(&["--dry-run"]));
    assert!(said.contains("would copy") && !hosts.path("home/to").exists(), "{said}");
    succeed(&mut copy(&[]));
    fs::write(hosts.path("home/to/more"), "x").expect("room");
    fs::write(hosts.path("home/to/more.o"), "x").expect("room");
    let said = succeed(&mut copy(&["-u", "--delete", "--exclude", "*.o"]));
    assert!(said.starts_with("copied 0 files") && said.contains("1 deleted"), "{said}");
    assert!(hosts.path("home/to/more.o").exists());
    fs::remove_file(hosts.path("home/to/more.o")).expect("it is there");
    // Only a process of the user itself may create setuid files.
    fs::write(from.join("special"), "x").expect("room");
    fs::set_permissions(from.join("special"), Permissions::from_mode(0o4755)).expect("our own");
    set_mtime(&from, 1, 2);
    succeed(&mut copy(&["-u", "--owners"]));
    assert_same(&from, &hosts.path("home/to"));
    // This end reports an entry that is in the way on the other host.
    fs::remove_file(hosts.path("home/to/special")).expect("it is there");
    fs::create_dir(hosts.path("home/to/special")).expect("room");
    let text = fail(&mut copy(&["-u"]), 3);
    assert!(text.contains("special: a directory has its name"), "{text}");
}

/// A remote shell that names the address of its host, as ssh does: it runs the command here.
fn shell_at(hosts: &Hosts, address: &str) -> String {
    let text = format!(
        "#!/bin/sh\nshift\nSSH_CONNECTION='192.0.2.7 50 {address} 22'\nexport SSH_CONNECTION\n\
         cd \"$HOME\" && exec sh -c \"$*\"\n"
    );
    hosts.script("named", &text)
}

#[test]
fn data_goes_beside_the_shell_if_the_other_host_can_be_reached() {
    let hosts = Hosts::new();
    let from = hosts.path("from");
    make_tree(&from, 6);
    for address in ["127.0.0.1", "::1"] {
        // A host may have no IPv6.
        if std::net::TcpListener::bind((address, 0)).is_err() {
            continue;
        }
        let shell = shell_at(&hosts, address);
        for (way, words) in [("auto", "data by TCP"), ("tcp", "data by TCP"), ("shell", "shell")] {
            let cp = || {
                let mut cp = hosts.cp_by(&shell);
                cp.args(["--data", way]);
                cp
            };
            let there = hosts.path(&format!("home/{way}"));
            let place = format!("me@localhost:{way}");
            let said = succeed(cp().arg("--verify").arg(from.join("")).arg(&place));
            assert!(said.trim_end().ends_with(words), "{said}");
            assert_same(&from, &there);
            let back = hosts.path("back");
            let said = succeed(cp().arg("--json").arg(format!("{place}/")).arg(&back));
            let name = if way == "shell" { "shell" } else { "tcp" };
            assert!(said.contains(&format!("\"data\":\"{name}\"")), "{said}");
            assert_same(&from, &back);
            fs::remove_dir_all(&there).expect("our own");
            fs::remove_dir_all(&back).expect("our own");
        }
    }
    // A stream, a limit and compression go the same way.
    let shell = shell_at(&hosts, "127.0.0.1");
    let file = hosts.path("file");
    fs::write(&file, "a line like the one before\n".repeat(100_000)).expect("room");
    let mut cp = hosts.cp_by(&shell);
    cp.args(["--data=tcp", "--compress=zstd", "--limit=100M", "-", "me@localhost:file"]);
    let said = succeed(cp.stdin(File::open(&file).expect("a file")));
    assert!(said.contains("sent as") && said.contains("data by TCP"), "{said}");
    assert_eq!(fs::read(hosts.path("home/file")).expect("it"), fs::read(&file).expect("it"));
    let said =
        succeed(hosts.cp_by(&shell).args(["--explain", "-q"]).arg(&file).arg("me@localhost:"));
    assert!(said.contains("data: by TCP, 2 connections") && said.contains("-"), "{said}");
    let mut through = hosts.cp_by(&shell);
    let said = succeed(through.args(["--explain", "--data=shell"]).arg(&file).arg("me@localhost:"));
    assert!(said.contains("data: through the remote shell\nblocks: 256.00 KiB"), "{said}");
    assert!(said.contains("encryption: that of the remote shell"), "{said}");
    // A dry run moves no data.
    let said = succeed(hosts.cp_by(&shell).arg("-n").arg(&file).arg("me@localhost:"));
    assert!(!said.contains("data"), "{said}");
}

#[test]
fn data_that_cannot_go_by_tcp_goes_through_the_shell_and_the_reason_is_named() {
    let hosts = Hosts::new();
    fs::write(hosts.path("file"), "x").expect("room");
    for (address, host, reason) in [
        (None, "me@host", "SSH_CONNECTION"),
        (Some("192.0.2.1"), "localhost", "cannot listen at 192.0.2.1"),
        // A host of another name must not have this one connect to itself.
        (Some("127.0.0.1"), "host", "listens at 127.0.0.1 only"),
    ] {
        let shell = match address {
            Some(address) => shell_at(&hosts, address),
            None => hosts.path("rsh").display().to_string(),
        };
        let place = format!("{host}:there");
        let said = succeed(hosts.cp_by(&shell).arg(hosts.path("file")).arg(&place));
        assert!(said.contains("through the remote shell (") && said.contains(reason), "{said}");
        fs::remove_file(hosts.path("home/there")).expect("it is there");
        let mut cp = hosts.cp_by(&shell);
        let text = fail(cp.arg("--data=tcp").arg(hosts.path("file")).arg(&place), 1);
        assert!(text.contains("cannot go by TCP") && text.contains(reason), "{text}");
        assert!(!hosts.path("home/there").exists());
    }
    let mut without = weft(&hosts.path("config"));
    let text = fail(without.args(["cp", "--data=shell", "a", "b"]), 2);
    assert!(text.contains("--rsh"), "{text}");
    let text = fail(hosts.cp().args(["--data=rdma", "a", "me@host:b"]), 2);
    assert!(text.contains("RDMA"), "{text}");
}

#[test]
fn limit_holds_each_way() {
    const RATE: u64 = 4_000_000;
    let hosts = Hosts::new();
    let file = hosts.path("file");
    // The limit is that of the bytes that are sent, and this data cannot be compressed.
    fs::write(&file, noise(3_000_000, &mut Rng::with_seed(1))).expect("room");
    let least = Duration::from_nanos(3_000_000 * 1_000_000_000 / RATE);
    let to = |name: &str| hosts.path(name).display().to_string();
    let from = file.display().to_string();
    for [from, to] in [
        [from.clone(), "me@host:there".to_owned()],
        ["me@host:there".to_owned(), to("back")],
        [from, to("here")],
    ] {
        let start = Instant::now();
        succeed(hosts.cp().args(["--limit", "4MB"]).args([&from, &to]));
        assert!(start.elapsed() >= least, "{from} {to} {:?}", start.elapsed());
    }
    assert_eq!(fs::read(hosts.path("back")).expect("a file"), fs::read(&file).expect("a file"));
}

#[test]
fn shells_that_fail_are_named() {
    let hosts = Hosts::new();
    let (file, got) = (hosts.path("file"), hosts.path("got"));
    fs::write(&file, "x").expect("room");
    let text = fail(hosts.cp().arg(&file).arg("nobody@host:x"), 1);
    assert!(text.contains("no such host") && text.contains("exit status: 255"), "{text}");
    let mut without = hosts.cp_by(&hosts.path("rsh").display().to_string());
    without.args(["--remote-weft", "/none/weft"]);
    // Of an option that is repeated, the last one counts.
    let text = fail(without.arg("me@host:file").arg(&got), 1);
    assert!(text.contains("--remote-weft names it"), "{text}");
    let talks =
        hosts.script("talks", "#!/bin/sh\necho 'Welcome! This host has been up for a year.'\n");
    let text = fail(hosts.cp_by(&talks).arg("me@host:file").arg(&got), 1);
    assert!(text.contains("print something: the connection does not begin like"), "{text}");
    let text = fail(hosts.cp_by("/none/such -p 1").arg("me@host:file").arg(&got), 1);
    assert!(text.contains("/none/such: No such file"), "{text}");
    // ssh would read this host name as an option.
    let text = fail(hosts.cp().arg("-q").arg("--").arg("-oProxyCommand=x:file").arg(&got), 1);
    assert!(text.contains("for an option"), "{text}");
    assert!(!got.exists());
}

/// Ends the stream to the remote end in the middle of a file; then `--resume` completes the copy.
#[test]
fn copy_by_a_remote_shell_that_dies_goes_on() {
    let hosts = Hosts::new();
    let from = hosts.path("from");
    fs::create_dir(&from).expect("room");
    fs::write(from.join("large"), vec![7; 60_000_000]).expect("room");
    set_mtime(&from, 1, 2);
    // The remote end gets only the first part of the stream.
    let cut = format!("#!/bin/sh\nshift\ncd \"$HOME\"\nhead -c 20000000 | {WEFT} serve --stdio\n");
    let cut = hosts.script("cut", &cut);
    fail(hosts.cp_by(&cut).arg(from.join("")).arg("host:to"), 1);
    assert!(!hosts.path("home/to/large").exists());
    succeed(hosts.cp().arg("--resume").arg(from.join("")).arg("me@host:to"));
    assert_same(&from, &hosts.path("home/to"));
}

#[test]
fn remote_command_that_names_directories_gives_nothing_else() {
    let hosts = Hosts::new();
    fs::create_dir(hosts.path("home/data")).expect("room");
    fs::write(hosts.path("home/data/file"), "x").expect("room");
    fs::write(hosts.path("home/secret"), "x").expect("room");
    // A forced command of authorized_keys: ssh runs it whatever command the client requests.
    let forced = |options: &str| {
        let text = format!("#!/bin/sh\ncd \"$HOME\"\nexec {WEFT} serve --stdio {options} data\n");
        hosts.script("forced", &text)
    };
    let shell = forced("--read-only");
    let got = hosts.path("got");
    succeed(hosts.cp_by(&shell).arg("host:data/file").arg(&got));
    for place in ["host:secret", "host:data/../secret", "host:~/secret"] {
        fail(hosts.cp_by(&shell).arg(place).arg(hosts.path("secret")), 1);
    }
    let text = fail(hosts.cp_by(&shell).arg(&got).arg("host:data/new"), 1);
    assert!(text.contains("reading only"), "{text}");
    let shell = forced("");
    fail(hosts.cp_by(&shell).arg(&got).arg("host:new"), 1);
    succeed(hosts.cp_by(&shell).arg(&got).arg("host:data/new"));
    assert!(!hosts.path("home/new").exists() && hosts.path("home/data/new").exists());
}
