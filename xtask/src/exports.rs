//! Compares the exports of the libraries in `dist/` with the reviewed lists.
//!
//! * `libibverbs.so.1` exports exactly the symbols and versions of `abi/ibverbs.map`. The check is
//!   needed because a linker that ignores the version script reports nothing.
//! * `librdmacm.so.1` has the version nodes of `abi/rdmacm.map` and no symbol.
//! * Our libraries have every public symbol and version of the system's libraries, if these are
//!   installed.
//! * The preloads define only names of the C library and of liburing, and two names that the
//!   verbs library looks up. Any other name could shadow a program's own.
//! * A C program that was built against the system's headers gets the behaviour that the manual
//!   pages describe.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::dist::{CM, PRELOAD, SOCKETS, VERBS, cc, execute, maps, workspace};

/// The directory of Debian's libraries.
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";

/// Runs all comparisons.
///
/// # Errors
/// Lists the missing and the unreviewed symbols.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.first() {
        return Err(format!("takes no argument, but got {unknown}"));
    }
    let libraries = workspace().join("dist/lib/weft");
    let verbs = exported(&libraries.join(VERBS))?;
    let cm = exported(&libraries.join(CM))?;
    let reviewed = parse_map(&read(&maps().join("ibverbs.map"))?)?;
    compare(VERBS, &verbs, &reviewed)?;
    compare(CM, &cm, &parse_map(&read(&maps().join("rdmacm.map"))?)?)?;
    cover_system(&verbs)?;
    for preload in [PRELOAD, SOCKETS] {
        hooks_only(&libraries.join(preload))?;
    }
    smoke(&libraries)?;
    println!("{} symbols as reviewed", verbs.len());
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn compare(name: &str, found: &BTreeSet<String>, wanted: &BTreeSet<String>) -> Result<(), String> {
    let list = |set: Vec<&String>| {
        set.into_iter().map(|symbol| format!("\n    {symbol}")).collect::<String>()
    };
    let missing = list(wanted.difference(found).collect());
    let extra = list(found.difference(wanted).collect());
    if missing.is_empty() && extra.is_empty() {
        return Ok(());
    }
    Err(format!("{name}\n  missing:{missing}\n  not reviewed:{extra}"))
}

/// Returns the `symbol@version` pairs that a library defines, of default and other versions, and
/// its version nodes as `@version`.
fn exported(library: &Path) -> Result<BTreeSet<String>, String> {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library);
    let output = nm.output().map_err(|e| format!("nm (package binutils): {e}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{why}; run `cargo xtask dist` first"));
    }
    Ok(parse_nm(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_nm(text: &str) -> BTreeSet<String> {
    let symbols = text.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (kind, name) = (columns.next()?, columns.next()?);
        // An absolute symbol is a version node.
        Some(if kind == "A" { format!("@{name}") } else { name.replace("@@", "@") })
    });
    symbols.collect()
}

/// Returns the same pairs from a version script.
fn parse_map(text: &str) -> Result<BTreeSet<String>, String> {
    let mut symbols = BTreeSet::new();
    let mut node = None;
    let mut global = false;
    for line in without_comments(text).lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_suffix('{') {
            symbols.insert(format!("@{}", name.trim()));
            node = Some(name.trim().to_owned());
        } else if line.starts_with('}') {
            node = None;
        } else if line.ends_with(':') {
            global = line == "global:";
        } else if let (Some(node), Some(symbol)) = (&node, line.strip_suffix(';')) {
            if global {
                symbols.insert(format!("{symbol}@{node}"));
            }
        } else {
            return Err(format!("cannot parse a line of a version script: {line}"));
        }
    }
    Ok(symbols)
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, comment)) = rest.split_once("/*") {
        kept.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    kept + rest
}

/// Functions of liburing that the sockets preload interposes.
const RINGS: [&str; 4] = [
    "io_uring_queue_init",
    "io_uring_queue_init_mem",
    "io_uring_queue_init_params",
    "io_uring_setup",
];

