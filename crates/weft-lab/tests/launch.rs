//! The installed command starts programs without the tool, and as the tool would.
#![cfg(target_arch = "x86_64")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::{Finished, Folder, Program, locate, weft};

const TIMEOUT: Duration = Duration::from_secs(60);

/// System calls of the command for a program that is named by a path, with that which executes it.
const CALLS_MAX: usize = 12;

/// Prints what the program gets: its words, then its variables.
const SHOW: &str = r#"printf '%s\n' "$0" "$@"; env | grep -v '^_=' | sort"#;

/// An installation of the built command and libraries, without the tool.
struct Tree(Folder);

impl Tree {
    fn new() -> Result<Self> {
        let folder = Folder::new(0o755)?;
        let (bin, libraries) = (folder.path().join("bin"), folder.path().join("lib/weft"));
        fs::create_dir(&bin)?;
        fs::create_dir_all(&libraries)?;
        fs::copy(weft()?, bin.join("weft"))?;
        for library in fs::read_dir(installed()?)? {
            let library = library?;
            if library.file_name() != "weft" {
                symlink(library.path(), libraries.join(library.file_name()))?;
            }
        }
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self) -> Program {
        Program::plain(self.path("bin/weft")).arg("run")
    }

    /// Makes an executable file.
    fn script(&self, name: &str, text: &str, mode: u32) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        Ok(path)
    }
}

/// The directory of the libraries and of the tool.
fn installed() -> Result<PathBuf> {
    Ok(weft()?.with_file_name("../lib/weft").canonicalize()?)
}

#[test]
fn programs_start_without_the_tool_and_what_belongs_to_it() -> Result<()> {
    let tree = Tree::new()?;
    let show = ["--", "sh", "-c", "cat /proc/$$/maps", "name"];
    let ended = tree.run().args(show).run(TIMEOUT)?.success()?;
    for library in ["libweft-sockets.so", "libweft-preload.so"] {
        ensure!(ended.stdout.contains(library), ended.error(format!("not loaded: {library}")));
    }
    Ok(())
}

#[test]
fn a_tool_that_cannot_start_is_named_with_the_reason() -> Result<()> {
    let tree = Tree::new()?;
    let fails = |reason: &str| -> Result<()> {
        let ended = Program::plain(tree.path("bin/weft")).arg("info").run(TIMEOUT)?;
        ensure!(ended.status.code() == Some(126), ended.error("not 126"));
        let tool = tree.path("bin/../lib/weft/weft");
        let is_named = ended.stderr.contains(&*tool.to_string_lossy());
        ensure!(is_named && ended.stderr.contains(reason), ended.error(format!("not: {reason}")));
        Ok(())
    };
    fails("is missing: install the whole tree")?;
    tree.script("lib/weft/weft", "#!/nosuch/loader\n", 0o755)?;
    fails("its dynamic loader is missing")?;
    tree.script("lib/weft/weft", "#!/bin/sh\n", 0o644)?;
    fails("may not start")?;
    tree.script("lib/weft/weft", "no program\n", 0o755)?;
    fails("errno 008")
}

#[test]
fn nothing_but_the_kernel_is_asked_before_a_program_starts() -> Result<()> {
    let (tree, trace) = (Tree::new()?, Folder::new(0o700)?);
    let trace = trace.path().join("trace");
    let strace = Program::plain(locate("strace")?).arg("-qq").arg("-o").arg(&trace);
    let strace = strace.arg(tree.path("bin/weft")).args(["run", "--", "/bin/true"]);
    strace.run(TIMEOUT)?.success()?;
    let trace = fs::read_to_string(trace)?;
    let calls: Vec<_> = trace.lines().collect();
    let is_start = |line: &&str| line.starts_with("execve(\"/bin/true\"");
    let start = calls.iter().position(is_start).context("it has not started")?;
    // The first one has executed the command.
    ensure!(start <= CALLS_MAX, "{start} calls: {:#?}", &calls[1..=start]);
    let is_open = |line: &&&str| line.starts_with("open") || line.starts_with("mmap");
    let opened = calls[..start].iter().find(is_open);
    ensure!(opened.is_none(), "{opened:?}");
    Ok(())
}

