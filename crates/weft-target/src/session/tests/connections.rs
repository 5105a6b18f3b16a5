//! Several connections of one session: they join and leave, and their commands have one order.

use std::sync::atomic::AtomicBool;

use super::jobs::distant;
use super::*;

/// `MaxConnections` that initiators ask for.
const SEVERAL: &str = "MaxConnections=8\0InitialR2T=No\0";

/// A connection of a session, with its wakes.
pub(super) struct Member {
    pub(super) client: Client,
    pub(super) woken: Arc<AtomicBool>,
}

impl Member {
    fn new(portal: &Arc<Portal>) -> Self {
        let woken = Arc::new(AtomicBool::new(false));
        let mut client = Client::new(portal);
        let flag = Arc::clone(&woken);
        let wake = Wake::new(move || flag.store(true, Ordering::Relaxed));
        client.connection = Connection::new(Arc::clone(portal), ADDRESSES, wake);
        Self { client, woken }
    }

    /// The first connection of a session, and the target's number of the session.
    pub(super) fn first(portal: &Arc<Portal>, keys: &str) -> (Self, u16) {
        let mut member = Self::new(portal);
        assert_eq!(member.log_in((0, 0), keys), Ok(()));
        let response = member.client.response();
        assert_eq!(response.login_status(), login_status::SUCCESS);
        let tsih = u16::from_be_bytes([response.header[14], response.header[15]]);
        (member, tsih)
    }

    /// Another one. The response is received, unless the login has to wait.
    pub(super) fn join(portal: &Arc<Portal>, tsih: u16, cid: u16) -> Self {
        let mut member = Self::new(portal);
        assert_eq!(member.log_in((tsih, cid), ""), Ok(()));
        if !member.client.received.is_empty() {
            let response = member.client.response();
            assert_eq!(response.login_status(), login_status::SUCCESS);
            assert_eq!(response.header[14..16], tsih.to_be_bytes());
        }
        member
    }

    fn log_in(&mut self, (tsih, cid): (u16, u16), keys: &str) -> Result<(), Closed> {
        let mut request = login(0x87, &format!("{INITIATOR}TargetName={NAME}\0{keys}"));
        request[14..16].copy_from_slice(&tsih.to_be_bytes());
        request[20..22].copy_from_slice(&cid.to_be_bytes());
        self.client.send(&request)
    }

