//! The ways to a known descriptor that do not lead through its C library function. The table in
//! [`reach`](crate::reach) lists all ways.
//!
//! * `dispatch`: system calls by number, executed by the hook of the same meaning;
//! * `fallback`: falling back to TCP before a call that only the kernel can do;
//! * `stdio`: descriptors that the C library's streams use;
//! * `process`: calls about the whole process: forks, namespaces; `rings`: io_uring;
//! * `submit`: `io_submit`.

#[cfg(not(test))]
pub(crate) mod dispatch;
#[cfg(not(test))]
pub(crate) mod fallback;
#[cfg(test)]
mod functions;
#[cfg(not(test))]
pub(crate) mod process;
#[cfg(not(test))]
pub(crate) mod rings;
#[cfg(not(test))]
pub(crate) mod stdio;
#[cfg(not(test))]
mod submit;
#[cfg(test)]
mod tests;
