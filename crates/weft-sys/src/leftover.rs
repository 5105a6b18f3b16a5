//! Files that must not outlive the process.
//!
//! # Safety
//! The function that runs at exit lives as long as the library, and takes no lock that a thread
//! which has gone could hold.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Mutex, Once};

use rustix::process::{Pid, getpid};

/// Each with the process that made it: a child that is forked must leave its parent's alone.
static FILES: Mutex<Vec<(Pid, PathBuf)>> = Mutex::new(Vec::new());

/// Removes a file when the process exits. One that is killed cannot.
pub fn remove_at_exit(path: PathBuf) {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: a function that lives for ever. Without memory for it the file stays.
        let _ = unsafe { libc::atexit(remove_own) };
    });
    if let Ok(mut files) = FILES.lock() {
        files.push((getpid(), path));
    }
}

extern "C" fn remove_own() {
    // A child of a process whose other thread was at it leaves everything where it is.
    let Ok(files) = FILES.try_lock() else { return };
    let own = getpid();
    for (_, path) in files.iter().filter(|(pid, _)| *pid == own) {
        // It may have been swept away already.
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
        // SAFETY: the child runs the handlers only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            remove_own();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place, `child` is our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(status == 0 && path.exists(), "a child leaves it alone");
        remove_own();
        assert!(!path.exists());
    }
}
