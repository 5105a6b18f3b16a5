//! Turns PDUs into messages and transfers, and back (RFC 7145, section 7.3).

use std::collections::HashMap;
use std::ops::Range;

use super::header::{self, Broken, Buffer, Buffers, HEADER_LEN};
use crate::bytes::be32;
use crate::limits::ISER_COMMANDS_MAX;
use crate::wire::{self, NO_TAG, pdu_len};

const TASK_REQUEST: u8 = 0x02;
const SCSI_COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
const R2T: u8 = 0x31;

/// In the second byte of a header: the last PDU of a sequence.
const FINAL: u8 = 0x80;
/// In the second byte of a Data-In PDU: it has the command's status.
const HAS_STATUS: u8 = 0x01;
/// In the second byte of a Data-In PDU or a response: a residual count is valid.
const RESIDUALS: u8 = 0x06;

/// The action that a PDU of the target requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send(Message),
    /// Write a part of the PDU to the initiator's memory, then send the message, if there is one.
    Put {
        /// Where the data goes.
        to: Buffer,
        /// The data in the PDU.
        data: Range<usize>,
        /// The status of the command.
        message: Option<Message>,
    },
    /// Read the initiator's memory. The header and these bytes are the initiator's next PDU.
    Get {
        /// Where the data is.
        from: Buffer,
        /// Its length in bytes.
        len: usize,
        /// The header of the Data-Out PDU.
        header: [u8; wire::HEADER_LEN],
    },
}

/// A message of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The headers of iSER and of the PDU.
    pub headers: [u8; HEADER_LEN + wire::HEADER_LEN],
    /// What follows them, in the PDU.
    pub data: Range<usize>,
}

impl Message {
    fn new(header: &[u8; wire::HEADER_LEN], data: Range<usize>) -> Self {
        let mut headers = [0; HEADER_LEN + wire::HEADER_LEN];
        headers[..HEADER_LEN].copy_from_slice(&header::PLAIN);
        headers[HEADER_LEN..].copy_from_slice(header);
        Self { headers, data }
    }
}

/// A command whose end has not been sent.
#[derive(Clone, Copy, Debug)]
struct Command {
    buffers: Buffers,
    /// The LUN field.
    lun: [u8; 8],
    /// Bytes that the initiator expects to be moved.
    expected_len: u32,
    /// Bytes that came with the command.
    immediate_len: u32,
    /// The offset of the data at which the write buffer begins.
    start: u32,
}

/// The memory of an initiator's outstanding commands. It knows no device: see [`Action`].
#[derive(Debug, Default)]
pub struct Datamover {
    commands: HashMap<u32, Command>,
    /// Requests that abort commands, by their tags: the function, the LUN field and the tag that
    /// they refer to.
    aborts: HashMap<u32, (u8, [u8; 8], u32)>,
    /// Write buffers begin with the data that comes with the command, and not behind it.
    has_whole_buffers: bool,
}

impl Datamover {
    /// Sets whether the write buffers of later commands begin with the data that comes with the
    /// command (RFC 7145: `TaggedBufferForSolicitedDataOnly=No`).
    pub fn set_whole_buffers(&mut self, has_whole_buffers: bool) {
        self.has_whole_buffers = has_whole_buffers;
    }

