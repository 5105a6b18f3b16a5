//! Receiving the bytes of a stream over TCP.

use weft_sys::Buffers;
use weft_sys::calls::io::Errno;

use crate::kernel::Kernel;
use crate::recv_options::{DONTWAIT, RecvOptions};

/// Receives at most `most` bytes over TCP.
///
/// # Errors
/// `EAGAIN`: nothing is there, or urgent data ends the call; or another error of the kernel.
pub(crate) fn recv_over_tcp<K: Kernel>(
    socket: K::Socket<'_>,
    buffers: Buffers<'_>,
    most: usize,
    options: RecvOptions,
) -> Result<usize, Errno> {
    if options.has_part {
        return recv_behind_part::<K>(socket, buffers, most, options.flags());
    }
    K::recv(socket, buffers, most, options.flags())
}

/// Receives at most `most` bytes over TCP without waiting, for a call that has received bytes
/// before. The kernel ends such a call before urgent data, and a call of its own skips urgent data
/// that comes first (tcp_recvmsg). So this receives only if the kernel has counted bytes before
/// urgent data, which may come at any moment.
///
/// # Errors
/// Those of `recv_over_tcp`.
pub fn recv_behind_part<K: Kernel>(
    socket: K::Socket<'_>,
    buffers: Buffers<'_>,
    most: usize,
    flags: i32,
) -> Result<usize, Errno> {
    if K::unread(socket).unwrap_or(0) > 0 {
        return K::recv(socket, buffers, most, flags | DONTWAIT);
    }
    // Finds the end of the stream, or an error, and takes nothing.
    match K::recv(socket, buffers, most, RecvOptions::COUNT.flags())? {
        0 => Ok(0),
        _ => Err(Errno::AGAIN),
    }
}
