//! Compiles the small C programs that the lab brings along.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command};

use anyhow::{Context as _, Result, bail};

use crate::packages::{locate, require};
use crate::paths::{scratch, source};

/// Compiles `programs/<name>.c` against the system's verbs headers and libraries, exactly as any
/// other verbs program is, and returns the executable.
///
/// # Errors
///
/// If the compiler or a header is missing, or the program does not compile.
pub fn compile(name: &str) -> Result<PathBuf> {
    require("/usr/include/infiniband/verbs.h")?;
    require("/usr/include/rdma/rdma_cma.h")?;
    build(name, &["-lrdmacm", "-libverbs", "-lpthread"].map(OsString::from))
}

/// The same for a program of extended sockets, which needs our header and no library.
///
/// # Errors
///
/// If the compiler is missing, or the program does not compile.
pub fn compile_extended(name: &str) -> Result<PathBuf> {
    build(name, &[OsString::from("-I"), source("../weft-sockets/include").into()])
}

fn build(name: &str, options: &[OsString]) -> Result<PathBuf> {
    let executable = scratch("programs")?.join(name);
    // Tests may compile the same program at the same time: only a finished one gets the name.
    let unfinished = executable.with_extension(process::id().to_string());
    let output = Command::new(locate("cc")?)
        .args(["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&unfinished, &source(&format!("programs/{name}.c"))])
        .args(options)
        .output()
        .context("cannot run cc")?;
    if !output.status.success() {
        bail!("programs/{name}.c does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&unfinished, &executable)?;
    Ok(executable)
}
