//! Calls that only query, calls that fail, and calls with invalid arguments.

use super::scene::{Kind, Scene};

/// Ways to make a call that is both a function of the C library and a system call.
const WAYS: &[&str] = &["", "", " way=syscall", " way=asm"];

/// Calls on any descriptor, which replaces `{}`. None of them moves bytes or waits.
const ON_ANY: &[&str] = &[
    "fstat {} buf",
    "fstat {} low",
    "flock {} 6",
    "flock {} 99",
    "fchmod {} 438",
    "fchown {} -1 -1",
    "fstatfs {} buf",
    "fsetxattr {} name buf 4 0",
    "fgetxattr {} name buf 100",
    "flistxattr {} buf 100",
    "fremovexattr {} name",
    "fchdir {}",
    "getdents64 {} buf 100",
    "dup3 {} -1 0",
    "dup2 {} -1",
    "dup2 -1 {}",
    "dup2 {} 99999999",
    "fcntl {} 0 99999999",
    "fcntl {} 1030 -1",
    "fcntl {} 9999 0",
    "fcntl {} 1031 0",
    "fcntl {} 1033 0",
    "fcntl {} 9 0",
    "fcntl {} 11 0",
    "fcntl {} 10 99",
    "fcntl {} 2 1",
    "fcntl {} 2 0",
    "ioctl {} 0x12345678 word",
    "ioctl {} 0x5401 buf",
    "ioctl {} 0x541b low",
    "ioctl {} 0x5421 low",
    "ioctl {} 0x5421 word",
    "epoll_ctl {} 1 {} event",
    "epoll_ctl {} 9 {} event",
    "epoll_ctl -1 1 {} event",
    "epoll_ctl {} 1 -1 event",
    "epoll_ctl {} 3 {} null",
    "epoll_wait {} buf 0 0",
    "epoll_wait {} buf -1 0",
    "epoll_wait {} buf 999999999 0",
    "epoll_pwait {} buf 0 0 null 8",
    "epoll_pwait2 {} buf 0 none null 8",
    "epoll_pwait2 {} buf 4 wrongtime null 8",
    "close_range 9 8 0",
    "close_range 999 1000 99",
];

/// Calls on connected or unconnected sockets.
const ON_SOCKETS: &[&str] = &[
    "getsockname {} buf size",
    "getpeername {} buf size",
    "getsockname {} buf wrongsize",
    "getpeername {} low wrongsize",
    "getsockname {} buf low",
    "lseek {} 0 1",
    "pread {} buf 10 0",
    "pread64 {} buf 10 0",
    "pwrite {} buf 10 0",
    "pwrite64 {} buf 10 0",
    "preadv {} iov 2 0",
    "preadv64 {} iov 2 0",
    "pwritev {} iov 2 0",
    "pwritev64 {} iov 2 0",
    "fsync {}",
    "fdatasync {}",
    "ftruncate {} 10",
    "readahead {} 0 100",
    "posix_fadvise {} 0 0 0",
    "tee {} {} 10 2",
    "tee {} 1 10 2",
    "sync_file_range {} 0 0 0",
    "vmsplice {} iov 2 2",
    "fallocate {} 0 0 10",
    "syncfs {}",
    "copy_file_range {} null {} null 10 0",
    "copy_file_range 0 null {} null 10 0",
    "listen {} 5",
    "getsockopt {} 1 3 buf wrongsize",
    "getsockopt {} 1 3 buf low",
    "getsockopt {} 1 3 low size",
    "getsockopt {} 1 999 word size",
    "getsockopt {} 999 1 word size",
    "getsockopt {} 6 999 word size",
    "setsockopt {} 1 9 word 2",
    "setsockopt {} 1 9 low 4",
    "setsockopt {} 1 999 word 4",
    "setsockopt {} 999 1 word 4",
    "setsockopt {} 1 20 word 4",
    "setsockopt {} 6 1 word 1",
    "setsockopt {} 1 18 word -1",
    "shutdown {} 9",
    "shutdown {} -1",
    "bind {} buf 1",
    "bind {} low 16",
    "bind {} buf 16",
    "connect {} buf 1",
    "connect {} low 16",
    "accept {} low low",
    "accept4 {} null null 0x7777",
    "accept4 {} null null 1",
    "ioctl {} 0x8905 low",
    "ioctl {} 0x8905 word",
    "ioctl {} 0x8904 word",
    "ioctl {} 0x8903 word",
    "sockatmark {}",
    "splice {} null {} null 10 2",
    "splice {} low 1 null 10 2",
    "splice 0 null {} null 0 2",
    "sendfile {} {} null 10",
    "sendfile {} 0 null 10",
    "sendfile {} -1 null 10",
    "sendfile -1 {} null 10",
    "sendfile {} 0 low 10",
    "sendmmsg {} msg 0 0x4040",
    "sendmmsg {} low 1 0x4040",
    "recvmmsg {} msg 0 0x40 null",
    "recvmmsg {} low 1 0x40 null",
    "recvmmsg {} msg 1 0x40 wrongtime",
    "sendto {} low 10 0x4040 null 0",
    "sendto {} high 10 0x4040 null 0",
    "sendto {} buf 0 0x4040 low 16",
    "sendmsg {} low 0x4040",
    "sendmsg {} lowmsg 0x4040",
    "sendmsg {} msg 0x4060",
    "write {} high 10",
    "writev {} low 2",
    "writev {} iov -1",
    "writev {} iov 9999",
    "pwritev2 {} iov 2 0 0",
    "pwritev2 {} iov 2 -1 0x8000",
    "pwritev2 {} iov -1 -1 0",
    "recvfrom {} high 10 0x40 null null",
    "recvmsg {} low 0x40",
    "read {} high 10",
    "readv {} low 2",
    "readv {} iov -1",
    "readv {} iov 9999",
    "preadv2 {} iov 2 0 0",
    "preadv2 {} iov 2 -1 0x8000",
    "preadv2 {} iov -1 -1 0",
];

