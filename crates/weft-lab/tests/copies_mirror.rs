//! Mirrors: `weft cp --delete` leaves the tree that rsync leaves, on one host, to and from a server
//! and by a remote shell. All programs run as a user without privileges.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{Finished, Folder, Program, Running, ensure_data, locate, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The user of the programs if the lab runs as root: what root may do hides many faults.
const NOBODY: &str = "65534";
/// A remote shell that runs the command on this host.
const SHELL: &str = "#!/bin/sh\nshift\nexec sh -c \"$*\"\n";
/// The exit status if entries of the tree could not be copied.
const INCOMPLETE: i32 = 3;

/// How a copy reaches its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Local,
    Upload,
    Download,
    Shell,
}

const WAYS: [Way; 4] = [Way::Local, Way::Upload, Way::Download, Way::Shell];

/// A folder, a server that shares it, and a script that stands for a remote shell.
struct Place {
    folder: Folder,
    port: u16,
    _server: Running,
}

fn as_nobody(program: Program) -> Program {
    if rustix::process::geteuid().is_root() { program.as_user(NOBODY) } else { program }
}

impl Place {
    fn new() -> Result<Self> {
        let (folder, port) = (Folder::new(0o755)?, ports::next());
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777))?;
        let shell = folder.path().join("shell");
        fs::write(&shell, SHELL)?;
        fs::set_permissions(&shell, Permissions::from_mode(0o755))?;
        let config = folder.path().join("config");
        let weft =
            || anyhow::Ok(as_nobody(Program::plain(weft()?).env("XDG_CONFIG_HOME", &config)));
        let key = weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        let server = weft()?.args(["serve", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let shared = format!("all={}", folder.path().display());
        let server = server.args(["--allow", key.trim()]).arg(shared).start()?;
        let server = server.listening(Port::Tcp(port))?;
        Ok(Self { folder, port, _server: server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a script in the folder.
    fn sh(&self, script: &str) -> Result<String> {
        let script = format!("set -e; umask 022; {script}");
        let shell = Program::plain("sh").args(["-c", &script]).directory(self.folder.path());
        Ok(as_nobody(shell).run(TIMEOUT)?.success()?.stdout)
    }

    /// Returns `weft cp` from one path of the folder to another one.
    fn copy(&self, way: Way, options: &[&str], from: &str, to: &str) -> Result<Program> {
        let at_server = |path: &str| format!("127.0.0.1:{}//all/{path}", self.port);
        let here = |path: &str| match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("{}/{path}", self.folder.path().display()),
        };
        let (from, to) = match way {
            Way::Local => (here(from), here(to)),
            Way::Upload => (here(from), at_server(to)),
            Way::Download => (at_server(from), here(to)),
            Way::Shell => (here(from), format!("host:{}", here(to))),
        };
        let program = Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path("config"));
        let program = as_nobody(program).args(["cp", "--accept-new"]);
        let program = match way {
            Way::Shell => {
                let shell = self.path("shell");
                program.arg("--rsh").arg(shell).arg("--remote-weft").arg(weft()?)
            }
            _ => program,
        };
        Ok(program.args(options).arg(from).arg(to))
    }

    fn rsync(&self, options: &[&str], from: &str, to: &str) -> Result<Finished> {
        let rsync = Program::plain(locate("rsync")?).args(["-rlpt"]).args(options);
        as_nobody(rsync.arg(self.path(from)).arg(self.path(to))).run(TIMEOUT)
    }

    /// Returns the types, modes, sizes and targets of what is in a directory.
    fn list(&self, name: &str) -> Result<String> {
        let script = "find . -mindepth 1 \\( -type d -printf '%P/ %m\\n' -o -printf \
                      '%P %y %m %s %l\\n' \\) || true";
        let list = Program::plain("sh").args(["-c", script]).directory(self.path(name));
        let listed = list.run(TIMEOUT)?.success()?.stdout;
        let mut lines: Vec<&str> = listed.lines().collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }
}

/// Returns the exit status and what a program has said.
fn said(finished: &Finished) -> (Option<i32>, String) {
    (finished.status.code(), format!("{}{}", finished.stdout, finished.stderr))
}

/// A directory of the source cannot be read, and the only copy of what was moved there is at the
/// destination.
#[test]
fn nothing_is_deleted_while_some_of_the_source_cannot_be_read() -> Result<()> {
    let place = Place::new()?;
    place.sh(
        "mkdir -p from/a from/b/deep from/c; echo only > from/b/deep/moved; echo x > from/c/x;
         chmod 000 from/b",
    )?;
    for way in WAYS {
        for unreadable in ["b", "file"] {
            place.sh("rm -rf to; mkdir -p to/a to/more to/zz; echo only > to/a/moved;
                 echo m > to/more/m")?;
            match unreadable {
                "b" => place.sh("rm -f from/file; chmod 000 from/b")?,
                _ => place.sh("chmod 755 from/b; echo f > from/file; chmod 000 from/file")?,
            };
            let ended = place.copy(way, &["--delete"], "from/", "to")?.run(TIMEOUT)?;
            let (status, text) = said(&ended);
            ensure!(status == Some(INCOMPLETE), "{way:?}, {unreadable}: {status:?}, {text}");
            ensure!(text.contains("nothing was deleted"), "{way:?}, {unreadable}: {text}");
            let list = place.list("to")?;
            let has_all = list.contains("a/moved f") && list.contains("more/m f");
            ensure_data!(has_all, "{way:?}, {unreadable}: deleted: {list}");
            ensure_data!(list.contains("c/x f"), "{way:?}, {unreadable}: not copied: {list}");
        }
        // As soon as all can be read, the copy is what rsync makes.
        place
            .sh("chmod 755 from/b; chmod 644 from/file; rm -rf to other; mkdir -p to/zz to/a/b")?;
        place.sh("touch to/zz/z to/a/moved; cp -a to other")?;
        place.copy(way, &["--delete"], "from/", "to")?.run(TIMEOUT)?.success()?;
        place.rsync(&["--delete"], "from/", "other")?.success()?;
        let (found, expected) = (place.list("to")?, place.list("other")?);
        ensure_data!(found == expected, "{way:?}: {found}\nnot\n{expected}");
        place.sh("chmod 000 from/b")?;
    }
    Ok(())
}

/// Names that look like those of temporary files and journals are names like others.
#[test]
fn names_like_those_of_temporary_files_are_copied_and_deleted_like_others() -> Result<()> {
    let place = Place::new()?;
    place.sh(
        "mkdir -p from/sub; for name in .notes.weft-deadbeef .weft-0badcafe .weft-12345678 \
         .x.weft-00000001-0123456789abcdef; do echo $name > from/$name; echo $name > from/sub/$name;
         done; echo more > from/more",
    )?;
    for way in WAYS {
        place.sh(
            "rm -rf to other; mkdir -p to/sub; for name in .mine.weft-deadbeef .weft-00c0ffee \
             .y.weft-00000002-0123456789abcdef; do echo $name > to/$name;
             echo $name > to/sub/$name; touch -d '2 days ago' to/$name to/sub/$name; done;
             cp -a to other",
        )?;
        for options in [&[][..], &["--delete"]] {
            place.copy(way, options, "from/", "to")?.run(TIMEOUT)?.success()?;
            place.rsync(options, "from/", "other")?.success()?;
            let (found, expected) = (place.list("to")?, place.list("other")?);
            ensure_data!(found == expected, "{way:?}, {options:?}: {found}\nnot\n{expected}");
        }
    }
    Ok(())
}

/// An interrupted copy goes on although others have been made to the same place meanwhile.
#[test]
fn other_copies_leave_partial_files_alone() -> Result<()> {
    let place = Place::new()?;
    place.sh("mkdir from to small; head -c 30000000 /dev/zero | tr '\\0' x > from/large;
         echo s > small/s")?;
    let partial = || place.sh("find to -name '.large.weft-*' -size +3M");
    let slow = place.copy(Way::Local, &["--limit", "4M", "--resume"], "from/", "to")?;
    let slow = slow.start()?;
    let start = Instant::now();
    while partial()?.is_empty() || place.sh("find to -name '.weft-*' -size +1k")?.is_empty() {
        ensure!(start.elapsed() < TIMEOUT, "the copy does not begin");
    }
    slow.kill()?;
    for way in WAYS {
        place.copy(way, &[], "small/", "to")?.run(TIMEOUT)?.success()?;
        ensure_data!(!partial()?.is_empty(), "{way:?}: the partial file is gone");
    }
    let resumed = place.copy(Way::Local, &["--resume", "--json"], "from/", "to")?;
    let resumed = resumed.run(TIMEOUT)?.success()?;
    let left = place.sh("cmp from/large to/large; ls -A to")?;
    ensure_data!(left == "large\ns\n", "left: {left}, {}", resumed.stdout);
    Ok(())
}

/// Makes `from` and `to`, in which each name has one type in the one and another in the other.
const TRANSITIONS: &str = "
    rm -rf from to other; mkdir from to
    make() { case $1 in
        file) echo \"$3\" > $2;;
        dir) mkdir -p $2/sub; echo \"$3\" > $2/sub/$3; echo x > $2/x;;
        link) ln -s \"$3\" $2;;
        fifo) mkfifo $2;;
    esac; }
    for new in file dir link; do for old in file dir link fifo; do
        make $new from/$new-$old new; make $old to/$new-$old old
    done; done
    cp -a to other";

