//! Shared memory within one host: the source writes directly into the sink's blocks.
//!
//! The ends connect through a Unix socket in the abstract namespace, which only processes of the
//! same network namespace can reach. Each checks that the other runs as the same user. The preface
//! tells whether a connection is a control channel or a data channel. On a data channel the sink
//! passes its pool of blocks, a sealed memfd, and these 16 bytes:
//!
//! ```text
//! | length of the segment (8) | length of a block (4) | key (4) |
//! ```
//!
//! The source maps the segment. A credit contains the offset of a block's header; the payload
//! begins at the next page. The sink does not see writes, so the source sends notices over the
//! control channel.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use weft_sys::{SharedMemory, peer_credentials};

use super::channel::{
    Arrivals, Completion, Copied, DataSource, Payload, Place, TransportError, Write,
};
use super::greeting::{greet, greeting};
use super::stream::{StreamControl, wait_for};
use crate::limits::{SEGMENT_LEN_MAX, STALL_TIME};
use crate::pipeline::{Block, Pool};
use crate::wire::{Kind, Mode, Preface, Token};

/// Length of the message that passes a pool, in bytes.
const POOL_LEN: usize = 16;
/// The zeros that replace the missing bytes of a truncated file.
const ZEROS: [u8; 4_096] = [0; 4_096];

/// Returns the socket address of a server of this user on this host.
///
/// # Errors
/// `InvalidInput` if the name is too long.
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name.as_bytes())
}

/// Listens at a name.
///
/// # Errors
/// If a system call fails, for instance with `AddrInUse`.
pub fn listen(name: &str) -> Result<UnixListener, TransportError> {
    Ok(UnixListener::bind_addr(&address(name)?)?)
}

/// Connects a control channel to a name. The listener must be a process of this user.
///
/// # Errors
/// If a system call fails; `Protocol` if another user's process listens.
pub fn connect_control(name: &str) -> Result<StreamControl, TransportError> {
    let stream = connect(name, Kind::Control)?;
    Ok(StreamControl::new(stream.into(), STALL_TIME))
}

/// Connects a data channel to a name.
///
/// # Errors
/// Like [`connect_control`].
pub fn connect_data(name: &str, token: Token, channel: u16) -> Result<UnixStream, TransportError> {
    connect(name, Kind::Data { token, channel })
}

fn connect(name: &str, kind: Kind) -> Result<UnixStream, TransportError> {
    let stream = checked(UnixStream::connect_addr(&address(name)?)?)?;
    greet(&stream, kind, Mode::Clear)?;
    Ok(stream)
}

/// An accepted connection, by the kind in its preface.
#[derive(Debug)]
pub enum LocalAccepted {
    /// A control channel.
    Control(Box<StreamControl>),
    /// A data channel of the connection with this token.
    Data {
        /// The token.
        token: Token,
        /// The number of the data channel.
        channel: u16,
        /// The connection, for [`pass_pool`] or [`take_pool`].
        stream: UnixStream,
    },
}

/// Reads the preface of an accepted connection. It waits up to `time` for the peer, so the
/// accepting thread should not call it.
///
/// # Errors
/// If a system call fails; `Protocol` if the peer is another user's process or asks for TLS.
pub fn accept(stream: UnixStream, time: Duration) -> Result<LocalAccepted, TransportError> {
    let stream = checked(stream)?;
    match greeting(&stream, time)? {
        Preface { mode: Mode::Tls, .. } => {
            Err(TransportError::Protocol("TLS is not used between processes of one user"))
        }
        Preface { kind: Kind::Control, .. } => {
            let control = StreamControl::new(stream.into(), STALL_TIME);
            Ok(LocalAccepted::Control(Box::new(control)))
        }
        Preface { kind: Kind::Data { token, channel }, .. } => {
            Ok(LocalAccepted::Data { token, channel, stream })
        }
    }
}

fn checked(stream: UnixStream) -> Result<UnixStream, TransportError> {
    let (_, user) = peer_credentials(stream.as_fd()).map_err(io::Error::from)?;
    if user == rustix::process::geteuid().as_raw() {
        Ok(stream)
    } else {
        Err(TransportError::Protocol("the peer is a process of another user"))
    }
}

