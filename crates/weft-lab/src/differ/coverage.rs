//! Checks that the random programs make every call of WAYS.md, except for those that this file
//! lists with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::generate::generate;
use crate::paths::source;

/// Number of random programs to examine.
const PROGRAMS: u64 = 4_000;

/// Calls that exist both as a function of the C library and as a system call, with the step that
/// makes either; see [`FUNCTIONS`] and [`NUMBERS`] for the form of a step.
const BOTH: &[(&str, &str)] = &[
    ("read", "recv call=read"),
    ("readv", "recv call=readv"),
    ("recvfrom", "recv call=recvfrom"),
    ("recvmsg", "recv call=recvmsg"),
    ("recvmmsg", "recvmany"),
    ("preadv2", "recv call=preadv2"),
    ("write", "send call=write"),
    ("writev", "send call=writev"),
    ("sendto", "send call=sendto"),
    ("sendmsg", "send call=sendmsg"),
    ("sendmmsg", "sendmany"),
    ("pwritev2", "send call=pwritev2"),
    ("sendfile", "move how=sendfile"),
    ("splice", "move how=splice"),
    ("socket", "socket"),
    ("connect", "connect"),
    ("bind", "bind"),
    ("accept", "accept call=accept"),
    ("accept4", "accept"),
    ("dup", "dup how=dup"),
    ("dup2", "dup how=dup2"),
    ("dup3", "dup how=dup3"),
    ("fcntl", "dup how=dupfd"),
    ("close", "close"),
    ("close_range", "closerange"),
    ("pidfd_getfd", "getfd"),
    ("ioctl", "set how=ioctl"),
    ("shutdown", "shutdown"),
    ("getsockopt", "getoption"),
    ("setsockopt", "option"),
    ("poll", "poll call=poll"),
    ("ppoll", "poll call=ppoll"),
    ("select", "poll call=select"),
    ("epoll_wait", "wait call=wait"),
    ("epoll_pwait", "wait call=pwait"),
    ("epoll_pwait2", "wait call=pwait2"),
    ("epoll_create1", "epoll"),
    ("execve", "exec call=execve"),
    ("execveat", "exec call=execveat"),
    ("setuid", "user how=setuid"),
    ("setreuid", "user how=setreuid"),
    ("setresuid", "user how=setresuid"),
    ("unshare", "unshare how=files"),
    ("setns", "unshare how=setns"),
    ("prctl", "restrict how=filter"),
    ("setrlimit", "limit how=setrlimit"),
    ("nanosleep", "sleep how=nanosleep"),
];

