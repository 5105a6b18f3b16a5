//! Files that arrive in parts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, OFlags, fallocate, flock, fstat, fsync,
    ftruncate, unlinkat,
};
use rustix::io::Errno;

use crate::tree::digest::{Expected, leave_cache};
use crate::tree::hash::{self, Subtrees};
use crate::tree::journal::Unfinished;
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::reading::Reading;
use crate::tree::write::{write_all, write_zeros};
use crate::tree::{beneath, delta, direct, metadata};
use crate::wire::record::{Entry, Status, Tail};
use crate::wire::record_name::Name;
use crate::wire::record_wants::HavePiece;
use weft_sys::lock;

use super::append::{Appending, Shorter};
use super::attributes::{self, Plan};
use super::context::Context;
use super::directory::Directory;
use super::install::{self, Installed};
use super::look::{Rest, Resumed};
use super::report::{Change, Event, Failure, Step};
use super::version;

/// A file that was begun and has not ended.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) entry: Box<Entry>,
    pub(super) directory: Arc<Directory>,
    name: Name,
    /// The open file; `None` if it could not be created.
    open: Option<Open>,
    /// Parts that are being written, plus one until all parts have come.
    writing: AtomicUsize,
    failure: Mutex<Option<Failure>>,
    /// Held while a part is written. The kernel allows one writer of a file at a time and lets the
    /// others spin, so waiting here costs less.
    write: Mutex<()>,
    subtrees: Mutex<Subtrees>,
    /// The pieces of an earlier session that are those of the source.
    kept: Mutex<Vec<HavePiece>>,
    tail: OnceLock<Tail>,
    /// The source's open file, if the kernel copies parts of it.
    reading: Option<Arc<Reading>>,
    /// The version of the file that exists, if parts are made of it and it can be opened.
    version: OnceLock<Option<OwnedFd>>,
    /// Bytes of a file of unknown size that the quota is charged with.
    charged: AtomicU64,
}

/// A part that is made of the version that exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionPart {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) digest: [u8; 32],
}

#[derive(Debug)]
struct Open {
    fd: OwnedFd,
    /// The same file, for direct I/O.
    direct: Option<OwnedFd>,
    is_direct: AtomicBool,
    temporary: Name,
    plan: Plan,
    journal_id: Option<u32>,
    /// The file has parts of an earlier session, or others.
    is_resumed: bool,
    /// The file has its name already.
    is_in_place: bool,
    /// The file exists, and is appended to.
    appending: Option<Appending>,
}

impl Begun {
    /// Begins a file, with the parts of an earlier session if there are any. The directory counts
    /// it as pending.
    pub(super) fn begin(
        context: &Context,
        directory: &Arc<Directory>,
        entry: Box<Entry>,
        name: &Name,
        resumed: Option<Resumed<'_>>,
        refusal: Option<Failure>,
    ) -> Self {
        let lost = directory.is_lost.then_some((Step::Create, Errno::NOENT));
        let result = match (refusal.or(lost), &resumed) {
            (Some(failure), _) => Err(failure),
            (None, Some(Resumed { rest: Rest::Left(unfinished), pieces })) => {
                go_on(context, directory, &entry, unfinished, pieces)
            }
            (None, Some(Resumed { rest: Rest::There(shorter), .. })) => {
                create(context, directory, &entry, name, Some(shorter))
            }
            (None, None) => create(context, directory, &entry, name, None),
        };
        let (open, failure) = match result {
            Ok(open) => (Some(open), None),
            Err(failure) => (None, Some(failure)),
        };
        Self {
            entry,
            directory: Arc::clone(directory),
            name: name.clone(),
            open,
            writing: AtomicUsize::new(1),
            failure: Mutex::new(failure),
            write: Mutex::new(()),
            subtrees: Mutex::default(),
            kept: Mutex::new(resumed.map(|resumed| resumed.pieces).unwrap_or_default()),
            tail: OnceLock::new(),
            reading: None,
            version: OnceLock::new(),
            charged: AtomicU64::new(0),
        }
    }

