//! Compiles the small programs that the lab brings along.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::packages::{locate, require};
use crate::paths::{kept, scratch, source};

/// Compiles `programs/<name>.c` against the system's verbs headers and libraries, exactly as any
/// other verbs program is, and returns the executable.
///
/// # Errors
///
/// If the compiler or a header is missing, or the program does not compile.
pub fn compile(name: &str) -> Result<PathBuf> {
    require("/usr/include/infiniband/verbs.h")?;
    require("/usr/include/rdma/rdma_cma.h")?;
    build(name, &[source(&format!("programs/{name}.c"))], &["-lrdmacm", "-libverbs"])
}

/// Compiles the files of `programs/<name>/` to one executable, a program without RDMA. They may
/// include `weft_socket.h`.
///
/// # Errors
///
/// If the compiler is missing, or the program does not compile.
pub fn compile_folder(name: &str) -> Result<PathBuf> {
    let folder = source(&format!("programs/{name}"));
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    build(name, &files, &[])
}

fn build(name: &str, files: &[PathBuf], libraries: &[&str]) -> Result<PathBuf> {
    let executable = scratch("programs")?.join(name);
    let unfinished = unfinished(&executable);
    let output = Command::new(locate("cc")?)
        .args(["-std=gnu17", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&unfinished)
        .arg("-I")
        .arg(source("../weft-sockets/include"))
        .args(files)
        .args(libraries)
        .arg("-lpthread")
        .output()
        .context("cannot run cc")?;
    if !output.status.success() {
        bail!("programs/{name} does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&unfinished, &executable)?;
    Ok(executable)
}

/// Tests may compile the same program at the same time, in this process and in others: each has a
/// name of its own for it until it is finished.
fn unfinished(executable: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    executable.with_extension(format!("{}-{count}", process::id()))
}

/// Compiles `programs/<name>.go` without C, as most Go programs are, and returns the executable.
///
/// # Errors
///
/// If the compiler is missing, or the program does not compile.
pub fn compile_go(name: &str) -> Result<PathBuf> {
    let executable = scratch("programs")?.join(name);
    let unfinished = unfinished(&executable);
    let output = Command::new(locate("go")?)
        .args(["build", "-o"])
        .args([&unfinished, &source(&format!("programs/{name}.go"))])
        // A single file without modules needs nothing from elsewhere.
        .envs([("CGO_ENABLED", "0"), ("GO111MODULE", "off"), ("GOFLAGS", ""), ("GOPROXY", "off")])
        .env("GOCACHE", kept("go")?)
        .output()
        .context("cannot run go")?;
    if !output.status.success() {
        bail!("programs/{name}.go does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&unfinished, &executable)?;
    Ok(executable)
}
