//! Grants and servers that connect to others, with peers that do not keep to what they are for.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::accept::Shares;
use super::agree::{
    FEATURE_CONNECTS, FEATURE_GRANTS, ask_for_grant, establish, features, flush, open_session,
};
use super::extras::{Extras, SendsTo, ServerExtras};
use super::networks::Network;
use super::places::local_start;
use super::request::{Flags, Request};
use super::rights::Access;
use super::server::Server;
use super::tests::{Nobody, share};
use crate::compress::Compression;
use crate::end::{EndError, Opened, SourceChannel, SourcePlan, run_source};
use crate::limits::{BLOCK_SIZE, CHANNELS_EACH_MAX, VERSION};
use crate::secure::{Cipher, GrantKeys, Identity, PublicKey, Sealer, TlsClient, TlsServer};
use crate::session::{Connection, Offer};
use crate::transport::tcp::{self, TcpSettings, TcpSource, connect_granted};
use crate::transport::{Control as _, ControlEvent, StreamControl, TransportError};
use crate::tree::source::{Content, SourceOptions, Start};
use crate::wire::record_name::Name;
use crate::wire::{
    Body, Kind, ListenReply, Message, Mode, Open, OpenReply, PipeSecret, Preface, Role, Terms,
};

const TIME: Duration = Duration::from_secs(240);

fn identity() -> Identity {
    Identity::generate().expect("a key")
}

/// A server that takes data channels of others.
struct Remote {
    folder: tempfile::TempDir,
    address: SocketAddr,
    key: PublicKey,
}

/// Starts a server that connects to others in these networks.
fn serve(networks: &[&str]) -> Remote {
    let (folder, own) = (tempfile::tempdir().expect("a folder"), identity());
    let tls = TlsServer::new(&own, Arc::new(|_| true)).expect("a server");
    let shares = vec![share(folder.path(), Access::Both)];
    let rights = Arc::new(Shares { shares, allows_clear: false });
    let (server, key) = (Server::new(tls, rights, Arc::new(Nobody)), own.public());
    let networks = networks.iter().map(|it| it.parse::<Network>().expect("a network"));
    server.copy_with_servers(own, networks.collect());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    thread::spawn(move || server.run(&listener));
    Remote { folder, address, key }
}

/// A client's connection to a server.
struct Client {
    control: Arc<StreamControl>,
    connection: Connection,
    epoch: Instant,
    terms: Terms,
}

impl Remote {
    fn client(&self) -> Client {
        let tls = TlsClient::new(&identity(), Arc::new(|_| true)).expect("a client");
        let control = tcp::connect_control(self.address, Some(&tls), &TcpSettings::default());
        let (control, epoch) = (control.expect("a server"), Instant::now());
        let features = features() | FEATURE_GRANTS | FEATURE_CONNECTS;
        let (channels, agent) = (CHANNELS_EACH_MAX, "test".into());
        let offer = Offer { channels, block_size: BLOCK_SIZE, features, agent };
        let (connection, terms) = establish(&control, offer, epoch).expect("terms");
        Client { control: Arc::new(control), connection, epoch, terms }
    }
}

impl Client {
    fn ask(&mut self, key: &PublicKey) -> PipeSecret {
        let reply = ask_for_grant(&*self.control, &mut self.connection, self.epoch, key);
        let Ok(ListenReply::Accepted { secret, .. }) = reply else { panic!("{reply:?}") };
        secret
    }

    fn open(&mut self, role: Role, request: &Request) -> Result<(u32, Vec<u8>), EndError> {
        open_session(&*self.control, &mut self.connection, self.epoch, role, request)
    }
}

/// A grant of a server for another one, for which this test stands.
struct Source<'a> {
    remote: &'a Remote,
    own: Identity,
    keys: GrantKeys,
}

impl<'a> Source<'a> {
    fn new(remote: &'a Remote, client: &mut Client) -> Self {
        let own = identity();
        let secret = client.ask(&own.public());
        let keys = GrantKeys::new(&secret, own.public(), remote.key);
        Self { remote, own, keys }
    }

    /// Whether the server answers the beginning of a data channel.
    fn is_known(&self, channel: u16) -> bool {
        let token = self.keys.token(channel).expect("a token");
        let kind = Kind::Data { token, channel };
        let (version_min, version_max, mode) = (VERSION, VERSION, Mode::Clear);
        let preface = Preface { version_min, version_max, kind, mode }.emit();
        let mut stream = TcpStream::connect(self.remote.address).expect("a server");
        stream.write_all(&[&preface[..], &[7; 32]].concat()).expect("room");
        stream.read(&mut [0]).is_ok_and(|len| len == 1)
    }

    fn connect(&self, channel: u16) -> Result<TcpStream, TransportError> {
        self.connect_as(channel, &self.own)
    }