/// The tool gets the same words, for every call that the command does not know.
#[test]
fn all_other_calls_are_the_tools() -> Result<()> {
    let tree = Tree::new()?;
    tree.script("lib/weft/weft", "#!/bin/sh\necho tool \"$@\"\n", 0o755)?;
    let is_tools = |program: Program, line: &str| -> Result<()> {
        let ended = program.run(TIMEOUT)?.success()?;
        ended.expect_output(line).map(drop)
    };
    let weft = || Program::plain(tree.path("bin/weft"));
    for line in ["", "info --json", "run", "run --no-verbs true", "run nosuch", "run true -- x"] {
        is_tools(weft().line(line), format!("tool {line}").trim_end())?;
    }
    let run = tree.run().arg("true");
    is_tools(run.clone().env("WEFT_SOCKETS_RULES", "/none"), "tool run true")?;
    is_tools(run.clone().env("PATH", ":/bin"), "tool run true")?;
    is_tools(run.clone().env("LD_PRELOAD", "x".repeat(5000)), "tool run true")?;
    // The kernel cannot execute it, but a shell can.
    let plain = tree.script("plain", "echo plain\n", 0o755)?;
    is_tools(tree.run().arg(&plain), &format!("tool run {}", plain.display()))?;
    if rustix::process::geteuid().is_root() {
        let program = tree.script("program", "", 0o755)?;
        chown(&program, Some(1), None)?;
        fs::set_permissions(&program, Permissions::from_mode(0o4755))?;
        is_tools(tree.run().arg(&program), &format!("tool run {}", program.display()))?;
    }
    let many = (0..1_100).map(|number| format!("V{number}"));
    is_tools(many.fold(run.clone(), |run, name| run.env(name, "")), "tool run true")?;
    is_tools(
        Program::plain("env").line("-i").arg(tree.path("bin/weft")).line("run true"),
        "tool run true",
    )?;
    run.clone().run(TIMEOUT)?.success()?.expect_output("")?;
    fs::remove_file(tree.path("lib/weft/librdmacm.so.1"))?;
    is_tools(run, "tool run true")
}

/// Runs the same call by the command and by the tool, and expects the same.
fn alike(line: &[&str], variables: &[(&str, &str)]) -> Result<Finished> {
    let with = |command: PathBuf| -> Result<Finished> {
        let program = Program::plain(command).arg("run").args(line);
        let program = variables.iter().fold(program, |run, (name, value)| run.env(name, value));
        program.run(TIMEOUT)
    };
    let (ours, tools) = (with(weft()?)?, with(installed()?.join("weft"))?);
    ensure!(ours.stdout == tools.stdout, ours.error(format!("the tool: {}", tools.stdout)));
    ensure!(ours.stderr == tools.stderr, ours.error(format!("the tool: {}", tools.stderr)));
    ensure!(ours.status == tools.status, ours.error(format!("the tool: {}", tools.status)));
    Ok(ours)
}

#[test]
fn programs_get_the_same_from_the_command_and_from_the_tool() -> Result<()> {
    let (folder, library) = (Folder::new(0o755)?, installed()?.join("libweft-sockets.so"));
    let library = library.to_str().context("not UTF-8")?;
    for variables in [
        &[][..],
        &[("LD_LIBRARY_PATH", "/tmp::/var/tmp:"), ("EMPTY", ""), ("WITH", "a=b:c")],
        &[("LD_PRELOAD", library)],
        &[("WEFT_SOCKETS_RULES", "")],
        &[("PATH", "/nosuch:/usr/bin:/bin"), ("WEFT_SOCKETS", "off")],
    ] {
        for line in [&["sh", "-c", SHOW, "name", "", "a b"][..], &["--", "/bin/sh", "-c", SHOW]] {
            alike(line, variables)?.success()?;
        }
    }
    let script = |name: &str, mode| -> Result<PathBuf> {
        let path: &Path = &folder.path().join(name);
        fs::write(path, "echo script \"$0\"\n")?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok(path.to_owned())
    };
    let (shell, not) = (script("shell", 0o755)?, script("not", 0o644)?);
    for (line, status) in [
        (&["nosuch"][..], 127),
        (&["/nosuch/program"], 127),
        (&[shell.to_str().context("not UTF-8")?], 0),
        (&[not.to_str().context("not UTF-8")?], 126),
        (&["sh", "-c", "exit 3"], 3),
    ] {
        let ended = alike(line, &[])?;
        ensure!(ended.status.code() == Some(status), ended.error(format!("not {status}")));
    }
    Ok(())
}

/// As by `execvp(3)`, which then searches `/bin` and `/usr/bin`.
#[test]
fn programs_are_found_without_a_variable_path() -> Result<()> {
    let empty = Program::plain("env").arg("-i").arg(weft()?).line("run echo found");
    empty.run(TIMEOUT)?.success()?.expect_output("found").map(drop)
}

#[test]
fn without_proc_programs_start_and_the_tool_says_that_it_is_missing() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(()); // Only root may unmount it.
    }
    let weft = weft()?;
    let run = |words: &str| {
        let script = format!("umount -l /proc && exec {} {words}", weft.display());
        Program::plain("unshare").args(["--mount", "sh", "-c", &script]).run(TIMEOUT)?.success()
    };
    run("run echo started")?.expect_output("started")?;
    let info = run("info")?;
    let is_reported = info.stdout.contains("ready            no: /proc is not mounted");
    ensure!(is_reported, info.error("it is not said"));
    Ok(())
}