#[test]
fn entries_of_other_types_are_replaced_as_by_rsync_or_named() -> Result<()> {
    let place = Place::new()?;
    for way in WAYS {
        for options in [&["--delete"][..], &["--force"]] {
            place.sh(TRANSITIONS)?;
            let planned = [options, &["-n"]].concat();
            let planned = place.copy(way, &planned, "from/", "to")?.run(TIMEOUT)?.success()?;
            for line in
                ["update     file-dir\n", "update     dir-link/\n", "copy       dir-file/x\n"]
            {
                ensure!(planned.stdout.contains(line), "{way:?}, no {line}: {}", planned.stdout);
            }
            place.copy(way, options, "from/", "to")?.run(TIMEOUT)?.success()?;
            place.rsync(options, "from/", "other")?.success()?;
            let (found, expected) = (place.list("to")?, place.list("other")?);
            ensure_data!(found == expected, "{way:?}, {options:?}: {found}\nnot\n{expected}");
        }
        // Without these options nothing is lost, and each entry that is in the way is named.
        place.sh(TRANSITIONS)?;
        let (status, text) = said(&place.copy(way, &[], "from/", "to")?.run(TIMEOUT)?);
        ensure!(status == Some(INCOMPLETE), "{way:?}: {status:?}, {text}");
        for name in ["file-dir", "link-dir", "dir-file", "dir-link", "dir-fifo"] {
            let line = text.lines().find(|line| line.contains(&format!(" {name}: ")));
            let is_named = line.is_some_and(|line| line.contains("--delete or --force"));
            ensure!(is_named, "{way:?}, {name}: {text}");
            let kept = format!("(cd other; tar c {name}) | tar d -C to");
            place.sh(&kept).map_err(|error| error.context(format!("{way:?}, {name}: lost")))?;
        }
        place.sh("test -f to/file-link && test -f to/file-fifo && test -L to/link-file")?;
    }
    Ok(())
}

