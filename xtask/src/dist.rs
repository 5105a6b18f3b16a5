//! Lays out `dist/`: `bin/weft`, the headers in `include/`, `lib/weft/` with the tool and the
//! libraries that take the place of the system's, and in `lib/` the client of tuple spaces.
//!
//! rustc cannot give symbols ELF versions: it silently ignores a version script for a `cdylib`. So
//! the C ABI is built as static libraries, which `cc` links into the shared ones.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The verbs library. Programs are linked to this name.
pub(crate) const VERBS: &str = "libibverbs.so.1";
/// The library of the connection manager.
pub(crate) const CM: &str = "librdmacm.so.1";
/// The preload for verbs programs.
pub(crate) const PRELOAD: &str = "libweft-preload.so";
/// The preload for sockets.
pub(crate) const SOCKETS: &str = "libweft-sockets.so";
/// The client of tuple spaces. Programs are linked to this name.
const TUPLES: &str = "libweft_tuples.so.1";
/// The shared libraries that cargo links: its name, and the folder and the name in `dist/lib`.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("libweft_preload.so", "weft", PRELOAD),
    ("libweft_sockets.so", "weft", SOCKETS),
    ("libweft_tuples_c.so", "", TUPLES),
];
/// The C headers, with the crates that have them.
const HEADERS: [(&str, &str); 2] =
    [("weft-sockets", "weft_socket.h"), ("weft-tuples-c", "weft_tuples.h")];

/// Builds and links everything into `dist/`.
///
/// # Errors
/// Errors of the compiler, the linker and the file system.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.first() {
        return Err(format!("takes no argument, but got {unknown}"));
    }
    let built = build()?;
    let root = workspace();
    let (programs, libraries) = (root.join("dist/bin"), root.join("dist/lib/weft"));
    for directory in [&programs, &libraries] {
        fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    link_verbs(&built.join("libweft_verbs.a"), &libraries)?;
    link_cm(&libraries)?;
    let clients = root.join("dist/lib");
    for (library, folder, name) in LIBRARIES {
        install(&built.join(library), &clients.join(folder).join(name))?;
    }
    install(&built.join("weft"), &libraries.join("weft"))?;
    if cfg!(target_arch = "x86_64") {
        install(&build_launcher()?, &programs.join("weft"))?;
    } else {
        link("../lib/weft/weft", &programs.join("weft"))?;
    }
    let headers = root.join("dist/include");
    fs::create_dir_all(&headers).map_err(|e| format!("{}: {e}", headers.display()))?;
    for (package, header) in HEADERS {
        let include = root.join("crates").join(package).join("include");
        install(&include.join(header), &headers.join(header))?;
    }
    // Programs that open the libraries by `dlopen` try these names first.
    link(VERBS, &libraries.join("libibverbs.so"))?;
    link(CM, &libraries.join("librdmacm.so"))?;
    link(TUPLES, &clients.join("libweft_tuples.so"))
}

fn link(target: &str, link: &Path) -> Result<(), String> {
    let _ = fs::remove_file(link); // An older link may exist.
    symlink(target, link).map_err(|e| format!("{}: {e}", link.display()))
}

/// Returns the root of the source tree.
pub(crate) fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Returns the directory of the reviewed version scripts.
pub(crate) fn maps() -> PathBuf {
    workspace().join("crates/weft-verbs/abi")
}

