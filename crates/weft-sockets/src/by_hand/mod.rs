//! System calls that the program makes by hand: by its own `syscall` instruction, without the C
//! library.
//!
//! The kernel reports them (Syscall User Dispatch, `PR_SET_SYSCALL_USER_DISPATCH` in prctl(2)). An
//! *armed* thread may make system calls without a report only from the C library's code. Any other
//! call raises `SIGSYS`. Its handler has the call executed like `syscall()` of the same number: by
//! a hook, if the call may reach a descriptor of Weft's, otherwise by the kernel.
//!
//! * `control`: when watching begins and ends; `state`: its state;
//! * `threads`: arming existing and new threads; `switch`: arming one thread;
//! * `trap`: the signal handler, which only changes where the thread resumes;
//! * `trampoline`: the code where it resumes; `stacks`: its stack; `frame`: its stack frame;
//! * `calls`: executing the call there; `outside`: the functions that do it; `odd_clone`: clones
//!   that cannot be executed there;
//! * `code`: whose code makes a call;
//! * `place`: variables of a thread that are found without a call;
//! * `signals`: keeps `SIGSYS` unblocked, and hides that from the program;
//! * `pure`: functions that do not need the kernel.
//!
//! No thread is armed before the process has its first socket. If the kernel does not support
//! dispatch, all connections of the process stay on TCP, unless the user asserts that the programs
//! make no such calls (`WEFT_SOCKETS_BY_HAND=trust`).

mod calls;
mod code;
mod control;
mod frame;
mod odd_clone;
mod outside;
mod place;
mod pure;
pub(crate) mod signals;
mod stacks;
mod state;
pub(crate) mod switch;
pub(crate) mod threads;
mod trampoline;
mod trap;

pub(crate) use code::{is_own as is_own_code, note_verbs};
pub(crate) use control::{begin, in_child, is_ready, read};
pub(crate) use outside::Callbacks;
pub(crate) use state::give_up;