#[test]
fn what_is_replaced_stays_while_some_of_the_source_cannot_be_read() -> Result<()> {
    let place = Place::new()?;
    for way in WAYS {
        place.sh("chmod -R 700 from || true; rm -rf from to; mkdir -p from/b from/d to/f;
             echo new > from/f;
             echo x > from/d/x; echo only > to/f/only; echo other > to/d; chmod 000 from/b")?;
        let (status, text) = said(&place.copy(way, &["--force"], "from/", "to")?.run(TIMEOUT)?);
        ensure!(status == Some(INCOMPLETE), "{way:?}: {status:?}, {text}");
        ensure!(text.matches("has been replaced, and is kept").count() == 2, "{way:?}: {text}");
        let kept = place.sh("cat to/f to/d/x; cat to/.f.*/only to/.d.*")?;
        ensure_data!(kept == "new\nx\nonly\nother\n", "{way:?}: {kept}, {}", place.list("to")?);
        // A pattern protects what is in the way.
        place.sh("chmod 755 from/b; rm -rf to; mkdir -p to/f; echo only > to/f/only")?;
        let options = ["--delete", "--exclude", "only"];
        let (status, text) = said(&place.copy(way, &options, "from/", "to")?.run(TIMEOUT)?);
        ensure!(status == Some(INCOMPLETE), "{way:?}: {status:?}, {text}");
        ensure_data!(place.sh("cat to/f/only")? == "only\n", "{way:?}: {text}");
    }
    Ok(())
}

#[test]
fn special_files_are_named_and_keep_their_names() -> Result<()> {
    let place = Place::new()?;
    place.sh("mkdir from; mkfifo from/pipe from/other; echo a > from/a")?;
    for way in WAYS {
        place.sh("rm -rf to; mkdir to; echo mine > to/pipe; echo x > to/x; cp -a to copy-of-to")?;
        let (status, text) = said(&place.copy(way, &["--delete"], "from/", "to")?.run(TIMEOUT)?);
        ensure!(status == Some(INCOMPLETE) && text.contains("2 failed"), "{way:?}: {text}");
        for name in ["pipe", "other"] {
            ensure!(text.contains(&format!(" {name}: is a pipe")), "{way:?}, {name}: {text}");
        }
        place.sh("mv copy-of-to other")?;
        place.rsync(&["--delete"], "from/", "other")?.success()?;
        let (found, expected) = (place.list("to")?, place.list("other")?);
        ensure_data!(found == expected, "{way:?}: {found}\nnot\n{expected}");
        place.sh("rm -rf other")?;
        // A special file that is the only source is no success either.
        let (status, text) = said(&place.copy(way, &[], "from/pipe", "to")?.run(TIMEOUT)?);
        ensure!(status == Some(INCOMPLETE), "{way:?}: {status:?}, {text}");
    }
    Ok(())
}

/// A user can always update directories of one's own, whatever their modes are.
#[test]
fn directories_of_any_mode_are_updated_and_deleted() -> Result<()> {
    let place = Place::new()?;
    place.sh(
        "mkdir from; for mode in 000 333 555 111; do mkdir from/$mode; echo x > from/$mode/x; done",
    )?;
    for way in WAYS {
        place.sh(
            "mkdir to; for mode in 000 333 555 111; do mkdir -p to/$mode to/more$mode/in; \
             echo old > to/$mode/old; echo old > to/more$mode/old; \
             chmod $mode to/$mode to/more$mode/in to/more$mode; done",
        )?;
        place.copy(way, &["--delete"], "from/", "to")?.run(TIMEOUT)?.success()?;
        let (found, expected) = (place.list("to")?, place.list("from")?);
        ensure_data!(found == expected, "{way:?}: {found}\nnot\n{expected}");
        place.sh("rm -r to")?;
    }
    // The modes of the source come last.
    place.sh("chmod 555 from/555; chmod 500 from/000")?;
    for _ in 0..2 {
        place.copy(Way::Local, &[], "from/", "to")?.run(TIMEOUT)?.success()?;
        ensure_data!(place.list("to")? == place.list("from")?, "{}", place.list("to")?);
    }
    Ok(())
}

#[test]
fn refused_copy_into_itself_leaves_nothing() -> Result<()> {
    let place = Place::new()?;
    place.sh("mkdir -p x/sub; echo x > x/sub/f")?;
    let before = place.list("x")?;
    for (from, to) in [("x", "x/new"), ("x", "x/sub"), ("x/", "x/sub/new"), ("x/sub", "x")] {
        // Another end replaces each file by its own copy, which changes nothing.
        let ways = if from == "x/sub" { &WAYS[..1] } else { &WAYS };
        for &way in ways {
            let (status, text) = said(&place.copy(way, &[], from, to)?.run(TIMEOUT)?);
            let is_refused = status == Some(1) && text.contains("the same")
                || text.contains("cannot be copied into itself");
            ensure!(is_refused, "{way:?}, {from} to {to}: {status:?}, {text}");
            let after = place.list("x")?;
            ensure_data!(after == before, "{way:?}, {from} to {to}: left {after}");
        }
    }
    Ok(())
}

/// Starts a copy that takes some seconds, and returns when its file has begun.
fn begin_slowly(
    place: &Place,
    options: &[&str],
    way: Way,
    from: &str,
    to: &str,
) -> Result<Running> {
    let options = [&["--limit", "16M", "--compress=none"], options].concat();
    let slow = place.copy(way, &options, from, to)?.start()?;
    let start = Instant::now();
    while place.sh(&format!("find {to} -name '.*large*.weft-*' 2>&1 || true"))?.is_empty() {
        ensure!(start.elapsed() < TIMEOUT, "the copy does not begin");
    }
    Ok(slow)
}

#[test]
fn files_that_change_while_they_are_read_are_copied_once_more() -> Result<()> {
    let place = Place::new()?;
    place
        .sh("mkdir -p 'from/s u'; head -c 60000000 /dev/zero | tr '\\0' x > 'from/s u/[large]*'")?;
    place.sh("echo s > from/small; cp from/small 'from/s u/small'")?;
    for way in WAYS {
        place.sh("rm -rf to; mkdir to")?;
        let slow = begin_slowly(&place, &[], way, "from/", "to")?;
        place.sh("echo more >> 'from/s u/[large]*'")?;
        let ended = slow.wait(TIMEOUT)?.success()?;
        place
            .sh("cmp 'from/s u/[large]*' 'to/s u/[large]*'")
            .map_err(|error| error.context(format!("{way:?}")))?;
        ensure!(ended.stdout.starts_with("copied 3 files"), "{way:?}: {}", ended.stdout);
    }
    // These options would leave what the first try has made.
    for option in ["--ignore-existing", "--size-only"] {
        place.sh("rm -rf to; mkdir to")?;
        let slow = begin_slowly(&place, &[option], Way::Upload, "from/", "to")?;
        place.sh("echo more >> 'from/s u/[large]*'")?;
        let (status, text) = said(&slow.wait(TIMEOUT)?);
        let is_named = text.contains("s u/[large]*: changed while it was read");
        ensure!(status == Some(INCOMPLETE) && is_named, "{option}: {status:?}, {text}");
    }
    // One that never stands still is no success.
    for way in [Way::Local, Way::Upload] {
        place.sh("rm -rf to; mkdir to")?;
        let mut slow = begin_slowly(&place, &[], way, "from/", "to")?;
        while slow.is_running()? {
            place.sh("echo more >> 'from/s u/[large]*'")?;
        }
        let (status, text) = said(&slow.wait(TIMEOUT)?);
        let is_named = text.contains("s u/[large]*: changed while it was read");
        ensure!(status == Some(INCOMPLETE) && is_named, "{way:?}: {status:?}, {text}");
        ensure_data!(place.list("to")?.contains("s u/small f"), "{way:?}: {text}");
    }
    Ok(())
}

/// A destination has room for the new files only when the old ones are gone.
#[test]
fn mirror_of_a_destination_that_is_full_ends() -> Result<()> {
    let place = Place::new()?;
    let noise =
        |name: &str| format!("head -c 30000000 /dev/urandom > {name}; echo {name} >> {name}");
    place.sh(&format!("mkdir -p from/n q/to/o; echo s > from/small; {}", noise("from/n/new")))?;
    place.sh(&noise("q/to/o/old"))?;
    // A quota.
    let port = ports::next();
    let config = place.path("config");
    let server = Program::plain(weft()?).env("XDG_CONFIG_HOME", &config);
    let server = as_nobody(server).args(["serve", "--bind", "127.0.0.1", "--quota", "50MB"]);
    let key = as_nobody(Program::plain(weft()?).env("XDG_CONFIG_HOME", &config));
    let key = key.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
    let server = server.args(["--port", &port.to_string(), "--allow", key.trim()]);
    let _server = server.arg(place.path("q")).start()?.listening(Port::Tcp(port))?;
    let copy = as_nobody(Program::plain(weft()?).env("XDG_CONFIG_HOME", &config));
    let copy = copy.args(["cp", "--accept-new", "--delete"]).arg(place.path("from/"));
    let ended = copy.arg(format!("127.0.0.1:{port}//q/to")).run(TIMEOUT)?.success()?;
    ensure!(ended.stdout.contains("copied 2 files"), "{}", ended.stdout);
    ensure_data!(place.list("q/to")? == place.list("from")?, "{}", place.list("q/to")?);
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // A file system.
    let script = format!(
        "set -e; mkdir full; mount -t tmpfs -o size=50m none full; cd full; mkdir -p to/o; {}; \
         {} cp {} ../from/ to; diff -r ../from to",
        noise("to/o/old"),
        weft()?.display(),
        "--delete"
    );
    let full = Program::plain(locate("unshare")?).args(["--mount", "sh", "-c", &script]);
    full.env("XDG_CONFIG_HOME", &config).directory(place.folder.path()).run(TIMEOUT)?.success()?;
    Ok(())
}

/// What is mounted in the source is left out, and what the destination has in its place stays.
#[test]
fn one_file_system_is_copied_and_mirrored_as_by_rsync() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("without root, nothing can be mounted");
        return Ok(());
    }
    let place = Place::new()?;
    let make = "set -e; mkdir -p from/a/m from/b; echo f > from/a/f; mount -t tmpfs none from/a/m; \
                chmod 700 from/a/m; echo n > from/a/m/not; touch -d @5 from/a/m; \
                for to in weft rsync; do mkdir -p $to/a/m/old $to/b/old; \
                touch -d @7 $to/a/m/old; done";
    let weft = weft()?.display().to_string();
    let copies = format!(
        "r='rsync --modify-window=-1'; \
         $r -ax --delete from/ rsync; $r -ax from/a rsync2; $r -a from/ rsync3; \
         {weft} cp -qax --delete from/ weft; {weft} cp -qax from/a weft2; \
         {weft} cp -qa from/ weft3"
    );
    let shown = "for to in weft rsync; do for n in '' 2 3; do \
                 (cd $to$n; find . -mindepth 1 -printf '%p %y %m %T@\\n' | sort; echo) \
                 >> list-$to; done; done; cmp list-weft list-rsync; cat list-weft";
    let script = format!("{make}; {copies}; {shown}");
    let copy = Program::plain(locate("unshare")?).args(["--mount", "sh", "-c", &script]);
    let copy = copy.env("XDG_CONFIG_HOME", place.path("config"));
    let stdout = copy.directory(place.folder.path()).run(TIMEOUT)?.success()?.stdout;
    let count = |text: &str| stdout.matches(text).count();
    let is_right = count("m/old ") == 1 && count("b/old ") == 0 && count("m/not ") == 1;
    ensure_data!(is_right && count("m d 700 5.0") == 3, "{stdout}");
    Ok(())
}

