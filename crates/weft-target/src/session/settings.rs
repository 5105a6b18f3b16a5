//! The settings that a login agrees on: operational keys and their rules (RFC 7143, section 13).

use crate::limits::{
    BURST_LEN_MAX, CONNECTIONS_MAX, DATA_SEGMENT_LEN_MAX, FIRST_BURST_LEN_MAX,
    MESSAGE_DATA_LEN_MAX, OUTSTANDING_R2T_MAX,
};
use crate::wire::{Digests, push_pair};

/// The keys that hold for a session, and that its first login negotiates.
const LEADING_ONLY: [&str; 11] = [
    "MaxConnections",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
];

/// The parameters of a connection and its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The digests.
    pub(super) digests: Digests,
    /// The longest data segment that the initiator accepts, in bytes.
    pub(super) send_len_max: u32,
    /// `MaxBurstLength`.
    pub(super) burst_len_max: u32,
    /// `FirstBurstLength`.
    pub(super) first_burst_len: u32,
    /// Unsolicited Data-Out PDUs are not allowed.
    pub(super) initial_r2t: bool,
    /// A command may have data in its own PDU.
    pub(super) immediate_data: bool,
    /// `MaxConnections`.
    pub(super) connections_max: u16,
    /// PDUs are messages over RDMA (RFC 7145), which carries data by itself.
    pub(super) is_over_rdma: bool,
    /// Over RDMA, the memory that a write names has the data of the command's own PDU, too.
    pub(super) has_whole_buffers: bool,
}

impl Default for Settings {
    /// The values without any negotiation.
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            send_len_max: 8_192,
            burst_len_max: 256 << 10,
            first_burst_len: 64 << 10,
            initial_r2t: true,
            immediate_data: true,
            connections_max: 1,
            is_over_rdma: false,
            // RFC 7145 has the contrary, and Linux and libiscsi do this without saying so.
            has_whole_buffers: false,
        }
    }
}

/// Why a login must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidValue;

impl Settings {
    /// The values without any negotiation, over RDMA.
    pub(super) fn over_rdma() -> Self {
        Self { is_over_rdma: true, ..Self::default() }
    }

    /// The longest data segment of a Data-In PDU in bytes. RDMA has no limit; what the session
    /// makes of a command at a time is bounded all the same.
    pub(super) fn data_in_len_max(&self) -> u32 {
        if self.is_over_rdma { DATA_SEGMENT_LEN_MAX as u32 } else { self.send_len_max }
    }

    /// These settings of a session, with those that each connection has for itself.
    pub(super) fn with_connection(self, connection: &Self) -> Self {
        Self { digests: connection.digests, send_len_max: connection.send_len_max, ..self }
    }

    /// Whether only the first connection of a session may negotiate a key (RFC 7143, section 13).
    pub(super) fn is_leading_only(key: &str) -> bool {
        LEADING_ONLY.contains(&key)
    }

