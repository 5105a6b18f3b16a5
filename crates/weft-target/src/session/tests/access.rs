//! The initiators that may log in, their number, and logouts that the target asks for.

use super::*;
use crate::security::{Access, Account, Algorithm, Chap, Network, Secret};
use crate::wire::binary;

const ITSELF: &str = "iqn.2026-01.org.example:initiator";

fn networks(text: &str) -> Option<Vec<Network>> {
    Some(vec![text.parse().unwrap()])
}

fn initiators(name: &str) -> Option<Vec<String>> {
    Some(vec![name.to_owned()])
}

/// The status of a login that asks for everything at once.
fn status(portal: &Arc<Portal>, rest: &str) -> u16 {
    let mut client = Client::new(portal);
    let sent = client.send(&login(0x87, &format!("{INITIATOR}{rest}")));
    let status = client.response().login_status();
    assert_eq!(sent.is_ok(), status == login_status::SUCCESS);
    assert_eq!(client.connection.is_logged_in(), status == login_status::SUCCESS);
    status
}

#[test]
fn initiators_that_a_rule_does_not_name_are_refused() {
    let (normal, discovery) = (format!("TargetName={NAME}\0"), "SessionType=Discovery\0");
    let (yes, no) = (login_status::SUCCESS, login_status::AUTHORIZATION_FAILURE);
    for (names, from, for_target, for_discovery) in [
        (initiators(ITSELF), None, yes, yes),
        (initiators("IQN.2026-01.org.example:Initiator"), None, yes, yes),
        (initiators("iqn.2026-01.org.example:initiator2"), None, no, no),
        (initiators("iqn.2026-01.org.example:*"), None, no, no),
        (Some(Vec::new()), None, no, no),
        (None, networks("192.0.2.96/29"), yes, yes),
        (None, networks("192.0.2.1"), login_status::NOT_FOUND, no),
        (None, Some(Vec::new()), login_status::NOT_FOUND, no),
        (initiators(ITSELF), networks("192.0.2.1"), login_status::NOT_FOUND, no),
        (initiators("iqn.other"), networks("192.0.2.99"), no, no),
    ] {
        let portal =
            portal_for(|| Access { chap: None, initiators: names.clone(), networks: from.clone() });
        assert_eq!(status(&portal, &normal), for_target, "{names:?} {from:?}");
        assert_eq!(status(&portal, discovery), for_discovery, "{names:?} {from:?}");
    }
}

#[test]
fn discovery_shows_only_targets_that_may_be_used() {
    let target = |name: &str, access| {
        Target::new(Arc::new(Device::new(name.into(), BTreeMap::new())), access)
    };
    let targets = vec![
        target("iqn.a", Access::default()),
        target("iqn.b", Access { networks: networks("192.0.2.1"), ..Access::default() }),
        target("iqn.c", Access { initiators: initiators("iqn.other"), ..Access::default() }),
        target("iqn.d", Access { initiators: initiators(ITSELF), ..Access::default() }),
    ];
    let portal = Arc::new(Portal::new(targets, Access::default(), Random(fill)));
    for (request, expected) in
        [("All", &["iqn.a", "iqn.d"][..]), ("iqn.b", &[]), ("iqn.c", &[]), ("iqn.d", &["iqn.d"])]
    {
        let mut client = Client::new(&portal);
        client.send(&login(0x87, &format!("{INITIATOR}SessionType=Discovery\0"))).unwrap();
        client.response();
        let fields: [(usize, &[u8]); 3] =
            [(16, &[0, 0, 0, 1]), (20, &[0xff; 4]), (24, &7_u32.to_be_bytes())];
        let text = format!("SendTargets={request}\0");
        client.send(&pdu(0x04, 0x80, &fields, text.as_bytes())).unwrap();
        let data = client.response().data;
        let found = pairs(&data).unwrap().into_iter().filter(|(key, _)| *key == "TargetName");
        assert_eq!(found.map(|(_, name)| name).collect::<Vec<_>>(), expected, "{request}");
    }
}

#[test]
fn a_user_may_be_bound_to_names_of_initiators() {
    for (bound_to, expected) in [
        (ITSELF, login_status::SUCCESS),
        ("iqn.2026-01.org.example:other", login_status::AUTHORIZATION_FAILURE),
    ] {
        let secret = Secret::new(b"secret of ann".to_vec()).unwrap();
        let response = Algorithm::Md5.response(17, &secret, &(1..=16).collect::<Vec<u8>>());
        let portal = portal_for(|| {
            let initiators = initiators(bound_to);
            let account = Account { name: "ann".into(), secret: secret.clone(), initiators };
            Access { chap: Some(Chap::new(vec![account], None).unwrap()), ..Access::default() }
        });
        let mut client = Client::new(&portal);
        let first = format!("{INITIATOR}TargetName={NAME}\0AuthMethod=CHAP\0");
        client.send(&login(0x00, &first)).unwrap();
        client.response();
        client.send(&login(0x00, "CHAP_A=5\0")).unwrap();
        client.response();
        let proof = format!("CHAP_N=ann\0CHAP_R={}\0", binary(&response));
        let _ = client.send(&login(0x83, &proof));
        assert_eq!(client.response().login_status(), expected, "{bound_to}");
    }
}

