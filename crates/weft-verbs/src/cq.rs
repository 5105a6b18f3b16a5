//! Completion channels and completion queues.
//!
//! # Safety
//! A program passes live objects of this library, and valid arrays and pointers for results. An
//! `ibv_cq` is the first part of the `ibv_cq_ex` at the start of its [`Object`].
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
use crate::object::{self, AbiState, Object};
use crate::pd::{Use, Users};

/// The state of an `ibv_comp_channel`.
#[derive(Debug)]
pub(crate) struct Channel {
    engine: Arc<CompChannel>,
    context: *mut ibv_context,
    users: Users,
}

impl AbiState for Channel {
    type C = ibv_comp_channel;
}

/// The state of an `ibv_cq`.
#[derive(Debug)]
pub(crate) struct Cq {
    engine: Arc<EngineCq>,
    context: *mut ibv_context,
    /// The completion that the read functions of `ibv_cq_ex` read. It belongs to the thread between
    /// `start_poll` and `end_poll`.
    pub(crate) current: UnsafeCell<Completion>,
    /// The time of that completion in ticks of the clock. It belongs to the same thread.
    pub(crate) current_time: UnsafeCell<u64>,
    /// Whether the program has declared that one thread at a time polls.
    pub(crate) single_threaded: bool,
    completion_acks: Acks,
    async_acks: Acks,
    _held: (Option<Use>, Option<Use>),
}

impl AbiState for Cq {
    type C = ibv_cq_ex;
}

impl Cq {
    /// The engine's queue.
    pub(crate) fn engine(&self) -> &Arc<EngineCq> {
        &self.engine
    }

    /// Counts the asynchronous events that the program has taken.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// The queue at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a queue that is not destroyed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_cq) -> &'a Object<Self> {
        // SAFETY: every `ibv_cq` that a program has is the first part of an `ibv_cq_ex` created
        // below, and the caller guarantees that it is live.
        unsafe { object::object(c.cast()) }
    }
}

/// The parameters of a new queue.
#[derive(Debug)]
pub(crate) struct CqParams {
    pub(crate) cqe: u32,
    pub(crate) user: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: u32,
    pub(crate) single_threaded: bool,
    /// Whether completions are time-stamped.
    pub(crate) time_stamped: bool,
    /// The parent domain of the queue, if it has one.
    pub(crate) domain: Option<Use>,
}

