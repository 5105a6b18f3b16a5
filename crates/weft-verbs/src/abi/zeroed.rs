//! Zero-initialised structures of the C ABI.
//!
//! # Safety
//! [`Zeroable`] is implemented only for structures of integers, pointers, optional function
//! pointers, and arrays and unions of those. Zero bytes are a valid value of each.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use super::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_context, ibv_context_ops, ibv_cq, ibv_cq_ex,
    ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_mr, ibv_mw, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_td, verbs_context,
};

/// A type for which zero bytes are a valid value.
///
/// # Safety
/// Zero bytes must be a valid value of the type.
pub(crate) unsafe trait Zeroable: Sized {}

macro_rules! zeroable {
    ($($name:ident)*) => { $(
        // SAFETY: the structure consists of integers, pointers and optional function pointers, for
        // all of which zero bytes are a valid value.
        unsafe impl Zeroable for $name {}
    )* };
}

zeroable! {
    ibv_ah ibv_ah_attr ibv_async_event ibv_context ibv_context_ops ibv_cq ibv_cq_ex ibv_device
    ibv_device_attr ibv_device_attr_ex ibv_mr ibv_mw ibv_pd ibv_port_attr ibv_qp ibv_qp_attr
    ibv_qp_ex ibv_qp_init_attr ibv_srq ibv_srq_attr ibv_td verbs_context
}

/// Returns a structure with every byte zero.
pub(crate) fn zeroed<T: Zeroable>() -> T {
    // SAFETY: `T: Zeroable` guarantees that zero bytes are a valid `T`.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