/// Files whose contents the kernel makes when they are read have sizes that say nothing.
#[test]
fn files_of_the_kernel_are_copied_up_to_their_ends() -> Result<()> {
    let place = Place::new()?;
    let names = ["/proc/version", "/proc/sys/kernel/ostype", "/sys/kernel/notes", "/proc/cpuinfo"];
    for way in [Way::Local, Way::Upload, Way::Shell] {
        for options in [&[][..], &["-u"], &["--verify"]] {
            for from in names.iter().filter(|name| fs::read(name).is_ok_and(|it| !it.is_empty())) {
                place.copy(way, options, from, "copied")?.run(TIMEOUT)?.success()?;
                // The frequencies of processors change.
                let are_same = match *from {
                    "/proc/cpuinfo" => fs::read(place.path("copied"))?.ends_with(b"\n\n"),
                    from => fs::read(place.path("copied"))? == fs::read(from)?,
                };
                ensure_data!(are_same, "{way:?}, {options:?}: {from} differs");
                place.sh("rm copied")?;
            }
        }
    }
    let copied = place.copy(Way::Local, &[], "/proc/sys/kernel/random/", "random")?;
    copied.run(TIMEOUT)?.success()?;
    let boot = "/proc/sys/kernel/random/boot_id";
    ensure_data!(fs::read(place.path("random/boot_id"))? == fs::read(boot)?, "another boot");
    let standard = Program::plain(weft()?).args(["cp", "/proc/version", "-"]);
    let stdout = standard.run(TIMEOUT)?.success()?.stdout;
    ensure_data!(stdout.as_bytes() == fs::read("/proc/version")?, "{stdout}");
    Ok(())
}

