//! `weft pipeline` with real processes on this host. A script stands in for the remote shell.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::hosts::wait_until;
use common::{WEFT, noise};
use fastrand::Rng;
use serde_json::Value;

/// A folder, in which all commands run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("room");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns a command that runs a description.
    fn weft(&self, description: &str) -> Command {
        self.write("pipeline.toml", description);
        let mut command = Command::new(WEFT);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command.args(["pipeline", "run", "pipeline.toml"]);
        command
    }

    /// Runs a description, which must succeed. Returns what it has printed.
    #[track_caller]
    fn run(&self, description: &str) -> String {
        let output = self.weft(description).output().expect("weft starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a description that must fail. Returns the errors.
    #[track_caller]
    fn fail(&self, description: &str) -> String {
        let output = self.weft(description).output().expect("weft starts");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Runs a description, which must succeed. Returns the copies in the summary.
    #[track_caller]
    fn copies(&self, description: &str, options: &[&str]) -> Vec<Value> {
        let mut command = self.weft(description);
        let output = command.arg("--json").args(options).output().expect("weft starts");
        summary(&output)["copies"].as_array().expect("copies").clone()
    }
}

#[track_caller]
fn summary(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let last = errors.lines().last().unwrap_or_default();
    let value: Value =
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{errors} {error}"));
    assert_eq!(value["event"], "summary");
    value
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn bytes_pass_through_commands_unchanged() {
    let place = Place::new();
    for (seed, buffer) in [(0, "\"1K\""), (1, "\"64K\""), (2, "\"4M\""), (3, "7")] {
        let len = if buffer == "7" { 5_000 } else { 5_000_001 };
        place.write("in", noise(len, &mut Rng::with_seed(seed)));
        place.run(&format!(
            "buffer = {buffer}\n\
             [filter.read]\ncommand = 'cat in'\n\
             [filter.pass]\nfrom = 'read'\nbuiltin = 'pass'\n\
             [filter.write]\nfrom = 'pass'\ncommand = 'cat > out'\n"
        ));
        assert!(place.read_bytes("in") == place.read_bytes("out"), "{buffer}");
    }
}

impl Place {
    fn read_bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file")
    }
}

#[test]
fn copies_share_lines_and_the_result_does_not_depend_on_their_number() {
    let place = Place::new();
    let lines: Vec<String> = (0..20_000).map(|n| format!("line {n}")).collect();
    place.write("in", lines.join("\n") + "\n");
    for (copies, schedule) in [(1, "demand"), (3, "demand"), (3, "round-robin")] {
        let printed = place.run(&format!(
            "buffer = '4K'\nschedule = '{schedule}'\n\
             [filter.read]\ncommand = 'cat in'\nsplit = 'lines'\n\
             [filter.grep]\nfrom = 'read'\ncopies = {copies}\nsplit = 'lines'\n\
             command = 'grep 7 | sed s/line/$word/'\n\
             with = {{ word = 'row' }}\n"
        ));
        let expected: Vec<String> = lines
            .iter()
            .filter(|line| line.contains('7'))
            .map(|it| it.replace("line", "row"))
            .collect();
        assert_eq!(sorted(&printed), sorted(&expected.join("\n")), "{copies} {schedule}");
    }
}

#[test]
fn each_unit_starts_and_ends_all_filters_and_units_never_mix() {
    let place = Place::new();
    let printed = place.run(
        "buffer = '100'\n\
         [filter.numbers]\ncopies = 2\ncommand = 'seq $first $last'\nsplit = 'lines'\n\
         [filter.slow]\nfrom = 'numbers'\nbuiltin = 'pass'\nwith = { ns_per_byte = 20_000 }\n\
         [filter.fast]\nfrom = 'numbers'\nbuiltin = 'pass'\ncopies = 3\n\
         [filter.sum]\nfrom = ['slow', 'fast']\n\
         command = '''awk -v n=\"$name\" '{ s += $1 } END { print n, s, NR }' '''\n\
         [[unit]]\nname = 'one'\nfirst = 1\nlast = 100\n\
         [[unit]]\nname = 'none'\nfirst = 1\nlast = 0\n\
         [[unit]]\nname = 'two'\nfirst = 1000\nlast = 1099\n",
    );
    // Two sources, each by two ways.
    let expected = format!("one {} 400\nnone  0\ntwo {} 400\n", 4 * 5050, 4 * 104_950);
    assert_eq!(printed, expected);
}

/// A program in Python that reads and writes frames: it counts the letters of each unit.
const PROGRAM: &str = r#"
import json, struct, sys
read, write = sys.stdin.buffer.read, sys.stdout.buffer.write
BUFFER, END, ACK, BEGIN = 1, 2, 3, 4
total = 0
while header := read(12):
    kind, unit, length = struct.unpack('>III', header)
    data = read(length)
    if kind == BEGIN:
        name, count = json.loads(data)['name'], 0
    elif kind == BUFFER:
        count += len(data)
    elif kind == END:
        text = f'{name} {count}\n'.encode()
        write(struct.pack('>III', BUFFER, unit, len(text)) + text)
        write(struct.pack('>III', END, unit, 0))
        sys.stdout.flush()
"#;

#[test]
fn programs_read_and_write_frames() {
    let place = Place::new();
    place.write("count.py", PROGRAM);
    let units: String =
        (0..5).map(|n| format!("[[unit]]\nname = 'unit {n}'\nlen = {}\n", n * 100_000)).collect();
    let printed = place.run(&format!(
        "[filter.zeros]\ncommand = 'head -c $len /dev/zero'\n\
         [filter.count]\nfrom = 'zeros'\nprogram = 'python3 count.py'\n{units}"
    ));
    let expected: String = (0..5).map(|n| format!("unit {n} {}\n", n * 100_000)).collect();
    assert_eq!(printed, expected);
    let broken = |program: &str| {
        place.write("broken.py", program);
        place.fail(
            "[filter.a]\ncommand = 'seq 100000'\n\
             [filter.b]\nfrom = 'a'\nprogram = 'exec python3 broken.py'\n",
        )
    };
    for (program, why) in [
        ("print('hello, this is text')", "the output of its program: no frame has the kind"),
        (
            "import sys; sys.stdin.read(1) if False else sys.exit(0)",
            "exit status: 0 before the last",
        ),
        ("import sys; sys.exit(3)", "filter b: its program ended with exit status: 3"),
        (
            "import sys; sys.stdout.buffer.write(bytes([0, 0, 0, 2] + [0] * 8))",
            "has not read all of its input",
        ),
    ] {
        let text = broken(program);
        assert!(text.contains(why), "{program}: {text}");
    }
}

/// Writes a picture of a gradient with a diagonal.
fn picture(place: &Place, width: usize, height: usize) -> Vec<u8> {
    let pixel = |at: usize| ((at % width) * 7 + (at / width) * 3) as u8;
    let pixels: Vec<u8> = (0..width * height).map(pixel).collect();
    let head = format!("P5\n# a picture\n{width} {height}\n255\n").into_bytes();
    place.write("picture.pgm", [head, pixels.clone()].concat());
    pixels
}

/// The image pipeline of three copies each, as in `docs/pipelines.md`.
fn image(copies: usize, units: &str) -> String {
    format!(
        "buffer = '8K'\n\
         [filter.read]\nbuiltin = 'read'\ncopies = {copies}\nwith = {{ image = 'picture.pgm' }}\n\
         [filter.clip]\nfrom = 'read'\nbuiltin = 'clip'\ncopies = {copies}\n\
         [filter.subsample]\nfrom = 'clip'\nbuiltin = 'subsample'\ncopies = {copies}\n\
         [filter.view]\nfrom = 'subsample'\nbuiltin = 'view'\n{units}"
    )
}

#[test]
fn views_of_an_image_have_the_right_pixels() {
    let place = Place::new();
    let (width, height) = (701, 503);
    let pixels = picture(&place, width, height);
    let views =
        [(0, 0, 701, 503, 1), (13, 99, 300, 200, 1), (0, 0, 701, 503, 4), (5, 7, 650, 490, 3)];
    let units: String = views
        .iter()
        .enumerate()
        .map(|(n, (x, y, width, height, step))| {
            format!(
                "[[unit]]\nx = {x}\ny = {y}\nwidth = {width}\nheight = {height}\nstep = {step}\n\
                 output = '{n}.pgm'\n"
            )
        })
        .collect();
    for copies in [1, 3] {
        place.run(&image(copies, &units));
        for (n, (x, y, w, h, step)) in views.into_iter().enumerate() {
            let rows = (y..y + h).step_by(step);
            let expected: Vec<u8> = rows
                .flat_map(|row| (x..x + w).step_by(step).map(move |column| row * width + column))
                .map(|at| pixels[at])
                .collect();
            let head = format!("P5\n{} {}\n255\n", w.div_ceil(step), h.div_ceil(step));
            let found = place.read_bytes(&format!("{n}.pgm"));
            assert!(found == [head.as_bytes(), &expected].concat(), "{copies} copies, view {n}");
        }
    }
}

#[test]
fn failures_name_the_filter_and_the_reason() {
    let place = Place::new();
    picture(&place, 64, 64);
    let two = |first: &str, second: &str| {
        format!("[filter.a]\n{first}\n[filter.b]\nfrom = 'a'\ncopies = 2\n{second}\n")
    };
    for (description, why) in [
        (
            two("command = 'echo x; exit 3'", "command = 'cat'"),
            "filter a: its command ended with exit status: 3",
        ),
        (two("command = 'yes'", "command = 'kill -9 $$'"), "filter b, copy"),
        (two("command = 'yes'", "command = 'kill -9 $$'"), "signal: 9"),
        (
            two("command = 'yes | tr -d \"\\n\"'\nsplit = 'lines'", "command = 'cat'"),
            "a line has more than",
        ),
        (
            two("command = 'echo x'", "builtin = 'clip'"),
            "got a buffer that is no chunk of an image",
        ),
        (
            two("builtin = 'read'\nwith = { image = 'none.pgm' }", "builtin = 'clip'"),
            "filter a: none.pgm: No such file",
        ),
        (image(1, "[[unit]]\nx = 64\noutput = 'x'"), "the view is outside of the image"),
        (image(1, "[[unit]]\nstep = 0\noutput = 'x'"), "step = 0"),
        (image(1, ""), "filter view: needs the parameter output"),
        (image(1, "[[unit]]\noutput = 'none/x'"), "none/x: No such file"),
    ] {
        let text = place.fail(&description);
        assert!(text.contains(why), "{description}: {text}");
    }
}

#[test]
fn wrong_files_are_refused_with_the_line() {
    let place = Place::new();
    let text = place.fail("[filter.a]\ncommand = 'x'\ncopys = 3\n");
    assert!(
        text.contains("pipeline.toml") && text.contains("line 3") && text.contains("copys"),
        "{text}"
    );
    place.write("good.toml", image(3, ""));
    let check = |options: &[&str]| {
        let mut command = Command::new(WEFT);
        command.current_dir(place.0.path()).args(["pipeline", "check"]).args(options);
        let output = command.arg("good.toml").output().expect("weft starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = check(&["--window", "2"]);
    assert!(text.starts_with("read x 3  (read)\n  -> clip\nclip x 3"), "{text}");
    assert!(text.contains("10 processes, 1 units of work") && text.contains("window 2"), "{text}");
    let value: Value = serde_json::from_str(&check(&["--json"])).expect("JSON");
    assert_eq!(
        (&value["processes"], &value["filters"][1]["from"][0]),
        (&10.into(), &"read".into())
    );
}

/// The processes whose command line contains this text.
fn processes_with(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let has = |path: &PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    processes
        .map(|entry| entry.path())
        .filter(has)
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect()
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our own");
}

#[test]
fn process_that_dies_ends_the_run_with_an_error_that_names_it() {
    for victim in 0..3 {
        let place = Place::new();
        let mark = format!("sleep 1{}{victim}", std::process::id());
        let mut weft = place.weft(&format!(
            "[filter.a]\ncommand = 'yes & {mark}'\n\
             [filter.b]\nfrom = 'a'\ncommand = 'cat'\n\
             [filter.c]\nfrom = 'b'\ncommand = 'cat > /dev/null'\n"
        ));
        let weft = weft.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft starts");
        // The copies are started in the order of the filters.
        wait_until("the commands run", || {
            let workers = children(weft.id());
            workers.len() == 3 && workers.iter().all(|&worker| !children(worker).is_empty())
        });
        kill(children(weft.id())[victim]);
        let output = weft.wait_with_output().expect("our own");
        let text = String::from_utf8_lossy(&output.stderr);
        let named = format!("filter {}: its process ended with signal: 9", ["a", "b", "c"][victim]);
        assert!(output.status.code() == Some(1) && text.contains(&named), "{text}");
        wait_until("no command is left", || processes_with(&mark).is_empty());
    }
}

#[test]
fn killed_run_leaves_no_process() {
    let place = Place::new();
    let mark = format!("sleep 2{}", std::process::id());
    let mut weft = place.weft(&format!(
        "[filter.a]\ncommand = '{mark}'\ncopies = 2\n\
         [filter.b]\nfrom = 'a'\ncommand = 'cat; {mark}'\n"
    ));
    let mut weft = weft.spawn().expect("weft starts");
    wait_until("the commands run", || processes_with(&mark).len() >= 3);
    weft.kill().expect("our own");
    weft.wait().expect("our own");
    wait_until("no process is left", || processes_with(&mark).is_empty());
}

#[test]
fn slow_consumer_stops_its_producer_and_costs_bounded_memory() {
    let place = Place::new();
    // A hundred times more data than the buffers hold.
    let count = 2_000;
    let copies = place.copies(
        &format!(
            "buffer = '64K'\nwindow = 4\n\
             [filter.fast]\nbuiltin = 'generate'\nwith = {{ count = {count} }}\n\
             [filter.slow]\nfrom = 'fast'\nbuiltin = 'pass'\nwith = {{ ns_per_byte = 10 }}\n\
             [filter.end]\nfrom = 'slow'\nbuiltin = 'measure'\n"
        ),
        &[],
    );
    let [fast, slow, end] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!((&fast["buffers_out"], &end["buffers_in"]), (&count.into(), &count.into()));
    assert!(slow["queued_most"].as_u64() <= Some(4), "{slow}");
    assert!(fast["waited_out_ns"].as_u64() > Some(0), "{fast}");
}

#[test]
fn a_slow_copy_gets_less_if_demand_decides() {
    let place = Place::new();
    let run = |schedule: &str| {
        let description = "buffer = '16K'\nwindow = 2\n\
             [filter.source]\nbuiltin = 'generate'\nwith = { count = 300 }\n\
             [filter.work]\nfrom = 'source'\nbuiltin = 'pass'\ncopies = 3\n\
             with = { ns_per_byte = 20, slow_copy = 1, slow_times = 30 }\n\
             [filter.end]\nfrom = 'work'\nbuiltin = 'measure'\n";
        let copies = place.copies(description, &["--schedule", schedule]);
        let work = copies.iter().filter(|copy| copy["filter"] == "work");
        let shares: Vec<u64> = work.filter_map(|copy| copy["buffers_in"].as_u64()).collect();
        assert_eq!(shares.iter().sum::<u64>(), 300);
        shares
    };
    assert_eq!(run("round-robin"), [100, 100, 100]);
    let skewed = run("demand");
    // One of the other copies may have been stopped for a while.
    assert!(skewed[1] < skewed[0].max(skewed[2]), "{skewed:?}");
}

/// A remote shell that works like ssh: it passes all words of the command to a shell in the user's
/// home directory. It knows two hosts.
const SHELL: &str = r#"#!/bin/sh
case "$1" in me@one|two) ;; *) echo "no such host: $1" >&2; exit 255;; esac
echo "$1" >> log
shift
exec sh -c "$*"
"#;

#[test]
fn copies_run_on_hosts_by_a_remote_shell() {
    let place = Place::new();
    place.write("rsh", SHELL);
    fs::set_permissions(place.path("rsh"), Permissions::from_mode(0o755)).expect("our own");
    let description = "[host.one]\nlogin = 'me@one'\naddress = '127.0.0.1'\n\
         [host.two]\naddress = 'localhost'\n[host.local]\naddress = '127.0.0.1'\n\
         [filter.numbers]\ncommand = 'seq 1000'\nsplit = 'lines'\nhosts = ['one']\n\
         [filter.pass]\nfrom = 'numbers'\nbuiltin = 'pass'\nhosts = ['one', 'two', 'local']\n\
         [filter.sum]\nfrom = 'pass'\ncommand = \"awk '{ s += $1 } END { print s }'\"\n";
    let rsh = place.path("rsh").display().to_string();
    let with = |description: &str, rsh: &str| {
        let mut command = place.weft(description);
        command.args(["--rsh", rsh, "--remote-weft", WEFT]).output().expect("weft starts")
    };
    let output = with(description, &rsh);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "500500\n", "{output:?}");
    assert_eq!(sorted(&place.read("log")), ["me@one", "me@one", "two"]);
    let failed = |description: &str, rsh: &str, why: &str| {
        let output = with(description, rsh);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(why), "{why}: {text}");
    };
    let unknown = description.replace("me@one", "you");
    failed(&unknown, &rsh, "on one: its process ended with exit status: 255");
    failed(description, "/none/such", "cannot start /none/such: No such file");
    failed(description, "sh -c 'echo Welcome to this host'", "startup files print something");
    let broken = description.replace("seq 1000", "seq 1000; exit 7");
    failed(&broken, &rsh, "filter numbers, on one: its command ended with exit status: 7");
    let output = place.weft(description).output().expect("weft starts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--rsh ssh"), "{output:?}");
}
