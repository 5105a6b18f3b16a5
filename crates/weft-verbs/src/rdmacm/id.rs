//! Identifiers: addresses, options, and their life.
//!
//! # Safety
//! Identifiers that a program hands in are live ones of ours, and structures are its own. A program
//! uses an identifier from one thread at a time, as librdmacm demands, so that its structure may be
//! changed in its calls.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::sockaddr;
use weft_engine::cm::{Id as EngineId, IdOption, PortSpace};
use weft_engine::{Errno, Result};
use weft_sys::Lock;

use super::acked::acknowledge_own;
use super::address;
use super::channel::{self, Channel};
use super::claim;
use super::device;
use super::prepared::Prepared;
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UD, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID,
    RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, ibv_qp_type,
    ibv_sa_path_rec, rdma_cm_id, rdma_event_channel, rdma_port_space,
};
use crate::acks::Acks;
use crate::errno;
use crate::object::{self, Behind, Object};

/// The default partition key.
const PKEY: u16 = 0xffff;

/// What is behind a `rdma_cm_id`.
#[derive(Debug)]
pub(super) struct Id {
    engine: Arc<EngineId>,
    /// The program gave no channel: calls wait for their outcome, and the channel is ours.
    sync: AtomicBool,
    acks: Acks,
    /// What `rdma_create_ep` was given for later.
    pub(super) prepared: Lock<Prepared>,
}

impl Behind for Id {
    type C = rdma_cm_id;
}

impl Id {
    /// The engine's identifier.
    pub(super) fn engine(&self) -> &Arc<EngineId> {
        &self.engine
    }

    /// Events that the program has taken and not acknowledged.
    pub(super) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Whether calls wait for their outcome.
    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Acquire)
    }

    /// The identifier that a program names.
    ///
    /// # Safety
    /// `c` must be an identifier that is not destroyed during `'a`.
    pub(super) unsafe fn of<'a>(c: *mut rdma_cm_id) -> &'a Object<Self> {
        // SAFETY: every identifier that programs have is made by `wrap`.
        unsafe { object::object(c) }
    }

    /// The program's identifier for one of the engine.
    ///
    /// # Safety
    /// It must have been made for a program and not be destroyed.
    pub(super) unsafe fn c_of(engine: &EngineId) -> *mut rdma_cm_id {
        ptr::with_exposed_provenance_mut(engine.cookie.load(Ordering::Acquire))
    }
}

/// What a new identifier is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) context: *mut c_void,
    pub(super) ps: rdma_port_space,
    pub(super) qp_type: ibv_qp_type,
}

/// Gives an identifier of the engine to the program. `channel` is NULL for a synchronous one, which
/// gets its own.
///
/// # Errors
/// `EMFILE` and the like when there is no descriptor left.
///
/// # Safety
/// `channel` must be NULL or live.
pub(super) unsafe fn wrap(
    engine: Arc<EngineId>,
    channel: *mut rdma_event_channel,
    kind: Kind,
) -> Result<*mut rdma_cm_id> {
    let sync = channel.is_null();
    let channel = if sync { channel::create()? } else { channel };
    if sync {
        // SAFETY: made just now.
        engine.migrate(unsafe { Channel::of(channel) }.engine());
    }
    // SAFETY: the structure consists of integers, pointers and unions of them: zero is valid.
    let mut c: rdma_cm_id = unsafe { MaybeUninit::zeroed().assume_init() };
    (c.channel, c.context, c.ps, c.qp_type) = (channel, kind.context, kind.ps, kind.qp_type);
    let cookie = Arc::clone(&engine);
    let id = object::create(
        c,
        Id {
            engine,
            sync: AtomicBool::new(sync),
            acks: Acks::default(),
            prepared: Lock::new(Prepared::default()),
        },
    );
    cookie.cookie.store(id.expose_provenance(), Ordering::Release);
    Ok(id)
}