/// Runs a command and waits for it.
///
/// # Errors
/// If it cannot start or fails. Its own messages are on the terminal.
pub(crate) fn execute(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// Returns a command for the C compiler.
pub(crate) fn cc() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Compiles the crates that go into `dist/`, and returns the directory of the results. For
/// tests they are optimised less (`scripts/gate.toml`).
fn build() -> Result<PathBuf, String> {
    let mut packages = vec!["weft-preload", "weft-sockets", "weft-cli", "weft-tuples-c"];
    if is_for_tests() {
        // Asked for together, packages share what they depend on. Cargo builds it anew for one that
        // asks for fewer features.
        packages.push("weft-verbs");
        let results = results().join("debug");
        remove_those_of_others(&results)?;
        let mut cargo = cargo();
        cargo.args(["build", "--config", "scripts/gate.toml"]).args(each(&packages));
        cargo.env("RUSTC_WORKSPACE_WRAPPER", workspace().join("scripts/rustc-abort"));
        execute(&mut cargo)?;
        return Ok(results);
    }
    // Cargo optimises no crate at link time that is also built as a Rust library, which the verbs
    // library is for its tests.
    let alone = ["--package", "weft-verbs", "--lib", "--crate-type", "staticlib"];
    execute(cargo().args(["rustc", "--release"]).args(alone))?;
    execute(cargo().args(["build", "--release"]).args(each(&packages)))?;
    Ok(results().join("release"))
}

/// Whether the results are only for tests (`WEFT_PROFILE=gate`), which want them soon.
pub(crate) fn is_for_tests() -> bool {
    std::env::var("WEFT_PROFILE").is_ok_and(|profile| profile == "gate")
}

/// Removes the shared libraries that are not those of the last `dist/`, so that cargo links them
/// again. All that are of one profile have one name there, those that tests are linked to as well,
/// and cargo does not see that another one has come to the place of the one that it has built.
fn remove_those_of_others(results: &Path) -> Result<(), String> {
    for (library, folder, name) in LIBRARIES {
        let built = results.join("deps").join(library);
        let installed = workspace().join("dist/lib").join(folder).join(name);
        match (fs::read(&built), fs::read(installed)) {
            (Ok(built), Ok(installed)) if built == installed => {}
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {}
            _ => fs::remove_file(&built).map_err(|e| format!("{}: {e}", built.display()))?,
        }
    }
    Ok(())
}

fn each<'a>(packages: &[&'a str]) -> impl Iterator<Item = &'a str> {
    packages.iter().flat_map(|package| ["--package", package])
}

/// Compiles the command that starts programs, and returns the result. It has no library: neither
/// the dynamic loader nor the C library takes time when it starts.
fn build_launcher() -> Result<PathBuf, String> {
    let package = ["--package", "weft-launch", "--features", "executable", "--bin", "weft-launch"];
    let link = ["-C", "relocation-model=static", "-C", "link-args=-nostdlib -static"];
    execute(cargo().args(["rustc", "--release"]).args(package).arg("--").args(link))?;
    Ok(results().join("release/weft-launch"))
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

/// Returns cargo's target directory.
fn results() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    workspace().join(target.unwrap_or_else(|| "target".into()))
}

fn link_verbs(archive: &Path, libraries: &Path) -> Result<(), String> {
    // `rustc --print native-static-libs` names these system libraries.
    shared(VERBS, libraries, "ibverbs.map", |command| {
        command
            .arg("-Wl,--whole-archive")
            .arg(archive)
            .args(["-Wl,--no-whole-archive", "-Wl,--gc-sections", "-Wl,--no-undefined"])
            .args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]);
    })
}

/// Links a library without code. It depends on the verbs library, and has the version nodes that
/// programs check.
fn link_cm(libraries: &Path) -> Result<(), String> {
    shared(CM, libraries, "rdmacm.map", |command| {
        command
            .args(["-nostdlib", "-x", "c", "/dev/null", "-Wl,--no-as-needed", "-L"])
            .arg(libraries)
            .arg(format!("-l:{VERBS}"));
    })
}

/// Links a shared library under a temporary name and renames it, so that a running program never
/// sees an incomplete file.
fn shared(
    name: &str,
    libraries: &Path,
    map: &str,
    inputs: impl FnOnce(&mut Command),
) -> Result<(), String> {
    let fresh = libraries.join(format!(".{name}.new"));
    let mut script = OsString::from("-Wl,--version-script=");
    script.push(maps().join(map));
    let mut command = cc();
    command.args(["-shared", "-fPIC", "-o"]).arg(&fresh);
    command.arg(format!("-Wl,-soname,{name}")).arg(script);
    // Unloading the library would unmap the code of the running service thread.
    command.args(["-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"]);
    inputs(&mut command);
    execute(&mut command)?;
    rename(&fresh, &libraries.join(name))
}

fn install(from: &Path, to: &Path) -> Result<(), String> {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).map_err(|e| format!("{}: {e}", from.display()))?;
    rename(&fresh, to)
}

fn rename(from: &Path, to: &Path) -> Result<(), String> {
    fs::rename(from, to).map_err(|e| format!("{}: {e}", to.display()))
}