/// Passes the sink's pool to the source at the other end of a data channel.
///
/// # Errors
/// If a system call fails; `Protocol` if the pool is not shared.
pub fn pass_pool(stream: &UnixStream, pool: &Pool, key: u32) -> Result<(), TransportError> {
    let segment =
        pool.segment().ok_or(TransportError::Protocol("the pool is not in shared memory"))?;
    let len = rustix::fs::fstat(segment).map_err(io::Error::from)?.st_size.cast_unsigned();
    let block_len = u32::try_from(pool.block_len()).unwrap_or(u32::MAX);
    let mut bytes = [0; POOL_LEN];
    bytes[..8].copy_from_slice(&len.to_be_bytes());
    bytes[8..12].copy_from_slice(&block_len.to_be_bytes());
    bytes[12..].copy_from_slice(&key.to_be_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [segment];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    // The send buffer of a new socket has room for all 16 bytes.
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    if sent.map_err(io::Error::from)? == POOL_LEN { Ok(()) } else { Err(TransportError::Truncated) }
}

/// The sink's pool, mapped by the source. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct GrantedPool {
    memory: Arc<SharedMemory>,
    block_len: usize,
    key: u32,
}

/// Receives the pool of the sink at the other end of a data channel, within `time`.
///
/// # Errors
/// If no pool arrives, or if it is not a sealed segment of the announced length.
pub fn take_pool(stream: &UnixStream, time: Duration) -> Result<GrantedPool, TransportError> {
    if !wait_for(stream.as_fd(), PollFlags::IN, Some(time))? {
        return Err(TransportError::Stalled(time));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; POOL_LEN];
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(stream, &mut buffers, &mut control, flags).map_err(io::Error::from)?;
    let mut segment: Option<OwnedFd> = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = part {
            segment = fds.next();
        }
    }
    if message.bytes != POOL_LEN || message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(TransportError::Truncated);
    }
    let segment = segment.ok_or(TransportError::Protocol("a pool without memory"))?;
    let (len, rest) = bytes.split_at(8);
    let (block_len, key) = rest.split_at(4);
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let len = usize::try_from(word(len)).ok().filter(|len| *len <= SEGMENT_LEN_MAX);
    let len = len.ok_or(TransportError::Protocol("a pool without bounds"))?;
    let memory = SharedMemory::open(segment.as_fd(), len, true).map_err(io::Error::from)?;
    let block_len = usize::try_from(word(block_len)).unwrap_or(0);
    let key = u32::try_from(word(key)).unwrap_or(0);
    Ok(GrantedPool { memory: Arc::new(memory), block_len, key })
}

impl GrantedPool {
    /// Returns the block at a granted place, so that the caller can fill it before it posts the
    /// write.
    ///
    /// # Errors
    /// `Protocol` if there is no block.
    pub fn block(&self, place: &Place, head_len: usize) -> Result<Block, TransportError> {
        let block = Block::of_peer(&self.memory, place.address, head_len, self.block_len);
        let is_ours = place.key == u64::from(self.key);
        block.filter(|_| is_ours).ok_or(TransportError::Protocol("the credit names no block"))
    }
}

/// The source's end of a data channel in shared memory.
#[derive(Debug)]
pub struct LocalSource {
    stream: Arc<UnixStream>,
    pool: GrantedPool,
    is_closed: Arc<AtomicBool>,
    copied: Copied,
}

impl LocalSource {
    /// Creates the source's end from a connection and the pool that came on it.
    #[must_use]
    pub fn new(stream: UnixStream, pool: GrantedPool) -> Self {
        let (stream, is_closed) = (Arc::new(stream), Arc::default());
        Self { stream, pool, is_closed, copied: Copied::default() }
    }

    /// Copies the header and the payload into the granted block. Returns how much of an extent the
    /// file had, if it was less.
    fn put(&self, write: &Write) -> Result<Option<usize>, TransportError> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(TransportError::Closed);
        }
        let head = write.head.bytes();
        let mut granted = self.pool.block(&write.place, head.len())?;
        if write.payload.len() > granted.len() {
            return Err(TransportError::Protocol("the block of the credit is too short"));
        }
        granted.put_head(head);
        match &write.payload {
            // The caller has filled the granted block itself.
            Payload::Block { block, .. } if block.is_same(&granted) => Ok(None),
            Payload::Block { block, len } => {
                block.copy_to(&mut granted, *len);
                Ok(None)
            }
            Payload::Extent { block, prefix, file, offset, len } => {
                if !block.is_same(&granted) {
                    block.copy_to(&mut granted, *prefix);
                }
                let had = granted.read_file(*prefix, *len, file.as_fd(), *offset)?;
                let mut at = had;
                while at < *len {
                    let part = &ZEROS[..ZEROS.len().min(len - at)];
                    granted.copy_in(prefix + at, part);
                    at += part.len();
                }
                Ok((had < *len).then_some(had))
            }
        }
    }
}

