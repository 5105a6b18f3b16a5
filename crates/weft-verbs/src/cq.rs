//! Completion channels and completion queues.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and arrays and places for results are its
//! own. An `ibv_cq` is the head of the `ibv_cq_ex` at the head of its [`Object`].
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::channel::CompChannel;
use weft_engine::cq::Cq as EngineCq;
use weft_engine::event::Element;
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::{Errno, Result};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc, zeroed};
use crate::acks::Acks;
use crate::context::Context;
use crate::errno;
use crate::object::{self, Behind, Object};
use crate::pd::{Use, Users};

/// What is behind an `ibv_comp_channel`.
#[derive(Debug)]
pub(crate) struct Channel {
    engine: Arc<CompChannel>,
    context: *mut ibv_context,
    users: Users,
}

impl Behind for Channel {
    type C = ibv_comp_channel;
}

/// What is behind an `ibv_cq`.
#[derive(Debug)]
pub(crate) struct Cq {
    engine: Arc<EngineCq>,
    context: *mut ibv_context,
    /// The completion that the readers of `ibv_cq_ex` read. The thread that polls that way owns it.
    pub(crate) current: UnsafeCell<Completion>,
    /// When it came, in ticks of the clock. The thread that polls that way owns it.
    pub(crate) current_time: UnsafeCell<u64>,
    /// The program promised to poll by one thread at a time.
    pub(crate) single_threaded: bool,
    completion_acks: Acks,
    async_acks: Acks,
    _held: (Option<Use>, Option<Use>),
}

impl Behind for Cq {
    type C = ibv_cq_ex;
}

impl Cq {
    /// The engine's queue.
    pub(crate) fn engine(&self) -> &Arc<EngineCq> {
        &self.engine
    }

    /// Asynchronous events that the program has taken.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// The queue that a program names.
    ///
    /// # Safety
    /// `c` must be a queue that is not destroyed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_cq) -> &'a Object<Self> {
        // SAFETY: every `ibv_cq` that programs have is the head of an `ibv_cq_ex` made below.
        unsafe { object::object(c.cast()) }
    }
}

/// How to make a queue.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) cqe: u32,
    pub(crate) user: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: u32,
    pub(crate) single_threaded: bool,
    /// Completions have the time at which they came.
    pub(crate) stamped: bool,
    /// The parent domain, if it has one.
    pub(crate) domain: Option<Use>,
}

