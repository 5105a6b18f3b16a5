//! Device and port queries: attributes, and the GID and P_Key tables.
//!
//! # Safety
//! A program passes valid pointers for results. A size that it passes with a pointer is the size of
//! its version of the structure.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use weft_engine::device::Gid;
use weft_engine::{Errno, Result, clock, limits};

use crate::abi::{
    _compat_ibv_port_attr, IBV_ATOMIC_HCA, IBV_DEVICE_CURR_QP_STATE_MOD,
    IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_DEVICE_UD_AV_PORT_ENFORCE, IBV_DEVICE_XRC, IBV_LINK_LAYER_ETHERNET, IBV_MTU_4096,
    IBV_PORT_ACTIVE, IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS, IBV_VALUES_MASK_RAW_CLOCK, fill,
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_gid_type,
    ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex, zeroed,
};
use crate::context::Context;
use crate::device::Device;
use crate::errno;
use crate::presentation::Presentation;

/// The number of a device's only port.
pub(crate) const PORT: u8 = 1;
/// The only P_Key: full member of the default partition.
const PKEY: u16 = 0xffff;
/// The vendor ID "no OUI", which other software devices report as well.
const VENDOR: u32 = 0x00ff_ffff;
/// Width 1X in the `active_width` encoding.
const WIDTH_1X: u8 = 1;
/// FDR10, 10.3125 Gb/s per lane with 64/66 coding, in the `active_speed` encoding. The speed is
/// moderate, so that programs which rank transports by it (UCX) do not prefer this device to shared
/// memory.
const SPEED_FDR10: u8 = 8;
/// LinkUp in the `phys_state` encoding.
const PHYS_LINK_UP: u8 = 5;
/// The device's acknowledgement delay as a timeout exponent: 4.096 us << 16 is 268 ms.
const ACK_DELAY: u8 = 16;
const PAGE_SIZES: u64 = 0xffff_f000;

fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

fn device_attributes(device: &Device) -> ibv_device_attr {
    let guid = device.engine().guid().to_be();
    let reads = c_int::from(limits::READ_DEPTH_MAX);
    let mut attributes = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits::MR_SIZE_MAX,
        page_size_cap: PAGE_SIZES,
        vendor_id: VENDOR,
        max_qp: int(limits::OBJECTS_MAX),
        max_qp_wr: int(limits::QP_WR_MAX),
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_XRC
            | IBV_DEVICE_UD_AV_PORT_ENFORCE
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: int(limits::SGE_MAX),
        max_sge_rd: int(limits::SGE_MAX),
        max_cq: int(limits::OBJECTS_MAX),
        max_cqe: int(limits::CQE_MAX),
        max_mr: int(limits::MR_MAX),
        max_pd: int(limits::OBJECTS_MAX),
        max_qp_rd_atom: reads,
        max_res_rd_atom: reads.saturating_mul(int(limits::OBJECTS_MAX)),
        max_qp_init_rd_atom: reads,
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: int(limits::MR_MAX),
        max_ah: int(limits::OBJECTS_MAX),
        max_mcast_grp: int(limits::MULTICAST_GROUPS_MAX),
        max_mcast_qp_attach: int(limits::MULTICAST_QPS_MAX),
        max_total_mcast_qp_attach: int(limits::MULTICAST_GROUPS_MAX * limits::MULTICAST_QPS_MAX),
        max_srq: int(limits::OBJECTS_MAX),
        max_srq_wr: int(limits::QP_WR_MAX),
        max_srq_sge: int(limits::SGE_MAX),
        max_pkeys: 1,
        local_ca_ack_delay: ACK_DELAY,
        phys_port_cnt: PORT,
        ..zeroed()
    };
    fill(&mut attributes.fw_ver, env!("CARGO_PKG_VERSION"));
    attributes
}

fn port_attributes(device: &Device) -> ibv_port_attr {
    ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: c_int::try_from(device.engine().addresses.len()).unwrap_or(c_int::MAX),
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: limits::MESSAGE_MAX,
        pkey_tbl_len: 1,
        lid: device.engine().lid(),
        max_vl_num: 1,
        active_width: WIDTH_1X,
        active_speed: SPEED_FDR10,
        phys_state: PHYS_LINK_UP,
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        ..zeroed()
    }
}

/// Copies a structure to a program whose version of it has `size` bytes. Cuts ours if it is longer,
/// and fills the rest with zeros if it is shorter.
///
/// # Safety
/// `to` must point to `size` writable bytes.
unsafe fn copy_sized<T: Copy>(from: &T, to: *mut T, size: usize) {
    // SAFETY: the caller guarantees `size` writable bytes.
    unsafe { ptr::write_bytes(to.cast::<u8>(), 0, size) };
    let common = size.min(size_of::<T>());
    // SAFETY: `common` is at most the size of either side, and a reference to our own structure
    // does not overlap the program's memory.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast(), common) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the program passes an open context.
    let context = unsafe { Context::of(context) };
    // SAFETY: the program passes `attributes` as a valid pointer for the result.
    unsafe { attributes.write(device_attributes(context.device())) };
    0
}

