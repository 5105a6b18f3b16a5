//! Describes programs that do not go on, before they are ended.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use crate::limits::HANGING_PROCESSES_MAX;
use crate::packages::locate;
use crate::paths::{scratch, weft};

/// Time that each helper gets, as `timeout(1)` takes it.
const HELPER_TIMEOUT: &str = "20";

/// Writes what explains why the processes of group `group` do not go on to a file: their states and
/// stacks, what Weft says about them, and the sockets of the host. Returns the file's path.
///
/// # Errors
///
/// If the file cannot be written. What cannot be found out is left out.
pub(crate) fn describe(group: u32, shared: Option<&Path>) -> Result<PathBuf> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let mut text = String::new();
    let members = members(group);
    for &pid in members.iter().take(HANGING_PROCESSES_MAX) {
        describe_process(pid, &mut text);
    }
    let run = |program: &Path, arguments: &[&str]| {
        let mut command = helper(program, arguments);
        if let Some(shared) = shared {
            command.env("WEFT_SHM_DIR", shared);
        }
        output(&mut command)
    };
    if let Ok(weft) = weft() {
        text.push_str(&run(&weft, &["stat"]));
        for pid in members.iter().take(HANGING_PROCESSES_MAX) {
            text.push_str(&run(&weft, &["dump", &pid.to_string()]));
        }
    }
    if let Ok(ss) = locate("ss") {
        text.push_str(&run(
            &ss,
            &["--tcp", "--udp", "--all", "--numeric", "--processes", "--info"],
        ));
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let path = scratch("hangs")?.join(format!("{}-{serial}.txt", std::process::id()));
    fs::write(&path, text)?;
    Ok(path)
}

/// Returns the processes of a process group.
fn members(group: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| group_of(pid) == Some(group)).collect()
}

fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain anything: state, parent, group.
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}

/// Adds the command line of a process, the state of each thread, and the threads' stacks.
fn describe_process(pid: u32, text: &mut String) {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let _ = writeln!(text, "=== process {pid}: {line}");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let (name, wait, call) = (read("comm"), read("wchan"), read("syscall"));
        let thread = task.file_name();
        let _ = writeln!(
            text,
            "thread {} {:?}: state {}, in {wait}, call {}",
            thread.display(),
            name.trim_end(),
            state.unwrap_or('?'),
            call.trim_end(),
        );
    }
    if let Ok(gdb) = locate("gdb") {
        let pid = pid.to_string();
        let arguments = ["--batch", "-nx", "-p", &pid, "-ex", "thread apply all backtrace 30"];
        text.push_str(&output(&mut helper(&gdb, &arguments)));
    }
}

/// Returns a command that ends by itself after [`HELPER_TIMEOUT`].
fn helper(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", HELPER_TIMEOUT]).arg(program).args(arguments);
    command
}

/// Returns the command and what it prints; an error's text if it cannot be run.
fn output(command: &mut Command) -> String {
    let heading = format!("=== {command:?}\n");
    match command.stdin(Stdio::null()).output() {
        Ok(output) => {
            let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
            format!("{heading}{out}{err}")
        }
        Err(error) => format!("{heading}{error}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_process_is_described() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let own = group_of(std::process::id()).unwrap();
        assert_eq!(group_of(child.id()), Some(own));
        let read = |name| fs::read_to_string(format!("/proc/{}/{name}", child.id())).unwrap();
        while !read("cmdline").starts_with("sleep") || read("syscall").starts_with("running") {
            std::thread::yield_now();
        }
        let mut text = String::new();
        describe_process(child.id(), &mut text);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(text.contains(": sleep 1000") && text.contains("\"sleep\": state"), "{text}");
    }
}