    /// Sets the source's open file.
    pub(super) fn reading_from(self, reading: Option<Arc<Reading>>) -> Self {
        Self { reading, ..self }
    }

    /// Whether the source's open file is known.
    pub(super) fn has_source(&self) -> bool {
        self.reading.is_some()
    }

    /// Counts a part that will be written. Returns its number, if the parts have an order.
    pub(super) fn begin_part(&self) -> u64 {
        self.writing.fetch_add(1, AcqRel);
        self.appending().map_or(0, Appending::begin)
    }

    fn appending(&self) -> Option<&Appending> {
        self.open.as_ref()?.appending.as_ref()
    }

    /// Writes the part with this number.
    pub(super) fn write(
        &self,
        context: &Context,
        number: u64,
        (offset, data): (u64, &[u8]),
        digest: Option<[u8; 32]>,
    ) {
        let Some(open) = &self.open else { return };
        let _turn = self.appending().map(|appending| appending.wait(number));
        if lock(&self.failure).is_some() {
            return;
        }
        let mut subtrees = Subtrees::default();
        if let Some(expected) = digest {
            let (found, of_part) = hash::of_part(offset, data);
            if found != expected {
                return self.fail((Step::Verify, Errno::BADMSG));
            }
            subtrees = of_part;
        }
        if self.entry.is_unsized {
            // The size of a stream is unknown when it begins.
            if let Err(failure) = context.charge(data.len() as u64, 0) {
                return self.fail(failure);
            }
            self.charged.fetch_add(data.len() as u64, AcqRel);
        }
        let writing = lock(&self.write);
        let written = self.write_part(context, open, data, offset);
        drop(writing);
        if let Err(error) = written {
            return self.fail((Step::Write, error));
        }
        self.part_is_written(context, open, offset, data.len() as u64, &subtrees);
    }

    fn write_part(
        &self,
        context: &Context,
        open: &Open,
        data: &[u8],
        offset: u64,
    ) -> Result<(), Errno> {
        if let Some(direct) = open.direct.as_ref().filter(|_| open.is_direct.load(Acquire)) {
            match direct::write(direct, &open.fd, data, offset) {
                Err(Errno::INVAL) => {
                    open.is_direct.store(false, Release);
                    context.direct_refused(&self.directory.dir, &self.name, Errno::INVAL);
                }
                written => return written,
            }
        }
        let kept = open.appending.as_ref().map_or(0, |appending| appending.kept);
        let skipped = kept.saturating_sub(offset).min(data.len() as u64);
        write_all(&open.fd, &data[skipped as usize..], offset + skipped)
    }

