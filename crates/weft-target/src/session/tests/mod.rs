//! Connections without sockets: an initiator in the test sends PDUs and reads what comes back.

mod aborts;
mod access;
mod changes;
mod chap;
mod connections;
mod jobs;
mod kept;
mod order;
mod power;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::{Addresses, Closed, Connection, Job, Portal, Random, Target, Wake};
use crate::limits::{DATA_SEGMENT_LEN_MAX, OUTPUT_LEN_MAX};
use crate::scsi::{Device, Options, Unit};
use crate::security::Access;
use crate::store::Ram;
use crate::wire::{NO_TAG, login_status, pairs};

const NAME: &str = "iqn.2026-01.org.example:disk";
const INITIATOR: &str = "InitiatorName=iqn.2026-01.org.example:initiator\0";
const LEN: usize = 1 << 20;
const ADDRESSES: Addresses = Addresses {
    local: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 3_260),
    remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 99)), 40_000),
};

fn portal() -> Arc<Portal> {
    portal_for(Access::default)
}

/// Not random, so that tests know the challenge.
fn fill(bytes: &mut [u8]) -> bool {
    bytes.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
    true
}

/// A portal with the same rules for its target and for discovery.
fn portal_for(access: impl Fn() -> Access) -> Arc<Portal> {
    let unit = || {
        let store = Box::new(Ram::new(LEN as u64).unwrap());
        Arc::new(Unit::new("serial".into(), Options::default(), store))
    };
    let units = BTreeMap::from([(0, unit()), (3, unit())]);
    let device = Arc::new(Device::new(NAME.into(), units));
    let target = Target::new(device, access());
    Arc::new(Portal::new(vec![target], access(), Random(fill)))
}

fn connection(portal: &Arc<Portal>) -> Connection {
    Connection::new(Arc::clone(portal), ADDRESSES, Wake::new(|| ()))
}