#[test]
fn sessions_are_limited_and_one_that_comes_back_keeps_its_place() {
    let portal = Arc::into_inner(portal()).unwrap().with_sessions_max(2);
    let portal = Arc::new(portal);
    let name = format!("TargetName={NAME}\0");
    let first = Client::logged_in(&portal, "");
    let mut discovery = Client::new(&portal);
    discovery.send(&login(0x87, &format!("{INITIATOR}SessionType=Discovery\0"))).unwrap();
    let other = name.clone() + "InitiatorName=iqn.other\0";
    let other_status = || {
        let mut client = Client::new(&portal);
        let _ = client.send(&login(0x87, &other));
        client.response().login_status()
    };
    assert_eq!(other_status(), login_status::OUT_OF_RESOURCES);
    assert_eq!(status(&portal, "SessionType=Discovery\0"), login_status::OUT_OF_RESOURCES);
    // The same initiator takes its own place.
    let again = Client::logged_in(&portal, "");
    drop(first);
    assert_eq!(other_status(), login_status::OUT_OF_RESOURCES);
    drop(again);
    assert_eq!(other_status(), login_status::SUCCESS);
    drop(discovery);
    assert_eq!(status(&portal, "SessionType=Discovery\0"), login_status::SUCCESS);
}

#[test]
fn initiators_are_asked_to_log_out() {
    let portal = portal();
    let mut client = Client::new(&portal);
    assert_eq!(client.connection.ask_to_log_out(7), Err(Closed::Draining));
    let mut client = Client::logged_in(&portal, "");
    client.connection.ask_to_log_out(7).unwrap();
    client.exchange().unwrap();
    let message = client.response();
    assert_eq!((message.header[0], message.header[1], message.u32(16)), (0x32, 0x80, NO_TAG));
    // Event 1, and the seconds in its third parameter.
    assert_eq!(message.header[36..44], [1, 0, 0, 0, 0, 0, 0, 7]);
    let number = message.u32(24);
    // Commands go on until the logout.
    let task = client.command(0xc0, &[0; 6], 0, &[]).unwrap();
    let response = client.response();
    assert_eq!((response.u32(16), response.u32(24)), (task, number + 1));
    let number = client.next_command.to_be_bytes();
    let logout = pdu(0x06, 0x80, &[(16, &[0, 0, 0, 9]), (24, &number)], &[]);
    assert_eq!(client.send(&logout), Err(Closed::LoggedOut));
}

#[test]
fn what_a_session_has_reserved_is_free_when_its_logout_is_answered() {
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let mut client = Client::logged_in(&portal, "");
    assert_eq!(device.sessions(), 1);
    let number = client.next_command.to_be_bytes();
    let logout = pdu(0x06, 0x80, &[(16, &[0, 0, 0, 9]), (24, &number)], &[]);
    assert_eq!(client.send(&logout), Err(Closed::LoggedOut));
    assert_eq!(device.sessions(), 0, "while the connection is still there");
}

/// The rules of a portal are replaced: later logins see the new ones, and sessions go on.
#[test]
fn replaced_rules_hold_for_later_logins_only() {
    let (normal, discovery) = (format!("TargetName={NAME}\0"), "SessionType=Discovery\0");
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let mut client = Client::logged_in(&portal, "");
    client.clear_attentions();
    let strict = || Access { initiators: initiators("iqn.other"), ..Access::default() };
    portal.replace(vec![Target::new(Arc::clone(&device), strict())], strict(), 16);
    assert_eq!(status(&portal, &normal), login_status::AUTHORIZATION_FAILURE);
    assert_eq!(status(&portal, discovery), login_status::AUTHORIZATION_FAILURE);
    assert_eq!(client.read(&read10(0, 1), 512).0, 0);

    portal.replace(Vec::new(), Access::default(), 16);
    assert_eq!(status(&portal, &normal), login_status::NOT_FOUND);
    assert_eq!(status(&portal, discovery), login_status::SUCCESS);
    assert_eq!(client.read(&read10(0, 1), 512).0, 0);
    assert_eq!(portal.sessions().len(), 1);

    // A target of the same name, with another device: the session is replaced in its own.
    let other = Arc::new(Device::new(NAME.into(), BTreeMap::new()));
    let target = Target::new(Arc::clone(&other), Access::default());
    portal.replace(vec![target], Access::default(), 1);
    let again = Client::logged_in(&portal, "");
    assert!(client.send(&pdu(0x40, 0x80, &[(16, &[0, 0, 0, 9])], &[])).is_err());
    assert_eq!(portal.sessions().len(), 1);
    assert_eq!((device.sessions(), other.sessions()), (0, 1));
    assert_eq!(status(&portal, discovery), login_status::OUT_OF_RESOURCES);
    drop(again);
    assert_eq!(status(&portal, discovery), login_status::SUCCESS);
}
