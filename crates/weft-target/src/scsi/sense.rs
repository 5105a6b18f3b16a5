//! Sense data: why a command failed, or what an initiator has to know first (SPC-5, section 4.4).

/// SCSI status codes (SAM-5, section 5.3).
pub mod status {
    /// The command is complete.
    pub const GOOD: u8 = 0x00;
    /// Sense data tells why the command is not complete.
    pub const CHECK_CONDITION: u8 = 0x02;
    /// Another initiator has reserved the unit.
    pub const RESERVATION_CONFLICT: u8 = 0x18;
}

/// A sense key with its additional code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    key: u8,
    code: u16,
    specific: Specific,
}

/// Additional sense data, besides key and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Specific {
    Nothing,
    /// The offset of the first byte that differs, in the information field.
    Information(u64),
    /// The field that is wrong: in the CDB, or in the parameters; its byte, and its most
    /// significant bit if one is known.
    Field {
        in_cdb: bool,
        byte: u16,
        bit: Option<u8>,
    },
}

const NOT_READY: u8 = 0x2;
const MEDIUM_ERROR: u8 = 0x3;
const HARDWARE_ERROR: u8 = 0x4;
const ILLEGAL_REQUEST: u8 = 0x5;
const UNIT_ATTENTION: u8 = 0x6;
const DATA_PROTECT: u8 = 0x7;
const COPY_ABORTED: u8 = 0xa;
const ABORTED_COMMAND: u8 = 0xb;
const MISCOMPARE: u8 = 0xe;

