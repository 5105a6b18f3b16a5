//! Measures a system call made by the C library and one made by an instruction of the program
//! itself, before the process has a socket and afterwards, and the time to move a byte in either
//! way:
//!
//!     cargo build --release --package weft-sys --example calls_by_hand
//!     dist/bin/weft run -- target/release/examples/calls_by_hand
//!
//! # Safety
//! `getppid(2)` accesses no memory; buffers are local variables.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
fn main() -> std::io::Result<()> {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    let by_library = || {
        // SAFETY: `getppid` accesses no memory.
        let _ = unsafe { libc::getppid() };
    };
    let by_hand = || {
        let _ = call(libc::SYS_getppid, [0; 3]);
    };
    report("getppid, no socket yet", by_library, by_hand);

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut one = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    let mut byte = [0];
    for _ in 0..8 {
        one.write_all(&byte)?;
        other.read_exact(&mut byte)?;
        other.write_all(&byte)?;
        one.read_exact(&mut byte)?;
    }
    report("getppid", by_library, by_hand);
    let (from, to) = (one.as_raw_fd() as usize, other.as_raw_fd() as usize);
    report(
        "write and read",
        || {
            one.write_all(&[0]).expect("a byte");
            other.read_exact(&mut byte).expect("a byte");
        },
        || {
            let mut byte = 0_u8;
            let place = (&raw mut byte) as usize;
            assert_eq!(call(libc::SYS_write, [from, place, 1]), 1);
            assert_eq!(call(libc::SYS_read, [to, place, 1]), 1);
        },
    );
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {}

/// Makes a system call by an instruction of this program.
#[cfg(target_arch = "x86_64")]
fn call(number: libc::c_long, [a, b, c]: [usize; 3]) -> isize {
    let result: isize;
    // SAFETY: the callers pass descriptors and addresses of local variables that live during the
    // call, or no memory at all.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Prints the time of one call of each kind, the best of many rounds.
#[cfg(target_arch = "x86_64")]
fn report(what: &str, by_library: impl FnMut(), by_hand: impl FnMut()) {
    println!("{what}: {} ns by the library, {} ns by hand", best(by_library), best(by_hand));
}

#[cfg(target_arch = "x86_64")]
fn best(mut call: impl FnMut()) -> u128 {
    const ROUNDS: u32 = 200;
    const CALLS: u32 = 500;
    let round = |_| {
        let began = std::time::Instant::now();
        (0..CALLS).for_each(|_| call());
        began.elapsed().as_nanos() / u128::from(CALLS)
    };
    (0..ROUNDS).map(round).min().unwrap_or(0)
}
