//! A TUN device: the packets that a network namespace sends come to this process, and those that
//! this process writes arrive there.
//!
//! The device takes segments of up to 64 KiB and leaves checksums to the receiver, as the queue of
//! a virtual machine's network card does. So a single core passes on gigabytes per second.
//!
//! # Safety
//!
//! The two `ioctl` calls get the arguments that the kernel's `if_tun.h` specifies for them.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use rustix::fs::OFlags;
use rustix::ioctl::{IntegerSetter, Setter, ioctl};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `TUNSETIFF`: makes the device.
const SET_INTERFACE: rustix::ioctl::Opcode = 0x4004_54ca;
/// `TUNSETOFFLOAD`: says what this process accepts.
const SET_OFFLOAD: rustix::ioctl::Opcode = 0x4004_54d0;
/// `IFF_TUN | IFF_NO_PI | IFF_VNET_HDR`: packets of IP, each after a [`HEADER_LEN`] header.
const FLAGS: u16 = 0x0001 | 0x1000 | 0x4000;
/// `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6`: packets without checksums, and long TCP segments.
const OFFLOAD: usize = 1 | 2 | 4;
/// Bytes of the virtio header before each packet.
pub(crate) const HEADER_LEN: usize = 10;

/// The kernel's `struct ifreq`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// A TUN device, which exists until this is dropped.
#[derive(Debug)]
pub(crate) struct Tun(File);

impl Tun {
    /// Makes a device of this name in the network namespace that is mounted at `namespace`.
    pub(crate) fn new(namespace: &Path, name: &str) -> Result<Self> {
        let namespace = File::open(namespace)?;
        // The namespace of a thread cannot be changed back without effort, so a new one is used.
        let opened = thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                    Self::open(name)
                })
                .join()
        });
        let opened = opened.map_err(|_| anyhow!("the thread that opens {name} has panicked"))?;
        opened.context("cannot make a TUN device; the kernel needs CONFIG_TUN")
    }

    fn open(name: &str) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
        let mut request = InterfaceRequest { name: [0; 16], flags: FLAGS, rest: [0; 22] };
        // The last byte remains zero.
        request.name[..15].iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        // SAFETY: TUNSETIFF reads a `struct ifreq`, whose size and layout `InterfaceRequest` has.
        let request = unsafe { Setter::<SET_INTERFACE, InterfaceRequest>::new(request) };
        // SAFETY: `request` is a correct argument of this call, as shown above.
        unsafe { ioctl(&file, request) }?;
        // SAFETY: TUNSETOFFLOAD takes an integer in place of a pointer.
        let offload = unsafe { IntegerSetter::<SET_OFFLOAD>::new_usize(OFFLOAD) };
        // SAFETY: `offload` is a correct argument of this call, as shown above.
        unsafe { ioctl(&file, offload) }?;
        Ok(Self(file))
    }

    /// Reads a packet with its header. Fails with `WouldBlock` if there is none.
    pub(crate) fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, to)?)
    }

    /// Delivers a packet with its header. The kernel drops it if the interface is down.
    pub(crate) fn write(&self, packet: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, packet)?)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
