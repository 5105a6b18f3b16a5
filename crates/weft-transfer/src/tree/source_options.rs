//! Options of the source.

use std::sync::Arc;

use crate::tree::content::Missing;
use crate::tree::direct::{Refusals, When};
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::modes::Modes;
use crate::tree::removal::Removals;
use crate::tree::rules::Rules;

/// The smallest payload. It has room for twice the longest entry without extended attributes;
/// extended attributes may use a quarter of it.
pub const PAYLOAD_LEN_MIN: usize = 16 << 10;

/// The options of a source.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// Length of a block's payload, at least [`PAYLOAD_LEN_MIN`].
    pub payload_len: usize,
    /// Whether files are offered first and sent only if the sink wants them.
    pub asks: bool,
    /// Whether offers contain the hash of the content. It requires `asks`.
    pub compares_content: bool,
    /// Whether what the sink has of a file is not compared. It requires `asks`.
    pub trusts_sink: bool,
    /// Whether of large files that the sink has in another version only what differs is sent. It
    /// requires `asks`.
    pub uses_versions: bool,
    /// Whether data is sent with digests, which the sink verifies.
    pub verifies: bool,
    /// Whether extended attributes are sent.
    pub takes_xattrs: bool,
    /// Whether hard links are sent as links, not as separate files.
    pub keeps_hard_links: bool,
    /// Whether the names of owners are sent besides their numbers.
    pub names_owners: bool,
    /// Whether pipes, sockets and devices are sent; otherwise they are skipped.
    pub takes_special_files: bool,
    /// Whether what is mounted in the trees is left out, except the directories themselves.
    pub stays_on_device: bool,
    /// The rules that select names.
    pub rules: Rules,
    /// Notes what is sent, to remove it when the sink has it.
    pub removals: Option<Arc<Removals>>,
    /// Changes of the modes that are sent.
    pub modes: Modes,
    /// Which files are read directly.
    pub direct: When,
    /// Whether a file system refuses it.
    pub refusals: Arc<Refusals>,
    /// Whether the transport may read parts of files itself. The ends of these files are planned
    /// after the caller has reported that the parts have arrived.
    pub sends_extents: bool,
    /// Names that were asked for and cannot be found. They are reported as problems.
    pub missing: Vec<Missing>,
    /// Passes open files to a sink in this process, which lets the kernel copy them. Digests
    /// (`verifies`) rule it out.
    pub copies: Option<Arc<KernelCopies>>,
}

impl SourceOptions {
    /// Creates options that send everything without offers, with hard links and owners' names,
    /// without extended attributes.
    #[must_use]
    pub fn new(payload_len: usize) -> Self {
        Self {
            payload_len,
            asks: false,
            compares_content: false,
            trusts_sink: false,
            uses_versions: false,
            verifies: false,
            takes_xattrs: false,
            keeps_hard_links: true,
            names_owners: true,
            takes_special_files: true,
            stays_on_device: false,
            rules: Rules::default(),
            removals: None,
            modes: Modes::default(),
            direct: When::Never,
            refusals: Arc::default(),
            sends_extents: false,
            missing: Vec::new(),
            copies: None,
        }
    }
}