/// Options that leave files as they are change nothing about what is deleted and replaced.
#[test]
fn options_that_leave_files_delete_and_replace_as_others() -> Result<()> {
    let place = Place::new()?;
    place.sh("mkdir -p from/below from/turned; echo new > from/below/file; echo a > from/a;
         echo t > from/turned/t; touch -d @1000 from/a from/below/file")?;
    let begin = "rm -rf to other; mkdir -p to/below to/extra/x; echo here > to/below/file;
         echo x > to/extra/x/x; echo file > to/turned; cp -a to other";
    for way in WAYS {
        for options in [
            &["-u", "--delete"][..],
            &["-c", "--delete"],
            &["--size-only", "--delete"],
            &["-u", "--delete-before"],
            &["-c", "--delete-before", "--verify", "--fsync"],
            &["--resume", "--delete", "--fsync"],
        ] {
            place.sh(begin)?;
            place.copy(way, options, "from/", "to")?.run(TIMEOUT)?.success()?;
            let is_rsyncs = |it: &&str| !["--verify", "--resume", "--fsync"].contains(it);
            let by_rsync: Vec<&str> = options.iter().copied().filter(is_rsyncs).collect();
            place.rsync(&by_rsync, "from/", "other")?.success()?;
            let (found, expected) = (place.list("to")?, place.list("other")?);
            ensure_data!(found == expected, "{way:?}, {options:?}: {found}\nnot\n{expected}");
        }
        // What exists is not replaced by something of another type, either.
        place.sh(begin)?;
        let options = ["--ignore-existing", "--delete", "--force"];
        let (status, text) = said(&place.copy(way, &options, "from/", "to")?.run(TIMEOUT)?);
        let is_named = text.contains("turned: something that is no directory has its name");
        ensure!(status == Some(INCOMPLETE) && is_named, "{way:?}: {status:?}, {text}");
        place.sh("test -f to/turned; grep -q here to/below/file; grep -q a to/a")?;
    }
    Ok(())
}

/// What is missing may be what was moved away at the destination, so nothing is deleted.
#[test]
fn nothing_is_deleted_if_a_source_is_missing() -> Result<()> {
    let place = Place::new()?;
    place.sh("mkdir from; head -c 60000000 /dev/zero | tr '\\0' x > from/large")?;
    for option in ["--delete", "--delete-before"] {
        place.sh("rm -rf to; mkdir -p to/from; echo old > to/from/old")?;
        let missing = place.path("missing").display().to_string();
        let slow = begin_slowly(&place, &[option, &missing], Way::Local, "from", "to/")?;
        // The second try does not say once more what is missing.
        place.sh("echo more >> from/large")?;
        let (status, text) = said(&slow.wait(TIMEOUT)?);
        ensure!(status == Some(INCOMPLETE), "{option}: {status:?}, {text}");
        let count = text.matches("missing: cannot be read").count();
        ensure!(count == 1 && text.contains("nothing was deleted"), "{option}: {text}");
        ensure_data!(place.path("to/from/old").exists(), "{option}: deleted");
        place.sh("cmp from/large to/from/large")?;
    }
    Ok(())
}

/// With `--delete-before` everything is deleted before anything is copied.
#[test]
fn deletion_before_the_copy_makes_room_for_it() -> Result<()> {
    let place = Place::new()?;
    for way in WAYS {
        place.sh(
            "chmod -R 700 from to || true; rm -rf from to; mkdir -p from/a from/b to/a/x to/c; \
             echo new > from/a/new; echo b > from/b/b; echo old > to/a/x/old; echo b > to/c/b",
        )?;
        // It deletes nothing, either, if some of the source cannot be read.
        place.sh("chmod 000 from/b")?;
        let options = ["--delete-before", "--json"];
        let ended = place.copy(way, &options, "from/", "to")?.run(TIMEOUT)?;
        ensure!(ended.status.code() == Some(INCOMPLETE), "{way:?}: {}", ended.stdout);
        ensure_data!(place.list("to")?.contains("c/b f"), "{way:?}: deleted");
        place.sh("chmod 755 from/b; chmod 755 to/b; chmod 500 to/a")?;
        let ended = place.copy(way, &options, "from/", "to")?.run(TIMEOUT)?.success()?;
        let (found, expected) = (place.list("to")?, place.list("from")?);
        ensure_data!(found == expected, "{way:?}: {found}\nnot\n{expected}");
        ensure!(ended.stdout.contains("\"deleted\":4"), "{way:?}: {}", ended.stdout);
    }
    place.sh("rm -rf from to; mkdir from to; head -c 60000000 /dev/zero > from/large")?;
    place.sh("echo old > to/old")?;
    let slow = begin_slowly(&place, &["--delete-before"], Way::Upload, "from/", "to")?;
    ensure_data!(!place.path("to/old").exists(), "the copy begins before the deletion");
    drop(slow);
    Ok(())
}
