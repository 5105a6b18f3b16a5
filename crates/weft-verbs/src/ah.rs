//! Address handles.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use weft_engine::device::Gid;
use weft_engine::qp::{AddressVector, GlobalRoute};
use weft_engine::ud::AddressHandle;
use weft_engine::wr::Destination;
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd,
    ibv_wc, zeroed,
};
use crate::context::Context;
use crate::device::Device;
use crate::errno;
use crate::object::{self, AbiState};
use crate::pd::{Pd, Use};

/// The state of an `ibv_ah`.
#[derive(Debug)]
pub(crate) struct Ah {
    engine: Arc<AddressHandle>,
    _pd: Use,
}

impl AbiState for Ah {
    type C = ibv_ah;
}

/// The engine's form of the destination of a datagram.
///
/// # Errors
/// `EINVAL` if `ah` is NULL.
///
/// # Safety
/// `ah` must be live or NULL.
pub(crate) unsafe fn destination(ah: *mut ibv_ah, qp_num: u32, qkey: u32) -> Result<Destination> {
    if ah.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that `ah` is live.
    let engine = Arc::clone(&unsafe { object::object::<Ah>(ah) }.engine);
    Ok(Destination { ah: engine, qp_num, qkey })
}

/// The bytes of a GID.
pub(crate) fn gid_bytes(gid: &ibv_gid) -> Gid {
    // SAFETY: both variants of the union are 16 plain bytes.
    unsafe { gid.raw }
}

/// Converts a `struct ibv_ah_attr` to the engine's address vector.
pub(crate) fn vector_of(attr: &ibv_ah_attr) -> AddressVector {
    let global = (attr.is_global != 0).then(|| GlobalRoute {
        dgid: gid_bytes(&attr.grh.dgid),
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    });
    AddressVector { global, dlid: attr.dlid, sl: attr.sl, port_num: attr.port_num }
}

/// Converts an address vector to a `struct ibv_ah_attr`.
pub(crate) fn attr_of(vector: &AddressVector) -> ibv_ah_attr {
    let mut attr: ibv_ah_attr = zeroed();
    attr.dlid = vector.dlid;
    attr.sl = vector.sl;
    attr.port_num = vector.port_num;
    if let Some(route) = vector.global {
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: route.dgid },
            flow_label: route.flow_label,
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        };
    }
    attr
}

unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) };
    let context = domain.context();
    let engine = AddressHandle::new(domain.engine(), &vector_of(attr))?;
    let c = ibv_ah { context, pd, handle: 0 };
    Ok(object::create(c, Ah { engine, _pd: domain.hold() }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &*attr };
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(pd, attr) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the program passes a live address handle and does not use it after this call.
    unsafe { object::destroy::<Ah>(ah) };
    0
}

/// The address vector for an answer to the sender of a datagram.
///
/// # Errors
/// `EPROTONOSUPPORT` for a header that is neither IPv4 nor IPv6; `EINVAL` if the datagram was not
/// sent to one of this device's addresses.
fn reply_attr(device: &Device, port: u8, wc: &ibv_wc, grh: &ibv_grh) -> Result<ibv_ah_attr> {
    let mut attr: ibv_ah_attr = zeroed();
    attr.dlid = wc.slid;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    // With a routing header `wc.sl` is the kind of the header, not a service level.
    if wc.wc_flags & IBV_WC_GRH == 0 {
        attr.sl = wc.sl;
    } else {
        let route = Route::of(grh)?;
        let own = device.engine().gids().iter().position(|&gid| gid == route.to);
        let index = own.and_then(|index| u8::try_from(index).ok()).ok_or(Errno::INVAL)?;
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: route.from },
            flow_label: u32::from_be(grh.version_tclass_flow) & 0xf_ffff,
            sgid_index: index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        };
    }
    Ok(attr)
}

/// The addresses and IP fields in the global routing header, the 40 bytes before a datagram.
struct Route {
    from: Gid,
    to: Gid,
    hop_limit: u8,
    traffic_class: u8,
}

