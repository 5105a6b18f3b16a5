//! Identifiers: creation and destruction, addresses, and options.
//!
//! # Safety
//! A program passes live identifiers of this library and valid structures of its own. A program
//! uses an identifier from one thread at a time, as librdmacm demands, so that its calls may change
//! the identifier's structure.
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
use crate::object::{self, AbiState, Object};

/// The default partition key.
const PKEY: u16 = 0xffff;

/// The state of a `rdma_cm_id`.
#[derive(Debug)]
pub(super) struct Id {
    engine: Arc<EngineId>,
    /// Whether the identifier is synchronous: the program passed no channel, so that calls wait for
    /// their result and the channel is the identifier's own.
    sync: AtomicBool,
    acks: Acks,
    /// The arguments of `rdma_create_ep` that later calls use.
    pub(super) prepared: Lock<Prepared>,
}

impl AbiState for Id {
    type C = rdma_cm_id;
}

impl Id {
    /// The engine's identifier.
    pub(super) fn engine(&self) -> &Arc<EngineId> {
        &self.engine
    }

    /// Counts the events that the program has taken and not acknowledged.
    pub(super) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Whether the identifier is synchronous: its calls wait for their result.
    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Acquire)
    }

    /// The identifier at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be an identifier that is not destroyed during `'a`.
    pub(super) unsafe fn of<'a>(c: *mut rdma_cm_id) -> &'a Object<Self> {
        // SAFETY: every identifier that a program has was created by `wrap`, and the caller
        // guarantees that it is live.
        unsafe { object::object(c) }
    }

    /// The C object of an identifier of the engine.
    ///
    /// # Safety
    /// The identifier must have a C object that is not destroyed.
    pub(super) unsafe fn c_of(engine: &EngineId) -> *mut rdma_cm_id {
        ptr::with_exposed_provenance_mut(engine.cookie.load(Ordering::Acquire))
    }
}

/// The attributes of a new identifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) context: *mut c_void,
    pub(super) ps: rdma_port_space,
    pub(super) qp_type: ibv_qp_type,
}

/// Creates the C object of an identifier of the engine. `channel` is NULL for a synchronous one,
/// which gets its own channel.
///
/// # Errors
/// `EMFILE` or `ENFILE` when no descriptor is left.
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
        // SAFETY: `channel` was created above, and nothing has destroyed it.
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
/// `EPROTONOSUPPORT` for an unknown port space; `EMFILE` or `ENFILE` when no descriptor is left.
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
        // SAFETY: `own` was created above, and nothing has destroyed it.
        let engine = EngineId::new(unsafe { Channel::of(own) }.engine(), space);
        // SAFETY: `own` was created above.
        let id = unsafe { wrap(engine, own, kind) }?;
        // SAFETY: `id` was created above, and nothing has destroyed it.
        unsafe { Id::of(id) }.sync.store(true, Ordering::Release);
        return Ok(id);
    }
    // SAFETY: the caller guarantees that `channel` is live.
    let engine = EngineId::new(unsafe { Channel::of(channel) }.engine(), space);
    // SAFETY: the program guarantees what `wrap` requires of its arguments.
    unsafe { wrap(engine, channel, kind) }
}

/// Copies the addresses of the identifier to its structure.
///
/// # Safety
/// `id` must be live.
unsafe fn update_addresses(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let engine = unsafe { Id::of(id) }.engine();
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    let c = unsafe { &mut *id };
    let ib = ptr::from_mut(&mut c.route.addr.addr).cast::<crate::abi::rdma_ib_addr>();
    // SAFETY: the union has a single variant, and the structure that contains it is live.
    let ib = unsafe { &mut *ib };
    if let Some(peer) = engine.peer() {
        let to = ptr::from_mut(&mut c.route.addr.__bindgen_anon_2).cast();
        // SAFETY: the union is as large as every IP socket address, and the identifier is live.
        unsafe { address::write(to, peer) };
        ib.dgid = address::gid(peer.ip());
    }
    if let Some(local) = engine.local() {
        let to = ptr::from_mut(&mut c.route.addr.__bindgen_anon_1).cast();
        // SAFETY: the union is as large as every IP socket address, and the identifier is live.
        unsafe { address::write(to, local) };
        ib.sgid = address::gid(local.ip());
    }
}

/// Copies the addresses of a bound identifier, and the device of the local one, to its structure. A
/// wildcard has no device, and neither has a loopback address at this point, as with the kernel's
/// `rdma_cm`: libfabric binds to `localhost`, and if that has no device it tries the addresses that
/// peers can reach.
///
/// # Errors
/// `ENODEV` if the local address no longer has a device.
///
/// # Safety
/// `id` must be live.
unsafe fn update_bound(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live, as `update_addresses` requires.
    unsafe { update_addresses(id) };
    // SAFETY: the caller guarantees that `id` is live.
    match unsafe { Id::of(id) }.engine().local() {
        // SAFETY: the caller guarantees that `id` is live, as `update_device` requires.
        Some(local) if !local.ip().is_loopback() => unsafe { update_device(id, local.ip()) },
        _ => Ok(()),
    }
}

