//! Finds the mapping of this process that contains an address. It does not allocate.

use std::ops::{ControlFlow, Range};

use crate::calls::io::Errno;
use crate::maps::{self, Entry};

const STACK: &[u8] = b"[stack";

/// Lookup of mappings.
#[derive(Debug)]
pub struct Mapping;

impl Mapping {
    /// The range of the mapping that contains `address`, if that is ordinary private memory, whose
    /// pages are reachable only through these addresses. `None` if it is something else: shared, of
    /// a file, of huge pages, not writable, or the first thread's stack.
    ///
    /// # Errors
    /// `ENOENT` if nothing is mapped there; an error of reading `/proc/self/maps`.
    pub fn at(address: usize) -> Result<Option<Range<usize>>, Errno> {
        let mut found = Err(Errno::NOENT);
        maps::visit(&(address..address.saturating_add(1)), &mut |entry| {
            found = Ok(is_ordinary(entry).then(|| entry.range.clone()));
            ControlFlow::Break(())
        })?;
        found
    }
}

/// Whether a mapping is ordinary private memory. Huge pages have the inode of a file.
fn is_ordinary(entry: &Entry<'_>) -> bool {
    entry.rights & libc::PROT_WRITE != 0
        && !entry.is_shared
        && entry.inode == 0
        && entry.has_usual_pages
        && !entry.name.starts_with(STACK)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_private_memory_is_ordinary() {
        let heap = vec![0_u8; 1 << 20];
        let start = heap.as_ptr() as usize;
        let found = Mapping::at(start).expect("mapped").expect("ordinary");
        assert!(found.start <= start && start + heap.len() <= found.end);
        let code = Mapping::at as *const () as usize;
        assert_eq!(Mapping::at(code), Ok(None), "of a file");
        let (shared, _fd) = crate::SharedMemory::create(1 << 16).expect("memory");
        assert_eq!(Mapping::at(shared.addr()), Ok(None), "shared");
        assert_eq!(Mapping::at(8), Err(Errno::NOENT));
    }

    #[test]
    fn a_stack_is_not_ordinary() {
        let entry = Entry {
            range: 4_096..8_192,
            rights: libc::PROT_READ | libc::PROT_WRITE,
            is_shared: false,
            offset: 0,
            inode: 0,
            has_usual_pages: true,
            name: b"",
        };
        assert!(is_ordinary(&entry));
        assert!(!is_ordinary(&Entry { name: b"[stack]", ..entry }));
    }
}
