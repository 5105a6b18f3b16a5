//! The ways of reaching a descriptor of ours that do not lead through the C library's function for
//! it, and what becomes of each: [`reach`](crate::reach) has all of them, as data.
//!
//! * `dispatch`: a system call by its number goes to the hook of the same meaning;
//! * `leave`: connections go to TCP before a call that only the kernel can do;
//! * `stdio`: numbers that streams of the C library have;
//! * `process`: calls about the whole process: forks, namespaces; `rings`: io_uring.

#[cfg(not(test))]
pub(crate) mod dispatch;
#[cfg(test)]
mod functions;
#[cfg(not(test))]
pub(crate) mod leave;
#[cfg(not(test))]
pub(crate) mod process;
#[cfg(not(test))]
pub(crate) mod rings;
#[cfg(not(test))]
pub(crate) mod stdio;
#[cfg(test)]
mod tests;
