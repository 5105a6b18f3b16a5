//! The sink: it applies records beneath one directory.

mod applier;
mod attributes;
mod begun;
mod clean;
mod context;
mod directory;
mod dry;
mod install;
mod links;
mod look;
mod options;
mod report;
mod session;

pub use applier::{Applier, ApplyError, BeginError, Task};
pub use options::{ApplyOptions, DryRun};
pub use report::{Change, EntryKind, Event, Problem, Report, Step, Subject, Summary};