/// `ibv_query_device_ex`; `size` is the size of the program's `ibv_device_attr_ex`.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attributes: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the program passes NULL or a pointer to a valid structure.
    let asked = unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask);
    if asked != 0 || size < offset_of!(ibv_device_attr_ex, odp_caps) {
        return errno::returned(Err(Errno::INVAL));
    }
    // SAFETY: the program passes an open context.
    let context = unsafe { Context::of(context) };
    let orig_attr = device_attributes(context.device());
    let answer = ibv_device_attr_ex {
        orig_attr,
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags),
        phys_port_cnt_ex: u32::from(PORT),
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: clock::KHZ,
        max_dm_size: limits::DEVICE_MEMORY_MAX as u64,
        ..zeroed()
    };
    // SAFETY: the program passes the size of its structure, so that this many bytes can be written.
    unsafe { copy_sized(&answer, attributes, size) };
    0
}

/// `ibv_query_rt_values_ex`: the current time of the clock that time-stamps completions.
pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the program passes `values` as a pointer to a valid structure.
    let values = unsafe { &mut *values };
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    if values.comp_mask != 0 {
        let now = clock::now();
        values.raw_clock = libc::timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec };
    }
    0
}

/// `ibv_query_port` with the size of the program's `ibv_port_attr`.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    if port != PORT {
        return errno::returned(Err(Errno::INVAL));
    }
    // SAFETY: the program passes an open context.
    let context = unsafe { Context::of(context) };
    // SAFETY: the program passes the size of its structure, so that this many bytes can be written.
    unsafe { copy_sized(&port_attributes(context.device()), attributes, size) };
    0
}

/// `ibv_query_port` for programs built before `ibv_port_attr` grew.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut _compat_ibv_port_attr,
) -> c_int {
    let size = offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the program passes an open context and its old structure, which has the same fields
    // as today's up to this one.
    unsafe { query_port(context, port, attributes.cast(), size) }
}

/// Returns an entry of the GID table.
///
/// # Errors
/// `EINVAL` for a port that does not exist, `ENODATA` for an index past the end of the table.
pub(crate) fn gid(device: &Device, port: u32, index: u32) -> Result<Gid> {
    if port != u32::from(PORT) {
        return Err(Errno::INVAL);
    }
    let gids = device.engine().gids();
    usize::try_from(index).ok().and_then(|index| gids.get(index).copied()).ok_or(Errno::NODATA)
}

fn gid_entry(device: &Device, gid: Gid, index: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid },
        gid_index: index,
        port_num: u32::from(PORT),
        gid_type: Presentation::get().gid_type(),
        ndev_ifindex: device.engine().index,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    result: *mut ibv_gid,
) -> c_int {
    // SAFETY: the program passes an open context.
    let context = unsafe { Context::of(context) };
    let index = u32::try_from(index).map_err(|_| Errno::INVAL);
    let found = index.and_then(|index| gid(context.device(), u32::from(port), index));
    errno::minus_one(found.map(|raw| {
        // SAFETY: the program passes `result` as a valid pointer for the result.
        unsafe { result.write(ibv_gid { raw }) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 {
        return errno::returned(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: the program passes an open context.
    let device = unsafe { Context::of(context) }.device();
    errno::returned(gid(device, port, index).map(|gid| {
        // SAFETY: the program passes the size of its structure, so that this many bytes can be
        // written.
        unsafe { copy_sized(&gid_entry(device, gid, index), entry, size) }
    }))
}

/// Returns the number of entries, or a negative `errno`: `EINVAL` if `room` is too small.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let failure = |error: Errno| error.raw_os_error().wrapping_neg() as isize;
    if flags != 0 {
        return failure(Errno::OPNOTSUPP);
    }
    // SAFETY: the program passes an open context.
    let device = unsafe { Context::of(context) }.device();
    let gids = device.engine().gids();
    if gids.len() > room {
        return failure(Errno::INVAL);
    }
    for (index, &gid) in (0u32..).zip(&gids) {
        // SAFETY: `index` is below `room`, and the program passes `room` entries of `size` bytes.
        let place = unsafe { entries.byte_add(index as usize * size) };
        // SAFETY: `index` is below `room`, and the program passes `room` entries of `size` bytes.
        unsafe { copy_sized(&gid_entry(device, gid, index), place, size) };
    }
    isize::try_from(gids.len()).unwrap_or(isize::MAX)
}

/// Returns the type of a GID, for `ibv_devinfo` and pyverbs: 0 for InfiniBand and RoCE v1, 1 for
/// RoCE v2.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    result: *mut ibv_gid_type,
) -> c_int {
    // SAFETY: the program passes an open context.
    let device = unsafe { Context::of(context) }.device();
    errno::minus_one(gid(device, u32::from(port), index).map(|_| {
        let is_v2 = Presentation::get() == Presentation::Roce;
        // SAFETY: the program passes `result` as a valid pointer for the result.
        unsafe { result.write(ibv_gid_type::from(is_v2)) }
    }))
}

/// Returns the P_Key in network byte order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    result: *mut u16,
) -> c_int {
    if port != PORT || index != 0 {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: the program passes `result` as a valid pointer for the result.
    unsafe { result.write(PKEY.to_be()) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if port == PORT && pkey == PKEY.to_be() { 0 } else { errno::minus_one(Err(Errno::INVAL)) }
}
