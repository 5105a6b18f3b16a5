//! The headers of responses, from the target (RFC 7143, section 11).

use super::{HEADER_LEN, NO_TAG};

/// The numbers that responses carry for flow control (RFC 7143, section 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// `StatSN`.
    pub status: u32,
    /// `ExpCmdSN`.
    pub expected_command: u32,
    /// `MaxCmdSN`.
    pub command_max: u32,
}

/// The header of a response, without the lengths of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// NOP-In (section 11.19).
    Nop(NopIn),
    /// SCSI Response (section 11.4).
    Scsi(ScsiResponse),
    /// Task Management Function Response (section 11.6).
    Task(TaskResponse),
    /// Login Response (section 11.13).
    Login(LoginResponse),
    /// Text Response (section 11.11).
    Text(TextResponse),
    /// SCSI Data-In (section 11.7).
    DataIn(DataIn),
    /// Logout Response (section 11.15).
    Logout(LogoutResponse),
    /// Ready To Transfer (section 11.8).
    R2t(R2t),
    /// Asynchronous Message (section 11.9).
    Async(AsyncMessage),
    /// Reject (section 11.17).
    Reject(Reject),
}

/// NOP-In.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// The tag of the NOP-Out that this answers, or `NO_TAG`.
    pub task: u32,
    /// The target's tag, `NO_TAG` if it wants no answer.
    pub transfer: u32,
    /// The LUN field of the NOP-Out.
    pub lun: [u8; 8],
}

/// SCSI Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiResponse {
    /// The task's tag.
    pub task: u32,
    /// The response: 0 completed, 1 target failure.
    pub response: u8,
    /// The SCSI status.
    pub status: u8,
    /// Bytes that were expected and not moved, or that were not expected.
    pub residual: Residual,
    /// `ExpDataSN`: Data-In and R2T PDUs that the target has sent for the command.
    pub data_pdus: u32,
}

/// How the data of a command differs from the expected length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// By nothing.
    None,
    /// This many bytes of the expected ones were not moved.
    Underflow(u32),
    /// This many bytes more would have been moved.
    Overflow(u32),
}

/// Task Management Function Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResponse {
    /// The request's tag.
    pub task: u32,
    /// The response, see [`task_response`].
    pub response: u8,
}

/// Login Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// The target goes to the next stage.
    pub transits: bool,
    /// The current stage.
    pub current: u8,
    /// The next stage.
    pub next: u8,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// The target's part.
    pub tsih: u16,
    /// The request's tag.
    pub task: u32,
    /// Status class and detail, see [`login_status`].
    pub status: u16,
}

/// Text Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// The target has no more text.
    pub is_final: bool,
    /// The text goes on in the next response.
    pub continues: bool,
    /// The request's LUN field.
    pub lun: [u8; 8],
    /// The request's tag.
    pub task: u32,
    /// The target's tag, `NO_TAG` in the final response.
    pub transfer: u32,
}

/// SCSI Data-In.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// The last PDU of its sequence.
    pub is_final: bool,
    /// The status of the command, if it goes with its last data.
    pub status: Option<u8>,
    /// As in a SCSI response.
    pub residual: Residual,
    /// The task's tag.
    pub task: u32,
    /// `DataSN`.
    pub number: u32,
    /// The offset of the data in the command's data.
    pub offset: u32,
}

/// Logout Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// The response, see [`logout_response`].
    pub response: u8,
    /// The request's tag.
    pub task: u32,
    /// Seconds before the initiator may connect again.
    pub time_to_wait: u16,
    /// Seconds for which tasks are kept.
    pub time_to_retain: u16,
}

/// Ready To Transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// The command's LUN field.
    pub lun: [u8; 8],
    /// The task's tag.
    pub task: u32,
    /// The target's tag, which the data carries.
    pub transfer: u32,
    /// `R2TSN`.
    pub number: u32,
    /// The offset of the wanted data in the command's data.
    pub offset: u32,
    /// The length of the wanted data in bytes.
    pub len: u32,
}

