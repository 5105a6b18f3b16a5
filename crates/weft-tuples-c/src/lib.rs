//! The C interface of a client of the tuple space, which `weft_tuples.h` documents.
//!
//! # Layers
//!
//! ```text
//! calls
//! arguments results
//! status types
//! ```

mod arguments;
mod calls;
mod results;
mod status;
mod types;
