//! The headers of requests, from an initiator (RFC 7143, section 11).

use super::HEADER_LEN;
use crate::bytes::{be16, be24, be32, part};

/// A parsed header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// NOP-Out (section 11.18).
    Nop(NopOut),
    /// SCSI Command (section 11.3).
    Scsi(ScsiCommand),
    /// Task Management Function Request (section 11.5).
    Task(TaskRequest),
    /// Login Request (section 11.12).
    Login(Login),
    /// Text Request (section 11.10).
    Text(Text),
    /// SCSI Data-Out (section 11.7).
    DataOut(DataOut),
    /// Logout Request (section 11.14).
    Logout(Logout),
    /// SNACK Request (section 11.16).
    Snack(Snack),
}

/// A header whose operation code is not one of an initiator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unparsed {
    /// The operation code.
    pub opcode: u8,
}

/// NOP-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// The request is immediate: its command number is not counted.
    pub is_immediate: bool,
    /// The LUN field.
    pub lun: [u8; 8],
    /// The initiator's task tag, `NO_TAG` if it wants no answer.
    pub task: u32,
    /// The target's transfer tag, if it answers a NOP-In.
    pub transfer: u32,
    /// `CmdSN`.
    pub command_number: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
}

/// SCSI Command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// The request is immediate: its command number is not counted.
    pub is_immediate: bool,
    /// No unsolicited Data-Out PDUs follow.
    pub is_final: bool,
    /// The initiator expects data.
    pub reads: bool,
    /// The initiator sends data.
    pub writes: bool,
    /// The task attribute (section 11.3.1).
    pub attribute: u8,
    /// The LUN field.
    pub lun: [u8; 8],
    /// The initiator's task tag.
    pub task: u32,
    /// The expected length of the data in bytes.
    pub expected_len: u32,
    /// `CmdSN`.
    pub command_number: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
    /// The first 16 bytes of the command descriptor block.
    pub cdb: [u8; 16],
}

/// Task Management Function Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// The request is immediate: its command number is not counted.
    pub is_immediate: bool,
    /// The function (section 11.5.1).
    pub function: u8,
    /// The LUN field.
    pub lun: [u8; 8],
    /// The initiator's task tag.
    pub task: u32,
    /// The tag of the task that is to be aborted.
    pub referenced: u32,
    /// `CmdSN`.
    pub command_number: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
    /// `RefCmdSN`.
    pub referenced_number: u32,
}

/// Login Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// The initiator is ready to go to the next stage.
    pub transits: bool,
    /// The text goes on in the next request.
    pub continues: bool,
    /// The current stage.
    pub current: u8,
    /// The next stage.
    pub next: u8,
    /// The highest version that the initiator supports.
    pub version_max: u8,
    /// The lowest version that the initiator supports.
    pub version_min: u8,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// The target's part, 0 for a new session.
    pub tsih: u16,
    /// The initiator's task tag.
    pub task: u32,
    /// The connection's number in its session.
    pub connection: u16,
    /// `CmdSN`.
    pub command_number: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
}

/// Text Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// The request is immediate: its command number is not counted.
    pub is_immediate: bool,
    /// The initiator has no more text.
    pub is_final: bool,
    /// The text goes on in the next request.
    pub continues: bool,
    /// The LUN field.
    pub lun: [u8; 8],
    /// The initiator's task tag.
    pub task: u32,
    /// The target's transfer tag.
    pub transfer: u32,
    /// `CmdSN`.
    pub command_number: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
}

/// SCSI Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// The last PDU of its sequence.
    pub is_final: bool,
    /// The LUN field.
    pub lun: [u8; 8],
    /// The initiator's task tag.
    pub task: u32,
    /// The target's transfer tag, `NO_TAG` for unsolicited data.
    pub transfer: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
    /// `DataSN`.
    pub number: u32,
    /// The offset of the data in the command's data.
    pub offset: u32,
}

/// Logout Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logout {
    /// The request is immediate: its command number is not counted.
    pub is_immediate: bool,
    /// Why (section 11.14.1): 0 the session, 1 the connection, 2 the connection for recovery.
    pub reason: u8,
    /// The initiator's task tag.
    pub task: u32,
    /// The connection that is to be closed.
    pub connection: u16,
    /// `CmdSN`.
    pub command_number: u32,
    /// `ExpStatSN`.
    pub expected_status: u32,
}

