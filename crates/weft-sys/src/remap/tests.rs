use super::*;

/// Runs `body` in a child, which has only one thread, whatever the test runner does.
fn in_child(body: impl FnOnce() -> bool) {
    // SAFETY: the child runs `body`, which uses files, memory and the allocator (glibc's fork
    // handlers keep that usable), and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A panic must not let the child continue as another test runner.
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: `_exit` ends the child at once, and accesses no memory.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert_eq!(status_of(child), 0, "the child found all as it should be");
}

fn status_of(child: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: `status` is a local variable, and `child` is a child of this process.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

fn mapped(at: Option<usize>, count: usize, flags: libc::c_int) -> Region {
    let place = Place { at, len: count * PAGE, rights: READ_WRITE };
    // SAFETY: this is a new mapping, or replaces the test's own memory.
    let addr = unsafe { map(&place, flags | libc::MAP_ANONYMOUS, -1, 0) }.expect("memory");
    // SAFETY: the range was mapped above; tests that unmap it do not use it afterwards.
    unsafe { Region::new(addr as usize, count * PAGE) }.expect("no wrap")
}

fn pages(count: usize) -> Region {
    mapped(None, count, libc::MAP_PRIVATE)
}

fn unmap(region: &Region) {
    // SAFETY: this is the test's own mapping, which is not used afterwards.
    let done = unsafe { libc::munmap(region.addr() as *mut libc::c_void, region.len()) };
    assert_eq!(done, 0, "{:?}", last_error());
}

fn moved(region: &Region, count: usize) -> Region {
    let len = count * PAGE;
    let old = region.addr() as *mut libc::c_void;
    // SAFETY: this is the test's own mapping, which is used only at the new address afterwards.
    let new = unsafe { libc::mremap(old, region.len(), len, libc::MREMAP_MAYMOVE) };
    assert_ne!(new, libc::MAP_FAILED, "{:?}", last_error());
    // SAFETY: the call has mapped the range.
    unsafe { Region::new(new as usize, len) }.expect("no wrap")
}

fn remap(region: &Region) -> Result<Arc<RemappedPages>, Errno> {
    RemappedPages::remap(&remappable(region).ok_or(Errno::INVAL)?, true, None)
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut out = Vec::new();
    region.copy_out(&mut out);
    out
}

fn part(region: &Region, page: usize, count: usize) -> Region {
    region.part(page * PAGE, count * PAGE).expect("inside")
}

/// Weft's mapping of a whole segment.
fn own(segment: &RemappedPages) -> Region {
    // SAFETY: the segment is mapped as long as `segment` lives, which outlives the region.
    unsafe { Region::new(segment.pages.addr(), segment.len()) }.expect("no wrap")
}

fn is_private(region: &Region) -> bool {
    remappable(region).is_some()
}

#[test]
fn contents_survive_both_ways_and_are_shared_between() {
    in_child(|| {
        let region = pages(5);
        let inner = region.part(100, 3 * PAGE).expect("inside");
        inner.copy_in(&vec![7; inner.len()]);
        let before = bytes(&region);
        let segment = remap(&inner).expect("plain memory");
        assert!(bytes(&region) == before && segment.len() == 2 * PAGE);
        let theirs = SharedMemory::open_beginning(segment.fd().as_fd(), segment.len(), true);
        let theirs = theirs.expect("sealed");
        theirs.copy_in(10, b"peer");
        assert_eq!(bytes(&region)[PAGE + 10..PAGE + 14], *b"peer");
        assert_eq!(bytes(&own(&segment))[10..14], *b"peer");
        let uses_it = |range: &Range<usize>| range.contains(&part(&region, 2, 1).addr());
        assert_eq!(segment.restore(uses_it), Err(Errno::BUSY));
        segment.restore(|_| false).expect("one thread");
        theirs.copy_in(10, b"late");
        assert!(is_private(&part(&region, 1, 2)));
        bytes(&region)[PAGE + 10..PAGE + 14] == *b"peer"
    });
}

#[test]
fn memory_that_only_the_caller_uses_is_remapped_beside_other_threads() {
    in_child(|| {
        let region = pages(3);
        region.copy_in(b"kept");
        let (mut wait, end) = std::io::pipe().expect("a pipe");
        let other = std::thread::spawn(move || {
            use std::io::Read as _;
            wait.read(&mut [0]).expect("a pipe")
        });
        let refused = remap(&region).map(drop);
        // SAFETY: the other thread does not use the region.
        let unused = unsafe { Unused::new() };
        let pages = remappable(&region).expect("plain memory");
        let segment = RemappedPages::remap(&pages, true, Some(&unused)).expect("it is unused");
        let is_shared = own(&segment).part(0, 4).is_some_and(|start| bytes(&start) == b"kept");
        // It is not restored as long as it is mapped, and needs no restoring afterwards.
        let kept = segment.restore(|_| false);
        unmap(&region);
        let freed = segment.restore(|_| false);
        drop(end);
        other.join().expect("no panic");
        refused == Err(Errno::BUSY) && is_shared && kept == Err(Errno::BUSY) && freed == Ok(())
    });
}

#[test]
fn child_has_its_own_copy_from_the_time_of_the_fork() {
    in_child(|| {
        let region = pages(3);
        region.copy_in(b"parent");
        let segment = remap(&region).expect("plain memory");
        // One page is read-only, and one is inaccessible.
        for (page, rights) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            let addr = part(&region, page, 1).addr() as *mut libc::c_void;
            part(&region, page, 1).copy_in(b"kept");
            // SAFETY: this is the test's own memory.
            unsafe { libc::mprotect(addr, PAGE, rights) };
        }
        let (mut ready, mut signal) = std::io::pipe().expect("a pipe");
        // SAFETY: the child uses its memory and a pipe, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            use std::io::Read as _;
            let is_ready = ready.read_exact(&mut [0]).is_ok();
            let inherited = is_ready && bytes(&part(&region, 0, 1))[..6] == *b"parent";
            region.copy_in(b"child!");
            let read = bytes(&part(&region, 1, 1))[..4] == *b"kept";
            let addr = part(&region, 2, 1).addr() as *mut libc::c_void;
            // SAFETY: this is the test's own memory.
            unsafe { libc::mprotect(addr, PAGE, libc::PROT_READ) };
            let hidden = bytes(&part(&region, 2, 1))[..4] == *b"kept";
            let private = is_private(&part(&region, 0, 1));
            // SAFETY: `_exit` ends the child at once, and accesses no memory.
            unsafe { libc::_exit(i32::from(!(inherited && read && hidden && private))) };
        }
        region.copy_in(b"later!");
        std::io::Write::write_all(&mut signal, b".").expect("room");
        let good = status_of(child) == 0;
        drop(segment);
        good && bytes(&part(&region, 0, 1))[..6] == *b"later!"
    });
}