/// Functions of the C library, each with the operation and the words of a step that calls it. The
/// step has no `way=` unless the words contain one. Functions that `call NAME` calls are not
/// listed.
const FUNCTIONS: &[(&str, &str)] = &[
    ("pidfd_open", "getfd"),
    ("recv", "recv call=recv"),
    ("send", "send call=send"),
    ("__read", "recv call=__read"),
    ("__write", "send call=__write"),
    ("__send", "send call=__send"),
    ("__connect", "connect way=old"),
    ("__close", "close call=__close"),
    ("__dup2", "dup how=__dup2"),
    ("__fcntl", "dup how=__fcntl"),
    ("__poll", "poll call=__poll"),
    ("dprintf", "print call=dprintf"),
    ("vdprintf", "print call=vdprintf"),
    ("closefrom", "closerange call=closefrom"),
    ("pselect", "poll call=pselect"),
    ("epoll_ctl", "ctl"),
    ("epoll_create", "epoll call=create"),
    ("syscall", "recv way=syscall"),
    ("daemon", "fork how=daemon"),
    ("login_tty", "fork how=login_tty"),
    ("forkpty", "fork how=forkpty"),
    ("fdopen", "print how=fdopen"),
    ("fopen", "stream how=fopen"),
    ("tmpfile", "stream how=tmpfile"),
    ("freopen", "stream how=freopen"),
    ("freopen64", "stream how=freopen64"),
    ("fclose", "stream how=fclose"),
    ("fprintf", "print call=fprintf"),
    ("fputs", "print call=fputs"),
    ("fwrite", "print call=fwrite"),
    ("putc", "print call=putc"),
    ("fread", "scan call=fread"),
    ("fgets", "scan call=fgets"),
    ("getc", "scan call=getc"),
    ("getdelim", "scan call=getdelim"),
    ("fscanf", "scan call=fscanf"),
    ("fflush", "print how=dup2"),
    ("aio_read", "recv way=aio"),
    ("aio_write", "send way=aio"),
    ("aio_error", "send way=aio"),
    ("aio_return", "send way=aio"),
    ("aio_suspend", "send way=aio"),
    ("lio_listio", "send way=list"),
    ("execv", "exec call=execv"),
    ("execvp", "exec call=execvp"),
    ("execvpe", "exec call=execvpe"),
    ("fexecve", "exec call=fexecve"),
    ("posix_spawn", "spawn how=posix_spawn"),
    ("posix_spawnp", "spawn how=posix_spawnp"),
    ("clone", "child how=clonefunction"),
    ("setrlimit64", "limit how=setrlimit64"),
    ("prlimit", "limit how=prlimit"),
    ("prlimit64", "limit how=prlimit64"),
    ("_exit", "exit how=_exit"),
    ("_Exit", "exit how=_Exit"),
    ("quick_exit", "exit how=quick_exit"),
    ("exit", "exit how=exit"),
    ("fork", "fork how=fork"),
    ("vfork", "child how=vfork"),
    ("system", "child how=system"),
    ("popen", "child how=popen"),
    ("pclose", "child how=popen"),
    ("wordexp", "child how=wordexp"),
    ("pthread_create", "thread"),
    ("thrd_create", "thread how=c11"),
    ("pthread_exit", "threadexit"),
    ("socketpair", "socketpair"),
    ("pipe2", "pipe"),
    ("sigaction", "handler how=sigaction"),
    ("signal", "handler how=signal"),
    ("sysv_signal", "handler how=sysv_signal"),
    ("sigprocmask", "mask how=sigprocmask"),
    ("pthread_sigmask", "mask how=pthread_sigmask"),
    ("sighold", "mask how=sighold"),
    ("sigsuspend", "sleep how=sigsuspend"),
    ("clock_nanosleep", "sleep how=clock_nanosleep"),
    ("thrd_sleep", "sleep how=thrd_sleep"),
    ("usleep", "sleep how=usleep"),
    ("pause", "sleep how=pause"),
    ("sigtimedwait", "sleep how=sigtimedwait"),
];

/// System calls, each with the operation and the words of a step that makes it. The random programs
/// must make a listed call both with `syscall()` and with the instruction, unless the words say how
/// the call is made. A call that is not listed needs only one of the two, by `call NAME`.
const NUMBERS: &[(&str, &str)] = &[
    ("pidfd_open", "getfd open=syscall"),
    ("pselect6", "poll call=pselect"),
    ("epoll_create", "call epoll_create"),
    ("epoll_ctl", "call epoll_ctl"),
    ("fork", "fork how=syscall"),
    ("clone", "fork how=clone"),
    ("clone3", "fork how=clone3"),
    ("vfork", "child how=vforkasm"),
    ("exit_group", "exit how=asm"),
    ("prlimit64", "limit how=prlimit"),
    ("seccomp", "restrict how=seccomp"),
    ("io_uring_setup", "recv way=uring"),
    ("io_submit", "send way=submit"),
    ("io_setup", "send way=submit"),
    ("io_destroy", "send way=submit"),
    ("io_getevents", "send way=submit"),
    ("pread64", "call pread"),
    ("pwrite64", "call pwrite"),
    ("socketpair", "call socketpair"),
    ("rt_sigprocmask", "mask how=sigprocmask"),
    ("rt_sigsuspend", "sleep how=sigsuspend"),
];