/// SNACK Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snack {
    /// The initiator's task tag.
    pub task: u32,
}

impl Request {
    /// The command number of a request that has its turn among the others.
    #[must_use]
    pub fn command_number(&self) -> Option<u32> {
        let (is_immediate, number) = match self {
            Self::Nop(nop) => (nop.is_immediate, nop.command_number),
            Self::Scsi(command) => (command.is_immediate, command.command_number),
            Self::Task(request) => (request.is_immediate, request.command_number),
            Self::Text(text) => (text.is_immediate, text.command_number),
            Self::Logout(logout) => (logout.is_immediate, logout.command_number),
            Self::Login(_) | Self::DataOut(_) | Self::Snack(_) => return None,
        };
        (!is_immediate).then_some(number)
    }

    /// Parses a header.
    ///
    /// # Errors
    ///
    /// If no initiator sends this operation code.
    pub fn parse(header: &[u8; HEADER_LEN]) -> Result<Self, Unparsed> {
        let (first, flags) = (header[0], header[1]);
        let (is_immediate, opcode) = (first & 0x40 != 0, first & 0x3f);
        let is_final = flags & 0x80 != 0;
        let lun = part(header, 8);
        let (task, transfer) = (be32(header, 16), be32(header, 20));
        let (command_number, expected_status) = (be32(header, 24), be32(header, 28));
        Ok(match opcode {
            0x00 => Self::Nop(NopOut {
                is_immediate,
                lun,
                task,
                transfer,
                command_number,
                expected_status,
            }),
            0x01 => Self::Scsi(ScsiCommand {
                is_immediate,
                is_final,
                reads: flags & 0x40 != 0,
                writes: flags & 0x20 != 0,
                attribute: flags & 0x07,
                lun,
                task,
                expected_len: be32(header, 20),
                command_number,
                expected_status,
                cdb: part(header, 32),
            }),
            0x02 => Self::Task(TaskRequest {
                is_immediate,
                function: flags & 0x7f,
                lun,
                task,
                referenced: be32(header, 20),
                command_number,
                expected_status,
                referenced_number: be32(header, 32),
            }),
            0x03 => Self::Login(Login {
                transits: is_final,
                continues: flags & 0x40 != 0,
                current: (flags >> 2) & 3,
                next: flags & 3,
                version_max: header[2],
                version_min: header[3],
                isid: part(header, 8),
                tsih: be16(header, 14),
                task,
                connection: be16(header, 20),
                command_number,
                expected_status,
            }),
            0x04 => Self::Text(Text {
                is_immediate,
                is_final,
                continues: flags & 0x40 != 0,
                lun,
                task,
                transfer,
                command_number,
                expected_status,
            }),
            0x05 => Self::DataOut(DataOut {
                is_final,
                lun,
                task,
                transfer,
                expected_status,
                number: be32(header, 36),
                offset: be32(header, 40),
            }),
            0x06 => Self::Logout(Logout {
                is_immediate,
                reason: flags & 0x7f,
                task,
                connection: be16(header, 20),
                command_number,
                expected_status,
            }),
            0x10 => Self::Snack(Snack { task }),
            opcode => return Err(Unparsed { opcode }),
        })
    }
}

/// The length of the additional header segments in bytes.
pub(super) fn additional_len(header: &[u8; HEADER_LEN]) -> usize {
    usize::from(header[4]) * 4
}

/// The lengths of a PDU without digests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduLen {
    /// The header segments, and the data without its padding.
    pub len: usize,
    /// The data.
    pub data_len: usize,
    /// The padding that follows in a stream.
    pub padding: usize,
}

/// The lengths that a header states, of a request or a response.
#[must_use]
pub fn pdu_len(header: &[u8; HEADER_LEN]) -> PduLen {
    let data_len = data_len(header);
    let len = HEADER_LEN + additional_len(header) + data_len;
    PduLen { len, data_len, padding: data_len.next_multiple_of(4) - data_len }
}

/// The length of the data segment in bytes, without padding.
pub(super) fn data_len(header: &[u8; HEADER_LEN]) -> usize {
    be24(header, 5) as usize
}
