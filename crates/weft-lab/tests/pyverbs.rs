//! The tests of Debian's `python3-pyverbs`, which are rdma-core's conformance suite, without those
//! for the cards of one vendor.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::{Program, Stage, namespaces_denied, note_skip, require, scratch};

const TIMEOUT: Duration = Duration::from_secs(300);

const TESTS: &str = "/usr/share/doc/rdma-core/tests";
const BINDINGS: &str = "/usr/lib/python3/dist-packages/pyverbs/pyverbs_error.py";

/// How a test that does not pass ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// It is skipped, because Weft lacks a feature.
    Skipped,
    /// It is skipped unless the machine has what it needs; then it passes.
    AsTheMachine,
}

/// The tests that do not pass, by the beginning of their names, and why.
const EXCEPTIONS: &[(&str, Ends, &str)] = &[
    (
        "test_device.DeviceTest.test_query_gid_ex_bad_flow",
        Ends::Skipped,
        "the GID table has no empty entries",
    ),
    ("test_flow.", Ends::Skipped, "no raw packet queue pairs"),
    ("test_rss_traffic.", Ends::Skipped, "no raw packet queue pairs"),
    ("test_qp.QPTest.test_create_raw_qp_no", Ends::Skipped, "no raw packet queue pairs"),
    ("test_qp.QPTest.test_create_raw_qp_with", Ends::Skipped, "no raw packet queue pairs"),
    ("test_qp.QPTest.test_create_raw_qp_ex_no", Ends::Skipped, "no raw packet queue pairs"),
    ("test_qp.QPTest.test_create_raw_qp_ex_with_attr", Ends::Skipped, "no raw packet queue pairs"),
    ("test_qp.QPTest.test_query_raw_qp", Ends::Skipped, "no raw packet queue pairs"),
    ("test_mr.DmaBuf", Ends::Skipped, "no DMA buffers: memory of other devices"),
    ("test_odp.OdpTestCase.", Ends::Skipped, "no on-demand paging"),
    ("test_tag_matching.", Ends::Skipped, "no tag matching"),
    (
        "test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic",
        Ends::AsTheMachine,
        "needs huge pages",
    ),
    (
        "test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write",
        Ends::Skipped,
        "no atomic writes, which iWARP has not",
    ),
];

/// Unpacks the suite, which the package installs compressed.
fn unpack() -> Result<PathBuf> {
    require(Path::new(TESTS).join("run_tests.py"))?;
    require(BINDINGS)?;
    let directory = scratch("pyverbs")?;
    let tests = directory.join("tests");
    let _ = fs::remove_dir_all(&tests); // What an earlier run has left.
    let run = |program: Program| program.run(TIMEOUT)?.success().map(drop);
    run(Program::plain("cp").args(["-r", TESTS]).arg(&directory))?;
    run(Program::plain("gunzip").arg("-r").arg(&tests))?;
    Ok(tests)
}

/// Compares a test's outcome with the expected one. Returns which exception it is, if any.
fn judge(line: &str) -> Result<Option<usize>> {
    let mut fields = line.split('\t');
    let (name, outcome) = fields.next().zip(fields.next()).context("two fields")?;
    let name = name.strip_prefix("tests.").unwrap_or(name);
    let index = EXCEPTIONS.iter().position(|(prefix, ..)| name.starts_with(prefix));
    let as_expected = match index.map(|index| EXCEPTIONS[index].1) {
        None => outcome == "ok",
        Some(Ends::Skipped) => outcome == "skipped",
        Some(Ends::AsTheMachine) => outcome == "skipped" || outcome == "ok",
    };
    let reason = fields.next().unwrap_or_default();
    ensure!(as_expected, "{name}: {outcome}: {reason}");
    Ok(index)
}

/// The tests of the connection manager need a device other than loopback: rdma_cm assigns no device
/// to loopback addresses, and pyverbs does not check for that.
#[test]
fn each_test_ends_as_expected() -> Result<()> {
    judge_all("each_test_ends_as_expected", 1)
}

/// Each run has new random numbers, unless `WEFT_LAB_SEED` repeats those of a run that has failed.
#[test]
#[ignore = "soak: new random numbers in each run"]
fn each_test_ends_as_expected_with_any_numbers() -> Result<()> {
    let seed = std::env::var("WEFT_LAB_SEED").ok().map(|seed| seed.parse()).transpose()?;
    let seed = seed.unwrap_or_else(|| fastrand::u16(..));
    println!("WEFT_LAB_SEED={seed}");
    judge_all("each_test_ends_as_expected_with_any_numbers", seed)
}

fn judge_all(test: &str, seed: u16) -> Result<()> {
    if let Some(why) = namespaces_denied() {
        note_skip(test, why);
        return Ok(());
    }
    let tests = unpack()?;
    let stage = Stage::namespaces()?;
    let interface = stage.server_side().context("a namespace")?.interface();
    let outcomes = tests.with_file_name("outcomes");
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/conformance.py");
    // Debian's interpreter, for which the bindings are built.
    let suite = Program::weft("/usr/bin/python3")
        .args([&driver, &tests, &outcomes])
        .arg(seed.to_string())
        .line("--port 1 --gid 0 --dev")
        .arg(format!("weft_{interface}"));
    let ended = stage.server(suite).run(TIMEOUT)?.success()?;
    let outcomes = fs::read_to_string(outcomes)?;

    let judged: Vec<_> = outcomes.lines().map(judge).collect();
    let surprises: Vec<_> =
        judged.iter().filter_map(|judged| Some(judged.as_ref().err()?.to_string())).collect();
    ensure!(surprises.is_empty(), ended.error(surprises.join("\n")));
    let met: BTreeSet<_> = judged.into_iter().flatten().flatten().collect();
    let unmet = (0..EXCEPTIONS.len()).filter(|index| !met.contains(index));
    let unmet: Vec<_> = unmet.map(|index| EXCEPTIONS[index].0).collect();
    ensure!(unmet.is_empty(), "exceptions of tests that there are not: {unmet:?}");
    Ok(())
}
