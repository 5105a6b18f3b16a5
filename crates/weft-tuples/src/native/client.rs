//! A client that does one operation after the other.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use rustls::{ClientConnection, StreamOwned};
use weft_fabric::{Endpoint, Fabric};

use crate::access::{Token, Trust};
use crate::fabric::{self, Blocking};
use crate::limits::{
    ANSWER_FRAME_LEN_MAX, CONNECT_TIME_MAX, RECONNECT_PAUSE, SHUN_TIME, SILENCE_TIME, SILENCES_MAX,
};
use crate::model::{ClientId, Name, Operation, Outcome, Refusal};
use crate::tail::Tail;
use crate::wire::{Action, Answer, Hello, Leader, Malformed, RequestFrame, Welcome};

/// What is in front of an address by the fabric.
const FABRIC: &str = "fabric://";
/// What is in front of an address by TLS.
const TLS: &str = "tls://";

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(String),
    /// A host and a port, by the fabric: through shared memory on one host, by iWARP between hosts.
    /// If that is not possible, by TCP ([`Client::take_fallback`]).
    Fabric(String),
    /// A host and a port, by TCP within TLS.
    Tls(String),
    /// A socket of the file system.
    Unix(PathBuf),
    /// Several servers that keep the same state. The client finds the leader.
    Several(Vec<Self>),
}

impl FromStr for Address {
    type Err = std::convert::Infallible;

    /// A text with a slash is a path, except `fabric://HOST:PORT` and `tls://HOST:PORT`. One with
    /// commas is a list of servers, if none of them is a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all: Vec<Self> = text.split(',').map(|part| one(part.trim())).collect();
        let has_path = all.iter().any(|address| matches!(address, Self::Unix(_)));
        Ok(if all.len() == 1 || has_path { one(text) } else { Self::Several(all) })
    }
}

fn one(text: &str) -> Address {
    if let Some(address) = text.strip_prefix(FABRIC) {
        Address::Fabric(address.to_owned())
    } else if let Some(address) = text.strip_prefix(TLS) {
        Address::Tls(address.to_owned())
    } else if text.contains('/') {
        Address::Unix(text.into())
    } else {
        Address::Tcp(text.to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Fabric(address) => write!(f, "{FABRIC}{address}"),
            Self::Tls(address) => write!(f, "{TLS}{address}"),
            Self::Unix(path) => path.display().fmt(f),
            Self::Several(all) => {
                let texts: Vec<String> = all.iter().map(Self::to_string).collect();
                f.write_str(&texts.join(","))
            }
        }
    }
}

/// Why an operation was not done, or why it is not known whether it was.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no connection.
    #[error("no connection")]
    Io(#[from] io::Error),
    /// The peer is no server of this protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The server does not let the client in. With [`Refusal::Stale`] it does not know the client
    /// any more: what the client has not seen answered may have taken effect.
    #[error("{}", not_let_in(*.0))]
    Refused(Refusal),
    /// Another server is the leader, or none is. This is its address, which may be empty.
    #[error("{}", not_the_leader(.0))]
    Elsewhere(String),
    /// The server has stopped because of its log.
    #[error(
        "the server has stopped because it cannot write its log; it is not known whether the \
         operation took effect"
    )]
    Log,
}

fn not_let_in(refusal: Refusal) -> String {
    match refusal {
        Refusal::Token => {
            "the server asks for a token, and this client has none or a wrong one".into()
        }
        refusal => format!("the server refuses the connection: {refusal:?}"),
    }
}

fn not_the_leader(leader: &str) -> String {
    match leader {
        "" => "no server leads: a majority of them has to run and reach one another".into(),
        _ => format!("the server does not lead, but the one at {leader} does"),
    }
}

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// TCP within TLS.
    Tls,
    /// A Unix socket.
    Unix,
    /// By the fabric, memory that both ends share.
    Memory,
    /// By the fabric, iWARP.
    Iwarp,
}

trait Stream: Read + Write + Send {
    fn transport(&self) -> Transport;

    /// Has reads and writes fail that make no progress for this time, if the transport can do so.
    fn limit(&self, _time: Duration) -> io::Result<()> {
        Ok(())
    }

    /// What one-sided operations need.
    fn fabric(&self) -> Option<(&Fabric, &Endpoint)> {
        None
    }
}

