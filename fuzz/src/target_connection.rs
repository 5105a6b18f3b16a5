//! What an initiator sends to a target: a whole connection, and commands after a login.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use weft_target::limits::{DATA_SEGMENT_LEN_MAX, OUTPUT_LEN_MAX};
use weft_target::scsi::{Device, Options, Unit};
use weft_target::security::{Access, Account, Chap, Secret};
use weft_target::session::{Addresses, Closed, Connection, Portal, Random, Target, Wake};
use weft_target::store::Ram;

const LOGIN: &str = "InitiatorName=iqn.a\0SessionType=Normal\0TargetName=iqn.b\0InitialR2T=No\0";
const LEN: u64 = 1 << 16;

/// A challenge that a corpus can have the answer to.
const RANDOM: Random = Random(|bytes| {
    bytes.fill(7);
    true
});

fn connection() -> Connection {
    connection_with(Access::default)
}

fn connection_with(access: impl Fn() -> Access) -> Connection {
    let options = Options { is_removable: true, ..Options::default() };
    let store = Box::new(Ram::new(LEN).expect("memory"));
    let unit = Arc::new(Unit::new("serial".into(), options, store));
    let device = Arc::new(Device::new("iqn.b".into(), BTreeMap::from([(0, unit)])));
    let target = Target::new(device, access());
    let portal = Arc::new(Portal::new(vec![target], access(), RANDOM));
    let address = SocketAddr::from(([127, 0, 0, 1], 3_260));
    let addresses = Addresses { local: address, remote: address };
    Connection::new(portal, addresses, Wake::new(|| ()))
}

/// Gives bytes to the connection, and takes what it answers.
fn send(connection: &mut Connection, mut bytes: &[u8]) -> Result<(), Closed> {
    while !bytes.is_empty() {
        let space = connection.space();
        let len = bytes.len().min(space.len());
        space[..len].copy_from_slice(&bytes[..len]);
        connection.received(len);
        bytes = &bytes[len..];
        loop {
            connection.handle()?;
            while let Some(job) = connection.next_job() {
                connection.complete(job.run());
            }
            let len = connection.output().len();
            assert!(len <= OUTPUT_LEN_MAX + DATA_SEGMENT_LEN_MAX + 1_000, "{len} bytes wait");
            if len == 0 {
                break;
            }
            connection.sent(len);
        }
    }
    Ok(())
}

/// All bytes of a connection are of the input.
pub fn connection_bytes(input: &[u8]) {
    let _ = send(&mut connection(), input);
}

/// Texts of a login with CHAP are of the input: its parts, each with a byte of flags. Nobody gets in
/// without the secret, which is longer than a mutation finds.
pub fn login(input: &[u8]) {
    let account = |name: &str, secret: &[u8]| Account {
        name: name.into(),
        secret: Secret::new(secret.to_vec()).expect("a secret"),
        initiators: None,
    };
    let mut connection = connection_with(|| {
        let initiators = vec![account("ann", &[0x5a; 24])];
        let target = Some(account("target", &[0xa5; 24]));
        Access { chap: Some(Chap::new(initiators, target).expect("accounts")), ..Access::default() }
    });
    for part in input.split(|&byte| byte == 0xff) {
        let Some((flags, text)) = part.split_first() else { continue };
        let mut pdu = vec![0; 48];
        (pdu[0], pdu[1]) = (0x43, *flags);
        pdu[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
        pdu.extend_from_slice(text);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        let sent = send(&mut connection, &pdu);
        assert!(!connection.is_logged_in(), "logged in without the secret");
        if sent.is_err() {
            return;
        }
    }
}

/// After a login, requests whose numbers and lengths are right and whose other fields are of the
/// input.
pub fn commands(input: &[u8]) {
    let mut connection = connection();
    let mut login = vec![0; 48];
    (login[0], login[1], login[7]) = (0x43, 0x87, LOGIN.len() as u8);
    login.extend(LOGIN.bytes());
    login.resize(login.len().next_multiple_of(4), 0);
    send(&mut connection, &login).expect("a valid login");
    let mut number = 0_u32;
    for part in input.chunks(40) {
        let mut pdu = [0; 48];
        // 0 NOP, 1 command, 2 task management, 4 text, 5 data, 6 logout, 16 SNACK.
        let opcode = [1, 1, 1, 1, 5, 5, 2, 0, 4, 6, 16][usize::from(part[0]) % 11];
        pdu[0] = opcode | part[0] & 0x80 >> 1;
        let tail = &part[1..];
        // Flags, LUN's second byte, tags, lengths, and the descriptor block.
        for (at, byte) in [1, 9, 19, 22, 23, 39, 42, 43, 8, 20, 21].into_iter().zip(tail) {
            pdu[at] = *byte;
        }
        let cdb = tail.get(11..).unwrap_or_default();
        if opcode == 1 {
            pdu[32..].iter_mut().zip(cdb).for_each(|(at, byte)| *at = *byte);
        }
        pdu[24..28].copy_from_slice(&number.to_be_bytes());
        let data = cdb.get(16..).unwrap_or_default();
        pdu[7] = data.len() as u8;
        let mut bytes = pdu.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        if send(&mut connection, &bytes).is_err() {
            return;
        }
        let is_counted = !matches!(opcode, 5 | 16) && pdu[0] & 0x40 == 0;
        number += u32::from(is_counted);
    }
}