/// `rdma_create_id` with a queue pair type.
///
/// # Errors
/// `EPROTONOSUPPORT` for an unknown port space; `EMFILE` and the like.
///
/// # Safety
/// `channel` must be NULL or live.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    kind: Kind,
) -> Result<*mut rdma_cm_id> {
    let space = match kind.ps {
        RDMA_PS_TCP | RDMA_PS_IB if kind.qp_type == IBV_QPT_UD => PortSpace::Datagram,
        RDMA_PS_TCP | RDMA_PS_IB => PortSpace::Connected,
        RDMA_PS_UDP | RDMA_PS_IPOIB => PortSpace::Datagram,
        _ => return Err(Errno::PROTONOSUPPORT),
    };
    if channel.is_null() {
        let own = channel::create()?;
        // SAFETY: made just now.
        let engine = EngineId::new(unsafe { Channel::of(own) }.engine(), space);
        // SAFETY: a live channel.
        let id = unsafe { wrap(engine, own, kind) }?;
        // SAFETY: made just now.
        unsafe { Id::of(id) }.sync.store(true, Ordering::Release);
        return Ok(id);
    }
    // SAFETY: live, by the caller's promise.
    let engine = EngineId::new(unsafe { Channel::of(channel) }.engine(), space);
    // SAFETY: the caller's promise is ours.
    unsafe { wrap(engine, channel, kind) }
}

/// Shows the addresses of the identifier in its structure.
///
/// # Safety
/// `id` must be live.
unsafe fn show_addresses(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let engine = unsafe { Id::of(id) }.engine();
    // SAFETY: the program's thread is in one of its calls for this identifier.
    let c = unsafe { &mut *id };
    let ib = ptr::from_mut(&mut c.route.addr.addr).cast::<crate::abi::rdma_ib_addr>();
    // SAFETY: the union has one variant.
    let ib = unsafe { &mut *ib };
    if let Some(peer) = engine.peer() {
        let to = ptr::from_mut(&mut c.route.addr.__bindgen_anon_2).cast();
        // SAFETY: the union has room for every address.
        unsafe { address::write(to, peer) };
        ib.dgid = address::gid(peer.ip());
    }
    if let Some(local) = engine.local() {
        let to = ptr::from_mut(&mut c.route.addr.__bindgen_anon_1).cast();
        // SAFETY: the union has room for every address.
        unsafe { address::write(to, local) };
        ib.sgid = address::gid(local.ip());
    }
}

/// Shows the addresses of an identifier that is bound, and the device of the local one. A wildcard
/// has none, and as with the kernel's `rdma_cm` neither has a loopback address yet: libfabric binds
/// to `localhost`, and when that has no device it goes on to the addresses that peers can reach.
///
/// # Errors
/// `ENODEV` when the local address has no device any more.
///
/// # Safety
/// `id` must be live.
unsafe fn show_bound(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    unsafe { show_addresses(id) };
    // SAFETY: live, by the caller's promise.
    match unsafe { Id::of(id) }.engine().local() {
        // SAFETY: live, by the caller's promise.
        Some(local) if !local.ip().is_loopback() => unsafe { show_device(id, local.ip()) },
        _ => Ok(()),
    }
}

/// Shows the addresses of an identifier whose peer is known, and the device that leads there.
///
/// # Errors
/// `ENODEV` when the local address has no device any more.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn show_ends(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    unsafe { show_addresses(id) };
    // SAFETY: live, by the caller's promise.
    match unsafe { Id::of(id) }.engine().local() {
        // SAFETY: live, by the caller's promise.
        Some(local) => unsafe { show_device(id, local.ip()) },
        None => Ok(()),
    }
}

