//! Options of the applier.

use crate::limits::NAMES_KEPT_MAX;
use crate::tree::direct::When;

/// A dry run: nothing is written, and events report the predicted changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Whether the root exists. Otherwise the open directory is the one in which it would be
    /// created.
    pub has_root: bool,
    /// Whether equal files are skipped.
    pub skips: bool,
}

/// What an applier leaves as it is, besides files with equal size and time that the source offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    /// Files whose content is newer than the source's.
    pub newer: bool,
    /// Files of equal size, whatever their times. They get the source's attributes.
    pub same_size: bool,
    /// Everything that exists, except directories.
    pub existing: bool,
}

/// How files that exist and are shorter than at the source get the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// What is there counts as the beginning of the source's file.
    Trusted,
    /// What is there is compared with the source's file, and written again where it differs.
    Compared,
}

/// The options of an applier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Whether files keep the owners that they have at the source. Without root privileges a
    /// process cannot set users and only some groups; it leaves those unchanged without a report.
    pub keeps_owners: bool,
    /// Whether owners are mapped by number even if this host knows their names.
    pub numeric_owners: bool,
    /// Whether entries keep their modes; otherwise the umask applies.
    pub keeps_modes: bool,
    /// Whether setuid and setgid bits are kept, and extended attributes that give privileges
    /// (`security.*` and `trusted.*`). The bits are never set on files with another owner.
    pub keeps_special_bits: bool,
    /// Whether the source does not learn what is there: no file counts as equal to one that it
    /// offers.
    pub is_blind: bool,
    /// Whether the source is on this host, so that the numbers of owners mean the same.
    pub is_same_host: bool,
    /// Whether entries keep their times.
    pub keeps_times: bool,
    /// Whether devices are created; otherwise they are reported.
    pub makes_devices: bool,
    /// Whether entries that the source does not have are deleted.
    pub deletes: bool,
    /// The most entries of these that are deleted; `None` for any number. What is replaced does not
    /// count.
    pub deletes_max: Option<u64>,
    /// Whether a directory gives its name to an entry of another type, and such an entry to a
    /// directory.
    pub replaces: bool,
    /// Whether regular files that exist are written to. Otherwise other files replace them.
    pub in_place: bool,
    /// With `in_place`: whether files that exist get only what they lack at the end, and those that
    /// lack nothing stay as they are. The source must offer files then.
    pub appends: Option<Append>,
    /// Whether parts of large files may be made of the versions that exist. The source must offer
    /// files then.
    pub uses_versions: bool,
    /// Whether a journal is written, so that a later session can resume.
    pub keeps_journal: bool,
    /// Whether partial files of all earlier copies are removed, however young.
    pub cleans: bool,
    /// Whether the caller copies once more what has failed and may succeed then: files that changed
    /// while they were read and, where entries are deleted, those for which there was no room.
    pub retries: bool,
    /// Whether files of earlier sessions' journals are resumed. The source must offer files then.
    pub resumes: bool,
    /// Whether each file is synced before it gets its name, and each directory after its last
    /// change. Otherwise a loss of power can leave recent files without their data.
    pub syncs: bool,
    /// Whether files are read back from the disk and compared before they get their names.
    pub verifies: bool,
    /// What is left as it is. The source must offer files then.
    pub skips: Skips,
    /// Which files are written past the page cache, where the file system allows it.
    pub direct: When,
    /// Whether names that differ in case are the same; `None` asks the file system.
    pub folds_case: Option<bool>,
    /// Whether this is a dry run. The source must offer files then.
    pub dry_run: Option<DryRun>,
    /// Whether each change that is made is reported.
    pub lists: bool,
    /// Whether each entry that is whole, apart from directories, is reported.
    pub confirms: bool,
    /// Whether each entry that the source has is reported.
    pub names_entries: bool,
    /// In a dry run: entries that the source does not have are deleted, and nothing else is done
    /// or reported.
    pub only_deletes: bool,
    /// The most names that are remembered at a time.
    pub names_max: usize,
}

impl Default for ApplyOptions {
    fn default() -> Self {
        Self {
            keeps_owners: true,
            numeric_owners: false,
            keeps_modes: true,
            keeps_special_bits: true,
            is_same_host: false,
            is_blind: false,
            keeps_times: true,
            makes_devices: false,
            deletes: false,
            deletes_max: None,
            replaces: false,
            in_place: false,
            appends: None,
            uses_versions: false,
            keeps_journal: false,
            cleans: false,
            retries: false,
            resumes: false,
            syncs: false,
            verifies: false,
            skips: Skips::default(),
            direct: When::Never,
            folds_case: None,
            dry_run: None,
            lists: false,
            confirms: false,
            names_entries: false,
            only_deletes: false,
            names_max: NAMES_KEPT_MAX,
        }
    }
}