    /// Takes a message of the initiator, and returns its PDU: the whole of its header segments and
    /// data, and how many bytes of padding follow in a stream.
    ///
    /// # Errors
    ///
    /// If it is no PDU, or there are too many commands.
    pub fn receive<'a>(&mut self, message: &'a mut [u8]) -> Result<(&'a [u8], usize), Broken> {
        let Some((header, rest)) = message.split_first_chunk_mut::<HEADER_LEN>() else {
            return Err(Broken("a message without an iSER header"));
        };
        let buffers = header::parse(header)?;
        let rest_len = rest.len();
        let Some(pdu) = rest.first_chunk_mut::<{ wire::HEADER_LEN }>() else {
            return Err(Broken("a message without an iSCSI header"));
        };
        if buffers.write.is_some() && rest_len == wire::HEADER_LEN {
            // libiscsi 1.19 announces immediate data that it then leaves in its buffer.
            pdu[4..8].fill(0);
        }
        let lens = pdu_len(pdu);
        if rest_len < lens.len {
            return Err(Broken("a message that is shorter than its PDU"));
        }
        let (opcode, tag) = (pdu[0] & 0x3f, be32(pdu, 16));
        let lun = crate::bytes::part(pdu, 8);
        match opcode {
            SCSI_COMMAND => {
                let (expected_len, immediate_len) = (be32(pdu, 20), lens.data_len as u32);
                let start = if self.has_whole_buffers { 0 } else { immediate_len };
                let command = Command { buffers, lun, expected_len, immediate_len, start };
                self.commands.insert(tag, command);
            }
            TASK_REQUEST => {
                let (function, referenced) = (pdu[1] & 0x7f, be32(pdu, 20));
                self.aborts.insert(tag, (function, lun, referenced));
            }
            _ => {}
        }
        if self.commands.len() + self.aborts.len() > ISER_COMMANDS_MAX {
            return Err(Broken("too many commands that have not ended"));
        }
        Ok((&rest[..lens.len], lens.padding))
    }

    /// The bytes that a PDU of the target is going to read from the initiator's memory.
    #[must_use]
    pub fn get_len(header: &[u8; wire::HEADER_LEN]) -> usize {
        if header[0] & 0x3f == R2T { be32(header, 44) as usize } else { 0 }
    }

    /// Returns what is to be done with a PDU of the target that has this header and no digests.
    ///
    /// # Errors
    ///
    /// If it needs memory of the initiator that no command has named.
    pub fn send(&mut self, header: &[u8; wire::HEADER_LEN]) -> Result<Action, Broken> {
        let tag = be32(header, 16);
        match header[0] & 0x3f {
            DATA_IN => self.put(header),
            R2T => self.get(header),
            opcode => {
                let mut message = Message::new(header, wire::HEADER_LEN..pdu_len(header).len);
                if opcode == SCSI_RESPONSE {
                    self.commands.remove(&tag);
                    // ExpDataSN counts PDUs that the initiator does not see.
                    message.headers[HEADER_LEN + 36..HEADER_LEN + 40].fill(0);
                } else if let Some(abort) = self.aborts.remove(&tag) {
                    self.abort(abort);
                }
                Ok(Action::Send(message))
            }
        }
    }

    fn put(&mut self, header: &[u8; wire::HEADER_LEN]) -> Result<Action, Broken> {
        let (tag, offset) = (be32(header, 16), be32(header, 40));
        let len = pdu_len(header).data_len;
        let command = self.commands.get(&tag);
        let command = command.ok_or(Broken("data of a command that is not outstanding"))?;
        let to = command.buffers.read;
        let to = to.ok_or(Broken("a command that reads has named no memory"))?;
        if u64::from(offset) + len as u64 > u64::from(command.expected_len) {
            return Err(Broken("more data than the initiator expects"));
        }
        let to = to.behind(u64::from(offset));
        let message = (header[1] & HAS_STATUS != 0).then(|| {
            self.commands.remove(&tag);
            Message::new(&status(header), 0..0)
        });
        Ok(Action::Put { to, data: wire::HEADER_LEN..wire::HEADER_LEN + len, message })
    }

    fn get(&self, header: &[u8; wire::HEADER_LEN]) -> Result<Action, Broken> {
        let (tag, offset, len) = (be32(header, 16), be32(header, 40), be32(header, 44));
        let command = self.commands.get(&tag);
        let command = command.ok_or(Broken("data of a command that is not outstanding"))?;
        let from = command.buffers.write;
        let from = from.ok_or(Broken("a command that writes has named no memory"))?;
        let is_inside = offset >= command.immediate_len
            && offset.checked_add(len).is_some_and(|end| end <= command.expected_len);
        let at = offset.checked_sub(command.start).filter(|_| is_inside);
        let at = at.ok_or(Broken("data outside of what the initiator sends"))?;
        let mut data_out = [0; wire::HEADER_LEN];
        (data_out[0], data_out[1]) = (DATA_OUT, FINAL);
        data_out[5..8].copy_from_slice(&len.to_be_bytes()[1..]);
        // LUN, tags and the buffer's offset are those of the R2T. The first PDU has number 0.
        data_out[8..24].copy_from_slice(&header[8..24]);
        data_out[40..44].copy_from_slice(&header[40..44]);
        Ok(Action::Get { from: from.behind(u64::from(at)), len: len as usize, header: data_out })
    }

    /// Forgets the commands that end without a response.
    fn abort(&mut self, (function, lun, referenced): (u8, [u8; 8], u32)) {
        match function {
            1 => drop(self.commands.remove(&referenced)),
            2..=5 => self.commands.retain(|_, command| command.lun != lun),
            6 | 7 => self.commands.clear(),
            _ => {}
        }
    }
}