/// Calls with invalid addresses on sockets with unread bytes: the kernel accesses the address only
/// if it has bytes to store.
const WITH_BYTES: &[&str] = &[
    "recvfrom {} low 10 0x40 null null",
    "recvmsg {} lowmsg 0x40",
    "recvmmsg {} lowmsg 1 0x40 null",
    "read {} low 10",
    "readv {} lowiov 1",
    "recvfrom {} buf 0 0x42 low low",
];

/// Calls that use no open descriptor of the program.
const ON_NONE: &[&str] = &[
    "socket 999 1 0",
    "socket 2 99 0",
    "socket 2 1 17",
    "socket 2 0x1001 0",
    "socketpair 2 1 0 buf",
    "socketpair 1 1 0 low",
    "poll null 0 0",
    "poll low 1 0",
    "poll buf 99999999 0",
    "ppoll low 1 none null 8",
    "ppoll null 0 wrongtime null 8",
    "select 0 null null null none",
    "select -1 null null null none",
    "select 9 low null null none",
    "select 0 null null null wrongtime",
    "pselect 0 null null null none null",
    "pselect 9 low null null none null",
    "pselect 0 null null null wrongtime null",
    "epoll_create 0",
    "epoll_create -1",
    "epoll_create1 99",
    "read -1 buf 10",
    "write 77777 buf 10",
    "close -1",
    "close 77777",
    "dup -1",
    "dup 77777",
];

/// System calls without a function in the C library.
const BY_NUMBER: &[&str] = &[
    "getdents {} buf 100",
    "cachestat {} buf buf 0",
    "fadvise64 {} 0 0 0",
    "bpf 9999 null 0",
    "io_uring_enter {} 0 0 0 null 0",
    "io_uring_register {} 0 null 0",
];

/// Adds one such call.
pub(super) fn call(scene: &mut Scene) -> Option<()> {
    let sockets = [Kind::Tcp, Kind::Tcp, Kind::Tcp, Kind::Listener, Kind::Udp, Kind::Stranger];
    let any = [Kind::Tcp, Kind::Tcp, Kind::Udp, Kind::Epoll, Kind::Pipe, Kind::Listener];
    let (list, kinds) = match scene.rng.u32(0..10) {
        0..3 => (ON_ANY, &any[..]),
        3..7 => (ON_SOCKETS, &sockets[..]),
        7 => (WITH_BYTES, &sockets[..1]),
        8 => (BY_NUMBER, &sockets[..]),
        _ => (ON_NONE, &[][..]),
    };
    let (var, actor) = match kinds {
        [] => (0, scene.any_actor()?),
        kinds => scene.any_var(kinds)?,
    };
    if list == WITH_BYTES && scene.unread(var) == 0 {
        return None;
    }
    let text = scene.pick(list).replace("{}", &format!("v{var}"));
    let way = match () {
        () if text.starts_with("sockatmark") || text.starts_with("posix_fadvise") => "",
        () if list == BY_NUMBER => scene.pick(&WAYS[2..]),
        () => scene.pick(WAYS),
    };
    scene.step(actor, format!("call {text}{way}"));
    Some(())
}

/// Adds several such calls.
pub(super) fn calls(scene: &mut Scene) -> Option<()> {
    for _ in 0..scene.rng.u32(1..6) {
        call(scene);
    }
    Some(())
}
