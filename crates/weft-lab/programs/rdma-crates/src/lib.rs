//! Names other crates on verbs.