/// Makes a queue.
///
/// # Errors
/// `EINVAL` for a size or a vector that the device does not have.
///
/// # Safety
/// The context must be open and the channel NULL or live.
pub(crate) unsafe fn create(context: *mut ibv_context, wanted: Wanted) -> Result<*mut ibv_cq_ex> {
    // SAFETY: an open context, by the caller's promise.
    let state = unsafe { Context::of(context) };
    // SAFETY: its count of vectors never changes.
    let vectors = unsafe { (*context).num_comp_vectors };
    if wanted.vector >= vectors.cast_unsigned() {
        return Err(Errno::INVAL);
    }
    let channel = (!wanted.channel.is_null()).then(|| {
        // SAFETY: a live channel, by the caller's promise.
        unsafe { object::object::<Channel>(wanted.channel) }
    });
    let engine_channel = channel.map(|channel| Arc::clone(&channel.engine));
    let make = if wanted.stamped { EngineCq::new_stamped } else { EngineCq::new };
    let engine = make(state.engine(), wanted.cqe, engine_channel)?;
    let c = ibv_cq_ex {
        context,
        channel: wanted.channel,
        cq_context: wanted.user,
        cqe: c_int::try_from(wanted.cqe).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..zeroed()
    };
    let cookie = Arc::clone(&engine);
    let cq = object::create(
        c,
        Cq {
            engine,
            context,
            current: UnsafeCell::new(Completion::new(0, Status::Success, Opcode::Send, 0)),
            current_time: UnsafeCell::new(0),
            single_threaded: wanted.single_threaded,
            completion_acks: Acks::default(),
            async_acks: Acks::default(),
            _held: (channel.map(|channel| channel.users.hold()), wanted.domain),
        },
    );
    cookie.cookie.store(cq.expose_provenance(), Ordering::Release);
    Ok(cq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let wanted = u32::try_from(cqe).ok().zip(u32::try_from(vector).ok());
    let cq = wanted.ok_or(Errno::INVAL).and_then(|(cqe, vector)| {
        let domain = None;
        let (single_threaded, stamped) = (false, false);
        let wanted = Wanted { cqe, user, channel, vector, single_threaded, stamped, domain };
        // SAFETY: the caller's promise is ours.
        unsafe { create(context, wanted) }
    });
    errno::pointer(cq).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a live queue.
    let state = unsafe { Cq::of(cq) };
    let wanted = u32::try_from(cqe).map_err(|_| Errno::INVAL);
    let resized = wanted.and_then(|wanted| state.engine.resize(wanted));
    if resized.is_ok() {
        // SAFETY: the structure lives as long as the queue.
        unsafe { (*cq).cqe = cqe };
    }
    errno::returned(resized)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live queue.
    let state = unsafe { Cq::of(cq) };
    // SAFETY: an open context, as long as there is a queue in it.
    let context = unsafe { Context::of(state.context) };
    let retired = context.retire(
        &state.engine.cookie,
        || state.engine.check_unused(),
        |element| matches!(element, Element::Cq(other) if other.is(&*state.engine)),
        &[&state.completion_acks, &state.async_acks],
    );
    if retired.is_ok() {
        // SAFETY: the program gives it up, has acknowledged its events, and no queue uses it.
        unsafe { object::destroy::<Cq>(cq.cast()) };
    }
    errno::returned(retired)
}

/// `ibv_poll_cq`: the number of completions, or a negative number.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(room) = usize::try_from(count) else { return -1 };
    if room == 0 {
        return 0;
    }
    // SAFETY: a live queue.
    let cq = unsafe { Cq::of(cq) };
    // SAFETY: the program's array of `count` elements, laid out as `Completion` (see `layout`). The
    // engine writes completions into it and does not look at what was there.
    let out = unsafe { std::slice::from_raw_parts_mut(wc.cast::<Completion>(), room) };
    let polled = cq.engine.poll(out);
    if polled == 0 && cq.engine.is_overrun() {
        // It has lost a completion: ibv_poll_cq(3) says that polling fails then.
        errno::set(Errno::OVERFLOW);
        return -1;
    }
    c_int::try_from(polled).unwrap_or(c_int::MAX)
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live queue.
    unsafe { Cq::of(cq) }.engine.arm(solicited_only != 0);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: an open context.
    let engine = CompChannel::new(unsafe { Context::of(context) }.engine());
    errno::pointer(engine.map(|engine| {
        let c = ibv_comp_channel { context, fd: engine.raw_fd(), refcnt: 0 };
        object::create(c, Channel { engine, context, users: Users::default() })
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a live channel.
    let free = unsafe { object::object::<Channel>(channel) }.users.check_none();
    if free.is_ok() {
        // SAFETY: the program gives it up and no queue uses it.
        unsafe { object::destroy::<Channel>(channel) };
    }
    errno::returned(free)
}

/// The next queue with an event; the program owes an acknowledgement for it.
///
/// # Safety
/// `channel` must be live.
unsafe fn next_event(channel: *mut ibv_comp_channel) -> Result<*mut ibv_cq> {
    // SAFETY: a live channel, by the caller's promise.
    let state = unsafe { object::object::<Channel>(channel) };
    // SAFETY: an open context, as long as there is a channel in it.
    let context = unsafe { Context::of(state.context) };
    loop {
        let engine = state.engine.next_event()?;
        let _delivery = context.delivery();
        let cq = engine.cookie().load(Ordering::Acquire);
        if cq != 0 {
            let cq = std::ptr::with_exposed_provenance_mut(cq);
            // SAFETY: not destroyed, or the cookie would be 0; nor is it while `_delivery` lives.
            unsafe { Cq::of(cq) }.completion_acks.delivered();
            return Ok(cq);
        }
    }
}

/// A thread may be cancelled in here: no lock is held while it waits, and there is nothing to drop.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise is ours.
    errno::minus_one(unsafe { next_event(channel) }.map(|found| {
        // SAFETY: the program's place for the result.
        unsafe { *cq = found };
        // SAFETY: not destroyed before this event is acknowledged.
        let its_user = unsafe { (*found).cq_context };
        // SAFETY: the program's place for the result.
        unsafe { *user = its_user };
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: a live queue.
    unsafe { Cq::of(cq) }.completion_acks.acknowledge(count);
}