    /// Writes the part with this number, which is made of the version that exists.
    pub(super) fn write_version(
        &self,
        context: &Context,
        number: u64,
        VersionPart { offset, len, digest }: VersionPart,
        operations: &[u8],
    ) {
        if self.open.is_none() || lock(&self.failure).is_some() {
            return;
        }
        let open = || version::open(context, &self.directory, &self.name).map(|(fd, _)| fd);
        let version = self.version.get_or_init(open);
        let mut data = vec![0; len as usize];
        let made = version.as_ref().map(|it| delta::decode(operations, it, &mut data));
        if made == Some(Ok(())) && hash::of_part(offset, &data).0 == digest {
            let digest = context.options.verifies.then_some(digest);
            return self.write(context, number, (offset, &data), digest);
        }
        // The first one is reported.
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            *failure = Some((Step::Version, Errno::STALE));
            drop(failure);
            if context.options.retries {
                context.event(&self.directory.dir, Some(&self.name), Event::OtherVersion);
            }
        }
    }

    /// Lets the kernel copy the part with this number from the source's open file.
    pub(super) fn copy(
        &self,
        context: &Context,
        copies: &KernelCopies,
        number: u64,
        (mut offset, mut len): (u64, u64),
    ) {
        let (Some(open), Some(reading)) = (&self.open, &self.reading) else { return };
        let _turn = self.appending().map(|appending| appending.wait(number));
        if let Some(appending) = &open.appending {
            let skipped = appending.kept.saturating_sub(offset).min(len);
            (offset, len) = (offset + skipped, len - skipped);
        }
        if lock(&self.failure).is_some() {
            return;
        }
        let writing = lock(&self.write);
        let copied = copies.copy(reading, open.fd.as_fd(), offset, len);
        drop(writing);
        match copied {
            Ok(true) => self.part_is_written(context, open, offset, len, &Subtrees::default()),
            // The tail says what has happened at the source.
            Ok(false) => {}
            Err(error) => self.fail((Step::Write, error)),
        }
    }

    fn part_is_written(
        &self,
        context: &Context,
        open: &Open,
        offset: u64,
        len: u64,
        subtrees: &Subtrees,
    ) {
        if let (Some(journal), Some(id)) = (&context.session.journal, open.journal_id)
            && !self.entry.is_unsized
        {
            journal.part(id, offset, len);
        }
        lock(&self.subtrees).add_all(subtrees);
    }

    /// Forgets a piece of an earlier session, which will be written again.
    pub(super) fn differs(&self, offset: u64, len: u64) {
        lock(&self.kept).retain(|piece| (piece.offset, piece.len) != (offset, len));
    }

    /// Handles a part that is a hole.
    pub(super) fn hole(&self, context: &Context, mut offset: u64, mut len: u64) {
        let Some(open) = &self.open else { return };
        if let Some(Appending { kept, size, .. }) = &open.appending {
            // What is behind the end is a hole anyway.
            let end = (offset + len).min(*size);
            offset = offset.max(*kept);
            len = end.saturating_sub(offset);
            if len == 0 {
                return;
            }
        }
        if open.is_resumed {
            // An unrecorded write of an earlier session may have left data there.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&open.fd, flags, offset, len) {
                Ok(()) => {}
                Err(Errno::NOTSUP) => {
                    if let Err(error) = write_zeros(&open.fd, offset, len) {
                        return self.fail((Step::Write, error));
                    }
                }
                Err(error) => return self.fail((Step::Write, error)),
            }
        }
        if let (Some(journal), Some(id)) = (&context.session.journal, open.journal_id) {
            journal.part(id, offset, len);
        }
    }

    /// Records that all parts have come, and how the source's reading ended. The caller then ends
    /// the part that stands for them.
    pub(super) fn set_tail(&self, tail: Tail) {
        // The caller sets it once.
        let _ = self.tail.set(tail);
    }

    /// Counts a part as written. After the last one, renames the file to its final name, and
    /// returns whether that succeeded.
    pub(super) fn end_part(&self, context: &Context) -> Option<bool> {
        if self.writing.fetch_sub(1, AcqRel) != 1 {
            return None;
        }
        let tail = *self.tail.get()?;
        // The kernel may have read parts of the file after the source sent its tail.
        let tail = self.reading.as_ref().map_or(tail, |reading| reading.tail());
        let mut whole_hash = None;
        let result = self.install(context, tail, &mut whole_hash);
        if result.is_err() {
            self.remove(context);
        }
        let dir = &self.directory;
        let is_there =
            install::settle(context, dir, &self.name, result, (tail, whole_hash), &self.entry);
        Some(is_there)
    }

    fn install(
        &self,
        context: &Context,
        tail: Tail,
        whole_hash: &mut Option<[u8; 32]>,
    ) -> Result<Installed, Failure> {
        if let Status::Failed { errno } = tail.status {
            return Err((Step::Source, Errno::from_raw_os_error(errno as i32)));
        }
        if let Some(failure) = *lock(&self.failure) {
            return Err(failure);
        }
        let Some(open) = &self.open else { return Err((Step::Create, Errno::BADF)) };
        *whole_hash = lock(&self.subtrees).root(tail.size);
        if tail.hash.is_some() && *whole_hash != tail.hash {
            return Err((Step::Verify, Errno::BADMSG));
        }
        let write_error = |error| (Step::Write, error);
        if open.appending.is_some() {
            // It may end with a hole.
            let now = fstat(&open.fd).map_err(write_error)?;
            if metadata::size(&now) < self.entry.size {
                ftruncate(&open.fd, self.entry.size).map_err(write_error)?;
            }
        }
        if context.options.verifies {
            *whole_hash = self.read_back(open, tail)?;
        }
        if tail.size != self.entry.size {
            let kept = open.appending.as_ref().map_or(0, |appending| appending.kept);
            ftruncate(&open.fd, tail.size.max(kept)).map_err(write_error)?;
        }
        let attributes = {
            let place = (&*self.directory.dir, Some(&self.name));
            open.plan.set(context, open.fd.as_fd(), &self.entry, place)
        };
        if context.options.syncs {
            fsync(&open.fd).map_err(write_error)?;
        }
        if open.is_in_place {
            return Ok(Installed { attributes, change: Change::Update });
        }
        let create_error = |error| (Step::Create, error);
        let dir = context.dirs.open(&self.directory.dir).map_err(create_error)?;
        let to = &self.name;
        let change = install::rename(context, &self.directory, &*dir, &open.temporary, to)?;
        // The file may have become shorter while it was read.
        context.refund(self.entry.size.saturating_sub(tail.size), 0);
        if let (Some(journal), Some(id)) = (&context.session.journal, open.journal_id) {
            journal.end(id);
        }
        Ok(Installed { attributes, change })
    }

    /// Compares what is on the disk with what has been received. Returns BLAKE3 of the file.
    fn read_back(&self, open: &Open, tail: Tail) -> Result<Option<[u8; 32]>, Failure> {
        leave_cache(&open.fd).map_err(|error| (Step::Write, error))?;
        let (subtrees, pieces) = (lock(&self.subtrees), lock(&self.kept));
        let size = if self.entry.is_unsized { tail.size } else { self.entry.size };
        let expected = Expected { size, subtrees: &subtrees, pieces: &pieces };
        let found = expected.compare(&open.fd).map_err(|error| (Step::Verify, error))?;
        if found.is_none() {
            return Err((Step::Verify, Errno::BADMSG));
        }
        Ok(found.filter(|_| tail.size == size))
    }

    /// Removes the temporary file after a failure.
    fn remove(&self, context: &Context) {
        let Some(open) = self.open.as_ref().filter(|open| !open.is_in_place) else { return };
        context.refund(self.entry.size + self.charged.load(Acquire), 1);
        if let Ok(dir) = context.dirs.open(&self.directory.dir) {
            // If this fails, the file is gone, or a later session removes it.
            let _ = unlinkat(&*dir, open.temporary.as_path(), AtFlags::empty());
        }
        if let (Some(journal), Some(id)) = (&context.session.journal, open.journal_id) {
            journal.end(id);
        }
    }

    /// Ends a file of which parts are missing.
    pub(super) fn give_up(&self, context: &Context) {
        self.remove(context);
        self.directory.failed(context, Some(&self.name), Step::Incomplete, Errno::NODATA);
    }

    /// Removes the temporary file unless a later session can resume it.
    pub(super) fn leave(&self, context: &Context) {
        let is_lost = |open: &Open| open.journal_id.is_none() || self.entry.is_unsized;
        if self.open.as_ref().is_some_and(is_lost) {
            self.remove(context);
        }
    }

    fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
    }
}

