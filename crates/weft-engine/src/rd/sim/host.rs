//! A simulated host: an endpoint, and memory with a shadow copy of its expected contents.

use std::net::{Ipv4Addr, SocketAddr};

use weft_wire::rd::Reason;
use weft_wire::rdmap::AtomicOp;

use super::setup::Setup;
use crate::rd::machine::Machine;
use crate::rd::memory::{Memory, Party};
use crate::rd::request::PeerAddress;
use crate::rd::shared::Settings;

/// Bytes of memory. The library at its start never changes; reads use it.
pub(super) const LEN: usize = 1 << 20;
pub(super) const LIBRARY: usize = 64 << 10;
/// Keys by which peers may access all of the memory, none of it, or read the library.
pub(super) const OPEN: u32 = 0x0be1;
pub(super) const PRIVATE: u32 = 0x0511;
pub(super) const READ_ONLY: u32 = 0x0ead;
/// The address of the first byte.
pub(super) const BASE: u64 = 0x7000_0000_0000;

const PORT: u16 = 4_000;

pub(super) struct Ram {
    pub(super) bytes: Vec<u8>,
    pub(super) shadow: Vec<u8>,
}

impl Ram {
    fn place(
        &self,
        party: Party,
        key: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<usize, Reason> {
        let limit = match (key, party) {
            (OPEN, _) => LEN,
            (PRIVATE | READ_ONLY, Party::Local) => LEN,
            (READ_ONLY, Party::Remote) if !write => LIBRARY,
            (PRIVATE | READ_ONLY, Party::Remote) => return Err(Reason::Rights),
            _ => return Err(Reason::Key),
        };
        let at = addr.checked_sub(BASE).ok_or(Reason::Bounds)?;
        let end = at.checked_add(len).ok_or(Reason::Bounds)?;
        if end > limit as u64 { Err(Reason::Bounds) } else { Ok(at as usize) }
    }
}

impl Memory for Ram {
    fn read(
        &mut self,
        party: Party,
        key: u32,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let at = self.place(party, key, addr, len as u64, false)?;
        out.extend_from_slice(&self.bytes[at..at + len]);
        Ok(())
    }

    fn write(&mut self, party: Party, key: u32, addr: u64, bytes: &[u8]) -> Result<(), Reason> {
        let at = self.place(party, key, addr, bytes.len() as u64, true)?;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn update(&mut self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, Reason> {
        let at = self.place(Party::Remote, key, addr, 8, true)?;
        if !at.is_multiple_of(8) {
            return Err(Reason::Malformed);
        }
        let old = word(&self.bytes, at);
        self.bytes[at..at + 8].copy_from_slice(&op.apply(old).to_ne_bytes());
        Ok(old)
    }

    fn check_remote_read(&mut self, key: u32, addr: u64, len: u64) -> Result<(), Reason> {
        self.place(Party::Remote, key, addr, len, false).map(drop)
    }
}

/// The value of eight bytes.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

pub(super) struct Host {
    pub(super) machine: Machine,
    pub(super) ram: Ram,
    pub(super) incarnation: u32,
    /// The program takes no event before this time.
    pub(super) takes_from: u64,
    /// Start of the memory that is not used yet.
    next_place: usize,
}

pub(super) fn address(host: usize) -> PeerAddress {
    let last = u8::try_from(host + 1).expect("few hosts");
    PeerAddress {
        socket: SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), PORT)),
        endpoint: u16::from(last),
    }
}

pub(super) fn number(address: &SocketAddr) -> Option<usize> {
    match address {
        SocketAddr::V4(v4) => usize::from(v4.ip().octets()[3]).checked_sub(1),
        SocketAddr::V6(_) => None,
    }
}

fn machine(host: usize, setup: &Setup, rng: &mut fastrand::Rng) -> Machine {
    let settings = Settings {
        endpoint: address(host).endpoint,
        datagram_len: setup.datagram_len,
        peers_max: setup.peers_max,
        receive_bytes: setup.receive_bytes,
        connected: false,
    };
    Machine::new(settings, [rng.u64(..), rng.u64(..)])
}

impl Host {
    pub(super) fn new(host: usize, setup: &Setup, rng: &mut fastrand::Rng) -> Self {
        let mut bytes = vec![0xa5; LEN];
        rng.fill(&mut bytes[..LIBRARY]);
        let ram = Ram { shadow: bytes.clone(), bytes };
        let machine = machine(host, setup, rng);
        Self { machine, ram, incarnation: 0, takes_from: 0, next_place: LIBRARY }
    }

    pub(super) fn restart(&mut self, host: usize, setup: &Setup, rng: &mut fastrand::Rng) {
        self.machine = machine(host, setup, rng);
        self.incarnation += 1;
        self.takes_from = 0;
    }

    /// Allocates memory that nothing else uses, if there is enough left.
    pub(super) fn allocate(&mut self, len: usize) -> Option<usize> {
        let at = self.next_place;
        if at + len > LEN {
            return None;
        }
        self.next_place += len;
        Some(at)
    }

    /// Allocates a word of zeros, if there is enough memory left.
    pub(super) fn allocate_word(&mut self) -> Option<usize> {
        let at = self.allocate(16)?.next_multiple_of(8);
        self.ram.bytes[at..at + 8].fill(0);
        self.ram.shadow[at..at + 8].fill(0);
        Some(at)
    }
}
