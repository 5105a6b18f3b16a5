//! Other crates on verbs: their own examples and tests, compiled against Debian's libraries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::packages::{locate, not_fetched, require};
use crate::paths::kept;
use crate::skip::note_skip;
use crate::venv;

/// A crate whose sources `scripts/fetch rdma-crates` has copied.
#[derive(Debug)]
pub struct RdmaCrate {
    folder: PathBuf,
    /// Of the library by which it makes its bindings.
    clang: PathBuf,
}

/// A program of a crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The example's or the test program's name; that of the crate for its unit tests.
    pub name: String,
    /// Whether it consists of tests.
    pub has_tests: bool,
    /// The executable.
    pub executable: PathBuf,
}

/// What cargo says of each thing that it has compiled (`--message-format=json`).
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl RdmaCrate {
    /// The crate `name`, with its version, for the test `test`. `None`, with a note, if it was not
    /// fetched.
    ///
    /// # Errors
    ///
    /// If a package is missing, or the library for bindings cannot be unpacked.
    pub fn for_test(test: &str, name: &str) -> Result<Option<Self>> {
        static CLANG: OnceLock<std::result::Result<venv::Outcome, String>> = OnceLock::new();
        let files = ["/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h"];
        files.iter().try_for_each(require)?;
        locate("cmake")?;
        let folder = kept("fetched/rdma-crates")?.join(name);
        let clang = match venv::once(&CLANG, "python-clang")? {
            Ok(clang) if folder.join("Cargo.toml").is_file() => clang,
            clang => {
                note_skip(test, &clang.err().unwrap_or_else(|| not_fetched("rdma-crates")));
                return Ok(None);
            }
        };
        Ok(Some(Self { folder, clang }))
    }

    /// Compiles the examples, the tests and the unit tests, with the versions of the crate's own
    /// `Cargo.lock`.
    ///
    /// # Errors
    ///
    /// If they do not compile.
    pub fn compile(&self) -> Result<Vec<Compiled>> {
        let all = ["--lib", "--tests", "--examples"];
        let tests = self.cargo(&[&["test", "--no-run"], &all[..2]].concat())?;
        let examples = self.cargo(&["build", all[2]])?;
        Ok(tests.into_iter().chain(examples).collect())
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Vec<Compiled>> {
        let mut cargo = Command::new(locate("cargo")?);
        cargo.current_dir(&self.folder).args(arguments);
        cargo.args(["--quiet", "--locked", "--offline", "--message-format=json"]);
        cargo.arg("--target-dir").arg(kept("rdma-crates")?);
        // Their bindings need the compiler's own headers, of which the library comes without.
        let headers = format!("-I{}", compiler_headers()?.display());
        cargo.env("LIBCLANG_PATH", library_in(&self.clang)?);
        cargo.env("BINDGEN_EXTRA_CLANG_ARGS", headers).env_remove("RUSTC_BOOTSTRAP");
        // A third of the space.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
        let output = cargo.output().with_context(|| format!("cannot run {cargo:?}"))?;
        if !output.status.success() {
            bail!("{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let lines = String::from_utf8(output.stdout).context("cargo's messages")?;
        Ok(lines.lines().filter_map(compiled).collect())
    }
}

/// What a line of cargo's says, if it is about an executable.
fn compiled(line: &str) -> Option<Compiled> {
    let Message { executable, target, profile } = serde_json::from_str(line).ok()?;
    let (name, has_tests) = (target?.name, profile?.test);
    Some(Compiled { name, has_tests, executable: executable? })
}

fn library_in(environment: &Path) -> Result<PathBuf> {
    let pattern = environment.join("lib");
    let found = std::fs::read_dir(&pattern)?.filter_map(Result::ok).find_map(|version| {
        let folder = version.path().join("site-packages/clang/native");
        folder.is_dir().then_some(folder)
    });
    found.with_context(|| format!("no libclang below {}", pattern.display()))
}

/// Where the C compiler has headers such as `stddef.h`.
fn compiler_headers() -> Result<PathBuf> {
    let output = Command::new(locate("cc")?).arg("-print-file-name=include").output()?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_what_it_has_compiled() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"qp"},
            "profile":{"test":true},"executable":"/t/qp-1","fresh":false}"#;
        let expected =
            Compiled { name: "qp".into(), has_tests: true, executable: "/t/qp-1".into() };
        assert_eq!(compiled(line), Some(expected));
        assert_eq!(compiled(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(compiled("error"), None);
    }
}
