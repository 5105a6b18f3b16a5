//! What `make test` makes of failures: real test programs, run by cargo, that fail always, once, or
//! with a defect.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::{Finished, Folder, Program, defect, source};

/// A hang of the compiler, of cargo or of a script.
const TIMEOUT: Duration = Duration::from_secs(120);

const MANIFEST: &str = "\
[package]
name = \"weft-lab\"
version = \"0.0.0\"
edition = \"2024\"

[workspace]
";

/// What all test programs share: each test notes its runs in a file, whose length is their number.
const NOTE: &str = "\
fn runs(name: &str) -> u64 {
    use std::io::Write;
    let path = std::path::Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(name);
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(b\".\").unwrap();
    file.metadata().unwrap().len()
}
";

/// A test that fails the given way, a function's body after its name.
enum Probe<'a> {
    Always,
    Once,
    Reports(&'a anyhow::Error),
    Breaks,
}

impl Probe<'_> {
    /// The source of a test program with this test and one that passes.
    fn source(&self, name: &str) -> String {
        let body = match self {
            Self::Always => "panic!(\"as always\");".to_owned(),
            Self::Once => "assert!(runs > 1, \"the first time\");".to_owned(),
            // As the harness shows the error that a test returns.
            Self::Reports(error) => {
                format!("eprintln!(\"{{}}\", {:?}); panic!();", format!("Error: {error:?}"))
            }
            Self::Breaks => "no_such_function();".to_owned(),
        };
        format!(
            "{NOTE}\n#[test]\nfn probe() {{\n    let runs = runs({name:?});\n    \
             assert!(runs > 0);\n    {body}\n}}\n\n#[test]\nfn passes() {{}}\n"
        )
    }
}

/// Runs a gate over these probes, each of which has the name of a test program of the lab.
fn gate(probes: &[(&str, Probe<'_>)]) -> Result<(Finished, Folder)> {
    let folder = Folder::new(0o700)?;
    let path = folder.path();
    fs::write(path.join("Cargo.toml"), MANIFEST)?;
    for each in ["src", "tests"] {
        fs::create_dir(path.join(each))?;
    }
    fs::write(path.join("src/lib.rs"), "")?;
    for (name, probe) in probes {
        fs::write(path.join(format!("tests/{name}.rs")), probe.source(name))?;
    }
    let finished = Program::plain(source("programs/gate/run.sh"))
        .arg(source("../.."))
        .arg(path)
        .args(probes.iter().map(|(name, _)| name))
        .env("CARGO_TARGET_DIR", path.join("logs"))
        .env("CARGO_NET_OFFLINE", "true")
        .run(TIMEOUT)?;
    Ok((finished, folder))
}

/// How often the probe of this name has run.
fn runs(folder: &Folder, name: &str) -> Result<usize> {
    Ok(fs::read(folder.path().join(name))?.len())
}

/// The exit status that `scripts/test --codes` gives this failure.
fn code(of: &str) -> Result<i32> {
    let table =
        Program::plain(source("../../scripts/test")).arg("--codes").run(TIMEOUT)?.success()?;
    let line = table.stdout.lines().find(|line| line.ends_with(of));
    let line = line.with_context(|| format!("no status for {of} in {}", table.stdout))?;
    Ok(line.split(' ').next().unwrap_or_default().parse()?)
}

/// Fails if the gate ended with another status, or without these lines.
fn expect(finished: &Finished, status: i32, lines: &[&str]) -> Result<()> {
    let is_status = finished.status.code() == Some(status);
    let missing = lines.iter().find(|line| !finished.stdout.lines().any(|its| its == **line));
    ensure!(
        is_status && missing.is_none(),
        "{:?} instead of {status}, without {missing:?}:\n{}",
        finished.status,
        quoted(&finished.stdout)
    );
    Ok(())
}

/// Text of a gate so that the gate above does not take it for its own.
fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("| {line}\n")).collect()
}

#[test]
fn a_failure_is_red_with_the_status_of_its_program() -> Result<()> {
    let (finished, folder) = gate(&[("rping", Probe::Always), ("qemu", Probe::Once)])?;
    let lines = ["FLAKY: probe (qemu)", "FAIL: probe (lab rping)", "3 passed, 1 failed, 0 skipped"];
    expect(&finished, code("weft-lab rping")?, &lines)?;
    ensure!(runs(&folder, "rping")? == 2, "the failed test was not looked at again");
    Ok(())
}

#[test]
fn a_failure_that_passes_alone_is_flaky_and_green() -> Result<()> {
    let (finished, folder) = gate(&[("rping", Probe::Once)])?;
    expect(&finished, 0, &["FLAKY: probe (rping)", "2 passed, 0 failed, 0 skipped"])?;
    let noted = fs::read_to_string(folder.path().join("logs/lab/flaky"))?;
    ensure!(noted == "rping probe\n", "noted: {noted}");
    Ok(())
}

#[test]
fn a_defect_is_red_at_once() -> Result<()> {
    let plain = defect("7 bytes are wrong");
    let deep = defect("7 bytes are wrong").context("the third copy");
    // What follows does not fit into a pipe.
    let long = defect(format!("7 bytes are wrong{}", "\nand this".repeat(20_000)));
    for error in [&plain, &deep, &long] {
        let (finished, folder) = gate(&[("fio", Probe::Reports(error))])?;
        expect(&finished, code("weft-lab fio")?, &["FAIL: probe (lab fio)"])?;
        ensure!(runs(&folder, "fio")? == 1, "a defect was looked at again");
    }
    Ok(())
}

#[test]
fn too_many_failures_get_no_second_look() -> Result<()> {
    let names = ["fio", "iser", "mpi", "qemu"];
    let (finished, folder) = gate(&names.map(|name| (name, Probe::Once)))?;
    expect(&finished, code("weft-lab fio")?, &["4 passed, 4 failed, 0 skipped"])?;
    for name in names {
        ensure!(runs(&folder, name)? == 1, "{name} was looked at again");
    }
    Ok(())
}

#[test]
fn what_does_not_compile_has_a_status_of_its_own() -> Result<()> {
    let (finished, _folder) = gate(&[("tcp", Probe::Breaks)])?;
    expect(&finished, code("something did not compile")?, &["0 passed, 1 failed, 0 skipped"])
}
