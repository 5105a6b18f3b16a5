#!/usr/bin/python3
"""Runs rsync's own tests with `weft cp` in the place of rsync.

    rsync_suite.py --fetch FOLDER               gets the sources of the rsync that Debian has
    rsync_suite.py FOLDER WEFT SCRATCH [NAME]   runs the tests that rsync_suite.txt lists

The tests are shell scripts that call `$RSYNC`. That is this program, too: it runs `weft cp` with
the same words. What `weft cp` refuses because it has no such option, rsync itself does, and so the
daemon of rsync, and copies that leave out modes. A test passes if its script does, and if `weft cp`
did at least as many of its copies as the list says.
"""

import os
import pathlib
import stat
import subprocess
import sys
import time

LIST = pathlib.Path(__file__).with_suffix(".txt")
# What `weft cp` ends with if it does not have an option.
REFUSED = 2
TIMEOUT = 120


def fetch(folder):
    """Downloads sources by apt, with the servers that it uses, and unpacks them."""
    apt = folder / "apt"
    for name in ["lists/partial", "cache/archives/partial"]:
        (apt / name).mkdir(parents=True, exist_ok=True)
    own = pathlib.Path("/etc/apt")
    for path in [own / "sources.list", *own.glob("sources.list.d/*")]:
        if path.suffix == ".sources":
            text = path.read_text().replace("Types: deb\n", "Types: deb-src\n")
        elif path.suffix == ".list" and path.exists():
            lines = path.read_text().splitlines(keepends=True)
            text = "".join("deb-src " + line[4:] for line in lines if line.startswith("deb "))
        else:
            continue
        (apt / "sources").mkdir(exist_ok=True)
        (apt / "sources" / path.name).write_text(text)
    options = [
        "-qq",
        "-oDir::Etc::sourcelist=-",
        f"-oDir::Etc::sourceparts={apt}/sources",
        f"-oDir::State::lists={apt}/lists",
        f"-oDir::Cache={apt}/cache",
    ]
    subprocess.run(["apt-get", *options, "update"], check=True)
    shown = ["apt-cache", *options, "showsrc", "rsync"]
    shown = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    versions = [line.split()[1] for line in shown.splitlines() if line.startswith("Version:")]
    # A server may lack one of them.
    for version in versions:
        source = ["apt-get", *options, "source", "--download-only", f"rsync={version}"]
        if subprocess.run(source, cwd=folder).returncode == 0:
            break
    for archive in folder.glob("rsync_*.orig.tar.*"):
        unpacked = folder / "source.new"
        unpacked.mkdir(exist_ok=True)
        unpack = ["tar", "-xf", archive, "--strip-components=1", "-C", unpacked]
        subprocess.run(unpack, check=True)
        if (unpacked / "testsuite" / "rsync.fns").exists():
            unpacked.rename(folder / "source")
            return
    sys.exit("no version of rsync with tests could be fetched")


def listed(names):
    """Prints files as `tls` of rsync's tests does."""
    atimes = "--atimes" in names
    for name in names:
        if name.startswith("--"):
            continue
        it = os.lstat(name)
        size = 0 if stat.S_ISDIR(it.st_mode) else it.st_size
        if stat.S_ISBLK(it.st_mode) or stat.S_ISCHR(it.st_mode):
            size = f"{os.major(it.st_rdev)},{os.minor(it.st_rdev)}"
        is_link = stat.S_ISLNK(it.st_mode)
        links = "" if stat.S_ISDIR(it.st_mode) else it.st_nlink
        modified = "" if is_link else moment(it.st_mtime)
        accessed = moment(it.st_atime) if atimes and not stat.S_ISDIR(it.st_mode) else ""
        to = f" -> {os.readlink(name)}" if is_link else ""
        mode = stat.filemode(it.st_mode)
        print(f"{mode} {size:>12} {it.st_uid}.{it.st_gid} {links} {modified} {accessed} {name}{to}")


