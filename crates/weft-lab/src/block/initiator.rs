//! An initiator that polls: it has one command outstanding and does not sleep, so that the time of
//! a command is that of the target and of the path.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// The length of a header (RFC 7143, section 11.2.1).
const HEADER_LEN: usize = 48;
/// Blocks of a read, of 512 bytes each.
const BLOCKS: u8 = 8;
/// How long the target may take for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Commands that may report that the unit is new to the initiator.
const TRIES: u32 = 8;

const SCSI_COMMAND: u8 = 0x01;
const LOGIN: u8 = 0x43;
const LOGIN_RESPONSE: u8 = 0x23;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
const HAS_STATUS: u8 = 1;
/// The initiator and the target go on from the operational stage to the full feature phase.
const OPERATIONAL_TO_FULL: u8 = 0x87;

/// An initiator that is logged in.
#[derive(Debug)]
pub(super) struct Initiator {
    socket: TcpStream,
    unit: u8,
    command: u32,
    status: u32,
}

impl Initiator {
    /// Logs in to a target at a port of this host, and waits until the unit has no more to report.
    ///
    /// # Errors
    ///
    /// If the target refuses.
    pub(super) fn log_in(port: u16, target: &str, unit: u8) -> Result<Self> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut initiator = Self { socket, unit, command: 1, status: 0 };
        let text = format!(
            "InitiatorName=iqn.2026-01.org.example:bench\0TargetName={target}\0SessionType=Normal\0\
             HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength=262144\0"
        );
        let mut request = [0; HEADER_LEN];
        (request[0], request[1], request[7]) = (LOGIN, OPERATIONAL_TO_FULL, text.len() as u8);
        // A random identity, so that the session takes no other one's place.
        (request[8], request[13]) = (0x80, 1);
        request[24..28].copy_from_slice(&initiator.command.to_be_bytes());
        let mut bytes = request.to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(HEADER_LEN + text.len().next_multiple_of(4), 0);
        initiator.socket.write_all(&bytes)?;
        let (response, _) = initiator.receive()?;
        let is_full = response[..2] == [LOGIN_RESPONSE, OPERATIONAL_TO_FULL];
        ensure!(is_full && response[36] == 0, "login refused: {response:02x?}");
        for _ in 0..TRIES {
            // TEST UNIT READY.
            if initiator.run(0, &[0; 6])?.0 == 0 {
                return Ok(initiator);
            }
        }
        bail!("the unit is not ready")
    }

    /// Reads some blocks, and returns how long that took.
    ///
    /// # Errors
    ///
    /// If the command fails.
    pub(super) fn read(&mut self, block: u32) -> Result<Duration> {
        let [a, b, c, d] = block.to_be_bytes();
        let expected = u32::from(BLOCKS) * 512;
        let began = Instant::now();
        let (status, len) = self.run(expected, &[0x28, 0, a, b, c, d, 0, 0, BLOCKS, 0])?;
        let time = began.elapsed();
        ensure!(status == 0 && len == expected as usize, "status {status}, {len} bytes");
        Ok(time)
    }

    /// Runs a command. Returns its status, and how many bytes came.
    fn run(&mut self, expected: u32, cdb: &[u8]) -> Result<(u8, usize)> {
        let mut request = [0; HEADER_LEN];
        // The only PDU of the command, which reads if it expects data.
        (request[0], request[1]) = (SCSI_COMMAND, if expected > 0 { 0xc1 } else { 0x81 });
        request[9] = self.unit;
        request[16..20].copy_from_slice(&self.command.to_be_bytes());
        request[20..24].copy_from_slice(&expected.to_be_bytes());
        request[24..28].copy_from_slice(&self.command.to_be_bytes());
        request[28..32].copy_from_slice(&self.status.to_be_bytes());
        request[32..32 + cdb.len()].copy_from_slice(cdb);
        self.command = self.command.wrapping_add(1);
        self.socket.write_all(&request)?;
        let mut len = 0;
        loop {
            let (response, data_len) = self.receive()?;
            match response[0] {
                DATA_IN => len += data_len,
                SCSI_RESPONSE => {}
                other => bail!("a response with opcode {other:#x}"),
            }
            if response[0] == SCSI_RESPONSE || response[1] & HAS_STATUS != 0 {
                return Ok((response[3], len));
            }
        }
    }

    /// Receives a PDU, and returns its header and the length of its data.
    fn receive(&mut self) -> Result<([u8; HEADER_LEN], usize)> {
        let mut header = [0; HEADER_LEN];
        self.fill(&mut header)?;
        let status = u32::from_be_bytes(header[24..28].try_into()?);
        self.status = status.wrapping_add(1);
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        self.fill(&mut data)?;
        Ok((header, len))
    }

    /// Polls until the buffer is full.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let (began, mut filled) = (Instant::now(), 0);
        while filled < buffer.len() {
            match self.socket.read(&mut buffer[filled..]) {
                Ok(0) => bail!("the target has closed the connection"),
                Ok(len) => filled += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(began.elapsed() < TIMEOUT, "no answer");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
