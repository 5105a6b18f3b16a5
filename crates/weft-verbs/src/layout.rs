//! Compile-time checks that structures which are cast to each other have the same layout.

use std::mem::offset_of;

use weft_engine::wc::Completion;
use weft_engine::wr::Sge;

use crate::abi::{
    ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_sge, ibv_wc,
};

macro_rules! same_offsets {
    ($ours:ty, $theirs:ty: $($field:ident)*) => { $(
        const _: () = assert!(offset_of!($ours, $field) == offset_of!($theirs, $field));
    )* };
}

// The engine writes completions directly to a program's array of `ibv_wc`.
const _: () = assert!(size_of::<Completion>() == size_of::<ibv_wc>());
const _: () = assert!(align_of::<Completion>() == align_of::<ibv_wc>());
same_offsets!(Completion, ibv_wc: wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags
    pkey_index slid sl dlid_path_bits);
const _: () = assert!(offset_of!(Completion, imm_data) == offset_of!(ibv_wc, __bindgen_anon_1));

// The engine reads a program's scatter/gather lists in place.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());
const _: () = assert!(align_of::<Sge>() == align_of::<ibv_sge>());
same_offsets!(Sge, ibv_sge: addr length lkey);

// The extended structures begin with the fields of the plain ones.
const _: () = assert!(offset_of!(ibv_qp_ex, qp_base) == 0);
const _: () = assert!(size_of::<ibv_qp>() <= size_of::<ibv_qp_ex>());
same_offsets!(ibv_cq, ibv_cq_ex: context channel cq_context handle cqe mutex cond
    comp_events_completed async_events_completed);
same_offsets!(ibv_qp_init_attr, ibv_qp_init_attr_ex: qp_context send_cq recv_cq srq cap qp_type
    sq_sig_all);