fn create(
    context: &Context,
    directory: &Arc<Directory>,
    entry: &Entry,
    name: &Name,
    shorter: Option<&Shorter>,
) -> Result<Open, Failure> {
    let dir = context.dirs.open(&directory.dir).map_err(|error| (Step::Create, error))?;
    let there = install::open_in_place(context, directory, dir.as_fd(), entry, name)?;
    let append = context.options.appends.filter(|_| !entry.is_unsized);
    if let (Some(shorter), Some(append)) = (shorter, append)
        && !there.as_ref().is_some_and(|(_, _, stat)| shorter.is_still(stat, append))
    {
        // The source does not send what is not there any more.
        return Err((Step::Write, Errno::STALE));
    }
    if let Some((fd, plan, stat)) = there {
        let appending = append.map(|append| Appending::new(append, &stat));
        let mut direct = None;
        if appending.is_none() {
            ftruncate(&fd, entry.size).map_err(|error| (Step::Write, error))?;
            direct = open_direct(context, directory, dir.as_fd(), entry, name, name);
        }
        return Ok(Open {
            fd,
            direct,
            is_direct: AtomicBool::new(true),
            temporary: name.clone(),
            plan,
            journal_id: None,
            is_resumed: true,
            is_in_place: true,
            appending,
        });
    }
    let path = directory.dir.path_of(Some(name));
    if let Ok(root) = context.dirs.open(context.dirs.root()) {
        let (names, bytes) = context.session.others.begins_anew(root.as_fd(), &path);
        context.refund(bytes, names);
    }
    let (fd, temporary, plan) = install::create(context, directory, dir.as_fd(), entry, name)?;
    let prepare = || {
        // The lock shows other sessions that this one is alive.
        flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        ftruncate(&fd, entry.size)
    };
    if let Err(error) = prepare() {
        // Only the first error is reported.
        let _ = unlinkat(&*dir, temporary.as_path(), AtFlags::empty());
        context.refund(entry.size, 1);
        return Err((Step::Write, error));
    }
    let journal = context.session.journal.as_ref();
    let journal_id =
        journal.and_then(|journal| journal.file(&path, &temporary, entry.size, entry.mtime));
    let direct = open_direct(context, directory, dir.as_fd(), entry, name, &temporary);
    let is_direct = AtomicBool::new(true);
    let (is_resumed, is_in_place, appending) = (false, false, None);
    Ok(Open {
        fd,
        direct,
        is_direct,
        temporary,
        plan,
        journal_id,
        is_resumed,
        is_in_place,
        appending,
    })
}