/// # Safety
/// `id` must be live.
unsafe fn show_device(id: *mut rdma_cm_id, local: IpAddr) -> Result<()> {
    // SAFETY: the program's thread is in one of its calls for this identifier.
    let c = unsafe { &mut *id };
    if !c.verbs.is_null() || local.is_unspecified() {
        return Ok(());
    }
    let shared = device::of_address(local)?;
    c.verbs = shared.verbs;
    c.pd = shared.pd;
    c.port_num = 1;
    let ib = ptr::from_mut(&mut c.route.addr.addr).cast::<crate::abi::rdma_ib_addr>();
    // SAFETY: the union has one variant.
    unsafe { (*ib).pkey = PKEY.to_be() };
    Ok(())
}

/// Shows a path in the structure: the one that IP's routing takes.
///
/// # Errors
/// `ENOMEM`.
///
/// # Safety
/// `id` must be live, its addresses shown.
pub(super) unsafe fn show_path(id: *mut rdma_cm_id) -> Result<()> {
    const EXACTLY: u8 = 2;
    const MTU_1024: u8 = 3;
    const RATE_10_GBPS: u8 = 3;
    const HOP_LIMIT: u8 = 64;
    // SAFETY: the program's thread is in one of its calls for this identifier.
    let c = unsafe { &mut *id };
    if !c.route.path_rec.is_null() {
        return Ok(());
    }
    let ib = ptr::from_ref(&c.route.addr.addr).cast::<crate::abi::rdma_ib_addr>();
    // SAFETY: the union has one variant.
    let ib = unsafe { &*ib };
    // SAFETY: `calloc` has no preconditions.
    let path = unsafe { libc::calloc(1, size_of::<ibv_sa_path_rec>()) }.cast::<ibv_sa_path_rec>();
    if path.is_null() {
        return Err(Errno::NOMEM);
    }
    let record = ibv_sa_path_rec {
        dgid: ib.dgid,
        sgid: ib.sgid,
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        sl: 0,
        mtu_selector: EXACTLY,
        mtu: MTU_1024,
        rate_selector: EXACTLY,
        rate: RATE_10_GBPS,
        packet_life_time_selector: EXACTLY,
        packet_life_time: 0,
        preference: 0,
    };
    // SAFETY: allocated just now, with room for one.
    unsafe { path.write(record) };
    c.route.path_rec = path;
    c.route.num_paths = 1;
    Ok(())
}

