//! iSCSI's formats (RFC 7143, section 11): headers of PDUs, text, and the framing of a byte stream.
//! All numbers are big-endian.

mod binary;
mod frame;
mod request;
mod response;
mod send_buffer;
mod text;

pub use binary::{binary, parse_binary};
pub use frame::{Digests, FrameError, Framer, Pdu, append, append_with};
pub use request::{
    DataOut, Login, Logout, NopOut, PduLen, Request, ScsiCommand, Snack, TaskRequest, Text,
    Unparsed, pdu_len,
};
pub use response::{
    AsyncMessage, DataIn, LoginResponse, LogoutResponse, NopIn, R2t, Reject, Residual, Response,
    ScsiResponse, Sequence, TaskResponse, TextResponse, login_status, logout_response,
    reject_reason, task_response,
};
pub use send_buffer::SendBuffer;
pub use text::{TextError, pairs, push_pair};

/// The length of a basic header segment (RFC 7143, section 11.2).
pub const HEADER_LEN: usize = 48;
/// A tag that names no task.
pub const NO_TAG: u32 = 0xffff_ffff;

/// The number of a unit in the 8 bytes of a LUN field, in the addressing methods "peripheral
/// device" and "flat space" (SAM-5, section 4.7).
///
/// `None` if the field has levels below the first one, another method, or another bus.
#[must_use]
pub fn unit_number(lun: [u8; 8]) -> Option<u16> {
    let [first, second, rest @ ..] = lun;
    match first >> 6 {
        _ if rest != [0; 6] => None,
        0 if first == 0 => Some(u16::from(second)),
        1 => Some(u16::from(first & 0x3f) << 8 | u16::from(second)),
        _ => None,
    }
}

/// The LUN field of the unit with this number, which is below 256.
#[must_use]
pub fn lun_field(number: u8) -> [u8; 8] {
    [0, number, 0, 0, 0, 0, 0, 0]
}