/// The functions of the preloads that the verbs library looks up.
const OWN: [&str; 2] = ["weft_preload_ask_for_ports", "weft_sockets_note_verbs_library"];

/// Checks that a preload defines only names that the C library or liburing defines, too.
fn hooks_only(preload: &Path) -> Result<(), String> {
    let names = |library: &Path| -> Result<BTreeSet<String>, String> {
        let symbols = exported(library)?.into_iter();
        Ok(symbols.map(|symbol| symbol.split('@').next().unwrap_or_default().to_owned()).collect())
    };
    let system = names(&Path::new(SYSTEM).join("libc.so.6"))?;
    let own: Vec<_> = names(preload)?
        .difference(&system)
        .filter(|name| !RINGS.contains(&name.as_str()) && !OWN.contains(&name.as_str()))
        .cloned()
        .collect();
    if own.is_empty() {
        return Ok(());
    }
    Err(format!("{} defines names of its own: {}", preload.display(), own.join(" ")))
}

/// Checks that our libraries have all symbols that programs built against the system's libraries
/// may need.
fn cover_system(ours: &BTreeSet<String>) -> Result<(), String> {
    for name in [VERBS, CM] {
        let library = Path::new(SYSTEM).join(name);
        if !library.exists() {
            println!("{} is not installed: not compared", library.display());
            continue;
        }
        let theirs = exported(&library)?;
        let missing: Vec<_> = theirs
            .iter()
            .filter(|symbol| !ours.contains(*symbol) && !is_old_form(symbol, &theirs))
            .map(|symbol| format!("\n    {symbol}"))
            .collect();
        if !missing.is_empty() {
            return Err(format!("{} also has:{}", library.display(), missing.concat()));
        }
    }
    Ok(())
}

/// Returns whether the symbol is an interface of 2006: `name@IBVERBS_1.0`, where
/// `name@@IBVERBS_1.1` exists. Current programs do not use these.
fn is_old_form(symbol: &str, theirs: &BTreeSet<String>) -> bool {
    symbol
        .strip_suffix("@IBVERBS_1.0")
        .is_some_and(|name| theirs.contains(&format!("{name}@IBVERBS_1.1")))
}

/// Builds the C program against the system's headers and runs it with our libraries.
fn smoke(libraries: &Path) -> Result<(), String> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Err("apt-get install libibverbs-dev librdmacm-dev (headers for tests)".into());
    }
    let source = workspace().join("crates/weft-verbs/tests/abi_smoke.c");
    let program = std::env::temp_dir().join(format!("weft-abi-smoke.{}", std::process::id()));
    let mut command = cc();
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"]);
    command.arg(&source).arg("-o").arg(&program).arg("-L").arg(libraries);
    let built = execute(command.arg(format!("-l:{VERBS}")));
    let ran = built.and_then(|()| {
        execute(Command::new(&program).env("LD_LIBRARY_PATH", libraries).env("LD_BIND_NOW", "1"))
    });
    let _ = fs::remove_file(&program); // It does not exist if the compiler failed.
    ran
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_script_and_nm_output_parse_to_the_same_set() {
        let map = "/* One: a; */\nV_1 {\n global:\n  a;\n local:\n  *;\n};\nV_2 {\n} V_1;\n";
        let nm = "0000000000000000 A V_1\n0000000000000000 A V_2\n0000000000001000 T a@@V_1\n";
        assert_eq!(parse_map(map), Ok(parse_nm(nm)));
        assert!(parse_map("V {\n what?\n};\n").is_err());
    }

    #[test]
    fn old_interfaces_are_recognised() {
        let theirs = parse_nm("0 T f@IBVERBS_1.0\n0 T f@@IBVERBS_1.1\n0 T g@@IBVERBS_1.0\n");
        assert!(is_old_form("f@IBVERBS_1.0", &theirs));
        assert!(!is_old_form("g@IBVERBS_1.0", &theirs));
    }
}
