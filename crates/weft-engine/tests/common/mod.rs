//! What the engine's tests share: a device, memory, connected queue pairs, polling with a deadline.
#![allow(unsafe_code, dead_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_engine::access::Access;
use weft_engine::cq::Cq;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_engine::qp::{
    AddressVector, AttrMask, GlobalRoute, Qp, QpAttr, QpCap, QpInit, QpState, QpType,
};
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{RecvRequest, SendRequest, Sge};
use weft_engine::{Context, device};
use weft_sys::Region;

/// How long a completion may take on a busy machine before the test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device with a protection domain.
pub struct Host {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
}

impl Host {
    pub fn new() -> Self {
        let devices = device::list().expect("interfaces are listed");
        let loopback = devices.iter().find(|device| device.loopback).expect("a loopback interface");
        let context = Context::open(loopback).expect("the device opens");
        let pd = Pd::new(&context);
        Self { context, pd }
    }

    pub fn endpoint(&self) -> Endpoint {
        let cq = || Cq::new(&self.context, 1024, None).expect("a completion queue");
        let (send_cq, recv_cq) = (cq(), cq());
        let cap = QpCap {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            srq: None,
            cap,
            sq_sig_all: false,
        };
        let qp = Qp::new(&self.pd, init).expect("a queue pair");
        Endpoint { qp, send_cq, recv_cq }
    }
}

/// A queue pair with its completion queues.
pub struct Endpoint {
    pub qp: Arc<Qp>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
}

impl Endpoint {
    pub fn post(&self, request: &SendRequest<'_>) {
        self.qp.start_post().push(request).expect("room in the send queue");
    }

    pub fn receive(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(&RecvRequest { wr_id, sges }).expect("room in the receive queue");
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.qp.destroy();
    }
}

/// Registered memory.
pub struct Memory {
    bytes: Box<[UnsafeCell<u64>]>,
    len: usize,
    pub mr: Arc<Mr>,
}

impl Memory {
    pub fn new(host: &Host, len: usize, access: Access) -> Self {
        let bytes: Box<[_]> = (0..len.div_ceil(8)).map(|_| UnsafeCell::new(0)).collect();
        // SAFETY: the memory lives as long as the region is registered (see `drop`), and the cells
        // allow it to change behind shared references.
        let region = unsafe { Region::new(bytes.as_ptr() as usize, len) }.expect("no wrap");
        let iova = bytes.as_ptr() as u64;
        let mr = Mr::register(&host.pd, region, iova, access).expect("registered");
        Self { bytes, len, mr }
    }

    pub fn key(&self) -> u32 {
        self.mr.key()
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.bytes.as_ptr() as u64 + offset as u64
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr(offset), length: length as u32, lkey: self.key() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: the memory is ours, and the tests read it only after the completions.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }.to_vec()
    }

    pub fn fill(&self, value: impl Fn(usize) -> u8) {
        for offset in 0..self.len {
            // SAFETY: in bounds, and nothing else uses the memory now.
            unsafe { self.bytes.as_ptr().cast_mut().cast::<u8>().add(offset).write(value(offset)) }
        }
    }

    pub fn u64(&self, offset: usize) -> u64 {
        let bytes = self.bytes();
        u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
    }

    pub fn set_u64(&self, offset: usize, value: u64) {
        let bytes = value.to_ne_bytes();
        // SAFETY: in bounds, and nothing else uses the memory now.
        unsafe {
            let place = self.bytes.as_ptr().cast_mut().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, 8);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.mr.deregister().expect("no window is bound");
    }
}

/// Brings both queue pairs to RTS with each other as peer.
pub fn connect(a: &Endpoint, b: &Endpoint) {
    for end in [a, b] {
        end.qp.modify(&init_attr(), init_mask()).expect("INIT");
        if std::ptr::eq(a, b) {
            break;
        }
    }
    for (end, peer) in [(a, b), (b, a)] {
        to_rts(&end.qp, peer.qp.identity().gid, peer.qp.number());
        if std::ptr::eq(a, b) {
            break;
        }
    }
}

pub fn init_attr() -> QpAttr {
    let qp_access_flags = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    QpAttr { qp_state: QpState::Init, qp_access_flags, port_num: 1, ..QpAttr::default() }
}

pub fn init_mask() -> AttrMask {
    AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS
}

pub fn to_rts(qp: &Arc<Qp>, dgid: [u8; 16], dest_qp_num: u32) {
    let global = Some(GlobalRoute { dgid, ..GlobalRoute::default() });
    let rtr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 5,
        dest_qp_num,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        ah_attr: AddressVector { global, port_num: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    qp.modify(&rtr, mask).expect("RTR");
    let rts = QpAttr {
        qp_state: QpState::Rts,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    qp.modify(&rts, mask).expect("RTS");
}

/// The next completion.
pub fn poll_one(cq: &Arc<Cq>) -> Completion {
    let deadline = Instant::now() + PATIENCE;
    let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0)];
    while cq.poll(&mut space) == 0 {
        assert!(Instant::now() < deadline, "no completion came");
    }
    space[0]
}

/// What completes within a short time, at most `count`.
pub fn poll_some(cq: &Arc<Cq>, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + Duration::from_millis(50);
    let mut found = Vec::new();
    let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0)];
    while found.len() < count && Instant::now() < deadline {
        if cq.poll(&mut space) == 1 {
            found.push(space[0]);
        }
    }
    found
}
