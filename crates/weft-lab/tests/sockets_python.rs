//! Python's own tests of its network modules: the same tests pass with Weft as without.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Program, Running, require, source};

const TIMEOUT: Duration = Duration::from_secs(150);
/// Debian's Python, whose tests are packaged.
const PYTHON: &str = "/usr/bin/python3.11";
const TESTS: &str = "/usr/lib/python3.11/test/test_socket.py";

/// A regular expression of the tests that do not run.
const LEFT_OUT: &str = concat!(
    // These tests do not use TCP and wait for long, or need features that a kernel may lack.
    "VSOCK|UDP|Bluetooth|CAN|NetworkConnectionBehaviour|",
    "(Unicode.*|LineBuffered|SmallBuffered)FileObjectClass.*testReadAfterTimeout|",
    // It expects two edges from one call of epoll_wait(2), which may report them one by one.
    "TestEPoll.test_control_and_wait|",
    // It binds to a port that was free when it looked. If another program has taken the port
    // meanwhile, the test's client fails and its server waits for ever.
    "NetworkConnectionAttributesTest.testSourceAddress",
);

/// What each process runs: modules, or classes of them.
struct Group {
    modules: &'static [&'static str],
    /// A further regular expression of tests that do not run; empty for none.
    left_out: &'static str,
    /// Minimum number of tests that must pass.
    passed_min: usize,
}

/// The tests mostly wait, so groups that take long are split.
const GROUPS: [Group; 5] = [
    Group { modules: &["test_socket"], left_out: "", passed_min: 300 },
    Group {
        modules: &[
            "test_asyncio.test_sock_lowlevel",
            "test_asyncio.test_streams",
            "test_asyncio.test_selector_events",
            "test_asyncio.test_server",
            "test_asyncio.test_sendfile",
            "test_asyncio.test_unix_events",
        ],
        left_out: "",
        passed_min: 350,
    },
    Group {
        modules: &["test_asyncio.test_events"],
        left_out: "PollEventLoopTests",
        passed_min: 80,
    },
    Group {
        modules: &[
            "test_asyncio.test_events.PollEventLoopTests",
            "test_asyncio.test_events.EPollEventLoopTests",
        ],
        left_out: "",
        passed_min: 80,
    },
    Group {
        modules: &[
            "test_asyncore",
            "test_asynchat",
            "test_epoll",
            "test_select",
            "test_httplib",
            "test_httpservers",
            "test_smtplib",
            "test_socketserver",
            "test_urllib2_localnet",
        ],
        left_out: "",
        passed_min: 400,
    },
];

/// Further runs of the tests whose outcomes differ. Some of Python's tests compare times, or use
/// ports that were free when they looked; on a busy machine these fail now and then, on the kernel,
/// too.
const REPEATS: usize = 3;

/// The outcome of each test, by its name.
type Outcomes = BTreeMap<String, String>;

/// The same tests without Weft and with it, at the same time.
struct Runs {
    plain: Running,
    weft: Running,
    results: [PathBuf; 2],
}

impl Runs {
    /// Starts the tests of a group; only those that are `named`, if any are. `label` tells the
    /// files of these runs from other ones.
    fn start(sockets: &Sockets, label: &str, group: &Group, named: &[String]) -> Result<Self> {
        let results = ["plain", "weft"].map(|how| sockets.path(&format!("{how}-{label}.json")));
        let directories = ["plain", "weft"].map(|how| sockets.path(&format!("{how}-{label}")));
        directories.iter().try_for_each(fs::create_dir)?;
        let left_out = match group.left_out {
            "" => LEFT_OUT.to_owned(),
            more => format!("{LEFT_OUT}|{more}"),
        };
        let start = |python: Program, number: usize| {
            let python = python.directory(&directories[number]);
            let python = python.arg("-bb").arg(source("programs/python_tests.py"));
            let python = python.arg(&results[number]).arg(&left_out).args(group.modules);
            if named.is_empty() { python.start() } else { python.arg("--").args(named).start() }
        };
        let plain = start(Program::plain(PYTHON), 0)?;
        let weft = start(sockets.client(PYTHON), 1)?;
        Ok(Self { plain, weft, results })
    }