/// A PDU of a request, with its padded data.
fn pdu(opcode: u8, flags: u8, fields: &[(usize, &[u8])], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[0] = opcode;
    bytes[1] = flags;
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn login(flags: u8, text: &str) -> Vec<u8> {
    pdu(0x43, flags, &[(8, &[0x80, 0, 0, 0, 0, 1]), (24, &7_u32.to_be_bytes())], text.as_bytes())
}

/// A received response.
#[derive(Debug)]
struct Response {
    header: Vec<u8>,
    data: Vec<u8>,
}

impl Response {
    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    /// Status class and detail of a login response.
    fn login_status(&self) -> u16 {
        u16::from_be_bytes([self.header[36], self.header[37]])
    }
}

/// An initiator with its connection.
struct Client {
    connection: Connection,
    next_command: u32,
    next_task: u32,
    /// The unit that commands go to.
    lun: u8,
    received: Vec<u8>,
    /// Bytes that are given to the connection at once.
    piece: usize,
    /// Jobs that the test carries out. `None` if they are carried out at once.
    jobs: Option<Vec<Job>>,
}

impl Client {
    fn new(portal: &Arc<Portal>) -> Self {
        let connection = connection(portal);
        Self {
            connection,
            next_command: 7,
            next_task: 1,
            lun: 0,
            received: Vec::new(),
            piece: usize::MAX,
            jobs: None,
        }
    }

    /// Logs in with these keys besides the names.
    fn logged_in(portal: &Arc<Portal>, keys: &str) -> Self {
        let mut client = Self::new(portal);
        let text = format!("{INITIATOR}SessionType=Normal\0TargetName={NAME}\0{keys}");
        client.send(&login(0x87, &text)).unwrap();
        let response = client.response();
        assert_eq!(response.login_status(), login_status::SUCCESS);
        assert!(client.connection.is_logged_in());
        client
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Closed> {
        while !bytes.is_empty() {
            let space = self.connection.space();
            let len = bytes.len().min(space.len()).min(self.piece);
            space[..len].copy_from_slice(&bytes[..len]);
            self.connection.received(len);
            bytes = &bytes[len..];
            self.exchange()?;
        }
        Ok(())
    }

    /// Lets the connection work until nothing is left to send.
    fn exchange(&mut self) -> Result<(), Closed> {
        loop {
            self.connection.handle()?;
            if let Some(job) = self.connection.next_job() {
                match &mut self.jobs {
                    Some(jobs) => jobs.push(job),
                    None => self.connection.complete(job.run()),
                }
                continue;
            }
            let output = self.connection.output();
            assert!(output.len() <= OUTPUT_LEN_MAX + DATA_SEGMENT_LEN_MAX + 100);
            if output.is_empty() {
                return Ok(());
            }
            let len = output.len();
            self.received.extend_from_slice(output);
            self.connection.sent(len);
        }
    }

    fn response(&mut self) -> Response {
        let header: Vec<u8> = self.received.drain(..48).collect();
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data: Vec<u8> = self.received.drain(..len.next_multiple_of(4)).collect();
        data.truncate(len);
        Response { header, data }
    }

    /// Sends a command. Returns its tag.
    fn command(&mut self, flags: u8, cdb: &[u8], len: u32, data: &[u8]) -> Result<u32, Closed> {
        let task = self.next_task;
        self.next_task += 1;
        let fields: [(usize, &[u8]); 5] = [
            (9, &[self.lun]),
            (16, &task.to_be_bytes()),
            (20, &len.to_be_bytes()),
            (24, &self.next_command.to_be_bytes()),
            (32, cdb),
        ];
        let request = pdu(0x01, flags, &fields, data);
        self.next_command += 1;
        self.send(&request)?;
        Ok(task)
    }

    /// Sends a command without data and returns the status, and data or sense data.
    fn read(&mut self, cdb: &[u8], len: u32) -> (u8, Vec<u8>) {
        let task = self.command(0xc0, cdb, len, &[]).unwrap();
        let mut data = Vec::new();
        loop {
            let response = self.response();
            assert_eq!(response.u32(16), task);
            match response.header[0] {
                0x25 => {
                    assert_eq!(response.u32(40) as usize, data.len());
                    data.extend(response.data);
                    if response.header[1] & 1 != 0 {
                        return (response.header[3], data);
                    }
                }
                0x21 => {
                    // Sense data, if the command failed.
                    data.extend(response.data);
                    return (response.header[3], data);
                }
                other => panic!("{other:#x}"),
            }
        }
    }

    fn clear_attentions(&mut self) {
        while self.read(&[0; 6], 0).0 != 0 {}
    }

    /// Writes by a command with this much immediate and unsolicited data, and answers R2Ts.
    fn write(&mut self, cdb: &[u8], data: &[u8], shape: &Shape) -> u8 {
        let immediate = shape.immediate.min(data.len());
        let unsolicited_end = shape.unsolicited.max(immediate).min(data.len());
        let is_final = unsolicited_end == immediate;
        let flags = 0x20 | u8::from(is_final) << 7;
        let len = data.len() as u32;
        let task = self.command(flags, cdb, len, &data[..immediate]).unwrap();
        if !is_final {
            self.data_out(task, NO_TAG, data, immediate..unsolicited_end, shape.segment);
        }
        loop {
            let response = self.response();
            assert_eq!(response.u32(16), task);
            match response.header[0] {
                0x31 => {
                    let (offset, len) = (response.u32(40) as usize, response.u32(44) as usize);
                    let range = offset..offset + len;
                    self.data_out(task, response.u32(20), data, range, shape.segment);
                }
                0x21 => return response.header[3],
                other => panic!("{other:#x}"),
            }
        }
    }

    fn data_out(
        &mut self,
        task: u32,
        transfer: u32,
        data: &[u8],
        range: std::ops::Range<usize>,
        segment: usize,
    ) {
        let starts: Vec<usize> = range.clone().step_by(segment).collect();
        for (number, start) in starts.into_iter().enumerate() {
            let end = range.end.min(start + segment);
            let fields: [(usize, &[u8]); 4] = [
                (16, &task.to_be_bytes()),
                (20, &transfer.to_be_bytes()),
                (36, &(number as u32).to_be_bytes()),
                (40, &(start as u32).to_be_bytes()),
            ];
            let flags = u8::from(end == range.end) << 7;
            self.send(&pdu(0x05, flags, &fields, &data[start..end])).unwrap();
        }
    }
}

/// How the data of a write is sent.
#[derive(Clone, Debug)]
struct Shape {
    immediate: usize,
    unsolicited: usize,
    segment: usize,
}

fn read10(block: usize, count: usize) -> [u8; 10] {
    let [first, second] = (count as u16).to_be_bytes();
    let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, first, second, 0];
    cdb[2..6].copy_from_slice(&(block as u32).to_be_bytes());
    cdb
}

fn write10(block: usize, count: usize) -> [u8; 10] {
    let mut cdb = read10(block, count);
    cdb[0] = 0x2a;
    cdb
}

#[test]
fn login_over_rdma_agrees_on_its_keys() {
    for (only_solicited, has_whole_buffers) in [("", false), ("Yes", false), ("No", true)] {
        let portal = portal();
        let mut client = Client::new(&portal);
        client.connection = Connection::over_rdma(Arc::clone(&portal), ADDRESSES, Wake::new(|| ()));
        let tagged = match only_solicited {
            "" => String::new(),
            value => format!("TaggedBufferForSolicitedDataOnly={value}\0"),
        };
        let keys = "RDMAExtensions=Yes\0HeaderDigest=CRC32C\0MaxAHSLength=0\0\
                    TargetRecvDataSegmentLength=262144\0InitiatorRecvDataSegmentLength=4096\0\
                    MaxOutstandingUnexpectedPDUs=0\0iSERHelloRequired=No\0";
        let text = format!("{INITIATOR}SessionType=Normal\0TargetName={NAME}\0{keys}{tagged}");
        client.send(&login(0x87, &text)).unwrap();
        let response = client.response();
        assert_eq!(client.connection.has_whole_buffers(), has_whole_buffers, "{tagged}");
        let answers: BTreeMap<&str, &str> = pairs(&response.data).unwrap().into_iter().collect();
        for (key, value) in [
            ("RDMAExtensions", Some("Yes")),
            ("HeaderDigest", Some("Reject")),
            ("TargetRecvDataSegmentLength", Some("8192")),
            ("InitiatorRecvDataSegmentLength", Some("4096")),
            ("iSERHelloRequired", Some("No")),
            // What is declared has no answer.
            ("MaxAHSLength", None),
            ("MaxOutstandingUnexpectedPDUs", None),
            ("TaggedBufferForSolicitedDataOnly", None),
        ] {
            assert_eq!(answers.get(key).copied(), value, "{key}");
        }
    }
}

#[test]
fn login_agrees_on_each_key() {
    let portal = portal();
    let mut client = Client::new(&portal);
    let keys = "HeaderDigest=CRC32C,None\0DataDigest=X,None\0MaxBurstLength=0x100000\0\
                FirstBurstLength=262144\0InitialR2T=No\0ImmediateData=No\0X-unknown=1\0\
                ErrorRecoveryLevel=2\0MaxConnections=8\0";
    let text = format!("{INITIATOR}SessionType=Normal\0TargetName={NAME}\0{keys}");
    client.send(&login(0x87, &text)).unwrap();
    let response = client.response();
    let answers: BTreeMap<&str, &str> = pairs(&response.data).unwrap().into_iter().collect();
    for (key, value) in [
        ("TargetPortalGroupTag", "1"),
        ("HeaderDigest", "CRC32C"),
        ("DataDigest", "None"),
        ("MaxBurstLength", "1048576"),
        ("InitialR2T", "No"),
        ("ImmediateData", "No"),
        ("X-unknown", "NotUnderstood"),
        ("ErrorRecoveryLevel", "0"),
        ("MaxConnections", "8"),
        ("MaxRecvDataSegmentLength", "262144"),
    ] {
        assert_eq!(answers.get(key), Some(&value), "{key}");
    }
}

#[test]
fn login_is_refused_with_the_status_of_its_reason() {
    let name = format!("TargetName={NAME}\0");
    let mut old_version = login(0x87, &format!("{INITIATOR}{name}"));
    old_version[3] = 1;
    let mut other_session = login(0x87, &format!("{INITIATOR}{name}"));
    other_session[15] = 9;
    let cases = [
        (login(0x87, &name), login_status::MISSING_PARAMETER),
        (login(0x87, INITIATOR), login_status::MISSING_PARAMETER),
        (login(0x87, &format!("{INITIATOR}TargetName=iqn.other\0")), login_status::NOT_FOUND),
        (login(0x87, &format!("{INITIATOR}no pair\0")), login_status::INITIATOR_ERROR),
        (login(0x8b, &format!("{INITIATOR}{name}")), login_status::INITIATOR_ERROR),
        (
            login(0x81, &format!("{INITIATOR}{name}AuthMethod=CHAP\0")),
            login_status::AUTHENTICATION_FAILURE,
        ),
        (old_version, login_status::UNSUPPORTED_VERSION),
        (other_session, login_status::SESSION_DOES_NOT_EXIST),
    ];
    for (request, status) in cases {
        let mut client = Client::new(&portal());
        // The response is sent, then the connection ends.
        assert_eq!(client.send(&request), Err(Closed::Refused(status)));
        assert_eq!(client.response().login_status(), status);
    }
}

#[test]
fn first_command_reports_a_reset_once() {
    let mut client = Client::logged_in(&portal(), "");
    assert_eq!(client.read(&[0; 6], 0).0, 0x02);
    assert_eq!(client.read(&[0; 6], 0).0, 0x00);
}

#[test]
fn session_with_the_same_identity_replaces_the_first() {
    let portal = portal();
    let woken = Arc::new(AtomicUsize::new(0));
    let mut first = Client::new(&portal);
    let counted = Arc::clone(&woken);
    let wake = Wake::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    first.connection = Connection::new(Arc::clone(&portal), ADDRESSES, wake);
    let text = format!("{INITIATOR}TargetName={NAME}\0");
    first.send(&login(0x87, &text)).unwrap();
    let _second = Client::logged_in(&portal, "");
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(first.connection.handle(), Err(Closed::Replaced));
}

#[test]
fn a_cold_reset_ends_all_sessions_and_says_why() {
    let portal = portal();
    let mut first = Client::logged_in(&portal, "");
    let mut second = Client::new(&portal);
    let text = format!("InitiatorName=iqn.second\0TargetName={NAME}\0");
    second.send(&login(0x87, &text)).unwrap();
    assert_eq!(first.send(&pdu(0x42, 0x87, &[(16, &[9; 4])], &[])), Err(Closed::Reset));
    assert_eq!(first.response().header[..3], [0x22, 0x80, 0]);
    assert_eq!(second.connection.handle(), Err(Closed::Reset));
}

#[test]
fn a_text_has_each_key_once() {
    let mut client = Client::logged_in(&portal(), "");
    let mut ask = |text: &str| {
        let fields: [(usize, &[u8]); 3] =
            [(16, &[0, 0, 0, 1]), (20, &[0xff; 4]), (24, &client.next_command.to_be_bytes())];
        let request = pdu(0x04, 0x80, &fields, text.as_bytes());
        client.next_command += 1;
        client.send(&request).unwrap();
        assert!(client.received.len() < 1_000);
        client.response().header[0]
    };
    assert_eq!(ask("SendTargets=\0"), 0x24);
    assert_eq!(ask(&"SendTargets=\0".repeat(1_000)), 0x3f);
    assert_eq!(ask("SendTargets=\0X-a=1\0"), 0x24);
}

#[test]
fn damaged_data_ends_the_connection() {
    let mut client = Client::logged_in(&portal(), "DataDigest=CRC32C\0");
    client.next_command = 7;
    let fields: [(usize, &[u8]); 2] = [(16, &[0, 0, 0, 1]), (24, &7_u32.to_be_bytes())];
    let mut ping = pdu(0x00, 0x80, &fields, b"ping");
    // CRC-32C of "ping" is another number.
    ping.extend([1, 2, 3, 4]);
    assert_eq!(client.send(&ping), Err(Closed::DataDigest));
}

#[test]
fn command_numbers_outside_of_the_window_are_ignored() {
    let mut client = Client::logged_in(&portal(), "");
    for number in [6_u32, 7 + 128, 0x8000_0000] {
        let fields: [(usize, &[u8]); 2] = [(16, &[0, 0, 0, 1]), (24, &number.to_be_bytes())];
        client.send(&pdu(0x00, 0x80, &fields, &[])).unwrap();
        assert!(client.received.is_empty());
    }
    client.clear_attentions();
}

#[test]
fn large_read_is_sent_piece_by_piece() {
    let mut client = Client::logged_in(&portal(), "MaxRecvDataSegmentLength=65536\0");
    client.clear_attentions();
    let (status, data) = client.read(&read10(0, LEN / 512), LEN as u32);
    assert_eq!((status, data.len()), (0, LEN));
}

#[derive(Clone, Debug)]
enum Operation {
    Write { block: usize, count: usize, seed: u8, shape: Shape },
    Read { block: usize, count: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    let place = (0..LEN / 512 - 300, 1_usize..300);
    let shape = (0_usize..4, 0_usize..4, 1_usize..5).prop_map(|(immediate, more, segment)| Shape {
        immediate: immediate * 3_000,
        unsolicited: (immediate * 3_000 + more * 9_000).min(60_000),
        segment: segment * 7_000,
    });
    prop_oneof![
        (place.clone(), any::<u8>(), shape).prop_map(|((block, count), seed, shape)| {
            Operation::Write { block, count, seed, shape }
        }),
        place.prop_map(|(block, count)| Operation::Read { block, count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What is read is what was written last, however data is cut into PDUs, bursts and pieces.
    #[test]
    fn reads_return_what_was_written(
        operations in prop::collection::vec(operation(), 1..12),
        piece in prop_oneof![Just(usize::MAX), 1_000_usize..100_000],
        burst in prop_oneof![Just(16_384_usize), Just(1 << 20)],
    ) {
        let keys = format!("InitialR2T=No\0MaxBurstLength={burst}\0FirstBurstLength=65536\0");
        // The first burst is at most one burst.
        let first_burst = burst.min(65_536);
        let mut client = Client::logged_in(&portal(), &keys);
        client.piece = piece;
        client.clear_attentions();
        let mut model = vec![0; LEN];
        for operation in operations {
            match operation {
                Operation::Write { block, count, seed, mut shape } => {
                    shape.unsolicited = shape.unsolicited.min(first_burst);
                    shape.immediate = shape.immediate.min(first_burst);
                    let data: Vec<u8> =
                        (0..count * 512).map(|at| (at / 7) as u8 ^ seed).collect();
                    prop_assert_eq!(client.write(&write10(block, count), &data, &shape), 0);
                    model[block * 512..][..data.len()].copy_from_slice(&data);
                }
                Operation::Read { block, count } => {
                    let len = count * 512;
                    let (status, data) = client.read(&read10(block, count), len as u32);
                    prop_assert_eq!(status, 0);
                    prop_assert!(data == model[block * 512..][..len]);
                }
            }
        }
    }
}
