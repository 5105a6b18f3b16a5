//! The tests of `weft-fabric` once more, over the system's libraries, with Weft's own in their
//! place: both ends, and one end with the other over Weft's engine.

// Each has its own.
#![expect(clippy::duplicate_mod)]

#[path = "../../weft-fabric/tests/conformance.rs"]
mod conformance;
#[path = "../../weft-fabric/tests/files.rs"]
mod files;
#[path = "../../weft-fabric/tests/futures.rs"]
mod futures;
#[path = "../../weft-fabric/tests/hostile.rs"]
mod hostile;
#[path = "../../weft-fabric/tests/paths.rs"]
mod paths;