impl Route {
    fn of(grh: &ibv_grh) -> Result<Self> {
        let first = u32::from_be(grh.version_tclass_flow);
        let ipv4 = ipv4_header(grh);
        // RoCEv2 over IPv4 leaves the first 20 bytes undefined, so that they may look like IPv6:
        // a correct checksum decides (InfiniBand annex A17.4.5.2).
        let is_ipv4 = if first >> 28 == 6 {
            ipv4[0] == 0x45 && ipv4_checksum_is_right(&ipv4)
        } else {
            ipv4[0] >> 4 == 4
        };
        if is_ipv4 {
            let mapped = |octets: &[u8]| {
                let mut gid = [0; 16];
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(octets);
                gid
            };
            let (from, to) = (mapped(&ipv4[12..16]), mapped(&ipv4[16..20]));
            Ok(Self { from, to, hop_limit: ipv4[8], traffic_class: ipv4[1] })
        } else if first >> 28 == 6 {
            let (from, to) = (gid_bytes(&grh.sgid), gid_bytes(&grh.dgid));
            let traffic_class = (first >> 20) as u8;
            Ok(Self { from, to, hop_limit: grh.hop_limit, traffic_class })
        } else {
            Err(Errno::PROTONOSUPPORT)
        }
    }
}

/// The last 20 bytes of the routing header, where RoCEv2 puts an IPv4 header.
fn ipv4_header(grh: &ibv_grh) -> [u8; 20] {
    let (sgid, dgid) = (gid_bytes(&grh.sgid), gid_bytes(&grh.dgid));
    let mut header = [0; 20];
    header[..4].copy_from_slice(&sgid[12..]);
    header[4..].copy_from_slice(&dgid);
    header
}

fn ipv4_checksum_is_right(header: &[u8; 20]) -> bool {
    let words = header.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the program passes an open context.
    let device = unsafe { Context::of(context) }.device();
    // SAFETY: the program passes `wc` as a pointer to a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: the program passes the address of the 40 bytes before the datagram in its buffer,
    // which need not be aligned.
    let grh = unsafe { grh.read_unaligned() };
    errno::minus_one(reply_attr(device, port, wc, &grh).map(|answer| {
        // SAFETY: the program passes `attr` as a valid pointer for the result.
        unsafe { attr.write(answer) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr: ibv_ah_attr = zeroed();
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) };
    let context = domain.context();
    // SAFETY: the program passes live objects and valid pointers, and `attr` is a local variable.
    if unsafe { ibv_init_ah_from_wc(context, port, wc, grh, &raw mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the program passes live objects and valid pointers, and `attr` is a local variable.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grh(bytes: [u8; 40]) -> ibv_grh {
        let part = |at: usize| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&bytes[at..at + 16]);
            ibv_gid { raw: gid }
        };
        ibv_grh {
            version_tclass_flow: u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            paylen: 0,
            next_hdr: bytes[6],
            hop_limit: bytes[7],
            sgid: part(8),
            dgid: part(24),
        }
    }

    #[test]
    fn an_ipv4_header_is_found_in_the_last_20_bytes() {
        let mut bytes = [0; 40];
        bytes[0] = 0x60; // as IPv6 would begin
        bytes[20..].copy_from_slice(&[
            0x45, 0x02, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 2, 3, 10, 1, 2, 4,
        ]);
        let sum: u32 =
            bytes[20..].chunks_exact(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("16 bits");
        bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
        let route = Route::of(&grh(bytes)).expect("IPv4");
        assert_eq!(route.from[10..], [0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(route.to[10..], [0xff, 0xff, 10, 1, 2, 4]);
        assert_eq!((route.hop_limit, route.traffic_class), (64, 2));

        bytes[30] ^= 1; // a wrong checksum: the header counts as IPv6
        assert_eq!(Route::of(&grh(bytes)).expect("IPv6").from[..12], bytes[8..20]);
        bytes[0] = 0x10;
        bytes[20] = 0x15;
        assert!(Route::of(&grh(bytes)).is_err());
    }

    #[test]
    fn address_vectors_round_trip_through_c() {
        let route =
            GlobalRoute { dgid: [7; 16], flow_label: 1, sgid_index: 2, ..Default::default() };
        let vector = AddressVector { global: Some(route), dlid: 3, sl: 4, port_num: 1 };
        assert_eq!(vector_of(&attr_of(&vector)), vector);
    }
}
