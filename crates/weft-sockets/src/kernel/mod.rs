//! The kernel, as the core of this library knows it: what the core asks of it, and what it has it
//! do. The hooks, which stand above the core, call the C library's functions as the program does.
//!
//! * `calls`: the trait; `linux`: the kernel of the product;
//! * `fake`: that of the unit tests, in memory and in one thread.
//!
//! Which one it is, is decided when the library is built, so that nothing above is generic.

mod calls;
#[cfg(test)]
pub(crate) mod fake;
mod linux;

pub(crate) use calls::Kernel;

/// The kernel below the core.
#[cfg(not(test))]
pub(crate) type Host = weft_sys::Linux;
/// The kernel below the core.
#[cfg(test)]
pub(crate) type Host = fake::Fake;

/// One end of a connection on this host.
pub(crate) type End = weft_stream::End<Host>;
/// As whom this process holds one.
pub(crate) type Holding = weft_stream::Holding<Host>;
