//! What the command does.

use core::ffi::CStr;

use crate::arguments::program_in;
use crate::environment::{Loader, value};
use crate::kernel::{Strings, complain, execute, has_capabilities, is_root, mode_of};
use crate::place;
use crate::text::Text;

/// The variable with the file of rules, which the tool checks before it starts a program.
const RULES_VARIABLE: &[u8] = b"WEFT_SOCKETS_RULES";
/// Bits of `st_mode`: who executes the file becomes its owner, or gets its group.
const SET_ID: u32 = 0o6000;
/// Somebody may execute it.
const EXECUTABLE: u32 = 0o111;
/// `ENOENT` and `EACCES`.
const MISSING: usize = 2;
const FORBIDDEN: usize = 13;

/// Replaces the process by the program of `weft run`, or by the tool. Returns only if neither is
/// possible. `name` is the path with which this executable was executed.
pub fn run(arguments: Strings<'_>, environment: Strings<'_>, name: Option<&CStr>) {
    let executable = place::executable();
    if let Some(executable) = &executable {
        let _ = start(arguments, environment, executable); // The tool says why it cannot start.
    }
    let mut message = None;
    for executable in [executable, name.and_then(place::executable_by_name)].iter().flatten() {
        if let Some(tool) = place::tool(executable) {
            let error = execute(tool.as_c_str(), arguments, environment);
            message = message.or_else(|| why_not(&tool, error));
        }
    }
    let unknown = b"weft: cannot find its own tree: start it by its path, or mount /proc\n";
    complain(message.as_ref().map_or(unknown, Text::as_bytes));
}

/// Says why the kernel has not started the tool. `None` if that is too long.
fn why_not(tool: &Text, error: usize) -> Option<Text> {
    let digits = [error / 100, error / 10 % 10, error % 10].map(digit);
    let (before, behind): (&[u8], &[u8]) = match error {
        MISSING if place::is_file(tool.as_c_str()) => {
            (b"cannot start ", b": its dynamic loader is missing, Weft needs glibc")
        }
        MISSING => (b"", b" is missing: install the whole tree with `make install`"),
        FORBIDDEN => (b"may not start ", b": see the modes of the path, and the mount for noexec"),
        _ => (b"cannot start ", b": errno "),
    };
    let number = if behind.ends_with(b" ") { &digits[..] } else { &[] };
    Text::of(&[b"weft: ", before, tool.as_bytes(), behind, number, b"\n"])
}

fn digit(value: usize) -> u8 {
    b"0123456789".get(value).copied().unwrap_or(b'?')
}

/// Starts the program of `weft run`. Returns if that takes more than this knows.
fn start(arguments: Strings<'_>, environment: Strings<'_>, executable: &Text) -> Option<()> {
    let index = program_in(arguments)?;
    if value(environment, RULES_VARIABLE).is_some_and(|file| !file.is_empty()) {
        return None;
    }
    let program = find(arguments.get(index)?.to_bytes(), environment)?;
    let loader = Loader::new(environment, &place::libraries(executable)?)?;
    let list = loader.within(environment)?;
    execute(program.as_c_str(), arguments.from(index), list.strings());
    None
}

/// Returns the file that `execvp(3)` would start, unless it gives more rights than its user has:
/// then the dynamic loader ignores the variables.
fn find(name: &[u8], environment: Strings<'_>) -> Option<Text> {
    let program = if name.contains(&b'/') {
        Text::of(&[name]).filter(|path| place::is_file(path.as_c_str()))?
    } else {
        search(name, value(environment, b"PATH")?)?
    };
    let path = program.as_c_str();
    let gives_rights = mode_of(path)? & SET_ID != 0 || !is_root() && has_capabilities(path);
    (!gives_rights).then_some(program)
}

/// Searches a list of directories for an executable.
fn search(name: &[u8], directories: &[u8]) -> Option<Text> {
    for directory in directories.split(|&byte| byte == b':') {
        if directory.is_empty() {
            return None; // The current directory, for which there is no path.
        }
        let path = Text::of(&[directory, b"/", name])?;
        if is_executable(path.as_c_str()) {
            return Some(path);
        }
    }
    None
}

fn is_executable(path: &CStr) -> bool {
    place::is_file(path) && mode_of(path).is_some_and(|mode| mode & EXECUTABLE != 0)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::string::String;

    use super::*;
    use crate::kernel::List;

    fn found(name: &str, path: &str) -> Option<String> {
        let variable = CString::new(std::format!("PATH={path}")).unwrap();
        let mut list = List::new();
        list.push(&variable).unwrap();
        let found = find(name.as_bytes(), list.strings())?;
        Some(String::from_utf8(found.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn programs_are_found_like_by_execvp() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        for (directory, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("program"), "").unwrap();
            fs::set_permissions(directory.join("program"), Permissions::from_mode(mode)).unwrap();
        }
        let path = |directories: &[&Path]| {
            std::env::join_paths(directories).unwrap().into_string().unwrap()
        };
        let both = path(&[&first, &second]);
        let expected = second.join("program").into_os_string().into_string().unwrap();
        assert_eq!(found("program", &both), Some(expected.clone()));
        assert_eq!(found(&expected, ""), Some(expected));
        assert_eq!(found("program", &path(&[&first])), None);
        assert_eq!(found("program", &std::format!(":{both}")), None);
        assert_eq!(found("none", &both), None);
        assert_eq!(found(first.to_str().unwrap(), &both), None);
    }

    #[test]
    fn programs_with_more_rights_than_their_user_are_left_to_the_tool() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        fs::write(&file, "").unwrap();
        let name = file.to_str().unwrap();
        for (mode, is_ours) in [(0o755, true), (0o4755, false), (0o2755, false), (0o6755, false)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(name, "").is_some(), is_ours, "{mode:o}");
        }
    }
}
