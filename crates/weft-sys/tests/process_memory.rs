//! Tests access to the memory of a process whose number has been reused.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use weft_sys::{ProcessMemory, Region};

const NAME: [u8; 16] = *b"a random name: 1";

fn region(bytes: &mut [u8]) -> Region {
    // SAFETY: the test keeps `bytes` alive while the region is used.
    unsafe { Region::new(bytes.as_mut_ptr() as usize, bytes.len()) }.expect("no wrap")
}

/// Creates a child that waits to be killed, with a copy of this process's memory.
fn fork() -> Pid {
    // SAFETY: the child only makes system calls.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: `pause` only waits.
            unsafe { libc::pause() };
        },
        child => Pid::from_raw(child).expect("a child"),
    }
}

fn end(child: Pid) {
    kill_process(child, Signal::KILL).expect("ours");
    waitpid(Some(child), WaitOptions::empty()).expect("ours");
}

/// Whether this process has its own PID namespace. If not, and if permitted, runs this test again
/// in one.
fn has_numbers_of_its_own(test: &str) -> bool {
    const INSIDE: &str = "WEFT_TEST_NUMBERS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = |arguments: &[&OsStr]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).args(arguments);
        command.env(INSIDE, "1").output()
    };
    if !unshare(&["true".as_ref()]).is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: this process may make no namespaces");
        return false;
    }
    let this = std::env::current_exe().expect("this test");
    let options = [this.as_os_str(), "--exact".as_ref(), test.as_ref(), "--nocapture".as_ref()];
    let output = unshare(&options).expect("it ran before");
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{complaint}");
    false
}

/// Even a child of the same parent, with the same name at the same address, is not reached.
#[test]
fn process_with_a_reused_pid_is_not_reached() {
    if !has_numbers_of_its_own("process_with_a_reused_pid_is_not_reached") {
        return;
    }
    let name = Box::new(NAME);
    let mut bytes = Box::new([1_u8; 8]);
    let (at, place) = (name.as_ptr() as u64, bytes.as_mut_ptr() as u64);
    let first = fork();
    let memory = ProcessMemory::open(first, at, &NAME).expect("a child's memory");
    let mut found = [0; 8];
    memory.write_bytes(place, &[2; 8]).expect("mapped");
    memory.read(&[(place, 8)], &region(&mut found)).expect("mapped");
    assert_eq!((found, *bytes), ([2; 8], [1; 8]));
    end(first);
    assert_eq!(memory.write_bytes(place, &[3; 8]), Err(Errno::SRCH));
    assert_eq!(memory.read(&[(place, 8)], &region(&mut found)), Err(Errno::SRCH));

    let number = first.as_raw_nonzero().get();
    std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).expect("allowed");
    let second = fork();
    assert_eq!(second, first, "the number is free");
    assert_eq!(memory.write_bytes(place, &[3; 8]), Err(Errno::SRCH));
    assert_eq!(memory.read(&[(place, 8)], &region(&mut found)), Err(Errno::SRCH));
    let other = ProcessMemory::open(second, at, &NAME).expect("a child's memory");
    other.read(&[(place, 8)], &region(&mut found)).expect("mapped");
    assert_eq!(found, [1; 8], "nothing was written there");
    end(second);
}