/// Asynchronous Message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncMessage {
    /// Event 0: sense data in the data segment, about the unit that a LUN field addresses.
    Sense {
        /// The LUN field.
        lun: [u8; 8],
    },
    /// Event 1: the target asks the initiator to log out.
    LogOut {
        /// Seconds that the initiator has.
        time: u16,
    },
}

/// Reject. Its data segment is the header of the rejected PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The reason, see [`reject_reason`].
    pub reason: u8,
}

impl Response {
    /// Builds the header, with the length of the data segment in bytes.
    #[must_use]
    pub fn header(&self, sequence: Sequence, data_len: usize) -> [u8; HEADER_LEN] {
        let mut header = Header([0; HEADER_LEN]);
        header.u8(1, 0x80);
        header.0[5..8].copy_from_slice(&(data_len as u32).to_be_bytes()[1..]);
        header.u32(24, sequence.status);
        header.u32(28, sequence.expected_command);
        header.u32(32, sequence.command_max);
        match *self {
            Self::Nop(nop) => {
                header.u8(0, 0x20);
                header.lun(nop.lun);
                header.u32(16, nop.task);
                header.u32(20, nop.transfer);
            }
            Self::Scsi(response) => {
                header.u8(0, 0x21);
                header.residual(response.residual);
                header.u8(2, response.response);
                header.u8(3, response.status);
                header.u32(16, response.task);
                header.u32(36, response.data_pdus);
            }
            Self::Task(response) => {
                header.u8(0, 0x22);
                header.u8(2, response.response);
                header.u32(16, response.task);
            }
            Self::Login(response) => {
                header.u8(0, 0x23);
                let transits = u8::from(response.transits) << 7;
                let next = if response.transits { response.next } else { 0 };
                header.u8(1, transits | response.current << 2 | next);
                header.0[8..14].copy_from_slice(&response.isid);
                header.u16(14, response.tsih);
                header.u32(16, response.task);
                header.u16(36, response.status);
            }
            Self::Text(response) => {
                header.u8(0, 0x24);
                let is_final = u8::from(response.is_final) << 7;
                header.u8(1, is_final | u8::from(response.continues) << 6);
                header.lun(response.lun);
                header.u32(16, response.task);
                header.u32(20, response.transfer);
            }
            Self::DataIn(data) => header.data_in(&data),
            Self::Logout(response) => {
                header.u8(0, 0x26);
                header.u8(2, response.response);
                header.u32(16, response.task);
                header.u16(40, response.time_to_wait);
                header.u16(42, response.time_to_retain);
            }
            Self::R2t(r2t) => {
                header.u8(0, 0x31);
                header.lun(r2t.lun);
                header.u32(16, r2t.task);
                header.u32(20, r2t.transfer);
                header.u32(36, r2t.number);
                header.u32(40, r2t.offset);
                header.u32(44, r2t.len);
            }
            Self::Async(message) => {
                header.u8(0, 0x32);
                header.u32(16, NO_TAG);
                match message {
                    AsyncMessage::Sense { lun } => header.lun(lun),
                    AsyncMessage::LogOut { time } => {
                        header.u8(36, 1);
                        header.u16(42, time);
                    }
                }
            }
            Self::Reject(reject) => {
                header.u8(0, 0x3f);
                header.u8(2, reject.reason);
                header.u32(16, NO_TAG);
            }
        }
        header.0
    }
}

struct Header([u8; HEADER_LEN]);

impl Header {
    fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    fn lun(&mut self, lun: [u8; 8]) {
        self.0[8..16].copy_from_slice(&lun);
    }

    fn residual(&mut self, residual: Residual) {
        let (flag, count) = match residual {
            Residual::None => return,
            Residual::Underflow(count) => (0x02, count),
            Residual::Overflow(count) => (0x04, count),
        };
        self.0[1] |= flag;
        self.u32(44, count);
    }

    fn data_in(&mut self, data: &DataIn) {
        self.u8(0, 0x25);
        self.u8(1, u8::from(data.is_final) << 7);
        match data.status {
            Some(status) => {
                self.0[1] |= 0x01;
                self.u8(3, status);
                self.residual(data.residual);
            }
            // StatSN is reserved without a status.
            None => self.u32(24, 0),
        }
        self.u32(16, data.task);
        self.u32(20, NO_TAG);
        self.u32(36, data.number);
        self.u32(40, data.offset);
    }
}

