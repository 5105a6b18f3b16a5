//! Work completions.

/// How a work request ended: `ibv_wc_status`, with the same values.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of ibv_poll_cq(3).
pub enum Status {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// The operation that completed: `ibv_wc_opcode`, with the same values.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Opcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 1 << 7,
    RecvRdmaWithImm = (1 << 7) + 1,
}

/// `IBV_WC_GRH`: the receive buffer starts with a 40-byte routing header.
pub const FLAG_GRH: u32 = 1;
/// `IBV_WC_WITH_IMM`: `imm_data` is valid.
pub const FLAG_WITH_IMM: u32 = 1 << 1;
/// `IBV_WC_WITH_INV`: `imm_data` is the key that the peer invalidated.
pub const FLAG_WITH_INV: u32 = 1 << 3;

/// Value of `sl` for a datagram that came over UDP and IPv4. UCX checks it.
pub const HEADER_IPV4: u8 = 8 | 2;
/// Value of `sl` for a datagram that came over UDP and IPv6.
pub const HEADER_IPV6: u8 = 8 | 1;

/// A completion; laid out as `struct ibv_wc`, so that polling can copy it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's identifier.
    pub wr_id: u64,
    /// How it ended. After an error only `wr_id`, `qp_num` and `vendor_err` are valid besides.
    pub status: Status,
    /// The operation.
    pub opcode: Opcode,
    /// The `errno` or protocol code behind an error, for diagnosis.
    pub vendor_err: u32,
    /// Number of bytes received, read, or changed.
    pub byte_len: u32,
    /// Immediate data as the peer's program stored it, or the invalidated key, depending on
    /// `wc_flags`.
    pub imm_data: u32,
    /// The local queue pair.
    pub qp_num: u32,
    /// The sender's queue pair (datagrams only).
    pub src_qp: u32,
    /// `FLAG_*`.
    pub wc_flags: u32,
    /// Always 0 here.
    pub pkey_index: u16,
    /// The sender's LID (datagrams only).
    pub slid: u16,
    /// For datagrams, the type of the routing header in front of them, encoded as network cards do
    /// (InfiniBand annex A17.4.5.1): [`HEADER_IPV4`] or [`HEADER_IPV6`]. Otherwise 0.
    pub sl: u8,
    /// Always 0 here.
    pub dlid_path_bits: u8,
}

impl Completion {
    /// A completion with every optional field zero.
    #[must_use]
    pub fn new(wr_id: u64, status: Status, opcode: Opcode, qp_num: u32) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm_data: 0,
            qp_num,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

const _: () = assert!(size_of::<Completion>() == 48);
