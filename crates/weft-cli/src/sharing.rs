//! Determines whether processes of this host can share memory, and what prevents it.

use std::env;
use std::fs;
use std::os::fd::AsRawFd as _;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
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
    /// What this process may not do at all, not even to itself: because of a seccomp filter, or
    /// because the kernel lacks it.
    refused: Vec<Refusal>,
}

/// Something that Weft uses and this process may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    /// The system call or file.
    what: &'static str,
    /// What follows.
    so: &'static str,
}

/// Whether a process may copy from and to another process's memory (`process_vm_readv(2)` and
/// `/proc/PID/mem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryAccess {
    Permitted,
    /// Yama permits it only to ancestors and to processes with `CAP_SYS_PTRACE`.
    Ancestors,
    /// The file itself cannot be opened: `/proc` is not mounted, or the kernel lacks it.
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
            refused: refused().collect(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "transport": self.transport,
            "users": self.users,
            "directory": self.directory,
            "process_vm": self.access.name(),
            "yama_ptrace_scope": self.yama_scope,
            "refused": self.refused.iter().map(|refusal| refusal.to_json()).collect::<Vec<_>>(),
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
        let mut text: String =
            rows.iter().map(|(name, value)| format!("  {name:<16} {value}\n")).collect();
        for Refusal { what, so } in &self.refused {
            text.push_str(&format!("  {:<16} {what}: {so}\n", "refused"));
        }
        text
    }
}

impl Refusal {
    fn to_json(self) -> Value {
        json!({ "what": self.what, "so": self.so })
    }
}

/// Tries everything on this process itself, and returns what is refused.
fn refused() -> impl Iterator<Item = Refusal> {
    let process = || pidfd_open(getpid(), PidfdFlags::empty());
    let fetches_itself = || {
        let process = process().ok()?;
        pidfd_getfd(&process, process.as_raw_fd(), PidfdGetfdFlags::empty()).ok()
    };
    let returns_no_bytes = "bytes that are unread when a TCP connection falls back stay in memory";
    [
        (
            reads_itself_by_call(),
            "process_vm_readv",
            "/proc/PID/mem copies messages of verbs, which takes longer, and long messages of TCP \
             connections go through the ring",
        ),
        (
            reads_itself(),
            "/proc/PID/mem",
            "one-sided operations go through the ring, except where memory is mapped",
        ),
        (
            weft_sys::UserFault::for_change_events().is_ok(),
            "userfaultfd",
            "no memory is mapped: one-sided operations are copies, and atomics go through the ring",
        ),
        (
            memfd_create("weft-info", MemfdFlags::CLOEXEC).is_ok(),
            "memfd_create",
            "verbs share no memory: they use TCP",
        ),
        (process().is_ok(), "pidfd_open", returns_no_bytes),
        (process().is_err() || fetches_itself().is_some(), "pidfd_getfd", returns_no_bytes),
    ]
    .into_iter()
    .filter(|(works, ..)| !works)
    .map(|(_, what, so)| Refusal { what, so })
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

/// Returns whether `/proc/PID/mem` works at all. Where it is not there, it fails even for a
/// process's own memory.
fn reads_itself() -> bool {
    let own = [7; 16];
    weft_sys::ProcessMemory::open(getpid(), own.as_ptr() as u64, &own).is_ok()
}

/// Returns whether `process_vm_readv(2)` works at all. A filter refuses it even for a process's own
/// memory.
fn reads_itself_by_call() -> bool {
    let (own, mut found) = ([7; 16], [0; 16]);
    weft_sys::peek_process(getpid(), own.as_ptr() as u64, &mut found).is_ok() && found == own
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
        assert!(reads_itself() && reads_itself_by_call());
        assert!(Sharing::find().describe().contains("yama scope"));
    }

    #[test]
    fn refusals_are_named_with_what_follows() {
        let refusal = Refusal { what: "a_call", so: "slower" };
        let sharing = Sharing { refused: vec![refusal], ..Sharing::find() };
        assert!(sharing.describe().contains("refused          a_call: slower\n"));
        assert_eq!(sharing.to_json()["refused"][0]["what"], "a_call");
        assert_eq!(sharing.to_json()["refused"][0]["so"], "slower");
    }
}