impl Stream for TcpStream {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time.saturating_mul(SILENCES_MAX)))
    }
}

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn transport(&self) -> Transport {
        Transport::Tls
    }

    fn limit(&self, time: Duration) -> io::Result<()> {
        self.sock.limit(time)
    }
}

impl Stream for UnixStream {
    fn transport(&self) -> Transport {
        Transport::Unix
    }
}

impl Stream for Blocking {
    fn transport(&self) -> Transport {
        if self.0.is_in_memory() { Transport::Memory } else { Transport::Iwarp }
    }

    fn fabric(&self) -> Option<(&Fabric, &Endpoint)> {
        Some(self.0.parts())
    }
}

/// What a client shows to servers, and what it expects of them.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The token that servers ask for.
    pub token: Option<Token>,
    /// Which servers the client trusts by TLS. Without that it connects to none.
    pub trust: Option<Trust>,
}

/// A client. If the connection is lost it connects again and repeats its operation, which takes
/// effect once.
pub struct Client {
    address: Address,
    /// The server of several that is tried next.
    next: usize,
    /// Another server may lead while this one says nothing.
    has_others: bool,
    /// Where the client was to connect at last.
    tried: Option<Address>,
    /// The leader, as a server has named it.
    leader: Option<Address>,
    /// A server that has said nothing, and since when the client shuns it.
    silent: Option<(Address, Instant)>,
    credentials: Credentials,
    id: ClientId,
    stream: Option<BufReader<Box<dyn Stream>>>,
    /// Whether the server has known the client.
    was_in: bool,
    number: u64,
    retry_time: Duration,
    /// Why the connection is not by the fabric as the address says.
    fallback: Option<io::Error>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, number, .. } = self;
        f.debug_struct("Client").field("address", address).field("number", number).finish()
    }
}

impl Client {
    /// Connects to a server that asks for nothing. After the loss of a connection the client tries
    /// for `retry_time` to get another.
    ///
    /// # Errors
    ///
    /// If there is no server, or it refuses.
    pub fn connect(address: Address, retry_time: Duration) -> Result<Self, Failure> {
        Self::connect_with(address, retry_time, Credentials::default())
    }

    /// Connects with these credentials.
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    pub fn connect_with(
        address: Address,
        retry_time: Duration,
        credentials: Credentials,
    ) -> Result<Self, Failure> {
        let mut id = ClientId::default();
        let mut filled = 0;
        while filled < id.len() {
            filled += getrandom(&mut id[filled..], GetRandomFlags::empty())
                .map_err(|error: Errno| Failure::Io(error.into()))?;
        }
        let has_others = matches!(address, Address::Several(_));
        let mut client = Self {
            address,
            has_others,
            next: 0,
            tried: None,
            leader: None,
            silent: None,
            credentials,
            id,
            stream: None,
            was_in: false,
            number: 0,
            retry_time,
            fallback: None,
        };
        let start = Instant::now();
        let mut said = None;
        loop {
            match client.enter() {
                Ok(()) => return Ok(client),
                Err(failure) if !client.may_be_elsewhere(&failure) => return Err(failure),
                Err(failure) => {
                    note(&failure, &mut said);
                    if start.elapsed() >= retry_time {
                        return Err(explained(failure, said));
                    }
                    client.pause(&failure);
                }
            }
        }
    }