/// Calls that the random programs do not make, by the reason.
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "the same code as the function beside it with another name",
        &[
            "sendfile64",
            "preadv64v2",
            "pwritev64v2",
            "fcntl64",
            "fopen64",
            "tmpfile64",
            "aio_read64",
            "aio_write64",
            "lio_listio64",
            "bsd_signal",
            "ssignal",
            "__sysv_signal",
            "__select",
            "__clone",
            "__nanosleep",
            "__sigaction",
            "__sigsuspend",
            "_IO_fopen",
            "_IO_fdopen",
            "_IO_fclose",
            "mmap64",
        ],
    ),
    (
        "the function with a check of lengths before it: programs/sockets/fortified.c",
        &[
            "__read_chk",
            "__recv_chk",
            "__recvfrom_chk",
            "__poll_chk",
            "__ppoll_chk",
            "__dprintf_chk",
            "__vdprintf_chk",
        ],
    ),
    (
        "reads a clock, and reaches no descriptor: tests/sockets_by_hand.rs",
        &["clock_gettime", "clock"],
    ),
    (
        "reaches a connection with `--zero-copy async` alone: tests/sockets_zcopy.rs",
        &["free", "realloc", "mmap", "mprotect", "mremap", "munmap", "madvise"],
    ),
    (
        "liburing's, not for the executor: tests/sockets_by_hand.rs, programs/io_uring.c",
        &[
            "io_uring_setup",
            "io_uring_queue_init",
            "io_uring_queue_init_params",
            "io_uring_queue_init_mem",
        ],
    ),
    (
        "changes signal masks, which `mask` does by other functions: tests/sockets_handlers.rs",
        &["sigset", "sigblock", "sigsetmask", "pthread_attr_setsigmask_np"],
    ),
    ("waits for another thread, and for no descriptor", &["sem_timedwait", "sem_clockwait"]),
    ("sleeps for whole seconds, or for ever", &["sleep", "sigwaitinfo"]),
    (
        "uses the code of the stream functions that the programs call",
        &[
            "printf", "vfprintf", "puts", "putchar", "getchar", "getline", "scanf", "perror",
            "psignal", "err", "warn", "error",
        ],
    ),
    (
        "uses no descriptor of the program's",
        &[
            "getaddrinfo",
            "gethostbyname",
            "getnameinfo",
            "res_query",
            "syslog",
            "openlog",
            "closelog",
            "getpwnam",
            "getgrnam",
            "initgroups",
        ],
    ),
    (
        "finds functions in a module, which the executor has none of: tests/sockets_ways.rs",
        &["dlopen", "dlmopen", "dlsym"],
    ),
    ("needs a request in progress, whose result is not deterministic", &["aio_cancel"]),
    ("applies only to files", &["aio_fsync", "isfdtype"]),
    ("is `pipe2` without flags", &["pipe"]),
    (
        "waits for what other requests have begun, as `io_getevents`",
        &["io_cancel", "io_pgetevents"],
    ),
];

/// Rows of WAYS.md with system calls that take no socket, so that no connection could differ.
const ROWS_LEFT_OUT: &[&str] = &[
    "makes descriptors of other files",
    "another process, by its right to this one",
    "no such call on Linux today",
    "names memory, none of which is shared with a peer or deferred",
    "processes, threads, signals, time, users and messages of System V: no descriptor",
    "timers and message queues: descriptors of other files",
    "names, attributes and mounts of files",
    "changes memory that a deferred send may still need: the hook of the same name does it",
];

/// The words of a step after its operation.
type Words = BTreeSet<String>;

/// Returns the distinct steps of the random programs by operation, ignoring variables and numbers.
fn steps() -> BTreeMap<String, BTreeSet<Words>> {
    let mut steps: BTreeMap<String, BTreeSet<Words>> = BTreeMap::new();
    for step in (0..PROGRAMS).flat_map(generate) {
        let mut words = step.split(' ').skip(1).map(str::to_owned);
        let Some(operation) = words.next() else { continue };
        let is_number = |word: &str| {
            let is_var = word.strip_prefix('v').is_some_and(|it| it.parse::<u32>().is_ok());
            is_var || ["n=", "data=", "value=", "least="].iter().any(|it| word.starts_with(it))
        };
        let kept = words.filter(|word| {
            let is_name = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
            word.starts_with(is_name) && !is_number(word)
        });
        steps.entry(operation).or_default().insert(kept.collect());
    }
    steps
}