#[test]
fn special_mappings_are_not_remapped() {
    in_child(|| {
        let shared = remap(&mapped(None, 1, libc::MAP_SHARED));
        let no_page = remap(&pages(1).part(1, PAGE - 1).expect("inside"));
        let region = pages(2);
        unmap(&part(&region, 1, 1));
        let gap = remap(&region);
        let region = pages(1);
        let first = remap(&region);
        let again = remap(&region);
        let local = [0_u8; 4 * PAGE];
        // SAFETY: the array lives on the stack until the end of this closure.
        let stack = unsafe { Region::new(local.as_ptr() as usize, local.len()) };
        let stack = remap(&stack.expect("no wrap"));
        [shared, no_page, gap, again, stack].iter().all(Result::is_err) && first.is_ok()
    });
}

/// A mapping that the program makes in place of a segment is neither taken for the segment nor
/// changed.
#[test]
fn new_mapping_in_place_of_a_segment_is_left_alone() {
    in_child(|| {
        let region = pages(3);
        region.copy_in(b"old");
        let segment = remap(&region).expect("plain memory");
        let all = [Arc::clone(&segment)];
        assert_eq!(views(&all, &region).len(), 1);
        unmap(&region);
        assert!(views(&all, &region).is_empty());
        mapped(Some(region.addr()), 3, libc::MAP_PRIVATE);
        assert!(views(&all, &region).is_empty());
        region.copy_in(b"new");
        own(&segment).copy_in(b"OLD");
        let second = remap(&region).expect("plain memory again");
        let both = [Arc::clone(&segment), Arc::clone(&second)];
        let [view] = &views(&both, &region)[..] else { return false };
        assert!(Arc::ptr_eq(&view.segment, &second) && second.is_whole(&view.own));
        segment.restore(|_| false).expect("nothing to do");
        assert_eq!(views(&both, &region).len(), 1, "the second is as it was");
        second.restore(|_| false).expect("one thread");
        bytes(&region)[..3] == *b"new" && bytes(&own(&segment))[..3] == *b"OLD"
    });
}

#[test]
fn memory_is_found_where_the_program_moved_it() {
    in_child(|| {
        let region = pages(4);
        part(&region, 2, 1).copy_in(b"third");
        let segment = remap(&region).expect("plain memory");
        let all = [Arc::clone(&segment)];
        // Another mapping in the middle, and the rest moved.
        mapped(Some(part(&region, 1, 1).addr()), 1, libc::MAP_PRIVATE).copy_in(b"other");
        let tail = moved(&part(&region, 2, 2), 8);
        assert_eq!(bytes(&part(&tail, 2, 6)), vec![0; 6 * PAGE], "grown memory is empty");
        let [head] = &views(&all, &region)[..] else { return false };
        assert_eq!((head.addr, head.own.len()), (region.addr(), PAGE));
        let inner = tail.part(100, 4 * PAGE).expect("inside");
        let [view] = &views(&all, &inner)[..] else { return false };
        assert_eq!((view.addr, view.own.len()), (inner.addr(), 2 * PAGE - 100));
        assert_eq!(view.own.addr(), own(&segment).addr() + 2 * PAGE + 100);
        assert!(!segment.is_whole(&view.own));
        part(&tail, 6, 1).copy_in(b"grown");
        segment.restore(|_| false).expect("one thread");
        own(&segment).copy_in(&vec![9; 4 * PAGE]);
        assert!(is_private(&tail) && is_private(&part(&region, 0, 2)));
        bytes(&tail)[..5] == *b"third"
            && bytes(&part(&tail, 6, 1))[..5] == *b"grown"
            && bytes(&part(&region, 1, 1))[..5] == *b"other"
    });
}

