//! Peers that do not keep to the protocol: the connection with them ends, and nothing else does.

mod common;

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use weft_engine::cm::{Channel, ConnectParam, EventKind, Id, PortSpace, Via};
use weft_engine::cq::Cq;
use weft_engine::pd::Pd;
use weft_engine::qp::{Qp, QpCap, QpInit, QpState, QpType};
use weft_engine::rd::{Change, ConnectionEnd, Port, Room};
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest};
use weft_engine::{Context, device};
use weft_fabric::{Error, Fabric, Listener, Options};

/// Messages that the victim is ready to receive.
const WINDOW: usize = 4;
/// The hello of a peer that receives 4 messages of 64 bytes, as the documentation of the protocol
/// has it.
const HELLO: [u8; 14] = [b'W', b'F', b'A', b'B', 1, 0, 0, 4, 0, 0, 0, 64, 0, 0];

/// A peer made of the engine's objects, which sends what it likes.
enum Stranger {
    Pair { qp: Arc<Qp>, id: Arc<Id>, channel: Arc<Channel> },
    Datagrams(ConnectionEnd),
}

impl Stranger {
    fn dial(to: SocketAddr, hello: &[u8]) -> Result<Self> {
        let devices = device::list()?;
        let context = Context::open(devices.first().context("no device")?)?;
        let pd = Pd::new(&context);
        if common::is_over_datagrams() {
            let port = Port::bind(&pd, "127.0.0.1:0".parse()?)?;
            let end = port.end_to(to, Room { sends: 32, receives: 4 })?;
            end.connect(hello)?;
            return Ok(Self::Datagrams(end));
        }
        let cq = Cq::new(&context, 64, None)?;
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 256,
        };
        let (send_cq, recv_cq) = (Arc::clone(&cq), cq);
        let (qp_type, srq, xrcd, sq_sig_all) = (QpType::Rc, None, None, true);
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all };
        let (qp, channel) = (Qp::new(&pd, init)?, Channel::new()?);
        let id = Id::new(&channel, PortSpace::Connected);
        id.resolve_address(None, to)?;
        id.resolve_route()?;
        let (attr, mask) = id.qp_attributes(QpState::Init)?;
        qp.modify(&attr, mask)?;
        let param = ConnectParam { private_data: hello.to_vec(), ..ConnectParam::default() };
        id.connect(&Via::Own(Arc::clone(&qp)), &param)?;
        Ok(Self::Pair { qp, id, channel })
    }

    /// Waits until the connection is made, or refused.
    fn is_established(&self) -> Result<bool> {
        loop {
            match self {
                Self::Pair { channel, .. } => match channel.next_event(|_| ())?.kind {
                    EventKind::Established => return Ok(true),
                    EventKind::Rejected => return Ok(false),
                    _ => {}
                },
                Self::Datagrams(end) => match end.change() {
                    Some(change) => return Ok(matches!(change, Change::Established(_))),
                    None => {
                        poll(
                            &mut [PollFd::from_borrowed_fd(end.changes_fd(), PollFlags::IN)],
                            None,
                        )?;
                    }
                },
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let operation = Operation::Send { imm: None, invalidate: None };
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        let data = Data::Inline(&[bytes]);
        let request = SendRequest { wr_id: 1, operation, flags, data };
        let posted = match self {
            Self::Pair { qp, .. } => qp.start_post().push(&request),
            Self::Datagrams(end) => end.post(&request),
        };
        Ok(posted?)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if let Self::Pair { qp, id, .. } = self {
            id.destroy();
            qp.destroy();
        }
    }
}

fn victim() -> Result<(Fabric, Listener)> {
    let options = Options { window: WINDOW, message_max: 100, ..Options::default() };
    let fabric = common::open(options)?;
    let listener = fabric.listen("127.0.0.1:0".parse()?)?;
    Ok((fabric, listener))
}

/// Checks that the listener still serves others.
fn serves(fabric: &Fabric, listener: &Listener) -> Result<()> {
    let connecting = fabric.connect(listener.address(), b"")?;
    let server = listener.accept().wait()?.accept(b"")?;
    let client = connecting.wait()?.endpoint;
    let sent = client.send(b"hello")?;
    ensure!(*server.receive().wait()? == *b"hello");
    Ok(sent.wait()?)
}

/// Has a stranger send these messages, and returns the messages that arrive and the error of the
/// victim.
fn attacked(messages: &[&[u8]]) -> Result<(usize, Error)> {
    let (fabric, listener) = victim()?;
    let stranger = Stranger::dial(listener.address(), &HELLO)?;
    let endpoint = listener.accept().wait()?.accept(b"")?;
    ensure!(stranger.is_established()?);
    for message in messages {
        stranger.send(message)?;
    }
    // All are kept, so that none makes room.
    let mut kept = Vec::new();
    let error = loop {
        match endpoint.receive().wait() {
            Ok(message) => kept.push(message),
            Err(error) => break error,
        }
    };
    ensure!(endpoint.send(b"").is_err(), "the connection goes on");
    serves(&fabric, &listener)?;
    Ok((kept.len(), error))
}

#[test]
fn headers_that_no_end_sends_end_the_connection() -> Result<()> {
    common::alone("headers_that_no_end_sends_end_the_connection", || {
        let sound = [0_u8, 0, 0, 0, 0, 0, 0, 0, 1];
        let all: [&[u8]; 8] = [
            b"",
            b"short",
            // A kind that does not exist, a reserved byte, immediate data of a message.
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[0, 1, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 1],
            // Immediate data, and credits, with a payload; credits that are none.
            &[1, 0, 0, 0, 0, 0, 0, 1, 9],
            &[2, 0, 0, 1, 0, 0, 0, 0, 9],
            &[2, 0, 0, 0, 0, 0, 0, 0],
        ];
        for wrong in all {
            let (arrived, error) = attacked(&[&sound, wrong, &sound])?;
            ensure!(
                arrived == 1 && matches!(error, Error::Protocol { .. }),
                "{wrong:?}: {arrived}, {error}"
            );
        }
        Ok(())
    })
}

#[test]
fn credits_that_were_not_spent_end_the_connection() -> Result<()> {
    common::alone("credits_that_were_not_spent_end_the_connection", || {
        for wrong in
            [[2, 0, 0, 1, 0, 0, 0, 0], [2, 0, 0xff, 0xff, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]]
        {
            let (arrived, error) = attacked(&[&wrong])?;
            ensure!(arrived == 0 && matches!(error, Error::Protocol { .. }), "{wrong:?}: {error}");
        }
        Ok(())
    })
}

#[test]
fn more_messages_than_the_window_end_the_connection() -> Result<()> {
    common::alone("more_messages_than_the_window_end_the_connection", || {
        let message = [0_u8; 8];
        let (arrived, error) = attacked(&[&message[..]; WINDOW + 1])?;
        ensure!(arrived == WINDOW && matches!(error, Error::Protocol { .. }), "{arrived}: {error}");
        Ok(())
    })
}

#[test]
fn a_message_that_is_too_long_ends_the_connection() -> Result<()> {
    common::alone("a_message_that_is_too_long_ends_the_connection", || {
        let (arrived, error) = attacked(&[&[0_u8; 200]])?;
        ensure!(
            arrived == 0 && matches!(error, Error::Lost { .. } | Error::Closed { .. }),
            "{error}"
        );
        Ok(())
    })
}

#[test]
fn strangers_are_refused() -> Result<()> {
    common::alone("strangers_are_refused", || {
        let (fabric, listener) = victim()?;
        let of_other_version = [b'W', b'F', b'A', b'B', 2, 0, 0, 4, 0, 0, 0, 64, 0, 0];
        let strange: [&[u8]; 4] = [b"", b"GET / HTTP/1.1", &HELLO[..13], &of_other_version];
        let address = listener.address();
        // The program does not see them: what it accepts is the peer that comes after them.
        let accepting = std::thread::spawn(move || {
            let incoming = listener.accept().wait()?;
            ensure!(incoming.private_data() == b"a friend");
            Ok(incoming.refuse(b"")?)
        });
        for hello in strange {
            let stranger = Stranger::dial(address, hello)?;
            ensure!(!stranger.is_established()?, "{hello:?} was accepted");
        }
        let refused = fabric.connect(address, b"a friend")?.wait().map(drop);
        ensure!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
        accepting.join().expect("no panic")
    })
}

#[test]
fn strangers_at_a_path_hold_nobody_up() -> Result<()> {
    common::alone("strangers_at_a_path_hold_nobody_up", || {
        let folder = common::Folder::new()?;
        let path = folder.0.join("listener");
        let fabric = common::open(Options::default())?;
        let listener = fabric.listen_path(&path)?;
        let address = listener.address();
        let accepting = std::thread::spawn(move || {
            let incoming = listener.accept().wait()?;
            ensure!(incoming.private_data() == b"a friend");
            let server = incoming.accept(b"")?;
            ensure!(*server.receive().wait()? == *b"hello");
            Ok(())
        });
        // They say nothing, and keep their connections; or go without reading.
        let connect = |_| UnixStream::connect(&path);
        let silent: Vec<_> = (0..300).map(connect).collect::<Result<_, _>>()?;
        (0..300).try_for_each(|number| connect(number).map(drop))?;
        // A guess of the secret, and none at all.
        for guess in [&[0; 16][..], &[1; 15], &[]] {
            let stranger = Stranger::dial(address, &[&HELLO[..], guess].concat())?;
            ensure!(!stranger.is_established()?, "a guess of {} bytes", guess.len());
        }
        let client = fabric.connect_path(&path, b"a friend")?.wait()?.endpoint;
        client.send(b"hello")?.wait()?;
        drop(silent);
        accepting.join().expect("no panic")
    })
}
