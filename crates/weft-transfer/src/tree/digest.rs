//! Hashes what is in a file.

use std::os::fd::AsFd;

use rustix::fs::{Advice, fadvise, fdatasync};
use rustix::io::{Errno, Result, pread};

use crate::tree::hash::{Known, Subtrees};
use crate::wire::record_wants::HavePiece;

/// Length of a read.
const READ_LEN: usize = 256 << 10;

/// Passes the bytes of a part of a file to a function, as far as the file has them.
fn read(fd: impl AsFd, offset: u64, len: u64, mut take: impl FnMut(&[u8])) -> Result<u64> {
    let mut buffer = vec![0; READ_LEN.min(usize::try_from(len).unwrap_or(READ_LEN))];
    let mut done = 0;
    while done < len {
        let most = usize::try_from(len - done).unwrap_or(READ_LEN).min(buffer.len());
        match pread(&fd, &mut buffer[..most], offset + done) {
            Ok(0) => break,
            Ok(got) => {
                take(&buffer[..got]);
                done += got as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Returns BLAKE3 of a part of a file, as far as the file has it, and its length.
fn hashed(fd: impl AsFd, offset: u64, len: u64) -> Result<([u8; 32], u64)> {
    let mut hasher = blake3::Hasher::new();
    let got = read(fd, offset, len, |bytes| {
        hasher.update(bytes);
    })?;
    Ok((hasher.finalize().into(), got))
}

/// Returns BLAKE3 of a part of a file.
///
/// # Errors
/// An error of the kernel; `ENODATA` if the file ends before.
pub(crate) fn digest_of(fd: impl AsFd, offset: u64, len: u64) -> Result<[u8; 32]> {
    let (digest, got) = hashed(fd, offset, len)?;
    if got < len { Err(Errno::NODATA) } else { Ok(digest) }
}

/// Returns BLAKE3 of a file.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn digest_of_file(fd: impl AsFd) -> Result<[u8; 32]> {
    hashed(fd, 0, u64::MAX).map(|(digest, _)| digest)
}

/// Writes the data of a file to the disk, and removes it from the page cache, so that later reads
/// come from the disk. A file system without a disk keeps it in memory.
///
/// # Errors
/// An error of writing.
pub(crate) fn leave_cache(fd: impl AsFd) -> Result<()> {
    fdatasync(&fd)?;
    // A file system that cannot do it reads from the cache.
    let _ = fadvise(fd, 0, None, Advice::DontNeed);
    Ok(())
}

/// What a file of `size` bytes should contain: these subtrees of its hash, these pieces, and zeros
/// elsewhere.
pub(crate) struct Expected<'a> {
    pub(crate) size: u64,
    pub(crate) subtrees: &'a Subtrees,
    pub(crate) pieces: &'a [HavePiece],
}

impl Expected<'_> {
    /// Returns BLAKE3 of the file, if the file has the expected contents, and otherwise `None`.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(crate) fn compare(&self, fd: impl AsFd) -> Result<Option<[u8; 32]>> {
        let mut parts: Vec<(u64, u64, Known)> = Vec::new();
        for (offset, subtree) in self.subtrees.iter() {
            parts.push((offset, subtree.len, Known::subtree(offset, subtree)));
        }
        for piece in self.pieces {
            parts.push((piece.offset, piece.len, Known::Digest(piece.digest)));
        }
        parts.sort_unstable_by_key(|(offset, ..)| *offset);
        let mut whole = blake3::Hasher::new();
        let (mut at, mut is_same) = (0, true);
        let end = (self.size, 0, Known::Zeros);
        for (offset, len, known) in parts.into_iter().chain([end]) {
            // Parts do not overlap, so this is a gap.
            let gap = offset.saturating_sub(at);
            for (offset, len, known) in [(at, gap, Known::Zeros), (offset, len, known)] {
                let mut part = known.hasher(offset);
                let got = read(&fd, offset, len, |bytes| {
                    whole.update(bytes);
                    is_same &= part.update(bytes);
                })?;
                is_same &= got == len && part.is_as(&known);
            }
            at = offset + len;
        }
        Ok(is_same.then(|| whole.finalize().into()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::tree::hash::of_part;

    #[test]
    fn every_byte_of_a_file_counts() {
        let file = tempfile::tempfile().expect("room");
        let size = 400_000;
        let mut data = vec![0; size];
        fastrand::Rng::with_seed(1).fill(&mut data);
        // A hole, a piece of an earlier session, and two parts that came in the other order.
        data[131_072..262_144].fill(0);
        let mut subtrees = of_part(262_144, &data[262_144..]).1;
        subtrees.add_all(&of_part(0, &data[..65_536]).1);
        let digest = blake3::hash(&data[65_536..131_072]).into();
        let pieces = [HavePiece { offset: 65_536, len: 65_536, digest }];
        let expected = Expected { size: size as u64, subtrees: &subtrees, pieces: &pieces };
        let write = |file: &File| file.write_all_at(&data, 0).expect("room");
        write(&file);
        leave_cache(&file).expect("a file");
        let whole: [u8; 32] = blake3::hash(&data).into();
        assert_eq!(expected.compare(&file), Ok(Some(whole)));
        assert_eq!(digest_of_file(&file), Ok(whole));
        for at in [0, 65_535, 65_536, 131_071, 131_072, 200_000, 262_144, size - 1] {
            file.write_all_at(&[data[at] ^ 1], at as u64).expect("room");
            assert_eq!(expected.compare(&file), Ok(None), "{at}");
            write(&file);
        }
        file.set_len(size as u64 - 1).expect("a file");
        assert_eq!(expected.compare(&file), Ok(None));
        assert_eq!(digest_of(&file, 0, size as u64), Err(Errno::NODATA));
    }
}