/// Opens a temporary file once more, for direct I/O, if that is wanted and allowed.
fn open_direct(
    context: &Context,
    directory: &Directory,
    dir: BorrowedFd<'_>,
    entry: &Entry,
    name: &Name,
    temporary: &Name,
) -> Option<OwnedFd> {
    if !context.options.direct.is_for(entry.size, dir) {
        return None;
    }
    let opened = beneath::open(dir, temporary.as_path(), OFlags::WRONLY | OFlags::DIRECT, 0);
    opened.inspect_err(|&errno| context.direct_refused(&directory.dir, name, errno)).ok()
}

/// Opens the file of an earlier session.
fn go_on(
    context: &Context,
    directory: &Directory,
    entry: &Entry,
    unfinished: &Unfinished,
    pieces: &[HavePiece],
) -> Result<Open, Failure> {
    let open = || -> Result<Open, Errno> {
        let dir = context.dirs.open(&directory.dir)?;
        let temporary = unfinished.temporary.clone();
        let flags = install::access(context) | OFlags::NONBLOCK;
        let fd = beneath::open(&*dir, temporary.as_path(), flags, 0)?;
        let stat = fstat(&fd)?;
        let is_ours = metadata::kind(&stat) == FileType::RegularFile
            && stat.st_nlink == 1
            && stat.st_uid == context.who.uid
            && metadata::size(&stat) == entry.size;
        if !is_ours {
            return Err(Errno::STALE);
        }
        flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        let journal = context.session.journal.as_ref();
        let id = journal.and_then(|journal| {
            let Unfinished { path, size, mtime, .. } = unfinished;
            let id = journal.file(path, &temporary, *size, *mtime)?;
            for piece in pieces {
                journal.part(id, piece.offset, piece.len);
            }
            Some(id)
        });
        // The attributes with which it was created are unknown.
        let plan = attributes::plan(context, entry, None);
        let name = entry.name.as_ref().unwrap_or(&temporary);
        let direct = open_direct(context, directory, dir.as_fd(), entry, name, &temporary);
        Ok(Open {
            fd,
            direct,
            is_direct: AtomicBool::new(true),
            temporary,
            plan,
            journal_id: id,
            is_resumed: true,
            is_in_place: false,
            appending: None,
        })
    };
    open().map_err(|error| (Step::Create, error))
}
