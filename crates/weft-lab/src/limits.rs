//! Limits of random programs.

/// Maximum number of steps, without those that end a program.
pub(crate) const STEPS_MAX: usize = 70;
/// Maximum number of variables. The executor's limit is higher, because templates add some.
pub(crate) const VARS_MAX: usize = 60;
/// Maximum number of actors. The executor's limit is higher, because templates add some.
pub(crate) const ACTORS_MAX: usize = 14;