    /// Whether the leader may be found at another address, or later.
    fn may_be_elsewhere(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Elsewhere(_) => true,
            Failure::Io(_) => self.has_others,
            _ => false,
        }
    }

    /// Waits before the next attempt, unless a server has just named the leader. A silent server is
    /// shunned for a while.
    fn pause(&mut self, failure: &Failure) {
        use io::ErrorKind::{TimedOut, WouldBlock};
        if let Failure::Io(error) = failure
            && matches!(error.kind(), TimedOut | WouldBlock)
        {
            self.silent = self.tried.take().map(|address| (address, Instant::now()));
        }
        if self.leader.is_none() {
            sleep(RECONNECT_PAUSE);
        }
    }

    /// What carries the connection, if there is one.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        self.stream.as_ref().map(|stream| stream.get_ref().transport())
    }

    /// Why the client has connected by TCP although its address is of the fabric. Each reason is
    /// returned once.
    pub fn take_fallback(&mut self) -> Option<io::Error> {
        self.fallback.take()
    }

    /// Does an operation, which may wait for so long; `None` is for ever.
    ///
    /// # Errors
    ///
    /// If the connection is lost and there is no other one within the time for it.
    pub fn call(
        &mut self,
        operation: Operation,
        wait: Option<Duration>,
    ) -> Result<Outcome, Failure> {
        let start = Instant::now();
        let left = || wait.map(|wait| wait.saturating_sub(start.elapsed()));
        match self.ask(|| Action::Do(operation.clone(), left()))? {
            Answer::Outcome(outcome) => Ok(outcome),
            Answer::Cancelled(_) | Answer::Tail(_) => Err(Malformed.into()),
        }
    }

    /// Returns the tail of an element, which can be read without the server. `None` if the
    /// connection is not by the fabric, or the server has no place for another one.
    ///
    /// # Errors
    ///
    /// Those of [`Self::call`].
    pub fn tail(&mut self, element: &[u8]) -> Result<Option<Tail>, Failure> {
        let name = Name::from(element);
        let Answer::Tail(place) = self.ask(|| Action::Tail(Name::clone(&name)))? else {
            return Err(Malformed.into());
        };
        let parts = self.stream.as_ref().and_then(|stream| stream.get_ref().fabric());
        Ok(place.zip(parts).map(|(place, (fabric, endpoint))| Tail::new(fabric, endpoint, place)))
    }

    /// Asks until there is an answer. The time to connect again begins with the first loss of a
    /// connection, and anew with each later one if another server may lead.
    fn ask(&mut self, action: impl Fn() -> Action) -> Result<Answer, Failure> {
        self.number += 1;
        let (number, confirmed) = (self.number, self.number - 1);
        let mut lost_since: Option<Instant> = None;
        let mut has_log_failed = false;
        let mut said = None;
        loop {
            let bytes = RequestFrame { number, confirmed, action: action() }.encode();
            match self.attempt(number, &bytes) {
                Err(failure @ (Failure::Io(_) | Failure::Log | Failure::Elsewhere(_))) => {
                    if self.stream.take().is_some() && self.has_others {
                        lost_since = None;
                    }
                    has_log_failed |= matches!(failure, Failure::Log);
                    note(&failure, &mut said);
                    let since = *lost_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.retry_time {
                        let failure = explained(failure, said);
                        return Err(if has_log_failed { Failure::Log } else { failure });
                    }
                    self.pause(&failure);
                }
                result => return result,
            }
        }
    }

    fn attempt(&mut self, number: u64, request: &[u8]) -> Result<Answer, Failure> {
        if self.stream.is_none() {
            self.enter()?;
        }
        let stream =
            self.stream.as_mut().ok_or(io::ErrorKind::NotConnected).map_err(io::Error::from)?;
        stream.get_mut().write_all(request)?;
        loop {
            return match receive(stream)? {
                (of, answer) if of == number => Ok(answer),
                (0, Answer::Cancelled(_)) => continue,
                (0, Answer::Outcome(Outcome::Refused(Refusal::Log))) => Err(Failure::Log),
                (0, Answer::Outcome(Outcome::Refused(Refusal::Elsewhere))) => {
                    Err(Failure::Elsewhere(String::new()))
                }
                _ => Err(Malformed.into()),
            };
        }
    }

    /// Connects to the leader that a server has named, or to the next one of several.
    fn open(&mut self) -> io::Result<Box<dyn Stream>> {
        let address = match (self.leader.take(), &self.address) {
            (Some(leader), _) => leader,
            (None, Address::Several(all)) => {
                let len = all.len().max(1);
                let is_shunned = all.get(self.next % len).is_some_and(|it| self.shuns(it));
                let address = all.get(self.next.wrapping_add(is_shunned.into()) % len);
                self.next = self.next.wrapping_add(1 + usize::from(is_shunned));
                address.ok_or(io::ErrorKind::InvalidInput)?.clone()
            }
            (None, address) => address.clone(),
        };
        self.tried = Some(address.clone());
        let stream: Box<dyn Stream> = match &address {
            Address::Tcp(address) => Box::new(tcp(address, self.has_others)?),
            Address::Fabric(address) => match fabric::connect(address) {
                Ok(stream) => Box::new(Blocking(stream)),
                Err(error) => {
                    let stream = tcp(address, self.has_others)?;
                    self.fallback = Some(error);
                    Box::new(stream)
                }
            },
            Address::Tls(address) => Box::new(self.tls(address)?),
            Address::Unix(path) => Box::new(UnixStream::connect(path)?),
            Address::Several(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(stream)
    }

    fn tls(&self, address: &str) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        const NONE: &str = "no certificates are given by which to trust a server";
        let trust = self.credentials.trust.as_ref();
        let trust = trust.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, NONE))?;
        let session = trust.connect(address)?;
        Ok(StreamOwned::new(session, tcp(address, self.has_others)?))
    }

    /// How to connect to the leader: as to the server that has named it.
    fn way_to(&self, leader: &str) -> Option<Address> {
        let make = match self.tried {
            Some(Address::Fabric(_)) => Address::Fabric,
            Some(Address::Tls(_)) => Address::Tls,
            _ => Address::Tcp,
        };
        let named = (!leader.is_empty()).then(|| make(leader.to_owned()));
        named.filter(|leader| !self.shuns(leader))
    }

    /// Whether this server has said nothing a short time ago: another one may still name it as the
    /// leader.
    fn shuns(&self, address: &Address) -> bool {
        let silent = self.silent.as_ref().filter(|(silent, _)| silent == address);
        silent.is_some_and(|(_, since)| since.elapsed() < SHUN_TIME)
    }

    fn enter(&mut self) -> Result<(), Failure> {
        let mut stream = self.open()?;
        if self.has_others {
            stream.limit(SILENCE_TIME)?;
        }
        let token = self.credentials.token.as_ref().map(|token| token.text().to_vec());
        let token = token.unwrap_or_default();
        stream.write_all(&Hello { id: self.id, returns: self.was_in, token }.encode())?;
        let mut bytes = [0; Welcome::LEN];
        fill(&mut stream, &mut bytes, |_| Ok(()))?;
        match Welcome::decode(&bytes)?.0 {
            Ok(()) => {}
            Err(Refusal::Log) => return Err(Failure::Log),
            Err(Refusal::Elsewhere) => {
                let leader = read_frame(&mut stream, Leader::LEN_MAX, |_| Ok(()))?;
                let Leader(leader) = Leader::decode(&leader)?;
                self.has_others = true;
                self.leader = self.way_to(&leader);
                return Err(Failure::Elsewhere(leader));
            }
            Err(refusal) => return Err(Failure::Refused(refusal)),
        }
        self.was_in = true;
        self.stream = Some(BufReader::new(stream));
        Ok(())
    }
}

