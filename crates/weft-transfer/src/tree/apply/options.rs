//! How the sink works.

use crate::limits::NAMES_KEPT_MAX;

/// A dry run: nothing is written, and the events say what would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Whether the root is there. Otherwise the open directory is the one that it would be made in.
    pub has_root: bool,
    /// Whether files that are the same are left out.
    pub skips: bool,
}

/// How an applier works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Whether files get the owners that they have at the source. Another process than root's can
    /// set no owner, and only some groups: what it cannot set stays as it is, without a report.
    pub keeps_owners: bool,
    /// Whether owners go by their numbers even where this host has their names.
    pub numeric_owners: bool,
    /// Whether entries get the modes that they have at the source; otherwise the umask applies.
    pub keeps_modes: bool,
    /// Whether setuid and setgid are among these, and the extended attributes that are as good
    /// (`security.*` and `trusted.*`). The bits are left out on files whose owner differs.
    pub keeps_special_bits: bool,
    /// Whether entries get the times that they have at the source.
    pub keeps_times: bool,
    /// Whether devices are made; otherwise they are reported.
    pub makes_devices: bool,
    /// Whether what is in a directory here and not at the source is deleted.
    pub deletes: bool,
    /// Whether a journal is written, so that a later session can go on.
    pub keeps_journal: bool,
    /// Whether what journals of earlier sessions name is used. Then the source has to ask.
    pub resumes: bool,
    /// Whether each file is on the disk before it gets its name, and the file system is synced at
    /// the end. Without it, a loss of power can leave files of the last seconds without their data.
    pub syncs: bool,
    /// Whether names that differ in case are one name; nothing asks the file system.
    pub folds_case: Option<bool>,
    /// Whether nothing is done. The source has to ask then.
    pub dry_run: Option<DryRun>,
    /// Names that are remembered at a time.
    pub names_max: usize,
}

impl Default for ApplyOptions {
    fn default() -> Self {
        Self {
            keeps_owners: true,
            numeric_owners: false,
            keeps_modes: true,
            keeps_special_bits: true,
            keeps_times: true,
            makes_devices: false,
            deletes: false,
            keeps_journal: false,
            resumes: false,
            syncs: false,
            folds_case: None,
            dry_run: None,
            names_max: NAMES_KEPT_MAX,
        }
    }
}
