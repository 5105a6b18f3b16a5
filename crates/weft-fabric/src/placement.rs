//! Where the memory of a buffer is.

/// Where the memory of a buffer is, for [`Fabric::alloc_placed`](crate::Fabric::alloc_placed).
///
/// The default is that of [`Fabric::alloc`](crate::Fabric::alloc). What is asked for and cannot be
/// had is an error, never something else; only [`HugePages::Wanted`] is a wish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The size of the pages.
    pub huge_pages: HugePages,
    /// The NUMA node, as `/sys/devices/system/node` numbers them. Without one, each page is on the
    /// node of the thread that touches it first.
    pub node: Option<u16>,
}

/// Whether the memory of a buffer is in huge pages, of 2 MiB. A buffer then takes a multiple of
/// 2 MiB of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Pages of the usual size.
    #[default]
    No,
    /// Huge pages where the kernel has some at the moment, and has them enabled
    /// (`/sys/kernel/mm/transparent_hugepage/enabled`); usual ones otherwise, and while peers of
    /// this host have the memory mapped.
    Wanted,
    /// Huge pages that the administrator has reserved (`/proc/sys/vm/nr_hugepages`). They are taken
    /// at once, so that no later access meets a lack of them. Peers of this host cannot map them:
    /// they read and write by system calls.
    Reserved,
}