impl DataSource for LocalSource {
    fn arrivals(&self) -> Arrivals {
        Arrivals::NotSeen
    }

    fn takes_extents(&self) -> bool {
        true
    }

    fn post(&mut self, write: Write) -> Result<(), (Box<Write>, TransportError)> {
        let sent = self.put(&write);
        self.copied.post(write, sent)
    }

    fn completion(&mut self, _wait: Duration) -> Result<Option<Completion>, TransportError> {
        // A posted write is already in the sink's memory.
        Ok(self.copied.take())
    }

    fn abandon(&mut self) -> Vec<Write> {
        self.is_closed.store(true, Ordering::SeqCst);
        self.copied.abandon()
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        Ok(shutdown(&self.stream, Shutdown::Write).map_err(io::Error::from)?)
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let (stream, is_closed) = (Arc::clone(&self.stream), Arc::clone(&self.is_closed));
        Arc::new(move || {
            is_closed.store(true, Ordering::SeqCst);
            let _ = shutdown(&stream, Shutdown::Both);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::channel::{Control, ControlEvent};
    use crate::transport::table::{HEAD_LEN, head, parts};
    use crate::wire::ControlHeader;
    use std::io::Write as _;

    const LEN: usize = 65_536;
    /// A time limit that is never reached on a working system.
    const TIME: Duration = Duration::from_secs(240);

    fn name(of: &str) -> String {
        format!("weft-test-{}-{of}", std::process::id())
    }

    fn channel(of: &str, pool: &Pool) -> (UnixStream, LocalSource) {
        let name = name(of);
        let listener = listen(&name).expect("a name");
        let token = Token([3; 16]);
        let source = connect_data(&name, token, 2).expect("a listener");
        let stream = listener.accept().expect("a client").0;
        let sink = match accept(stream, TIME).expect("a data channel") {
            LocalAccepted::Data { token: Token([3, ..]), channel: 2, stream } => stream,
            other => panic!("{other:?}"),
        };
        pass_pool(&sink, pool, 7).expect("room");
        let granted = take_pool(&source, TIME).expect("a pool");
        (sink, LocalSource::new(source, granted))
    }

    fn place(block: &Block) -> Place {
        let address = block.head_offset(HEAD_LEN).expect("shared");
        Place { address, key: 7, len: u32::try_from(block.len()).expect("short") }
    }

    fn write(place: Place, payload: Payload) -> Write {
        Write { id: 5, place, head: head(1, payload.len(), 9), payload }
    }

    fn taken(block: &Block) -> (u32, u64, Vec<u8>) {
        let mut head = [0; HEAD_LEN];
        block.take_head(&mut head);
        let (_, len, sequence) = parts(&head);
        let mut bytes = vec![0; len as usize];
        block.copy_out(0, &mut bytes);
        (len, sequence, bytes)
    }

    #[test]
    fn source_writes_into_the_blocks_of_the_sink() {
        let pool = Pool::shared(3, LEN).expect("memory");
        let (_sink, mut source) = channel("writes", &pool);
        assert_eq!(source.arrivals(), Arrivals::NotSeen);
        let granted = [(); 3].map(|()| pool.take().expect("free"));
        let ours = Pool::private(1, LEN).expect("memory");

        // A write from a private block,
        let mut block = ours.take().expect("free");
        block.copy_in(0, &[1; LEN]);
        source.post(write(place(&granted[0]), Payload::Block { block, len: LEN })).expect("open");
        assert_eq!(taken(&granted[0]), (LEN as u32, 9, vec![1; LEN]));
        // one that was filled in place,
        let mut block = source.pool.block(&place(&granted[1]), HEAD_LEN).expect("granted");
        block.copy_in(0, b"in place");
        source.post(write(place(&granted[1]), Payload::Block { block, len: 8 })).expect("open");
        assert_eq!(taken(&granted[1]), (8, 9, b"in place".to_vec()));
        // and one from a file that was truncated.
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"0123456789").expect("room");
        let done = |source: &mut LocalSource| source.completion(Duration::ZERO).expect("open");
        assert_eq!(done(&mut source).map(|it| it.short), Some(None));
        assert_eq!(done(&mut source).map(|it| it.short), Some(None));
        let mut block = ours.take().expect("free");
        block.copy_in(0, b"record:");
        let file = Arc::new(file.into());
        let payload = Payload::Extent { block, prefix: 7, file, offset: 4, len: 9_000 };
        source.post(write(place(&granted[2]), payload)).expect("open");
        assert_eq!(done(&mut source).map(|it| it.short), Some(Some(6)));
        let mut expected = b"record:456789".to_vec();
        expected.resize(9_007, 0);
        assert_eq!(taken(&granted[2]), (9_007, 9, expected));
        assert!(done(&mut source).is_none());
    }

    #[test]
    fn control_channel_carries_messages() {
        let name = name("control");
        let listener = listen(&name).expect("a name");
        let near = connect_control(&name).expect("a listener");
        let stream = listener.accept().expect("a client").0;
        let remote = match accept(stream, TIME).expect("a control channel") {
            LocalAccepted::Control(control) => control,
            other => panic!("{other:?}"),
        };
        let sent = ControlHeader { session: 1, kind: 13, len: 0 }.emit();
        near.send(&sent).expect("a peer");
        let mut message = Vec::new();
        let came = remote.receive(&mut message, Some(TIME)).expect("a peer");
        assert_eq!((came, &message[..]), (ControlEvent::Message, &sent[..]));
        assert_eq!(remote.peer(), None);
    }

    #[test]
    fn tls_is_refused_between_processes_of_one_user() {
        let (near, remote) = UnixStream::pair().expect("a pair");
        greet(&near, Kind::Control, Mode::Tls).expect("room");
        let refused = accept(remote, TIME);
        assert!(matches!(refused, Err(TransportError::Protocol(_))), "{refused:?}");
    }

    #[test]
    fn credit_for_an_unknown_block_is_refused() {
        let pool = Pool::shared(1, LEN).expect("memory");
        let (_sink, source) = channel("credits", &pool);
        let good = place(&pool.take().expect("free"));
        source.pool.block(&good, HEAD_LEN).expect("granted");
        let bad = [
            Place { key: 8, ..good },
            Place { address: good.address + 1, ..good },
            Place { address: u64::MAX, ..good },
        ];
        for place in bad {
            let refused = source.pool.block(&place, HEAD_LEN);
            assert!(matches!(refused, Err(TransportError::Protocol(_))), "{refused:?}");
        }
    }

    #[test]
    fn payload_longer_than_the_block_is_refused() {
        let pool = Pool::shared(1, LEN).expect("memory");
        let (_sink, mut source) = channel("long", &pool);
        let ours = Pool::private(1, 2 * LEN).expect("memory");
        let granted = pool.take().expect("free");
        let block = ours.take().expect("free");
        let payload = Payload::Block { block, len: LEN + 1 };
        let (_, error) = source.post(write(place(&granted), payload)).expect_err("too long");
        assert!(matches!(error, TransportError::Protocol(_)), "{error}");
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let (near, remote) = UnixStream::pair().expect("a pair");
        let file: OwnedFd = tempfile::tempfile().expect("a file").into();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = [0; POOL_LEN];
        sendmsg(&near, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).expect("room");
        assert!(take_pool(&remote, TIME).is_err());
        let (near, remote) = UnixStream::pair().expect("a pair");
        (&near).write_all(&[0; POOL_LEN]).expect("room");
        let refused = take_pool(&remote, TIME);
        assert!(matches!(refused, Err(TransportError::Protocol(_))), "no memory: {refused:?}");
        let stalled = take_pool(&remote, Duration::from_millis(1));
        assert!(matches!(stalled, Err(TransportError::Stalled(_))), "{stalled:?}");
    }

    #[test]
    fn closed_channel_refuses_writes() {
        let pool = Pool::shared(1, LEN).expect("memory");
        let (_sink, mut source) = channel("closed", &pool);
        (source.closer())();
        let granted = pool.take().expect("free");
        let block = source.pool.block(&place(&granted), HEAD_LEN).expect("granted");
        let (_, error) = source
            .post(write(place(&granted), Payload::Block { block, len: 5 }))
            .expect_err("closed");
        assert!(matches!(error, TransportError::Closed), "{error}");
    }
}