def moment(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def copy(words):
    """Copies as `$RSYNC` of a test."""
    weft, log = os.environ["SUITE_WEFT"], pathlib.Path(os.environ["SUITE_LOG"])
    short = "".join(word[1:] for word in words if word[:1] == "-" and word[:2] != "--")
    leaves_modes = "r" in short and "p" not in short and "a" not in short
    if "-VV" not in words and not any("::" in word for word in words) and not leaves_modes:
        # The last one is what root does anyway.
        useless = ("--info", "--debug", "--super")
        own = [word for word in words if not word.startswith(useless)]
        path = "--rsync-path="
        own = [f"--remote-weft={weft}" if word.startswith(path) else word for word in own]
        done = subprocess.run([weft, "cp", *own], stderr=subprocess.PIPE)
        sys.stderr.buffer.write(done.stderr)
        if done.returncode != REFUSED:
            with log.open("a") as to:
                to.write("weft\n")
            sys.exit(done.returncode)
    os.execvp("rsync", ["rsync", *words])


def tools(scratch):
    """Makes the programs that the tests call."""
    folder = scratch / "tools"
    folder.mkdir()
    me = pathlib.Path(__file__).resolve()
    for name, line in [
        ("tls", f'exec {me} --tls "$@"'),
        ("rsync", f'exec {me} --copy "$@"'),
        ("getgroups", "exec id -G"),
    ]:
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


def run(source, weft, scratch, name, programs):
    """Runs one test. Returns its status, what it printed, and how often `weft cp` copied."""
    here = scratch / name
    here.mkdir()
    (here / "src").symlink_to(source)
    log = here / "by-weft"
    log.touch()
    environment = dict(
        os.environ,
        suitedir=str(source / "testsuite"),
        srcdir=str(source),
        TOOLDIR=str(programs),
        scratchdir=str(here),
        scratchbase=str(scratch),
        RSYNC=str(programs / "rsync"),
        SUITE_WEFT=str(weft),
        SUITE_LOG=str(log),
        ECHO_N="-n",
        ECHO_C="",
        ECHO_T="",
        TLS_ARGS="",
        HOST_OS="linux-gnu",
        SHELL_PATH="/bin/sh",
        FAKEROOT_PATH="",
        setfacl_nodef="setfacl -k",
        POSIXLY_CORRECT="1",
        TZ="UTC",
        LC_ALL="C",
    )
    functions = 'test_fail() { echo "$@" >&2; exit 1; }; test_skipped() { echo "$@" >&2; exit 77; }'
    script = f'{functions}; . "$suitedir/{name}.test"'
    done = subprocess.run(
        ["sh", "-e", "-c", script, f"{name}.test"],
        cwd=here / "src",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT,
    )
    return done.returncode, done.stdout.decode(errors="replace"), len(log.read_text().split())


def suite(source, weft, scratch, only):
    programs, failed, seen = tools(scratch), [], set()
    for line in LIST.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, least, *reason = line.split(maxsplit=2)
        seen.add(name)
        if only not in (None, name):
            continue
        if least == "-":
            print(f"{name}: does not apply: {reason[0]}")
            continue
        status, said, copies = run(source, weft, scratch, name, programs)
        if status == 77:
            print(f"{name}: skipped: {said.splitlines()[-1]}")
        elif status != 0 or copies < int(least):
            failed.append(name)
            print(f"{said}\n{name}: failed: status {status}, {copies} copies by weft")
        else:
            print(f"{name}: passed, {copies} copies by weft")
    others = {path.stem for path in (source / "testsuite").glob("*.test")} - seen
    if others and only is None:
        print(f"not in the list: {' '.join(sorted(others))}")
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


def main():
    match sys.argv[1:]:
        case ["--fetch", folder]:
            fetch(pathlib.Path(folder))
        case ["--tls", *names]:
            listed(names)
        case ["--copy", *words]:
            copy(words)
        case [source, weft, scratch, *only]:
            folders = [pathlib.Path(path).resolve() for path in (source, weft, scratch)]
            suite(*folders, only[0] if only else None)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