    fn was_woken(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// TEST UNIT READY with a number. Returns the response, if there is one.
    fn test(&mut self, number: u32) -> Option<u8> {
        self.client.next_command = number;
        self.client.command(0x80, &[0; 6], 0, &[]).unwrap();
        self.status()
    }

    fn status(&mut self) -> Option<u8> {
        (!self.client.received.is_empty()).then(|| self.client.response().header[3])
    }

    fn log_out(&mut self, number: u32, reason: u8, cid: u16) -> Result<(), Closed> {
        let fields: [(usize, &[u8]); 2] = [(20, &cid.to_be_bytes()), (24, &number.to_be_bytes())];
        self.client.send(&pdu(0x06, 0x80 | reason, &fields, &[]))
    }
}

#[test]
fn connections_join_a_session_and_leave_it() {
    let portal = portal();
    let (mut first, tsih) = Member::first(&portal, SEVERAL);
    let mut second = Member::join(&portal, tsih, 1);
    // The session has one unit attention, and one order of commands.
    assert_eq!((second.test(7), first.test(8), second.test(9)), (Some(2), Some(0), Some(0)));
    assert_eq!(second.log_out(10, 1, 1), Err(Closed::LoggedOut));
    assert_eq!(second.client.response().header[..3], [0x26, 0x80, 0]);
    drop(second);
    assert_eq!(first.test(11), Some(0));
    // One that the initiator does not wait for is logged out by another one.
    let mut second = Member::join(&portal, tsih, 1);
    first.log_out(12, 1, 9).unwrap();
    assert_eq!(first.client.response().header[2], 1, "there is no connection 9");
    first.log_out(13, 1, 1).unwrap();
    assert!(first.client.received.is_empty() && second.was_woken());
    assert_eq!(second.client.connection.handle(), Err(Closed::Dismissed));
    drop(second);
    assert!(first.was_woken());
    first.client.exchange().unwrap();
    assert_eq!(first.client.response().header[..3], [0x26, 0x80, 0]);
    // A logout of the session ends all.
    let mut second = Member::join(&portal, tsih, 1);
    first.log_out(14, 0, 0).unwrap();
    assert_eq!(second.client.connection.handle(), Err(Closed::Dismissed));
    drop(second);
    assert_eq!(first.client.exchange(), Err(Closed::LoggedOut));
    assert_eq!(first.client.response().header[..3], [0x26, 0x80, 0]);
    drop(first);
    assert!(portal.sessions().is_empty());
}

#[test]
fn a_connection_that_cannot_join_gets_the_reason() {
    let portal = portal();
    let (mut first, tsih) = Member::first(&portal, "MaxConnections=2\0");
    let _second = Member::join(&portal, tsih, 1);
    for (tsih, keys, status) in [
        (tsih, "", login_status::TOO_MANY_CONNECTIONS),
        (tsih + 1, "", login_status::SESSION_DOES_NOT_EXIST),
        (tsih, "MaxConnections=2\0", login_status::INITIATOR_ERROR),
        (tsih, "MaxBurstLength=8192\0", login_status::INITIATOR_ERROR),
    ] {
        let mut third = Member::new(&portal);
        assert_eq!(third.log_in((tsih, 2), keys), Err(Closed::Refused(status)), "{keys}");
    }
    assert_eq!(first.test(7), Some(2), "the session is as it was");
    // A session that has one connection has no place for another.
    let (_single, tsih) = Member::first(&portal, "");
    let mut other = Member::new(&portal);
    let closed = Closed::Refused(login_status::TOO_MANY_CONNECTIONS);
    assert_eq!(other.log_in((tsih, 1), ""), Err(closed));
    assert_eq!(first.client.connection.handle(), Err(Closed::Replaced));
}

#[test]
fn a_connection_that_fails_ends_its_session() {
    let portal = portal();
    let (mut first, tsih) = Member::first(&portal, SEVERAL);
    let mut second = Member::join(&portal, tsih, 1);
    let third = Member::join(&portal, tsih, 2);
    drop(third);
    for each in [&mut first, &mut second] {
        assert!(each.was_woken());
        assert_eq!(each.client.connection.handle(), Err(Closed::SessionFailed));
    }
    drop((first, second));
    assert!(portal.sessions().is_empty());
}

#[test]
fn a_connection_with_the_same_number_takes_the_place_of_the_first() {
    let portal = portal();
    let (mut first, tsih) = Member::first(&portal, SEVERAL);
    let mut old = Member::join(&portal, tsih, 1);
    assert_eq!(first.test(7), Some(2));
    // It waits for data that never comes.
    old.client.next_command = 8;
    old.client.command(0xa0, &write10(0, 64), 32_768, &[]).unwrap();
    assert_eq!(old.client.response().header[0], 0x31);
    let mut new = Member::join(&portal, tsih, 1);
    assert!(new.client.received.is_empty() && old.was_woken());
    assert_eq!(old.client.connection.handle(), Err(Closed::Dismissed));
    drop(old);
    assert!(new.was_woken());
    new.client.exchange().unwrap();
    let response = new.client.response();
    assert_eq!(response.login_status(), login_status::SUCCESS);
    assert_eq!((response.u32(28), response.u32(32)), (9, 9 + 127), "the window of the session");
    assert_eq!((new.test(9), first.test(10)), (Some(0), Some(0)));
}

#[test]
fn a_command_that_comes_early_waits_for_its_turn() {
    let portal = portal();
    let (mut first, tsih) = Member::first(&portal, SEVERAL);
    let mut second = Member::join(&portal, tsih, 1);
    assert_eq!(first.test(7), Some(2));
    assert_eq!(second.test(9), None);
    assert!(!second.client.connection.wants_input(), "what follows waits, too");
    assert!(!second.was_woken());
    assert_eq!(first.test(8), Some(0));
    assert!(second.was_woken());
    second.client.exchange().unwrap();
    assert_eq!(second.status(), Some(0));
}

#[test]
fn an_abort_of_all_tasks_reaches_those_of_other_connections() {
    let portal = portal();
    for function in [2, 4, 5, 6] {
        let (mut first, tsih) = Member::first(&portal, SEVERAL);
        let mut second = Member::join(&portal, tsih, 1);
        first.client.clear_attentions();
        let number = first.client.next_command;
        second.client.next_command = number;
        second.client.command(0xa0, &write10(0, 64), 32_768, &[]).unwrap();
        let r2t = second.client.response();
        assert_eq!((r2t.header[0], r2t.u32(32).wrapping_sub(r2t.u32(28))), (0x31, 126));
        second.was_woken();
        let request = pdu(0x42, 0x80 | function, &[(16, &[9; 4])], &[]);
        first.client.send(&request).unwrap();
        assert_eq!(first.client.response().header[..3], [0x22, 0x80, 0], "{function}");
        assert!(second.was_woken());
        second.client.exchange().unwrap();
        assert!(second.client.received.is_empty(), "an aborted command has a response");
        // The window is whole again, on both.
        first.client.send(&pdu(0x40, 0x80, &[(16, &[1; 4])], &[])).unwrap();
        let ping = first.client.response();
        assert_eq!(ping.u32(32).wrapping_sub(ping.u32(28)), 127, "{function}");
        // Data that is still on its way is of no task.
        second.client.data_out(1, r2t.u32(20), &[1; 32_768], 0..32_768, 32_768);
        assert!(second.client.received.is_empty());
    }
}

#[test]
fn jobs_that_wait_do_not_keep_their_session() {
    let (portal, ..) = distant();
    let portal = Arc::new(Arc::into_inner(portal).unwrap().with_sessions_max(1));
    let (mut first, tsih) = Member::first(&portal, SEVERAL);
    let mut second = Member::join(&portal, tsih, 1);
    first.client.clear_attentions();
    for member in [&mut first, &mut second] {
        member.client.jobs = Some(Vec::new());
    }
    let number = first.client.next_command;
    second.client.next_command = number + 1;
    for member in [&mut first, &mut second] {
        member.client.command(0xa0, &write10(0, 1), 512, &[1; 512]).unwrap();
    }
    let begun = [&first, &second].map(|member| member.client.jobs.as_ref().unwrap().len());
    assert_eq!(begun, [1, 0], "the second one waits for the block");
    drop((first, second));
    // There is room for the session of another initiator.
    let mut other = Client::new(&portal);
    let text = format!("InitiatorName=iqn.other\0TargetName={NAME}\0");
    other.send(&login(0x87, &text)).unwrap();
    assert_eq!(other.response().login_status(), login_status::SUCCESS);
}
