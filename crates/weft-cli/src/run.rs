//! `weft run`: replaces the process by a program that runs on Weft. The installed command
//! (`weft-launch`) starts most programs without this, and what it does is what this does.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Error, Result, anyhow};

use crate::args::RunArgs;
use crate::environment;
use crate::layout::Layout;
use crate::output;

/// Exit statuses like those of `env(1)` and of shells.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;
/// Where `execvp(3)` searches if there is no variable `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Starts the program. Returns only if that fails, with an exit status that says why.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let (error, status) = match prepare(args) {
        Ok(mut command) => {
            (anyhow!("cannot run {:?}: {}", args.command[0], command.exec()), CANNOT_RUN)
        }
        Err(failure) => failure,
    };
    output::complain(&error);
    ExitCode::from(status)
}

fn prepare(args: &RunArgs) -> Result<Command, (Error, u8)> {
    let (name, arguments) = (&args.command[0], &args.command[1..]);
    let program = resolve(name)
        .ok_or_else(|| (anyhow!("program not found: {name:?}{}", hint(name)), NOT_FOUND))?;
    if let Some(why) = why_loader_ignores_us(&program) {
        return Err((
            anyhow!(
                "{} {why}: the dynamic loader ignores LD_LIBRARY_PATH and LD_PRELOAD for it, \
                 and so it would run without Weft; run a copy of it that has no privileges",
                program.display()
            ),
            CANNOT_RUN,
        ));
    }
    let layout = Layout::find().map_err(|error| (error, CANNOT_RUN))?;
    let variables = environment::variables(&layout, &args.device, &args.sockets)
        .map_err(|error| (error, CANNOT_RUN))?;
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments).envs(variables);
    Ok(command)
}

/// Returns the file that `execvp(3)` would start.
fn resolve(name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    search(name, &env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()))
}

/// Says what the name of a program that there is not may be.
fn hint(name: &OsStr) -> &'static str {
    let bytes = name.as_encoded_bytes();
    if bytes.starts_with(b"-") {
        ": no option either, see weft run --help"
    } else if Path::new(name).is_dir() {
        ": it is a directory"
    } else if bytes.contains(&b'/') {
        ""
    } else {
        ": not in PATH"
    }
}

fn search(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let mut found = env::split_paths(path).map(|directory| directory.join(name));
    found.find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns why the program would start in secure-execution mode (ld.so(8)), if it would.
fn why_loader_ignores_us(program: &Path) -> Option<&'static str> {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    let meta = fs::metadata(program).ok()?;
    let user = rustix::process::geteuid();
    if meta.mode() & SET_UID != 0 && meta.uid() != user.as_raw() {
        return Some("is set-user-ID");
    }
    if meta.mode() & SET_GID != 0 && meta.gid() != rustix::process::getegid().as_raw() {
        return Some("is set-group-ID");
    }
    if !user.is_root() && has_capabilities(program) {
        return Some("has file capabilities");
    }
    None
}

fn has_capabilities(program: &Path) -> bool {
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(program, c"security.capability", &mut value[..]).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::chown;

    use super::*;
    use crate::args::{DeviceArgs, SocketArgs};

    #[test]
    fn resolves_like_execvp() {
        assert_eq!(resolve(OsStr::new("/bin/sh")), Some("/bin/sh".into()));
        assert!(resolve(OsStr::new("sh")).unwrap().is_absolute());
        assert_eq!(resolve(OsStr::new("no-such-program-of-weft")), None);
        assert_eq!(resolve(OsStr::new("/no/such/program")), None);
        assert_eq!(resolve(OsStr::new("/bin")), None);
        assert!(search(OsStr::new("sh"), OsStr::new(DEFAULT_PATH)).is_some());
        assert_eq!(search(OsStr::new("sh"), OsStr::new("")), None);
    }

    #[test]
    fn names_of_no_program_are_explained() {
        for (name, part) in [("-x", "option"), ("/bin", "directory"), ("x", "PATH"), ("/x", "")] {
            assert!(hint(OsStr::new(name)).contains(part), "{name}");
        }
    }

    #[test]
    fn ordinary_programs_keep_preload_variables() {
        assert_eq!(why_loader_ignores_us(Path::new("/bin/sh")), None);
    }

    #[test]
    fn programs_with_more_rights_than_their_user_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        fs::copy("/bin/true", &file).unwrap();
        // Only root can make such a program; others find one of root's.
        let program = if rustix::process::geteuid().is_root() {
            chown(&file, Some(1), None).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o4755)).unwrap();
            file
        } else {
            resolve(OsStr::new("passwd")).unwrap()
        };
        let args = RunArgs {
            device: DeviceArgs::default(),
            command: vec![program.into_os_string()],
            sockets: SocketArgs::default(),
        };
        let Err((error, status)) = prepare(&args) else { panic!("it would run without Weft") };
        assert_eq!(status, CANNOT_RUN);
        assert!(error.to_string().contains(" is set-user-ID: "), "{error}");
    }
}