    fn connect_as(&self, channel: u16, own: &Identity) -> Result<TcpStream, TransportError> {
        let (to, settings) = (self.remote.address, TcpSettings::default());
        connect_granted(to, channel, (&self.keys, own), &settings, TIME)
    }
}

/// Returns a request to write to a path of a share, from another server.
fn giving(path: &str, only: Option<&str>) -> Request {
    let only = only.map(|name| vec![name.as_bytes().to_vec()]);
    let extras = Extras { servers: ServerExtras { sends_to: None, only }, ..Extras::default() };
    let flags = Flags::GRANTED.with(Flags::FOLDER, true);
    Request { flags, extras, paths: vec![path.into()], ..Request::default() }
}

#[test]
fn data_channel_of_a_grant_is_taken_once_and_from_its_server_alone() {
    let remote = serve(&[]);
    let mut client = remote.client();
    let source = Source::new(&remote, &mut client);
    // Another server that has the secret, or a client that has made the server's key up.
    assert!(source.connect_as(0, &identity()).is_err());
    // That has not used the channel up.
    let first = source.connect(0).expect("the first time");
    assert!(source.connect(0).is_err(), "used");
    assert!(source.connect(CHANNELS_EACH_MAX).is_err(), "beyond the limit");
    let second = source.connect(CHANNELS_EACH_MAX - 1).expect("another channel");
    // A secret that nobody has granted.
    let keys = GrantKeys::new(&PipeSecret([7; 32]), source.own.public(), remote.key);
    assert!(Source { keys, own: identity(), remote: &remote }.connect(0).is_err());
    // The grant of another server is none of this one's.
    let other = serve(&[]);
    let elsewhere = Source { remote: &other, own: source.own, keys: source.keys };
    assert!(elsewhere.connect(1).is_err());
    drop((first, second));
}

#[test]
fn grant_ends_with_the_opening_and_with_the_connection_of_its_client() {
    let remote = serve(&[]);
    let mut client = remote.client();
    let source = Source::new(&remote, &mut client);
    let first = source.connect(0).expect("before the opening");
    client.open(Role::Source, &giving("share/to", None)).expect("its own grant");
    assert!(source.connect(1).is_err(), "after the opening");
    drop((first, client));
    let mut client = remote.client();
    let source = Source::new(&remote, &mut client);
    assert!(source.is_known(0));
    drop(client);
    // The server ends the grant when it sees that.
    let start = Instant::now();
    while source.is_known(0) {
        assert!(start.elapsed() < TIME, "the grant does not end");
    }
    assert!(source.connect(0).is_err());
}

#[test]
fn session_without_a_grant_takes_no_channels_of_others() {
    let remote = serve(&[]);
    let refused = |request: &Request, role| {
        let error = remote.client().open(role, request).expect_err("no grant");
        assert!(matches!(error, EndError::Peer(_)), "{error}");
        error.to_string()
    };
    let text = refused(&giving("share/to", None), Role::Source);
    assert!(text.contains("no grant"), "{text}");
    for flag in [Flags::STREAM, Flags::REMOVES, Flags::BESIDE] {
        let request = giving("share/to", None);
        refused(&Request { flags: request.flags.with(flag, true), ..request }, Role::Source);
    }
    refused(&giving("share/to", None), Role::Sink);
    let names = giving("share/to", Some("name"));
    refused(&Request { flags: Flags::FOLDER, ..names }, Role::Source);
    assert!(!remote.folder.path().join("to").exists());
}

/// Sends a file under a name, as a server would for a client that has named another one.
fn send(remote: &Remote, request: &Request, name: &str) -> Result<(), EndError> {
    let mut client = remote.client();
    let source = Source::new(remote, &mut client);
    let stream = source.connect(0).expect("the grant");
    let (session, _) = client.open(Role::Source, request)?;
    let (folder, settings) = (tempfile::tempdir().expect("a folder"), TcpSettings::default());
    fs::write(folder.path().join("file"), "bytes of another server").expect("room");
    let (start, _) = local_start(&folder.path().join("file"), Flags::default()).expect("a file");
    let new_name = Some(Name::new(name.as_bytes()).expect("a name"));
    let (to, channels) = channel();
    let line = TcpSource::new(stream, &settings, true).expect("a channel");
    to.send((0, Box::new(line) as SourceChannel)).expect("our own");
    let Client { control, connection, epoch, terms } = client;
    let cipher = super::agree::cipher(&terms);
    let sizes = (terms.block_size, 4);
    let plan = SourcePlan {
        opened: Opened::new(control, (connection, epoch), session, sizes, 1, Arc::default()),
        sealer: Some(Sealer::new(source.keys.block_secret(cipher).expect("the first time"))),
        compression: Compression::Never,
        content: Content::Entries(vec![Start { new_name, ..start }]),
        options: SourceOptions::new(0),
        observer: None,
        lists_changes: false,
    };
    run_source(plan, channels).map(drop)
}

