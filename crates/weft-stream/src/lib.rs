//! TCP connections between processes of one host, carried through shared memory.

pub mod rules;