/// Login status, class and detail (RFC 7143, section 11.13.5).
pub mod login_status {
    /// Proceed, or full feature phase.
    pub const SUCCESS: u16 = 0x0000;
    /// The initiator made an error that no other code describes.
    pub const INITIATOR_ERROR: u16 = 0x0200;
    /// The initiator could not be authenticated.
    pub const AUTHENTICATION_FAILURE: u16 = 0x0201;
    /// The initiator may not use the target.
    pub const AUTHORIZATION_FAILURE: u16 = 0x0202;
    /// There is no such target.
    pub const NOT_FOUND: u16 = 0x0203;
    /// The version is not supported.
    pub const UNSUPPORTED_VERSION: u16 = 0x0205;
    /// The session has as many connections as it may have.
    pub const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    /// A name is missing.
    pub const MISSING_PARAMETER: u16 = 0x0207;
    /// The connection cannot be one of this session.
    pub const CANNOT_JOIN: u16 = 0x0208;
    /// The session type is not supported.
    pub const SESSION_TYPE_NOT_SUPPORTED: u16 = 0x0209;
    /// There is no such session.
    pub const SESSION_DOES_NOT_EXIST: u16 = 0x020a;
    /// The target has an error of its own.
    pub const TARGET_ERROR: u16 = 0x0300;
    /// The target has no room for another session.
    pub const OUT_OF_RESOURCES: u16 = 0x0302;

    /// The meaning of a status, for people.
    #[must_use]
    pub fn meaning(status: u16) -> &'static str {
        match status {
            SUCCESS => "success",
            AUTHENTICATION_FAILURE => "the initiator has not proven who it is",
            AUTHORIZATION_FAILURE => "the initiator may not use the target",
            NOT_FOUND => "the initiator's address has no target of this name",
            UNSUPPORTED_VERSION => "the version is not supported",
            TOO_MANY_CONNECTIONS => "the session has too many connections",
            CANNOT_JOIN => "the connection cannot be one of this session",
            MISSING_PARAMETER => "a name is missing",
            SESSION_TYPE_NOT_SUPPORTED => "the session type is not supported",
            SESSION_DOES_NOT_EXIST => "there is no such session",
            TARGET_ERROR => "the target has no random numbers",
            OUT_OF_RESOURCES => "there are too many sessions, or the text is too long",
            _ => "the request is wrong",
        }
    }
}

/// Responses to task management (RFC 7143, section 11.6.1).
pub mod task_response {
    /// The function is complete.
    pub const COMPLETE: u8 = 0;
    /// There is no such task.
    pub const NO_TASK: u8 = 1;
    /// There is no such unit.
    pub const NO_UNIT: u8 = 2;
    /// The target cannot move a task to another connection.
    pub const NO_REASSIGNMENT: u8 = 4;
    /// The function is not supported.
    pub const NOT_SUPPORTED: u8 = 5;
}

/// Responses to a logout (RFC 7143, section 11.15.1).
pub mod logout_response {
    /// Connection or session are closed.
    pub const CLOSED: u8 = 0;
    /// There is no connection with this number.
    pub const NO_CONNECTION: u8 = 1;
    /// Connection recovery is not supported.
    pub const NO_RECOVERY: u8 = 2;
}

/// Reasons of a Reject (RFC 7143, section 11.17.1).
pub mod reject_reason {
    /// A SNACK cannot be answered.
    pub const SNACK: u8 = 0x03;
    /// The request is none that may come here.
    pub const PROTOCOL_ERROR: u8 = 0x04;
    /// The request is not supported.
    pub const NOT_SUPPORTED: u8 = 0x05;
    /// The initiator sends too many immediate commands.
    pub const IMMEDIATE: u8 = 0x06;
    /// The task is in progress.
    pub const TASK_IN_PROGRESS: u8 = 0x07;
    /// Out of resources.
    pub const OUT_OF_RESOURCES: u8 = 0x0a;
}
