//! Determines whether processes of this host can share memory, and what prevents it.

use std::env;
use std::fs;

use serde_json::{Value, json};

/// `CAP_SYS_PTRACE` in the masks of `/proc/self/status` (capabilities(7)).
const CAP_SYS_PTRACE: u32 = 19;

/// The relevant settings and permissions of this process.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// `WEFT_TRANSPORT`; `auto` if it is not set.
    transport: String,
    /// `WEFT_SHM_USERS`.
    users: Option<String>,
    /// `WEFT_SHM_DIR`.
    directory: Option<String>,
    access: MemoryAccess,
    /// Yama's `ptrace_scope`; `None` where the kernel has no Yama.
    yama_scope: Option<u32>,
}

/// Whether a process may copy from and to another process's memory (`process_vm_readv(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryAccess {
    Permitted,
    /// Yama permits it only to ancestors and to processes with `CAP_SYS_PTRACE`.
    Ancestors,
    /// The call itself fails: because of a seccomp filter, or because the kernel lacks it.
    Refused,
}

impl Sharing {
    pub(crate) fn find() -> Self {
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
        let yama_scope = scope.and_then(|scope| scope.trim().parse().ok());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            transport: variable("WEFT_TRANSPORT").unwrap_or_else(|| "auto".to_owned()),
            users: variable("WEFT_SHM_USERS"),
            directory: variable("WEFT_SHM_DIR"),
            access: MemoryAccess::of(reads_itself(), yama_scope, may_trace(&status)),
            yama_scope,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "transport": self.transport,
            "users": self.users,
            "directory": self.directory,
            "process_vm": self.access.name(),
            "yama_ptrace_scope": self.yama_scope,
        })
    }

    pub(crate) fn describe(&self) -> String {
        let scope = self.yama_scope.map_or_else(|| "no Yama".to_owned(), |scope| scope.to_string());
        let rows = [
            ("WEFT_TRANSPORT", self.transport.as_str()),
            ("WEFT_SHM_USERS", self.users.as_deref().unwrap_or("not set: the same user only")),
            ("WEFT_SHM_DIR", self.directory.as_deref().unwrap_or("not set: one network namespace")),
            ("process_vm", self.access.describe()),
            ("yama scope", &scope),
        ];
        rows.iter().map(|(name, value)| format!("  {name:<16} {value}\n")).collect()
    }
}

impl MemoryAccess {
    fn of(reads_itself: bool, yama_scope: Option<u32>, may_trace: bool) -> Self {
        match (reads_itself, yama_scope) {
            (false, _) => Self::Refused,
            (true, None | Some(0)) => Self::Permitted,
            (true, Some(1 | 2)) if may_trace => Self::Permitted,
            (true, Some(1)) => Self::Ancestors,
            (true, Some(_)) => Self::Refused,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Permitted => "permitted",
            Self::Ancestors => "ancestors",
            Self::Refused => "refused",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Permitted => "permitted: one-sided operations are direct",
            Self::Ancestors => {
                "to ancestors only (Yama): one-sided operations go through the ring, \
                 except where memory is mapped"
            }
            Self::Refused => {
                "refused: one-sided operations go through the ring, except where memory is mapped"
            }
        }
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether both methods work at all, the call and `/proc/PID/mem`. A filter, or a kernel
/// without the file, refuses them even for a process's own memory.
fn reads_itself() -> bool {
    let (own, mut found) = ([7; 16], [0; 16]);
    let (pid, at) = (rustix::process::getpid(), own.as_ptr() as u64);
    weft_sys::ProcessMemory::open(pid, at, &own).is_ok()
        && weft_sys::peek_process(pid, at, &mut found).is_ok()
        && found == own
}

/// Returns whether the effective capabilities in `/proc/self/status` include `CAP_SYS_PTRACE`.
fn may_trace(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_access_follows_yama_and_capabilities() {
        let of = MemoryAccess::of;
        assert_eq!(of(true, None, false), MemoryAccess::Permitted);
        assert_eq!(of(true, Some(0), false), MemoryAccess::Permitted);
        assert_eq!(of(true, Some(1), false), MemoryAccess::Ancestors);
        assert_eq!(of(true, Some(1), true), MemoryAccess::Permitted);
        assert_eq!(of(true, Some(2), false), MemoryAccess::Refused);
        assert_eq!(of(true, Some(3), true), MemoryAccess::Refused);
        assert_eq!(of(false, None, true), MemoryAccess::Refused);
    }

    #[test]
    fn effective_capabilities_are_parsed() {
        assert!(may_trace("Name:\tweft\nCapEff:\t000001ffffffffff\n"));
        assert!(may_trace("CapEff:\t0000000000080000\n"));
        assert!(!may_trace("CapEff:\t00000000a80425fb\n"));
        assert!(!may_trace(""));
    }

    #[test]
    fn this_process_reads_itself() {
        assert!(reads_itself());
        assert!(Sharing::find().describe().contains("yama scope"));
    }
}