    /// Returns the number of tests that have passed without Weft, and a text for each test with
    /// different outcomes, by its name.
    fn compare(self) -> Result<(usize, BTreeMap<String, String>)> {
        let (plain, plainly_printed) = outcomes(self.plain, &self.results[0])?;
        let (accelerated, printed) = outcomes(self.weft, &self.results[1])?;
        let passed = plain.values().filter(|outcome| *outcome == "passed").count();
        Ok((passed, differences(&plain, &accelerated, [&plainly_printed, &printed])))
    }
}

/// Returns the outcomes after the process has ended, and what it has printed. Its exit status does
/// not matter, because some tests fail without Weft, too. If a test hangs there is no result.
fn outcomes(run: Running, result: &Path) -> Result<(Outcomes, String)> {
    let ended = run.wait(TIMEOUT)?;
    let text = fs::read(result).with_context(|| ended.error("no result"))?;
    Ok((serde_json::from_slice(&text)?, ended.stderr))
}

/// Returns what unittest has printed about the failure of a test.
fn failure<'a>(name: &str, printed: &'a str) -> &'a str {
    let method = name.rsplit('.').next().unwrap_or(name);
    let heads = ["ERROR", "FAIL"].map(|kind| format!("{kind}: {method} "));
    let line = "=".repeat(70);
    let is_its = |part: &&str| heads.iter().any(|head| part.trim_start().starts_with(head));
    printed.split(&line).find(is_its).unwrap_or_default()
}

/// Returns a text for each test with different outcomes, by its name. `printed` is what the tests
/// have printed without Weft, and with it.
fn differences(
    plain: &Outcomes,
    accelerated: &Outcomes,
    printed: [&str; 2],
) -> BTreeMap<String, String> {
    let names: std::collections::BTreeSet<_> = plain.keys().chain(accelerated.keys()).collect();
    let of = |outcomes: &Outcomes, name: &str| {
        outcomes.get(name).cloned().unwrap_or_else(|| "not run".to_owned())
    };
    let differing = names.into_iter().filter(|name| plain.get(*name) != accelerated.get(*name));
    let line = |name: &String| {
        let failures = printed.map(|printed| failure(name, printed)).concat();
        let (plain, accelerated) = (of(plain, name), of(accelerated, name));
        format!("{name}: {plain} without Weft, {accelerated} with it\n{failures}")
    };
    differing.map(|name| (name.clone(), line(name))).collect()
}

/// All processes run at once, because they sleep most of the time. Tests whose outcomes differ run
/// again without the others; those whose outcomes differ each time fail.
#[test]
fn the_same_tests_pass() -> Result<()> {
    require(TESTS)?;
    let sockets = Sockets::new(Ends::Both)?;
    let starts = GROUPS
        .iter()
        .enumerate()
        .map(|(line, group)| Runs::start(&sockets, &line.to_string(), group, &[]));
    let mut differing = Vec::new();
    for (runs, group) in starts.collect::<Result<Vec<_>>>()?.into_iter().zip(&GROUPS) {
        let (passed, differences) = runs.compare()?;
        let modules = group.modules.join(" ");
        ensure!(passed >= group.passed_min, "{modules}: only {passed} tests pass without Weft");
        differing.push((group, differences));
    }
    for repeat in 0..REPEATS {
        for (line, (group, differences)) in differing.iter_mut().enumerate() {
            if differences.is_empty() {
                continue;
            }
            let names: Vec<_> = differences.keys().cloned().collect();
            println!("again: {}", names.join(" "));
            let runs = Runs::start(&sockets, &format!("{line}-{repeat}"), group, &names)?;
            let (_, again) = runs.compare()?;
            differences.retain(|name, _| again.contains_key(name));
        }
    }
    let texts: Vec<_> = differing.into_iter().flat_map(|(_, texts)| texts.into_values()).collect();
    ensure!(texts.is_empty(), "tests differ {} times:\n{}", 1 + REPEATS, texts.join("\n"));
    // Both ends of most of these tests run in one process.
    sockets.check(1 << 20)
}

#[test]
fn the_trace_of_a_failure_is_found() {
    let line = "=".repeat(70);
    let failed = "ERROR: test_b (test.a.C.test_b)\nTraceback\nOSError\n";
    let printed =
        format!("test_a ... ok\n{line}\nFAIL: test_ab (test.a.C.test_ab)\nno\n{line}\n{failed}");
    assert_eq!(failure("test.a.C.test_b", &printed).trim(), failed.trim());
    assert_eq!(failure("test.a.C.test_c", &printed), "");
}