/// The response of a command whose status goes with its last data (RFC 7143, sections 11.4 and
/// 11.7): status, sequence numbers and the residual count are at the same places.
fn status(data_in: &[u8; wire::HEADER_LEN]) -> [u8; wire::HEADER_LEN] {
    let mut response = [0; wire::HEADER_LEN];
    (response[0], response[1]) = (SCSI_RESPONSE, FINAL | data_in[1] & RESIDUALS);
    response[3] = data_in[3];
    response[16..20].copy_from_slice(&data_in[16..20]);
    response[24..36].copy_from_slice(&data_in[24..36]);
    response[44..48].copy_from_slice(&data_in[44..48]);
    debug_assert_ne!(response[16..20], NO_TAG.to_be_bytes());
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const TAG: u32 = 7;
    const READ: Buffer = Buffer { key: 5, address: 1 << 40 };
    const WRITE: Buffer = Buffer { key: 6, address: 2 << 40 };

    /// A command that expects this many bytes, with memory and immediate data.
    fn command(flags: u8, expected_len: u32, immediate: &[u8]) -> Vec<u8> {
        let mut message = vec![0; HEADER_LEN + wire::HEADER_LEN];
        message[0] = 0x10 | flags;
        message[4..8].copy_from_slice(&WRITE.key.to_be_bytes());
        message[8..16].copy_from_slice(&WRITE.address.to_be_bytes());
        message[16..20].copy_from_slice(&READ.key.to_be_bytes());
        message[20..28].copy_from_slice(&READ.address.to_be_bytes());
        let pdu = &mut message[HEADER_LEN..];
        pdu[0] = SCSI_COMMAND;
        pdu[7] = immediate.len() as u8;
        pdu[16..20].copy_from_slice(&TAG.to_be_bytes());
        pdu[20..24].copy_from_slice(&expected_len.to_be_bytes());
        message.extend_from_slice(immediate);
        message
    }

    /// The header of a PDU of the target with the numbers at 40 and 44.
    fn pdu(opcode: u8, flags: u8, numbers: [u32; 2], data: &[u8]) -> [u8; wire::HEADER_LEN] {
        let mut pdu = vec![0; wire::HEADER_LEN];
        (pdu[0], pdu[1], pdu[7]) = (opcode, flags, data.len() as u8);
        pdu[16..20].copy_from_slice(&TAG.to_be_bytes());
        pdu[36..40].fill(9);
        pdu[40..44].copy_from_slice(&numbers[0].to_be_bytes());
        pdu[44..48].copy_from_slice(&numbers[1].to_be_bytes());
        pdu.try_into().expect("a header")
    }

    #[test]
    fn data_of_a_read_is_put_and_its_status_follows() {
        let mut mover = Datamover::default();
        mover.receive(&mut command(0x04, 10, b"")).unwrap();
        let first = mover.send(&pdu(DATA_IN, 0, [0, 0], b"abcd")).unwrap();
        let data = wire::HEADER_LEN..wire::HEADER_LEN + 4;
        assert_eq!(first, Action::Put { to: READ, data, message: None });
        let last = pdu(DATA_IN, FINAL | HAS_STATUS | 0x02, [4, 5], b"e");
        let Action::Put { to, data, message: Some(message) } = mover.send(&last).unwrap() else {
            panic!("no status");
        };
        assert_eq!((to.address, data.len()), (READ.address + 4, 1));
        let response = &message.headers[HEADER_LEN..];
        assert_eq!((message.headers[0], message.data), (0x10, 0..0));
        assert_eq!((response[0], response[1]), (SCSI_RESPONSE, FINAL | 0x02));
        assert_eq!((be32(response, 16), be32(response, 36), be32(response, 44)), (TAG, 0, 5));
        mover.send(&last).expect_err("the command has ended");
    }

    #[test]
    fn data_of_a_write_is_got_from_behind_the_immediate_data() {
        let mut mover = Datamover::default();
        let mut message = command(0x08, 100, b"abc");
        let (bytes, padding) = mover.receive(&mut message).unwrap();
        assert_eq!((&bytes[wire::HEADER_LEN..], padding), (&b"abc"[..], 1));
        let Action::Get { from, len, header } =
            mover.send(&pdu(R2T, FINAL, [23, 70], b"")).unwrap()
        else {
            panic!("no read");
        };
        assert_eq!((from.key, from.address, len), (WRITE.key, WRITE.address + 20, 70));
        assert_eq!((header[0], header[7], be32(&header, 16)), (DATA_OUT, 70, TAG));
        assert_eq!((be32(&header, 36), be32(&header, 40)), (0, 23));
        for numbers in [[2, 70], [23, 78], [u32::MAX, 2]] {
            mover.send(&pdu(R2T, FINAL, numbers, b"")).expect_err("outside of the buffer");
        }
    }

    #[test]
    fn a_whole_buffer_begins_with_the_immediate_data() {
        let mut mover = Datamover::default();
        mover.set_whole_buffers(true);
        mover.receive(&mut command(0x08, 100, b"abc")).unwrap();
        let got = mover.send(&pdu(R2T, FINAL, [3, 97], b"")).unwrap();
        let Action::Get { from, len, .. } = got else { panic!("no read") };
        assert_eq!((from.key, from.address, len), (WRITE.key, WRITE.address + 3, 97));
        for numbers in [[2, 70], [3, 98]] {
            mover.send(&pdu(R2T, FINAL, numbers, b"")).expect_err("outside of the data");
        }
    }

    #[test]
    fn announced_data_that_does_not_come_is_in_the_buffer() {
        let mut mover = Datamover::default();
        let mut message = command(0x08, 100, b"abc");
        message.truncate(HEADER_LEN + wire::HEADER_LEN);
        let (bytes, padding) = mover.receive(&mut message).unwrap();
        assert_eq!((bytes[7], bytes.len(), padding), (0, wire::HEADER_LEN, 0));
        let got = mover.send(&pdu(R2T, FINAL, [0, 100], b"")).unwrap();
        assert!(matches!(got, Action::Get { from: WRITE, len: 100, .. }));
    }

    #[test]
    fn aborted_commands_are_forgotten() {
        for (function, forgotten) in [(1, true), (2, true), (7, true), (8, false)] {
            let mut mover = Datamover::default();
            mover.receive(&mut command(0x04, 10, b"")).unwrap();
            let mut request = vec![0; HEADER_LEN + wire::HEADER_LEN];
            (request[0], request[HEADER_LEN], request[HEADER_LEN + 1]) =
                (0x10, TASK_REQUEST | 0x40, FINAL | function);
            request[HEADER_LEN + 19] = 1;
            request[HEADER_LEN + 20..HEADER_LEN + 24].copy_from_slice(&TAG.to_be_bytes());
            mover.receive(&mut request).unwrap();
            let mut response = pdu(0x22, FINAL, [0, 0], b"");
            response[16..20].copy_from_slice(&1_u32.to_be_bytes());
            assert!(matches!(mover.send(&response), Ok(Action::Send(_))));
            let data = mover.send(&pdu(DATA_IN, 0, [0, 0], b"abcd"));
            assert_eq!(data.is_err(), forgotten, "{function}");
        }
    }

    #[test]
    fn invalid_messages_are_refused() {
        let mut mover = Datamover::default();
        let good = command(0, 0, b"abc");
        for len in 0..good.len() {
            mover.receive(&mut good.clone()[..len]).expect_err("too short");
        }
        let mut hello = good.clone();
        hello[0] = 0x20;
        mover.receive(&mut hello).expect_err("a hello message");
        for tag in 0..=ISER_COMMANDS_MAX as u32 {
            let mut next = good.clone();
            next[HEADER_LEN + 16..HEADER_LEN + 20].copy_from_slice(&tag.to_be_bytes());
            assert_eq!(
                mover.receive(&mut next).is_ok(),
                (tag as usize) < ISER_COMMANDS_MAX,
                "{tag}"
            );
        }
    }

    proptest! {
        /// Whatever an initiator sends and the target answers, transfers stay inside of the memory
        /// that a command has named for its expected length.
        #[test]
        fn transfers_stay_inside(
            commands in vec((any::<u8>(), 0..4_u8, 0..300_u32, 0..20_usize), 1..8),
            answers in vec((0..4_usize, 0..4_u8, 0..400_u32, 0..400_u32), 0..20),
            noise in vec(vec(any::<u8>(), 0..120), 0..8),
        ) {
            let mut mover = Datamover::default();
            for mut message in noise {
                let _ = mover.receive(&mut message);
            }
            for (flags, tag, expected_len, immediate) in commands {
                let mut message = command(flags & 0x0c, expected_len, &vec![1; immediate]);
                message[HEADER_LEN + 19] = 100 + tag;
                mover.receive(&mut message).expect("a command");
            }
            let known = mover.commands.clone();
            for (opcode, tag, offset, len) in answers {
                let opcode = [DATA_IN, R2T, SCSI_RESPONSE, 0x3f][opcode];
                let data = vec![0; len as usize % 256];
                let mut header = pdu(opcode, HAS_STATUS, [offset, len], &data);
                header[19] = 100 + tag;
                let key = be32(&header, 16);
                let end = |command: &Command| u64::from(command.expected_len);
                match mover.send(&header) {
                    Ok(Action::Put { to, data, .. }) => {
                        let behind = to.address - READ.address + data.len() as u64;
                        prop_assert!(to.key == READ.key && behind <= end(&known[&key]));
                    }
                    Ok(Action::Get { from, len, .. }) => {
                        let command = &known[&key];
                        let behind = from.address - WRITE.address + len as u64;
                        let sent = u64::from(command.immediate_len);
                        prop_assert!(from.key == WRITE.key && sent + behind <= end(command));
                    }
                    _ => {}
                }
            }
        }
    }
}