/// Copies the addresses of an identifier with a peer, and the device of the local one, to its
/// structure.
///
/// # Errors
/// `ENODEV` if the local address no longer has a device.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn update_endpoints(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live, as `update_addresses` requires.
    unsafe { update_addresses(id) };
    // SAFETY: the caller guarantees that `id` is live.
    match unsafe { Id::of(id) }.engine().local() {
        // SAFETY: the caller guarantees that `id` is live, as `update_device` requires.
        Some(local) => unsafe { update_device(id, local.ip()) },
        None => Ok(()),
    }
}

/// # Safety
/// `id` must be live.
unsafe fn update_device(id: *mut rdma_cm_id, local: IpAddr) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    let c = unsafe { &mut *id };
    if !c.verbs.is_null() || local.is_unspecified() {
        return Ok(());
    }
    let shared = device::of_address(local)?;
    c.verbs = shared.verbs;
    c.pd = shared.pd;
    c.port_num = 1;
    let ib = ptr::from_mut(&mut c.route.addr.addr).cast::<crate::abi::rdma_ib_addr>();
    // SAFETY: the union has a single variant, and the structure that contains it is live.
    unsafe { (*ib).pkey = PKEY.to_be() };
    Ok(())
}

/// Adds a path record to the identifier's structure, for the route that IP takes.
///
/// # Errors
/// `ENOMEM`.
///
/// # Safety
/// `id` must be live, and its addresses copied to the structure.
pub(super) unsafe fn update_path(id: *mut rdma_cm_id) -> Result<()> {
    const EXACTLY: u8 = 2;
    const MTU_1024: u8 = 3;
    const RATE_10_GBPS: u8 = 3;
    const HOP_LIMIT: u8 = 64;
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    let c = unsafe { &mut *id };
    if !c.route.path_rec.is_null() {
        return Ok(());
    }
    let ib = ptr::from_ref(&c.route.addr.addr).cast::<crate::abi::rdma_ib_addr>();
    // SAFETY: the union has a single variant, and the structure that contains it is live.
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
    // SAFETY: `path` is a new allocation of this size.
    unsafe { path.write(record) };
    c.route.path_rec = path;
    c.route.num_paths = 1;
    Ok(())
}

