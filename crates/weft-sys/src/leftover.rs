//! What is left to do when the process exits: files that must not outlive it, and others' work.
//!
//! # Safety
//! The functions that run at exit live as long as the library. The one here never waits for a lock,
//! which a thread that no longer exists could hold.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Mutex, Once};

use crate::calls::process::{Pid, getpid};

/// The files, each with the process that made it: a forked child must not remove its parent's.
static FILES: Mutex<Vec<(Pid, PathBuf)>> = Mutex::new(Vec::new());

/// Calls a function when the process exits by `exit(3)` or from `main`, also in a forked child.
/// Other threads still run then, and the thread that exits may have been interrupted anywhere by a
/// signal handler.
pub fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function lives for ever. If it cannot be registered, it is not called.
    let _ = unsafe { libc::atexit(function) };
}

/// Removes a file when the process exits. A process that is killed leaves it.
pub fn remove_at_exit(path: PathBuf) {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| at_exit(remove_own));
    if let Ok(mut files) = FILES.lock() {
        files.push((getpid(), path));
    }
}

extern "C" fn remove_own() {
    // In a child, a thread that does not exist any more may hold the lock: leave the files then.
    let Ok(files) = FILES.try_lock() else { return };
    let own = getpid();
    for (_, path) in files.iter().filter(|(pid, _)| *pid == own) {
        // Another process may have removed it already.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_made_a_file_removes_it() {
        let path = std::env::temp_dir().join(format!("weft-leftover-{}", std::process::id()));
        std::fs::write(&path, b"").expect("a writable directory");
        remove_at_exit(path.clone());
        // SAFETY: the child only runs the exit handler, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            remove_own();
            // SAFETY: `_exit` ends the child at once, and accesses no memory.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local variable, and `child` is a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(status == 0 && path.exists(), "a child leaves it alone");
        remove_own();
        assert!(!path.exists());
    }
}
