//! The bounds of random programs.

/// Steps that a program may have, before what comes at the end.
pub(crate) const STEPS_MAX: usize = 70;
/// Variables of a program: the executor's bound, less some for what templates add.
pub(crate) const VARS_MAX: usize = 60;
/// Actors of a program, likewise.
pub(crate) const ACTORS_MAX: usize = 14;
