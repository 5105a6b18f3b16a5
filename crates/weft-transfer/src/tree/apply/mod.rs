//! The sink: it applies records beneath one directory.

mod append;
mod applier;
mod asked;
mod attributes;
mod backup;
mod begun;
mod clean;
mod confirm;
mod context;
mod dead;
mod directory;
mod dry;
mod install;
mod links;
mod look;
mod options;
mod quota;
mod report;
mod session;
mod special;
mod third;
mod version;
mod xattrs;

pub use applier::{Applier, ApplyError, BeginError, Task};
pub use asked::Asked;
pub use backup::{Backup, Folder};
pub use options::{Append, ApplyOptions, DryRun, Skips};
pub use quota::{Quota, QuotaSession, Usage};
pub use report::{
    Change, EntryKind, Event, Full, NotKept, Problem, Report, Step, Subject, Summary, Why,
};
