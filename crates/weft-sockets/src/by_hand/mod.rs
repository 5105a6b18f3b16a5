//! System calls that the program makes by an instruction of its own, beside the C library.
//!
//! The kernel reports them (`PR_SET_SYSCALL_USER_DISPATCH`, prctl(2)): a thread that is *armed*
//! makes system calls without a report in the C library's code alone. For any other it gets a
//! `SIGSYS`, whose handler has the call done as `syscall()` of the same number is: by a hook, if it
//! may reach something of ours, otherwise by the kernel.
//!
//! * `control`: when it begins and ends; `state`: how far it is;
//! * `threads`: arming the threads that there are and those that come; `switch`: one thread;
//! * `trap`: the handler, which only changes where the thread goes on;
//! * `landing`: where that is; `stacks`: with which stack; `frame`: with what on it;
//! * `calls`: doing the call there; `outside`: by whom; `odd_clone`: clones that cannot be done so;
//! * `code`: whose code makes a call;
//! * `place`: what each thread has, without a call to find it;
//! * `signals`: `SIGSYS` is never held off, and the program does not see that;
//! * `pure`: what is known without the kernel.
//!
//! Nothing is armed before the process has its first socket. Where the kernel does not do it all
//! connections of the process stay on TCP, unless the user says that its programs make no such
//! calls (`WEFT_SOCKETS_BY_HAND=trust`).

mod calls;
mod code;
mod control;
mod frame;
mod landing;
mod odd_clone;
mod outside;
mod place;
mod pure;
pub(crate) mod signals;
mod stacks;
mod state;
pub(crate) mod switch;
pub(crate) mod threads;
mod trap;

pub(crate) use control::{begin, in_child, is_ready, read};
pub(crate) use outside::Outside;
pub(crate) use state::give_up;