/// Notes what a server has said about the leader.
fn note(failure: &Failure, said: &mut Option<String>) {
    if let Failure::Elsewhere(leader) = failure {
        *said = Some(leader.clone());
    }
}

/// Explains why there is no connection, by what a server has said about the leader before.
fn explained(failure: Failure, said: Option<String>) -> Failure {
    match (failure, said) {
        // The servers that can be reached have no majority.
        (Failure::Io(_), Some(leader)) if leader.is_empty() => Failure::Elsewhere(leader),
        (Failure::Io(error), Some(leader)) => {
            let text = format!("a server names {leader} as the leader: {error}");
            Failure::Io(io::Error::new(error.kind(), text))
        }
        (failure, _) => failure,
    }
}

/// Connects. If another server may lead, a host that says nothing is given up soon.
fn tcp(address: &str, has_others: bool) -> io::Result<TcpStream> {
    let stream = if has_others { connect_soon(address)? } else { TcpStream::connect(address)? };
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn connect_soon(address: &str) -> io::Result<TcpStream> {
    let mut result = Err(io::ErrorKind::NotFound.into());
    for one in address.to_socket_addrs()? {
        result = TcpStream::connect_timeout(&one, CONNECT_TIME_MAX);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Reads the next answer, and the number of the request. If the stream has a limit, the server has
/// to answer probes meanwhile.
fn receive(stream: &mut BufReader<Box<dyn Stream>>) -> Result<(u64, Answer), Failure> {
    let probe = |it: &mut BufReader<Box<dyn Stream>>| {
        // It does not wait, and every leader answers it when it has made sure that it leads.
        let request = RequestFrame { number: 0, confirmed: 0, action: Action::Cancel(0) };
        it.get_mut().write_all(&request.encode())
    };
    Ok(Answer::decode(&read_frame(stream, ANSWER_FRAME_LEN_MAX, probe)?)?)
}

/// Reads what has its length in front. `ask` is called as by [`fill`] until the length arrives.
fn read_frame<R: Read>(
    stream: &mut R,
    len_max: usize,
    ask: impl FnMut(&mut R) -> io::Result<()>,
) -> Result<Vec<u8>, Failure> {
    let mut len = [0; 4];
    fill(stream, &mut len, ask)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > len_max {
        return Err(Malformed.into());
    }
    let mut bytes = vec![0; len];
    fill(stream, &mut bytes, |_| Ok(()))?;
    Ok(bytes)
}

/// Reads so many bytes. A stream with a limit may be silent for a while; `ask` is called each time.
fn fill<R: Read>(
    stream: &mut R,
    bytes: &mut [u8],
    mut ask: impl FnMut(&mut R) -> io::Result<()>,
) -> io::Result<()> {
    let (mut filled, mut silences) = (0, 0);
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => (filled, silences) = (filled + len, 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && silences < SILENCES_MAX => {
                silences += 1;
                ask(stream)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Drop for Client {
    /// Lets the server forget the client.
    fn drop(&mut self) {
        if let Some(stream) = &mut self.stream {
            let (number, confirmed) = (self.number + 1, self.number);
            let part = RequestFrame { number, confirmed, action: Action::Part };
            // A server that does not get it forgets the client later.
            let _ = stream.get_mut().write_all(&part.encode());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::spawn;

    use super::*;

    #[test]
    fn address_of_several_servers_is_a_list() {
        let parse = |text: &str| text.parse::<Address>().unwrap();
        let tcp = |text: &str| Address::Tcp(text.into());
        assert_eq!(parse("a:1"), tcp("a:1"));
        assert_eq!(parse("a:1, b:2"), Address::Several(vec![tcp("a:1"), tcp("b:2")]));
        let fabric = parse("fabric://a:1,b:2");
        assert_eq!(fabric, Address::Several(vec![Address::Fabric("a:1".into()), tcp("b:2")]));
        assert_eq!(fabric.to_string(), "fabric://a:1,b:2");
        let tls = Address::Tls("a:1".into());
        assert_eq!((parse("tls://a:1"), tls.to_string().as_str()), (tls, "tls://a:1"));
        assert_eq!(parse("./a,b"), Address::Unix("./a,b".into()));
    }

    /// Answers the first messages of clients, one after the other. Returns where.
    fn answer(welcomes: Vec<Vec<u8>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        spawn(move || {
            for welcome in welcomes.iter().cycle() {
                let Ok((mut peer, _)) = listener.accept() else { return };
                let mut hello = [0; Hello::LEN];
                // A client that has gone meanwhile wants no answer.
                if peer.read_exact(&mut hello).is_ok() {
                    let _ = peer.write_all(welcome);
                }
            }
        });
        address
    }

    fn elsewhere(leader: &str) -> Vec<u8> {
        let welcome = Welcome(Err(Refusal::Elsewhere)).encode();
        [welcome, Leader(leader.into()).encode()].concat()
    }

    /// An address at which nobody listens.
    fn nobody() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    #[test]
    fn a_server_without_a_majority_is_the_reason_that_there_is_no_connection() {
        let several = [answer(vec![elsewhere("")]), nobody(), nobody()].map(Address::Tcp);
        let several = Address::Several(several.to_vec());
        for retry_ms in [250, 350, 450] {
            let failure = Client::connect(several.clone(), Duration::from_millis(retry_ms));
            let failure = failure.unwrap_err();
            assert!(failure.to_string().contains("a majority"), "{failure}");
        }
        let leader = nobody();
        let one = Address::Tcp(answer(vec![elsewhere(&leader)]));
        let failure = Client::connect(one, Duration::from_millis(50)).unwrap_err();
        let Failure::Io(error) = &failure else {
            return assert!(failure.to_string().contains(&leader));
        };
        assert!(error.to_string().contains(&leader), "{error}");
    }

    #[test]
    fn one_server_is_asked_again_when_the_leader_that_it_names_is_gone() {
        let welcomes = vec![elsewhere(&nobody()), Welcome(Ok(())).encode()];
        let one = Address::Tcp(answer(welcomes));
        assert!(Client::connect(one, Duration::from_secs(240)).is_ok());
    }
}