/// Destroys an identifier; waits until the program has acknowledged the events that it has taken.
///
/// # Safety
/// `id` must be live, and not be used afterwards.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { Id::of(id) };
    state.engine.destroy();
    // SAFETY: the caller guarantees that `id` is live; its event is NULL or not acknowledged.
    unsafe { acknowledge_own(id) };
    state.acks.wait();
    // SAFETY: the caller guarantees that `id` is live.
    let channel = unsafe { (*id).channel };
    // SAFETY: the caller guarantees that `id` is live.
    let path = unsafe { (*id).route.path_rec };
    // SAFETY: the pointer is NULL or came from `calloc` in `update_path`.
    unsafe { libc::free(path.cast()) };
    if state.is_sync() {
        // SAFETY: the channel of a synchronous identifier is its own, and nothing else uses it.
        unsafe { channel::destroy(channel) };
    }
    // SAFETY: no event of the object is outstanding, and the program does not use it after this
    // call.
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
    // SAFETY: the program passes a live channel or NULL.
    errno::minus_one(unsafe { create(channel, Kind { context, ps, qp_type }) }.map(|made| {
        // SAFETY: the program passes `id` as a valid pointer for the result.
        unsafe { *id = made };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a live identifier and does not use it after this call.
    unsafe { destroy(id) };
    0
}

/// The kernel's error for a port that is in use: for a wildcard address it has another one
/// (`cma_check_port`).
fn as_kernels(error: Errno, to: &SocketAddr) -> Errno {
    match error {
        Errno::ADDRINUSE if to.ip().is_unspecified() => Errno::ADDRNOTAVAIL,
        other => other,
    }
}

/// `rdma_bind_addr`.
///
/// # Errors
/// As [`EngineId::bind`]; `EINVAL` for an address that is not IP.
///
/// # Safety
/// `id` must be live, `to` NULL or valid.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, to: *const sockaddr) -> Result<()> {
    // SAFETY: the caller guarantees that `to` is NULL or valid.
    let to = unsafe { address::read(to) }?;
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { Id::of(id) }.engine.bind(to).map_err(|error| as_kernels(error, &to))?;
    // SAFETY: the caller guarantees that `id` is live, as `update_bound` requires.
    unsafe { update_bound(id) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    // SAFETY: the program passes a live identifier and a valid address or NULL.
    errno::minus_one(unsafe { bind(id, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    claim::connect_to_preload();
    // SAFETY: the program passes a live identifier.
    let engine = unsafe { Id::of(id) }.engine();
    // As in the kernel, an invalid backlog stands for the maximum.
    let listening = engine.listen(u32::try_from(backlog).unwrap_or(0));
    // SAFETY: the program passes a live identifier, as `update_bound` requires.
    errno::minus_one(listening.and_then(|()| unsafe { update_bound(id) }))
}

/// Reads the value of an option.
///
/// # Errors
/// `EINVAL` if `length` is not the size of `T`.
///
/// # Safety
/// `value` must be readable for `length` bytes.
unsafe fn option_value<T: Copy>(value: *const c_void, length: usize) -> Result<T> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees `length` readable bytes, and all callers read integers, for
    // which every bit pattern is valid.
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
    // SAFETY: the caller guarantees that `id` is live.
    let engine = unsafe { Id::of(id) }.engine();
    // SAFETY: the caller guarantees that `value` is readable for `length` bytes.
    let byte = || unsafe { option_value::<u8>(value, length) };
    // SAFETY: the caller guarantees that `value` is readable for `length` bytes.
    let flag = || unsafe { option_value::<c_int>(value, length) }.map(|flag| flag != 0);
    let option = match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => IdOption::Tos(byte()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => IdOption::ReuseAddress(flag()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => IdOption::AfOnly(flag()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            // SAFETY: the caller guarantees that `id` is live.
            if unsafe { (*id).qp_type } != IBV_QPT_RC {
                return Err(Errno::INVAL);
            }
            IdOption::AckTimeout(byte()?.min(31))
        }
        // IP routing determines the path, so that the program's path only completes the route
        // resolution.
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
    // SAFETY: the program passes a live identifier and a value of `length` bytes.
    errno::minus_one(unsafe { set_option(id, option, value, length) })
}

/// # Safety
/// `id` must be live, `channel` NULL or live.
unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { Id::of(id) };
    let was_sync = state.is_sync();
    let sync = channel.is_null();
    if was_sync && sync {
        return Err(Errno::INVAL);
    }
    let channel = if sync { channel::create()? } else { channel };
    // SAFETY: the caller guarantees that the program's channel is live, and the identifier's own
    // was created above.
    state.engine.migrate(unsafe { Channel::of(channel) }.engine());
    if was_sync {
        // SAFETY: the caller guarantees that `id` is live, as `acknowledge_own` requires.
        unsafe { acknowledge_own(id) };
    }
    // SAFETY: the caller guarantees that `id` is live.
    let old = unsafe { (*id).channel };
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    unsafe { (*id).channel = channel };
    state.sync.store(sync, Ordering::Release);
    if was_sync {
        // SAFETY: the old channel was the identifier's own, and nothing else uses it.
        unsafe { channel::destroy(old) };
    }
    // The program must acknowledge the events of the old channel before it gets any from the new
    // one.
    state.acks.wait();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program passes a live identifier, and a live channel or NULL.
    errno::minus_one(unsafe { migrate(id, channel) })
}

/// The port of an address in an identifier's structure, in network byte order.
///
/// # Safety
/// `address` must point to a union of a live identifier's structure.
unsafe fn port(address: *const sockaddr) -> u16 {
    // SAFETY: the caller guarantees that the union is live; it is large enough for every IP
    // address, and zero if it has none.
    unsafe { address::read(address) }.as_ref().map_or(0, SocketAddr::port).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes a live identifier.
    let source = unsafe { &raw const (*id).route.addr.__bindgen_anon_1 };
    // SAFETY: the address is inside the live identifier.
    unsafe { port(source.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes a live identifier.
    let destination = unsafe { &raw const (*id).route.addr.__bindgen_anon_2 };
    // SAFETY: the address is inside the live identifier.
    unsafe { port(destination.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_in_use_has_the_kernels_error() {
        let of = |error, at: &str| as_kernels(error, &at.parse().expect("an address"));
        assert_eq!(of(Errno::ADDRINUSE, "0.0.0.0:8080"), Errno::ADDRNOTAVAIL);
        assert_eq!(of(Errno::ADDRINUSE, "[::]:8080"), Errno::ADDRNOTAVAIL);
        assert_eq!(of(Errno::ADDRINUSE, "127.0.0.1:8080"), Errno::ADDRINUSE);
        assert_eq!(of(Errno::ACCESS, "0.0.0.0:80"), Errno::ACCESS);
    }
}
