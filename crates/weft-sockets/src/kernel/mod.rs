//! The kernel as the core of this library sees it. The hooks, above the core, call the C library's
//! functions as the program does.
//!
//! * `calls`: the trait; `linux`: the real kernel;
//! * `fake`: the kernel of the unit tests, in memory and in one thread.
//!
//! The choice is made when the library is built, so that nothing above is generic.

mod calls;
#[cfg(test)]
pub(crate) mod fake;
mod linux;

pub(crate) use calls::Kernel;

/// The kernel that the core uses.
#[cfg(not(test))]
pub(crate) type Host = weft_sys::Linux;
/// The kernel that the core uses.
#[cfg(test)]
pub(crate) type Host = fake::Fake;

/// One end of a connection on this host.
pub(crate) type End = weft_stream::End<Host>;
/// A process's hold on an end of a connection.
pub(crate) type Holding = weft_stream::Holding<Host>;