/// Whether a step matches `pattern` and has `way`, or no `way=` if that is `None`.
fn is_made(steps: &BTreeMap<String, BTreeSet<Words>>, pattern: &str, way: Option<&str>) -> bool {
    let mut wanted = pattern.split(' ');
    let made = wanted.next().and_then(|operation| steps.get(operation));
    let wanted: Vec<&str> = wanted.collect();
    let has_way = wanted.iter().any(|word| word.starts_with("way="));
    made.is_some_and(|made| {
        made.iter().any(|words| {
            let mut ways = words.iter().filter(|word| word.starts_with("way="));
            let in_way = match way {
                _ if has_way => true,
                Some(way) => ways.any(|it| it == way),
                None => ways.next().is_none(),
            };
            in_way && wanted.iter().all(|&word| words.contains(word) || is_usual(word))
        })
    })
}

/// Whether a word is the default of its operation, so that a step may omit it.
fn is_usual(word: &str) -> bool {
    matches!(word, "call=execve" | "how=dup")
}

/// Returns the names in each row of a section of WAYS.md, with the row's description.
fn rows(section: &str) -> Vec<(Vec<String>, String)> {
    let text = fs::read_to_string(source("../../WAYS.md")).expect("WAYS.md");
    let text = text.split("\n## ").find(|part| part.starts_with(section)).expect("the section");
    let rows = text.lines().filter_map(|line| {
        let mut columns = line.strip_prefix("| ")?.split(" | ");
        let (names, how) = (columns.nth(1)?, columns.next()?);
        let names = names.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        (!names.is_empty()).then(|| (names, how.trim_end_matches([' ', '|']).to_owned()))
    });
    rows.collect()
}

fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|(_, names)| names.contains(&name))
}

/// Returns the concatenated sources of the executor.
fn executor() -> String {
    let folder = fs::read_dir(source("programs/differ")).expect("the executor");
    let paths = folder.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|it| it == "c"));
    paths.map(|path| fs::read_to_string(path).expect("a source")).collect()
}

#[test]
fn random_programs_make_every_call_of_the_table() {
    let (steps, executor) = (steps(), executor());
    let mut missing = Vec::new();
    for (names, _) in rows("Functions") {
        for name in names.iter().filter(|name| !is_left_out(name)) {
            let pattern = BOTH.iter().chain(FUNCTIONS).find(|(known, _)| known == name);
            let by_any = format!("call {name}");
            let pattern = pattern.map_or(by_any.as_str(), |(_, pattern)| pattern);
            if !is_made(&steps, pattern, None) || !executor.contains(name.as_str()) {
                missing.push(format!("{name}()"));
            }
        }
    }
    for (names, how) in rows("System calls") {
        if ROWS_LEFT_OUT.contains(&how.as_str()) {
            continue;
        }
        for name in names.iter().filter(|name| !is_left_out(name)) {
            let pattern = BOTH.iter().chain(NUMBERS).find(|(known, _)| known == name);
            let is_listed = pattern.is_some();
            let by_any = format!("call {name}");
            let pattern = pattern.map_or(by_any.as_str(), |(_, pattern)| pattern);
            let says_how = ["fork ", "exit ", "child "].iter().any(|it| pattern.starts_with(it));
            let ways = ["way=syscall", "way=asm"];
            let made = |way| is_made(&steps, pattern, Some(way));
            let is_made = if says_how {
                is_made(&steps, pattern, None)
            } else if is_listed {
                ways.iter().all(|way| made(way))
            } else {
                ways.iter().any(|way| made(way))
            };
            let number = format!("SYS_{name}");
            let is_there = [&number, &format!("({name})")].iter().any(|it| executor.contains(*it));
            if !is_made || !is_there {
                missing.push(format!("{name} by its number"));
            }
        }
    }
    assert!(missing.is_empty(), "no random program calls {}", missing.join(", "));
}

#[test]
fn listed_calls_are_in_the_table() {
    let known: BTreeSet<String> = ["Functions", "System"]
        .iter()
        .flat_map(|it| rows(it))
        .flat_map(|(names, _)| names)
        .collect();
    let left_out = LEFT_OUT.iter().flat_map(|(_, names)| names.iter());
    let listed = BOTH.iter().chain(FUNCTIONS).chain(NUMBERS).map(|(name, _)| name).chain(left_out);
    for name in listed {
        assert!(known.contains(*name), "{name} is not in WAYS.md");
    }
    let rows: BTreeSet<String> = rows("System").into_iter().map(|(_, how)| how).collect();
    for row in ROWS_LEFT_OUT {
        assert!(rows.contains(*row), "WAYS.md has no row that says: {row}");
    }
}
