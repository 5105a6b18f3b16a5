//! Connections between servers: both ends prove that they know the secret, and each frame has a
//! code that only they can make. TLS around it encrypts them.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::group::{Group, ServerId};
use crate::limits::FRAME_LEN_MAX;

const MAGIC: [u8; 8] = *b"WEFTREP1";
const CODE_LEN: usize = 32;

type Key = [u8; 32];

/// A connection to another server.
#[derive(Debug)]
pub(crate) struct Channel<S> {
    stream: S,
    sending: Direction,
    receiving: Direction,
}

#[derive(Debug)]
struct Direction {
    key: Key,
    /// Frames so far.
    frames: u64,
}

impl Direction {
    fn new(session: &Key, name: &[u8]) -> Self {
        Self { key: blake3::keyed_hash(session, name).into(), frames: 0 }
    }

    /// The code of the next frame. Comparing two codes takes the same time wherever they differ.
    fn code(&mut self, body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.frames.to_be_bytes());
        hasher.update(body);
        self.frames += 1;
        hasher.finalize()
    }
}

/// The peer is none, or what it has sent is not of this protocol.
fn refused(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn nonce() -> io::Result<Key> {
    let (mut bytes, mut filled) = (Key::default(), 0);
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    /// Greets the server with this number, which has accepted a connection. What both ends prove is
    /// of this connection, if no other one has its binding.
    pub(crate) async fn dial(
        mut stream: S,
        group: &Group,
        to: ServerId,
        binding: &[u8],
    ) -> io::Result<Self> {
        let own = nonce()?;
        let from = group.own_id();
        let hello = [&MAGIC[..], &from.to_be_bytes(), &to.to_be_bytes(), &own].concat();
        stream.write_all(&hello).await?;
        stream.flush().await?;
        let mut other = Key::default();
        stream.read_exact(&mut other).await?;
        let session = session(group.key(), &hello, &other, binding);
        let mut sending = Direction::new(&session, b"dialer");
        let receiving = Direction::new(&session, b"acceptor");
        let code = sending.code(b"");
        stream.write_all(code.as_bytes()).await?;
        stream.flush().await?;
        Ok(Self { stream, sending, receiving })
    }

    /// Takes the greeting of a server. Nothing else is taken from a peer that does not know the
    /// secret.
    pub(crate) async fn accept(mut stream: S, group: &Group, binding: &[u8]) -> io::Result<Self> {
        let mut hello = [0; MAGIC.len() + 16 + size_of::<Key>()];
        stream.read_exact(&mut hello).await?;
        let number = |at: usize| -> u64 {
            hello[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (from, to) = (number(MAGIC.len()), number(MAGIC.len() + 8));
        let is_known = from != to && to == group.own_id() && group.server(from).is_some();
        if hello[..MAGIC.len()] != MAGIC || !is_known {
            return Err(refused("not a server of this group"));
        }
        let own = nonce()?;
        stream.write_all(&own).await?;
        stream.flush().await?;
        let session = session(group.key(), &hello, &own, binding);
        let mut receiving = Direction::new(&session, b"dialer");
        let sending = Direction::new(&session, b"acceptor");
        let mut code = [0; CODE_LEN];
        stream.read_exact(&mut code).await?;
        if receiving.code(b"") != code {
            return Err(refused("the peer does not know the secret"));
        }
        Ok(Self { stream, sending, receiving })
    }

    pub(crate) async fn send(&mut self, body: &[u8]) -> io::Result<()> {
        if body.len() > FRAME_LEN_MAX {
            return Err(refused("the message is too long"));
        }
        let len = (body.len() as u32).to_be_bytes();
        let code = self.sending.code(body);
        self.stream.write_all(&[&len[..], body, code.as_bytes()].concat()).await?;
        self.stream.flush().await
    }

    pub(crate) async fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).await?;
        let len = u32::from_be_bytes(len) as usize;
        if len > FRAME_LEN_MAX {
            return Err(refused("the message is too long"));
        }
        // The length has no code of its own: memory is taken as bytes arrive.
        let mut body = Vec::new();
        let read = (&mut self.stream).take(len as u64).read_to_end(&mut body).await?;
        if read < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut code = [0; CODE_LEN];
        self.stream.read_exact(&mut code).await?;
        if self.receiving.code(&body) != code {
            return Err(refused("the message is not the peer's"));
        }
        Ok(body)
    }
}

fn session(key: &Key, hello: &[u8], answer: &Key, binding: &[u8]) -> Key {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(hello);
    hasher.update(answer);
    hasher.update(binding);
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn group(name: &str, secret: &str) -> Group {
        let server =
            |name| format!("[[server]]\nname = \"{name}\"\nclients = \"\"\npeers = \"\"\n");
        let servers = ["a", "b", "c"].map(server).concat();
        Group::parse(&format!("secret = \"{secret}\"\n{servers}"), name).unwrap()
    }

    const SECRET: &str = "0123456789abcdef";

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    async fn connect(
        dialer: &Group,
        to: ServerId,
        acceptor: &Group,
    ) -> (io::Result<Channel<DuplexStream>>, io::Result<Channel<DuplexStream>>) {
        let (one, other) = duplex(1 << 10);
        tokio::join!(Channel::dial(one, dialer, to, b""), Channel::accept(other, acceptor, b""))
    }

    #[test]
    fn frames_arrive_between_servers_of_a_group() {
        run(async {
            let (a, b) = (group("a", SECRET), group("b", SECRET));
            let (one, other) = connect(&a, 2, &b).await;
            let (mut one, mut other) = (one.unwrap(), other.unwrap());
            for text in ["", "hello", &"x".repeat(100_000)] {
                let (sent, received) = tokio::join!(one.send(text.as_bytes()), other.receive());
                sent.unwrap();
                assert_eq!(received.unwrap(), text.as_bytes());
            }
            other.send(b"answer").await.unwrap();
            assert_eq!(one.receive().await.unwrap(), b"answer");
        });
    }

    #[test]
    fn peers_without_the_secret_or_of_another_group_are_refused() {
        run(async {
            let b = group("b", SECRET);
            assert!(connect(&group("a", "another secret 16"), 2, &b).await.1.is_err());
            assert!(connect(&group("a", SECRET), 3, &b).await.1.is_err(), "another server");
            assert!(connect(&group("b", SECRET), 2, &b).await.1.is_err(), "itself");
        });
    }

    #[test]
    fn changed_repeated_and_long_frames_are_refused() {
        run(async {
            let (a, b) = (group("a", SECRET), group("b", SECRET));
            for change in 0..3 {
                let (mut one, mut other) = {
                    let (one, other) = connect(&a, 2, &b).await;
                    (one.unwrap(), other.unwrap())
                };
                let code = one.sending.code(b"text");
                let mut bytes = [&4_u32.to_be_bytes()[..], b"text", code.as_bytes()].concat();
                match change {
                    0 => bytes[5] ^= 1,
                    1 => bytes[..4].copy_from_slice(&u32::MAX.to_be_bytes()),
                    _ => {
                        one.stream.write_all(&bytes).await.unwrap();
                        assert!(other.receive().await.is_ok());
                    }
                }
                one.stream.write_all(&bytes).await.unwrap();
                assert!(other.receive().await.is_err(), "change {change}");
            }
        });
    }
}
