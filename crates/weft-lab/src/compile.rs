//! Compiles the lab's own programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::packages::{locate, not_fetched, require};
use crate::paths::{kept, scratch, source};

/// Compiles `programs/<name>.c` against the system's verbs headers and libraries, and returns the
/// executable.
///
/// # Errors
///
/// If the compiler or a header is missing, or the program does not compile.
pub fn compile(name: &str) -> Result<PathBuf> {
    require("/usr/include/infiniband/verbs.h")?;
    require("/usr/include/rdma/rdma_cma.h")?;
    build(name, &[source(&format!("programs/{name}.c"))], &["-lrdmacm", "-libverbs"])
}

/// Compiles `programs/<name>.c`, a program without RDMA, and returns the executable.
///
/// # Errors
///
/// If the compiler is missing, or the program does not compile.
pub fn compile_plain(name: &str) -> Result<PathBuf> {
    build(name, &[source(&format!("programs/{name}.c"))], &[])
}

/// Compiles `programs/<name>.c` to a library that can be preloaded.
///
/// # Errors
///
/// If the compiler is missing, or the library does not compile.
pub fn compile_library(name: &str) -> Result<PathBuf> {
    build(name, &[source(&format!("programs/{name}.c"))], &["-shared", "-fPIC"])
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

/// Returns a unique name for an executable that is being compiled. Tests of this process and of
/// others may compile the same program at the same time; each renames its own result.
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
    build_go(name, name, "0")
}

/// Compiles `programs/<name>.go`, a Go program with parts in C, and returns the executable.
///
/// # Errors
///
/// If a compiler is missing, or the program does not compile.
pub fn compile_cgo(name: &str) -> Result<PathBuf> {
    build_go(name, &format!("{name}-go"), "1")
}

fn build_go(name: &str, executable: &str, cgo: &str) -> Result<PathBuf> {
    let executable = scratch("programs")?.join(executable);
    let unfinished = unfinished(&executable);
    let output = Command::new(locate("go")?)
        .args(["build", "-o"])
        .args([&unfinished, &source(&format!("programs/{name}.go"))])
        // The program is a single file that uses only the standard library.
        .envs([("CGO_ENABLED", cgo), ("GO111MODULE", "off"), ("GOFLAGS", ""), ("GOPROXY", "off")])
        .env("GOCACHE", kept("go")?)
        .output()
        .context("cannot run go")?;
    if !output.status.success() {
        bail!("programs/{name}.go does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&unfinished, &executable)?;
    Ok(executable)
}

/// Compiles `programs/<name>.cc` against Boost's headers, and returns the executable.
///
/// # Errors
///
/// If the compiler or the headers are missing, or the program does not compile.
pub fn compile_cpp(name: &str) -> Result<PathBuf> {
    require("/usr/include/boost/asio.hpp")?;
    let executable = scratch("programs")?.join(format!("{name}-cpp"));
    let file = source(&format!("programs/{name}.cc"));
    // Compiling Boost's headers takes many seconds.
    if is_newer(&executable, &file) {
        return Ok(executable);
    }
    let unfinished = unfinished(&executable);
    let mut compiler = Command::new(locate("g++")?);
    compiler.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&unfinished);
    compiler.arg(file).arg("-lpthread");
    finish(compiler, name)?;
    fs::rename(&unfinished, &executable)?;
    Ok(executable)
}

/// Compiles `programs/<name>.java`, and returns the directory of its classes.
///
/// # Errors
///
/// If the compiler is missing, or the program does not compile.
pub fn compile_java(name: &str) -> Result<PathBuf> {
    let classes = scratch("programs/java")?;
    let mut compiler = Command::new(locate("javac")?);
    compiler.arg("-d").arg(&classes).arg(source(&format!("programs/{name}.java")));
    finish(compiler, name)?;
    Ok(classes)
}

/// Compiles `programs/<name>.erl`, and returns the directory of its module.
///
/// # Errors
///
/// If the compiler is missing, or the program does not compile.
pub fn compile_erlang(name: &str) -> Result<PathBuf> {
    let modules = scratch("programs/erlang")?;
    let mut compiler = Command::new(locate("erlc")?);
    compiler.arg("-o").arg(&modules).arg(source(&format!("programs/{name}.erl")));
    finish(compiler, name)?;
    Ok(modules)
}

/// Builds the crate `programs/<name>/`, which is outside the workspace, and returns the executable.
/// The inner error says why its dependencies were not fetched: this function does not fetch them.
///
/// # Errors
///
/// If the crate does not build.
pub fn compile_cargo(name: &str) -> Result<std::result::Result<PathBuf, String>> {
    let target = kept(name)?;
    let manifest = source(&format!("programs/{name}/Cargo.toml"));
    let cargo = |command: &str| -> Result<Command> {
        let mut cargo = Command::new(locate("cargo")?);
        // `scripts/timed` sets this variable. With it, build scripts assume a nightly compiler.
        cargo.env_remove("RUSTC_BOOTSTRAP");
        cargo.args([command, "--quiet", "--locked", "--offline", "--manifest-path"]).arg(&manifest);
        Ok(cargo)
    };
    // Without the network this finds out whether all dependencies are there.
    let mut fetch = cargo("fetch")?;
    let fetched = fetch.args(["--target", "host-tuple"]).output();
    if !fetched.with_context(|| format!("cannot run {fetch:?}"))?.status.success() {
        return Ok(Err(not_fetched(name)));
    }
    let mut build = cargo("build")?;
    build.arg("--release").arg("--target-dir").arg(&target);
    finish(build, name)?;
    Ok(Ok(target.join("release").join(name)))
}

/// Builds an example of a crate of this workspace, optimised as what is installed, and returns the
/// executable.
///
/// # Errors
///
/// If it does not compile.
pub fn compile_example(package: &str, name: &str) -> Result<PathBuf> {
    let mut build = Command::new(locate("cargo")?);
    build.current_dir(source("")).args(["build", "--quiet", "--release", "--package", package]);
    build.args(["--example", name]).arg("--target-dir").arg(kept("")?);
    let output = build.output().with_context(|| format!("cannot run {build:?}"))?;
    if !output.status.success() {
        bail!("{name} does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(kept("release/examples")?.join(name))
}

/// Whether `executable` exists and is newer than its source.
fn is_newer(executable: &Path, source: &Path) -> bool {
    let time = |file: &Path| fs::metadata(file).and_then(|file| file.modified()).ok();
    time(executable) > time(source)
}

fn finish(mut compiler: Command, name: &str) -> Result<()> {
    let output = compiler.output().with_context(|| format!("cannot run {compiler:?}"))?;
    if !output.status.success() {
        bail!("programs/{name} does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