/// `mprotect` splits mappings without changing the pages.
#[test]
fn split_memory_is_one_view_and_keeps_its_rights() {
    in_child(|| {
        let region = pages(3);
        let segment = remap(&region).expect("plain memory");
        let middle = part(&region, 1, 1).addr() as *mut libc::c_void;
        // SAFETY: this is the test's own memory.
        unsafe { libc::mprotect(middle, PAGE, libc::PROT_READ) };
        let all = [segment];
        let [view] = &views(&all, &region)[..] else { return false };
        assert!(all[0].is_whole(&view.own));
        all[0].restore(|_| false).expect("one thread");
        let mut rights = Vec::new();
        let range = region.addr()..region.addr() + region.len();
        let seen = maps::visit(&range, &mut |entry| {
            rights.push((entry.rights, entry.is_shared));
            ControlFlow::Continue(())
        });
        let kept = [(READ_WRITE, false), (libc::PROT_READ, false), (READ_WRITE, false)];
        seen.is_ok() && rights == kept
    });
}

/// Memory that has been given back reads as zeros. The old bytes belong to the old registration.
#[test]
fn memory_that_is_given_back_reads_as_zeros() {
    in_child(|| {
        let region = pages(4);
        region.copy_in(&vec![7; 4 * PAGE]);
        let segment = remap(&region).expect("plain memory");
        let given = part(&region, 1, 2);
        // SAFETY: this is the test's own memory.
        let done = unsafe {
            libc::madvise(given.addr() as *mut libc::c_void, PAGE + 1, libc::MADV_DONTNEED)
        };
        assert_eq!(done, 0, "{:?}", last_error());
        assert_eq!(bytes(&given), vec![0; 2 * PAGE]);
        assert!(is_private(&given));
        given.copy_in(&vec![8; 2 * PAGE]);
        assert_eq!(bytes(&own(&segment)), vec![7; 4 * PAGE], "the old pages");
        assert_eq!(views(&[Arc::clone(&segment)], &region).len(), 2);
        segment.restore(|_| false).expect("one thread");
        let edges = [part(&region, 0, 1), part(&region, 3, 1)];
        bytes(&given) == vec![8; 2 * PAGE]
            && edges.iter().all(|edge| is_private(edge) && bytes(edge) == vec![7; PAGE])
    });
}

#[test]
fn threads_can_give_memory_back_concurrently() {
    const ROUNDS: usize = 200;
    in_child(|| {
        let regions = [pages(8), pages(8)];
        let segment = regions.map(|region| remap(&region).expect("plain memory"));
        let threads = regions.map(|region| {
            std::thread::spawn(move || {
                (0..ROUNDS).all(|round| {
                    let page = part(&region, round % 8, 1);
                    page.copy_in(&[7; 64]);
                    let addr = page.addr() as *mut libc::c_void;
                    // SAFETY: this is the test's own memory.
                    unsafe { libc::madvise(addr, PAGE, libc::MADV_DONTNEED) };
                    bytes(&page) == vec![0; PAGE]
                })
            })
        });
        let good = threads.into_iter().all(|thread| thread.join().is_ok_and(|good| good));
        drop(segment);
        good
    });
}

#[test]
fn remap_and_restore_are_refused_with_other_threads() {
    in_child(|| {
        let region = pages(1);
        let segment = remap(&region).expect("plain memory");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        let refused = remap(&pages(1)).map(drop) == Err(Errno::BUSY);
        let busy = segment.restore(|_| false) == Err(Errno::BUSY);
        unmap(&region);
        let nothing = segment.restore(|_| false) == Ok(());
        drop(end);
        let _ = other.join();
        refused && busy && nothing
    });
}

/// A process that is its own peer does not map its segments again.
#[test]
fn own_segments_are_found_by_descriptor() {
    in_child(|| {
        let region = pages(1);
        let segment = remap(&region).expect("plain memory");
        let found = own_pages(segment.fd().as_fd()).expect("its own");
        let (_other, fd) = SharedMemory::create(PAGE).expect("memory");
        found.addr() == own(&segment).addr() && own_pages(fd.as_fd()).is_none()
    });
}