    /// Takes an operational key of the initiator, and appends the answer.
    ///
    /// # Errors
    ///
    /// If the value is none that the key may have.
    pub(super) fn negotiate(
        &mut self,
        key: &str,
        value: &str,
        answer: &mut Vec<u8>,
    ) -> Result<(), InvalidValue> {
        match key {
            "HeaderDigest" => self.digests.header = self.digest(key, value, answer),
            "DataDigest" => self.digests.data = self.digest(key, value, answer),
            "MaxRecvDataSegmentLength" => {
                // It is declared, not negotiated.
                self.send_len_max = number(value, 512, 0xff_ffff)?;
            }
            "MaxBurstLength" => {
                let max =
                    if self.is_over_rdma { DATA_SEGMENT_LEN_MAX as u32 } else { BURST_LEN_MAX };
                self.burst_len_max = number(value, 512, 0xff_ffff)?.min(max);
                push_pair(answer, key, &self.burst_len_max.to_string());
            }
            "FirstBurstLength" => {
                self.first_burst_len = number(value, 512, 0xff_ffff)?.min(FIRST_BURST_LEN_MAX);
                push_pair(answer, key, &self.first_burst_len.to_string());
            }
            "InitialR2T" => {
                // Over RDMA data that was not asked for would only take messages and a copy.
                self.initial_r2t = boolean(value)? || self.is_over_rdma;
                push_pair(answer, key, yes_or_no(self.initial_r2t));
            }
            "ImmediateData" => {
                self.immediate_data = boolean(value)?;
                push_pair(answer, key, yes_or_no(self.immediate_data));
            }
            "MaxOutstandingR2T" => {
                let number = number(value, 1, 65_535)?.min(OUTSTANDING_R2T_MAX);
                push_pair(answer, key, &number.to_string());
            }
            "MaxConnections" => {
                // Over RDMA each connection has a thread, and there is no loop to share.
                let max = if self.is_over_rdma { 1 } else { CONNECTIONS_MAX };
                self.connections_max = number(value, 1, 65_535)?.min(max.into()) as u16;
                push_pair(answer, key, &self.connections_max.to_string());
            }
            "ErrorRecoveryLevel" => {
                number(value, 0, 2)?;
                push_pair(answer, key, "0");
            }
            "DefaultTime2Wait" => {
                let number = number(value, 0, 3_600)?.max(2);
                push_pair(answer, key, &number.to_string());
            }
            "DefaultTime2Retain" => {
                number(value, 0, 3_600)?;
                push_pair(answer, key, "0");
            }
            "DataPDUInOrder" | "DataSequenceInOrder" => {
                boolean(value)?;
                push_pair(answer, key, "Yes");
            }
            "IFMarker" | "OFMarker" => {
                boolean(value)?;
                push_pair(answer, key, "No");
            }
            // RFC 7145, section 6. Over TCP a connection stays there.
            "RDMAExtensions" => {
                let both = boolean(value)? && self.is_over_rdma;
                push_pair(answer, key, yes_or_no(both));
            }
            "iSERHelloRequired" if self.is_over_rdma => {
                boolean(value)?;
                push_pair(answer, key, "No");
            }
            "InitiatorRecvDataSegmentLength" if self.is_over_rdma => {
                self.send_len_max = number(value, 512, 0xff_ffff)?;
                push_pair(answer, key, value);
            }
            "TargetRecvDataSegmentLength" if self.is_over_rdma => {
                let len = number(value, 512, 0xff_ffff)?.min(MESSAGE_DATA_LEN_MAX as u32);
                push_pair(answer, key, &len.to_string());
            }
            // These are declared, not negotiated.
            "MaxOutstandingUnexpectedPDUs" | "MaxAHSLength" if self.is_over_rdma => {
                number(value, 0, u32::MAX)?;
            }
            "TaggedBufferForSolicitedDataOnly" if self.is_over_rdma => {
                self.has_whole_buffers = !boolean(value)?;
            }
            "TaskReporting" => {
                let known = value.split(',').any(|each| each == "RFC3720");
                push_pair(answer, key, if known { "RFC3720" } else { "Reject" });
            }
            "iSCSIProtocolLevel" => {
                number(value, 0, 31)?;
                push_pair(answer, key, "1");
            }
            _ => push_pair(answer, key, "NotUnderstood"),
        }
        Ok(())
    }

    /// The target's own declaration.
    pub(super) fn declare(&self, answer: &mut Vec<u8>) {
        let len = if self.is_over_rdma { MESSAGE_DATA_LEN_MAX } else { DATA_SEGMENT_LEN_MAX };
        push_pair(answer, "MaxRecvDataSegmentLength", &len.to_string());
    }

    /// Settles what depends on more than one key.
    pub(super) fn settle(&mut self) {
        self.first_burst_len = self.first_burst_len.min(self.burst_len_max);
    }

    /// Chooses the first digest of the list that is known. `true` for CRC-32C, which RDMA has
    /// itself (RFC 7145, section 6.2).
    fn digest(&self, key: &str, value: &str, answer: &mut Vec<u8>) -> bool {
        let is_known = |each: &&str| *each == "None" || *each == "CRC32C" && !self.is_over_rdma;
        let chosen = value.split(',').find(is_known);
        push_pair(answer, key, chosen.unwrap_or("Reject"));
        chosen == Some("CRC32C")
    }
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

fn boolean(value: &str) -> Result<bool, InvalidValue> {
    match value {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err(InvalidValue),
    }
}

/// A number in decimal or hexadecimal (RFC 7143, section 6.1).
fn number(value: &str, min: u32, max: u32) -> Result<u32, InvalidValue> {
    let hexadecimal = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let number = match hexadecimal {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => value.parse(),
    };
    number.ok().filter(|number| (min..=max).contains(number)).ok_or(InvalidValue)
}