macro_rules! senses {
    ($($(#[$doc:meta])* $name:ident = $key:ident, $code:literal;)*) => {
        impl Sense {
            $($(#[$doc])* pub const $name: Self = Self::new($key, $code);)*
        }
    };
}

senses! {
    /// The medium was ejected.
    MEDIUM_NOT_PRESENT = NOT_READY, 0x3a00;
    /// The unit is being sanitized.
    SANITIZE_IN_PROGRESS = NOT_READY, 0x041b;
    /// The store could not write.
    WRITE_ERROR = MEDIUM_ERROR, 0x0c00;
    /// The store could not read.
    READ_ERROR = MEDIUM_ERROR, 0x1100;
    /// The last SANITIZE failed.
    SANITIZE_FAILED = MEDIUM_ERROR, 0x3103;
    /// The target failed in a way that has no other code.
    INTERNAL_FAILURE = HARDWARE_ERROR, 0x4400;
    /// The parameter list is too short.
    PARAMETER_LIST_LENGTH = ILLEGAL_REQUEST, 0x1a00;
    /// The operation code is not supported.
    INVALID_OPERATION = ILLEGAL_REQUEST, 0x2000;
    /// Blocks beyond the end are addressed.
    OUT_OF_RANGE = ILLEGAL_REQUEST, 0x2100;
    /// A field of the CDB is invalid.
    INVALID_FIELD = ILLEGAL_REQUEST, 0x2400;
    /// There is no unit with this LUN.
    NO_UNIT = ILLEGAL_REQUEST, 0x2500;
    /// A field of the parameter list is invalid.
    INVALID_PARAMETER = ILLEGAL_REQUEST, 0x2600;
    /// The reservation that is to be released is another one.
    INVALID_RELEASE = ILLEGAL_REQUEST, 0x2604;
    /// An EXTENDED COPY has too many target descriptors.
    TOO_MANY_TARGET_DESCRIPTORS = ILLEGAL_REQUEST, 0x2606;
    /// A target descriptor of an EXTENDED COPY has a type that is not supported.
    TARGET_DESCRIPTOR_TYPE = ILLEGAL_REQUEST, 0x2607;
    /// An EXTENDED COPY has too many segment descriptors.
    TOO_MANY_SEGMENT_DESCRIPTORS = ILLEGAL_REQUEST, 0x2608;
    /// A segment descriptor of an EXTENDED COPY has a type that is not supported.
    SEGMENT_DESCRIPTOR_TYPE = ILLEGAL_REQUEST, 0x2609;
    /// Saving parameters is not supported.
    SAVING_NOT_SUPPORTED = ILLEGAL_REQUEST, 0x3900;
    /// The medium may not be removed.
    REMOVAL_PREVENTED = ILLEGAL_REQUEST, 0x5302;
    /// The target has no room for another registration.
    NO_REGISTRATION_RESOURCES = ILLEGAL_REQUEST, 0x5504;
    /// A field of an iSCSI PDU is invalid.
    INVALID_INFORMATION_UNIT = ILLEGAL_REQUEST, 0x0e03;
    /// The medium was exchanged, or loaded.
    MEDIUM_CHANGED = UNIT_ATTENTION, 0x2800;
    /// The target was started, or reset.
    RESET = UNIT_ATTENTION, 0x2900;
    /// The unit was reset by an initiator.
    UNIT_RESET = UNIT_ATTENTION, 0x2903;
    /// Mode parameters were changed by another initiator.
    MODE_PARAMETERS_CHANGED = UNIT_ATTENTION, 0x2a01;
    /// The reservation was preempted.
    RESERVATIONS_PREEMPTED = UNIT_ATTENTION, 0x2a03;
    /// The reservation was released.
    RESERVATIONS_RELEASED = UNIT_ATTENTION, 0x2a04;
    /// The registration was preempted.
    REGISTRATIONS_PREEMPTED = UNIT_ATTENTION, 0x2a05;
    /// The unit has another length.
    CAPACITY_CHANGED = UNIT_ATTENTION, 0x2a09;
    /// The target has other units.
    LUNS_CHANGED = UNIT_ATTENTION, 0x3f0e;
    /// Another initiator has aborted tasks of this one.
    COMMANDS_CLEARED = UNIT_ATTENTION, 0x2f00;
    /// The store has no space for a block that has none yet.
    NO_SPACE = DATA_PROTECT, 0x2707;
    /// The unit is write-protected.
    WRITE_PROTECTED = DATA_PROTECT, 0x2700;
    /// A descriptor of an EXTENDED COPY names a unit that does not exist.
    COPY_TARGET_NOT_REACHABLE = COPY_ABORTED, 0x0d02;
    /// An EXTENDED COPY could not read or write.
    COPY_FAILED = COPY_ABORTED, 0x0d01;
    /// Data did not come in its sequence.
    DATA_SEQUENCE = ABORTED_COMMAND, 0x4705;
    /// The data differs.
    MISCOMPARE = MISCOMPARE, 0x1d00;
}

impl Sense {
    const fn new(key: u8, code: u16) -> Self {
        Self { key, code, specific: Specific::Nothing }
    }

    /// The byte of the CDB is invalid, with its most significant wrong bit if one is known.
    #[must_use]
    pub fn in_cdb(self, byte: u16, bit: impl Into<Option<u8>>) -> Self {
        Self { specific: Specific::Field { in_cdb: true, byte, bit: bit.into() }, ..self }
    }

    /// The byte of the parameter list is invalid.
    #[must_use]
    pub fn in_parameters(self, byte: u16) -> Self {
        Self { specific: Specific::Field { in_cdb: false, byte, bit: None }, ..self }
    }

    /// With a value in the information field.
    #[must_use]
    pub fn with_information(self, information: u64) -> Self {
        Self { specific: Specific::Information(information), ..self }
    }

    /// Sense data in the fixed format, or as descriptors (SPC-5, sections 4.4.2 and 4.4.3).
    #[must_use]
    pub fn bytes(self, as_descriptors: bool) -> Vec<u8> {
        let [code, qualifier] = self.code.to_be_bytes();
        if as_descriptors {
            return self.descriptors(code, qualifier);
        }
        let mut bytes = vec![0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.key;
        bytes[7] = 10;
        bytes[12] = code;
        bytes[13] = qualifier;
        match self.specific {
            Specific::Nothing => {}
            Specific::Information(information) => {
                // A larger value does not fit this format: the field is not valid then.
                if let Ok(information) = u32::try_from(information) {
                    bytes[0] |= 0x80;
                    bytes[3..7].copy_from_slice(&information.to_be_bytes());
                }
            }
            Specific::Field { in_cdb, byte, bit } => {
                bytes[15..18].copy_from_slice(&field(in_cdb, byte, bit));
            }
        }
        bytes
    }

    fn descriptors(self, code: u8, qualifier: u8) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key, code, qualifier, 0, 0, 0, 0];
        match self.specific {
            Specific::Nothing => {}
            Specific::Information(information) => {
                bytes.extend([0x00, 0x0a, 0x80, 0]);
                bytes.extend(information.to_be_bytes());
            }
            Specific::Field { in_cdb, byte, bit } => {
                bytes.extend([0x02, 0x06, 0, 0]);
                bytes.extend(field(in_cdb, byte, bit));
                bytes.push(0);
            }
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }
}

/// The field pointer of sense-key specific data (SPC-5, section 4.4.2.4.2).
fn field(in_cdb: bool, byte: u16, bit: Option<u8>) -> [u8; 3] {
    let bit = bit.map_or(0, |bit| 0x08 | bit);
    let [high, low] = byte.to_be_bytes();
    [0x80 | u8::from(in_cdb) << 6 | bit, high, low]
}