#[test]
fn other_server_decides_no_names_at_the_destination() {
    let remote = serve(&[]);
    let to = remote.folder.path().join("to");
    send(&remote, &giving("share/to", Some("file")), "file").expect("it was asked for");
    assert_eq!(fs::read(to.join("file")).expect("a file"), b"bytes of another server");
    let refused = send(&remote, &giving("share/to", Some("file")), "other");
    assert!(refused.is_err_and(|error| error.to_string().contains("which was not requested")));
    assert!(!to.join("other").exists());
    send(&remote, &giving("share/to", None), "other").expect("all names");
    // The path is the client's, and the shares are the server's.
    for path in ["share/../to", "none/to", ""] {
        assert!(send(&remote, &giving(path, None), "file").is_err(), "{path}");
    }
}

/// Returns a request to send a file to another server.
fn sending_to(address: SocketAddr, path: &str) -> Request {
    let to = SendsTo {
        address,
        key: identity().public(),
        secret: PipeSecret([7; 32]),
        cipher: Cipher::Aes128Gcm,
        channels: 2,
        limit: None,
    };
    let servers = ServerExtras { sends_to: Some(Box::new(to)), only: None };
    let extras = Extras { servers, ..Extras::default() };
    Request { extras, paths: vec![path.into()], ..Request::default() }
}

/// Asks a server to send a file to an address, as a client does.
fn ask_to_send(remote: &Remote, address: SocketAddr, path: &str) -> String {
    let request = sending_to(address, path);
    let refused = remote.client().open(Role::Sink, &request).expect_err("no server is there");
    assert!(matches!(refused, EndError::Peer(_)), "{refused}");
    refused.to_string()
}

fn file_in(folder: &Path) {
    fs::write(folder.join("file"), "secret bytes").expect("room");
}

#[test]
fn server_connects_nowhere_but_where_it_may() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    for (networks, path) in [
        (&[][..], "share/file"),
        (&["0.0.0.0/0", "::/0"], "share/file"),
        (&["192.0.2.0/24", "127.0.0.2"], "share/file"),
        // The client has no such file, so there is nothing to send.
        (&["127.0.0.0/8"], "share/none"),
    ] {
        let remote = serve(networks);
        file_in(remote.folder.path());
        let text = ask_to_send(&remote, address, path);
        let is_named = networks.contains(&"127.0.0.0/8");
        assert_eq!(text.contains("may not connect"), !is_named, "{networks:?}: {text}");
        let accepted = listener.accept();
        assert!(accepted.is_err(), "{networks:?}: a connection of {accepted:?}");
    }
}

#[test]
fn other_program_gets_no_byte_that_a_client_chooses() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    let remote = serve(&["127.0.0.0/8"]);
    file_in(remote.folder.path());
    let taking = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a server");
        // An answer of the right length, as another kind of server might give.
        let answer = [b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(); 4].concat();
        stream.write_all(&answer).expect("room");
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        got
    });
    let text = ask_to_send(&remote, address, "share/file");
    assert!(text.contains("not the server that the client has named"), "{text}");
    // The preface with a token that is derived from the secret, and a random number.
    let got = taking.join().expect("no panic");
    assert!(got.len() <= 64 && !got.windows(6).any(|it| it == b"secret"), "{got:?}");
    // Nothing listens there any more.
    let text = ask_to_send(&remote, address, "share/file");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn server_that_connects_to_another_one_shows_that_it_is_alive() {
    // The kernel accepts the connection, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let remote = serve(&["127.0.0.0/8"]);
    file_in(remote.folder.path());
    let mut client = remote.client();
    let address = silent.local_addr().expect("a port");
    let job = sending_to(address, "share/file").emit().expect("a request");
    let session = client.connection.open(Open { role: Role::Sink, job }).expect("no session");
    let mut said = Vec::new();
    flush(&*client.control, &mut client.connection, client.epoch).expect("a server");
    client.control.send(&Message::of(0, Body::Ping(1)).emit()).expect("a server");
    let mut bytes = Vec::new();
    while said.last() != Some(&"reply") {
        let event = client.control.receive(&mut bytes, Some(TIME)).expect("a server");
        assert_eq!(event, ControlEvent::Message);
        match Message::parse(&bytes).expect("a message") {
            Message { body: Body::Pong(1), .. } => said.push("pong"),
            Message { body: Body::Ping(_), .. } => {}
            Message { body: Body::OpenReply(OpenReply::Refused { text, .. }), session: of } => {
                assert!(of == session && text.contains("no progress"), "{text}");
                said.push("reply");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(said, ["pong", "reply"]);
}