/// Creates a completion queue.
///
/// # Errors
/// `EINVAL` for a size or a vector that the device does not support.
///
/// # Safety
/// The context must be open and the channel NULL or live.
pub(crate) unsafe fn create(context: *mut ibv_context, params: CqParams) -> Result<*mut ibv_cq_ex> {
    // SAFETY: the caller guarantees that `context` is open.
    let state = unsafe { Context::of(context) };
    // SAFETY: the caller guarantees that the context is open; nothing changes this field after its
    // creation.
    let vectors = unsafe { (*context).num_comp_vectors };
    if params.vector >= vectors.cast_unsigned() {
        return Err(Errno::INVAL);
    }
    let channel = (!params.channel.is_null()).then(|| {
        // SAFETY: the caller guarantees that `wanted.channel` is live.
        unsafe { object::object::<Channel>(params.channel) }
    });
    let engine_channel = channel.map(|channel| Arc::clone(&channel.engine));
    let make = if params.time_stamped { EngineCq::new_stamped } else { EngineCq::new };
    let engine = make(state.engine(), params.cqe, engine_channel)?;
    let c = ibv_cq_ex {
        context,
        channel: params.channel,
        cq_context: params.user,
        cqe: c_int::try_from(params.cqe).unwrap_or(c_int::MAX),
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
            single_threaded: params.single_threaded,
            completion_acks: Acks::default(),
            async_acks: Acks::default(),
            _held: (channel.map(|channel| channel.users.hold()), params.domain),
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
    let numbers = u32::try_from(cqe).ok().zip(u32::try_from(vector).ok());
    let cq = numbers.ok_or(Errno::INVAL).and_then(|(cqe, vector)| {
        let domain = None;
        let (single_threaded, time_stamped) = (false, false);
        let params = CqParams { cqe, user, channel, vector, single_threaded, time_stamped, domain };
        // SAFETY: the program guarantees what `create` requires of its arguments.
        unsafe { create(context, params) }
    });
    errno::pointer(cq).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the program passes a live completion queue.
    let state = unsafe { Cq::of(cq) };
    let size = u32::try_from(cqe).map_err(|_| Errno::INVAL);
    let resized = size.and_then(|size| state.engine.resize(size));
    if resized.is_ok() {
        // SAFETY: the queue is live, and the program only reads this field of its structure.
        unsafe { (*cq).cqe = cqe };
    }
    errno::returned(resized)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the program passes a live completion queue.
    let state = unsafe { Cq::of(cq) };
    // SAFETY: a context stays open as long as it has a queue.
    let context = unsafe { Context::of(state.context) };
    let retired = context.retire(
        &state.engine.cookie,
        || state.engine.check_unused(),
        |element| matches!(element, Element::Cq(other) if other.is(&*state.engine)),
        &[&state.completion_acks, &state.async_acks],
    );
    if retired.is_ok() {
        // SAFETY: the program does not use the object after this call, it has acknowledged its
        // events, and no queue uses it.
        unsafe { object::destroy::<Cq>(cq.cast()) };
    }
    errno::returned(retired)
}

/// `ibv_poll_cq`: returns the number of completions, or a negative number.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(room) = usize::try_from(count) else { return -1 };
    if room == 0 {
        return 0;
    }
    // SAFETY: the program passes a live completion queue.
    let cq = unsafe { Cq::of(cq) };
    // SAFETY: the program passes an array of `count` elements with the layout of `Completion` (see
    // `layout`). The engine only writes to it.
    let out = unsafe { std::slice::from_raw_parts_mut(wc.cast::<Completion>(), room) };
    let polled = cq.engine.poll(out);
    if polled == 0 && cq.engine.is_overrun() {
        // The queue has lost a completion; polling fails then (ibv_poll_cq(3)).
        errno::set(Errno::OVERFLOW);
        return -1;
    }
    c_int::try_from(polled).unwrap_or(c_int::MAX)
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program passes a live completion queue.
    unsafe { Cq::of(cq) }.engine.arm(solicited_only != 0);
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the program passes an open context.
    let engine = CompChannel::new(unsafe { Context::of(context) }.engine());
    errno::pointer(engine.map(|engine| {
        let c = ibv_comp_channel { context, fd: engine.raw_fd(), refcnt: 0 };
        object::create(c, Channel { engine, context, users: Users::default() })
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the program passes a live channel.
    let free = unsafe { object::object::<Channel>(channel) }.users.check_none();
    if free.is_ok() {
        // SAFETY: the program does not use the object after this call, and no queue uses it.
        unsafe { object::destroy::<Channel>(channel) };
    }
    errno::returned(free)
}

/// Waits for the next queue with an event, which the program must acknowledge.
///
/// # Safety
/// `channel` must be live.
unsafe fn next_event(channel: *mut ibv_comp_channel) -> Result<*mut ibv_cq> {
    // SAFETY: the caller guarantees that `channel` is live.
    let state = unsafe { object::object::<Channel>(channel) };
    // SAFETY: a context stays open as long as it has a channel.
    let context = unsafe { Context::of(state.context) };
    loop {
        let engine = state.engine.next_event()?;
        let _delivery = context.delivery();
        let cq = engine.cookie().load(Ordering::Acquire);
        if cq != 0 {
            let cq = std::ptr::with_exposed_provenance_mut(cq);
            // SAFETY: the cookie is not 0, and destroying the queue sets it to 0 under the lock
            // that `_delivery` holds, so that the queue is live.
            unsafe { Cq::of(cq) }.completion_acks.delivered();
            return Ok(cq);
        }
    }
}

/// A cancellation point: while the thread waits it holds no lock and owns nothing that needs a
/// drop.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program guarantees what `next_event` requires of its arguments.
    errno::minus_one(unsafe { next_event(channel) }.map(|found| {
        // SAFETY: the program passes `cq` as a valid pointer for the result.
        unsafe { *cq = found };
        // SAFETY: the queue is not destroyed before the program acknowledges this event.
        let user_context = unsafe { (*found).cq_context };
        // SAFETY: the program passes `user` as a valid pointer for the result.
        unsafe { *user = user_context };
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: the program passes a live completion queue.
    unsafe { Cq::of(cq) }.completion_acks.acknowledge(count);
}
