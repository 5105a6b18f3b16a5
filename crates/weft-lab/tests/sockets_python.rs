//! Python's own tests of its network modules: the same tests pass with Weft as without.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
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

/// The modules that each process runs, and the minimum of their tests that must pass.
const MODULES: [(&[&str], usize); 3] = [
    (&["test_socket"], 300),
    (
        &[
            "test_asyncio.test_sock_lowlevel",
            "test_asyncio.test_streams",
            "test_asyncio.test_selector_events",
            "test_asyncio.test_server",
            "test_asyncio.test_sendfile",
            "test_asyncio.test_unix_events",
            "test_asyncio.test_events",
        ],
        500,
    ),
    (
        &[
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
        400,
    ),
];

/// The outcome of each test, by its name.
type Outcomes = BTreeMap<String, String>;

fn start(python: Program, modules: &[&str], result: &Path) -> Result<Running> {
    let python = python.arg("-bb").arg(source("programs/python_tests.py"));
    python.arg(result).arg(LEFT_OUT).args(modules).start()
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

/// Returns a text for each test with different outcomes. `printed` is what the tests have printed
/// without Weft, and with it.
fn differences(plain: &Outcomes, accelerated: &Outcomes, printed: [&str; 2]) -> Vec<String> {
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
    differing.map(line).collect()
}

/// All processes run at once, because they sleep most of the time.
#[test]
fn the_same_tests_pass() -> Result<()> {
    require(TESTS)?;
    let sockets = Sockets::new(Ends::Both)?;
    let runs: Vec<_> = MODULES
        .iter()
        .enumerate()
        .map(|(line, &(modules, passed_min))| {
            let results = ["plain", "weft"].map(|how| sockets.path(&format!("{how}-{line}.json")));
            let directories = ["plain", "weft"].map(|how| sockets.path(&format!("{how}-{line}")));
            directories.iter().try_for_each(fs::create_dir)?;
            let [plain, weft] = [Program::plain(PYTHON), sockets.client(PYTHON)];
            let plain = start(plain.directory(&directories[0]), modules, &results[0])?;
            let weft = start(weft.directory(&directories[1]), modules, &results[1])?;
            Ok((plain, weft, results, passed_min))
        })
        .collect::<Result<_>>()?;
    let mut differing = Vec::new();
    for (plain, weft, results, passed_min) in runs {
        let (plain, plainly_printed) = outcomes(plain, &results[0])?;
        let (accelerated, printed) = outcomes(weft, &results[1])?;
        let passed = plain.values().filter(|outcome| *outcome == "passed").count();
        ensure!(passed >= passed_min, "only {passed} tests pass without Weft");
        differing.extend(differences(&plain, &accelerated, [&plainly_printed, &printed]));
    }
    ensure!(differing.is_empty(), "tests differ:\n{}", differing.join("\n"));
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