/// Destroys an identifier: waits until the program has acknowledged what it has taken of its
/// events.
///
/// # Safety
/// It must be live, and nobody may use it afterwards.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { Id::of(id) };
    state.engine.destroy();
    // SAFETY: the structure is live; NULL or an event that nobody has acknowledged.
    unsafe { acknowledge_own(id) };
    state.acks.wait();
    // SAFETY: the structure is live.
    let channel = unsafe { (*id).channel };
    // SAFETY: the structure is live.
    let path = unsafe { (*id).route.path_rec };
    // SAFETY: NULL, or from `calloc` in `show_path`.
    unsafe { libc::free(path.cast()) };
    if state.is_sync() {
        // SAFETY: nobody else knows this channel.
        unsafe { channel::destroy(channel) };
    }
    // SAFETY: the program gives it up, and has acknowledged its events.
    unsafe { object::destroy::<Id>(id) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let datagram = matches!(ps, RDMA_PS_UDP | RDMA_PS_IPOIB);
    let qp_type = if datagram { IBV_QPT_UD } else { IBV_QPT_RC };
    // SAFETY: the program's channel, or NULL.
    errno::minus_one(unsafe { create(channel, Kind { context, ps, qp_type }) }.map(|made| {
        // SAFETY: the program's place for the result.
        unsafe { *id = made };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: a live identifier, which the program gives up.
    unsafe { destroy(id) };
    0
}

/// `rdma_bind_addr`.
///
/// # Errors
/// As [`EngineId::bind`]; `EINVAL` for no IP address.
///
/// # Safety
/// `id` must be live, `to` NULL or valid.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, to: *const sockaddr) -> Result<()> {
    // SAFETY: valid, by the caller's promise.
    let to = unsafe { address::read(to) }?;
    // SAFETY: live, by the caller's promise.
    unsafe { Id::of(id) }.engine.bind(to)?;
    // SAFETY: live, by the caller's promise.
    unsafe { show_bound(id) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    // SAFETY: a live identifier and the program's address.
    errno::minus_one(unsafe { bind(id, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    claim::arrange();
    // SAFETY: a live identifier.
    let engine = unsafe { Id::of(id) }.engine();
    // As the kernel does: what is no count is as many as there may be.
    let listening = engine.listen(u32::try_from(backlog).unwrap_or(0));
    // SAFETY: a live identifier.
    errno::minus_one(listening.and_then(|()| unsafe { show_bound(id) }))
}

/// Reads an option's value.
///
/// # Errors
/// `EINVAL` when it has another size.
///
/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn option_value<T: Copy>(value: *const c_void, length: usize) -> Result<T> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: readable, by the caller's promise; the callers' types are integers.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
/// `id` must be live, `value` readable for `length` bytes.
unsafe fn set_option(
    id: *mut rdma_cm_id,
    (level, name): (u32, u32),
    value: *const c_void,
    length: usize,
) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let engine = unsafe { Id::of(id) }.engine();
    // SAFETY: readable, by the caller's promise.
    let byte = || unsafe { option_value::<u8>(value, length) };
    // SAFETY: readable, by the caller's promise.
    let flag = || unsafe { option_value::<c_int>(value, length) }.map(|flag| flag != 0);
    let option = match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => IdOption::Tos(byte()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => IdOption::ReuseAddress(flag()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => IdOption::AfOnly(flag()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            // SAFETY: the structure is live.
            if unsafe { (*id).qp_type } != IBV_QPT_RC {
                return Err(Errno::INVAL);
            }
            IdOption::AckTimeout(byte()?.min(31))
        }
        // IP's routing decides on the path; the program's choice ends the search for one.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return engine.resolve_route(),
        _ => return Err(Errno::NOSYS),
    };
    engine.set_option(option)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    let option = (level.cast_unsigned(), name.cast_unsigned());
    // SAFETY: a live identifier and the program's value.
    errno::minus_one(unsafe { set_option(id, option, value, length) })
}

/// # Safety
/// `id` must be live, `channel` NULL or live.
unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { Id::of(id) };
    let was_sync = state.is_sync();
    let sync = channel.is_null();
    if was_sync && sync {
        return Err(Errno::INVAL);
    }
    let channel = if sync { channel::create()? } else { channel };
    // SAFETY: live, by the caller's promise or because it was made just now.
    state.engine.migrate(unsafe { Channel::of(channel) }.engine());
    if was_sync {
        // SAFETY: live, by the caller's promise.
        unsafe { acknowledge_own(id) };
    }
    // SAFETY: live, by the caller's promise.
    let old = unsafe { (*id).channel };
    // SAFETY: live, by the caller's promise; the program's thread is in its call for this
    // identifier.
    unsafe { (*id).channel = channel };
    state.sync.store(sync, Ordering::Release);
    if was_sync {
        // SAFETY: nobody else knows the old channel.
        unsafe { channel::destroy(old) };
    }
    // What was taken from the old channel is to be dealt with before anything comes from the new.
    state.acks.wait();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: a live identifier, and the program's channel or NULL.
    errno::minus_one(unsafe { migrate(id, channel) })
}

/// The port in an address of the structure, in network byte order.
///
/// # Safety
/// `address` must be inside a live structure.
unsafe fn port(address: *const sockaddr) -> u16 {
    // SAFETY: the unions of the structure are as long as every address; zero has no family.
    unsafe { address::read(address) }.as_ref().map_or(0, SocketAddr::port).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: a live identifier.
    let source = unsafe { &raw const (*id).route.addr.__bindgen_anon_1 };
    // SAFETY: inside that identifier.
    unsafe { port(source.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: a live identifier.
    let destination = unsafe { &raw const (*id).route.addr.__bindgen_anon_2 };
    // SAFETY: inside that identifier.
    unsafe { port(destination.cast()) }
}
