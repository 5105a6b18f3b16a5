//! Logins with CHAP.

use super::*;
use crate::security::{Access, Account, Algorithm, Chap, Secret};
use crate::wire::{binary, parse_binary};

const PROPOSAL: &str = "CHAP_A=5\0";

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec()).unwrap()
}

fn account(name: &str, text: &str) -> Account {
    Account { name: name.into(), secret: secret(text), initiators: None }
}

/// Access for Ann and Bob, to a target that can prove itself or cannot.
fn access(is_mutual: bool) -> Access {
    let initiators = vec![account("ann", "secret of ann"), account("bob", "secret of bob")];
    let target = is_mutual.then(|| account("target", "secret of the target"));
    let chap = Some(Chap::new(initiators, target).unwrap());
    Access { chap, ..Access::default() }
}

/// The first text of a session.
fn names(is_discovery: bool) -> String {
    let rest = if is_discovery { "SessionType=Discovery\0" } else { "TargetName=" };
    let name = if is_discovery { "" } else { NAME };
    format!("{INITIATOR}{rest}{name}\0")
}

/// The result of a login request.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The stage goes on.
    Same(BTreeMap<String, String>),
    /// The next stage begins.
    Next(BTreeMap<String, String>),
    /// The login is over.
    Refused(u16),
}

impl Client {
    /// Sends a request of a login. Of `flags`, 0x80 is the transit bit.
    fn request(&mut self, flags: u8, text: &str) -> Answer {
        let sent = self.send(&login(flags, text));
        let response = self.response();
        let status = response.login_status();
        if status != 0 {
            assert_eq!(sent, Err(Closed::Refused(status)));
            return Answer::Refused(status);
        }
        sent.unwrap();
        let pairs = pairs(&response.data).unwrap().into_iter();
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        if response.header[1] & 0x80 == 0 { Answer::Same(pairs) } else { Answer::Next(pairs) }
    }

    /// Goes as far as the challenge, which it returns with its identifier.
    fn challenged(&mut self, is_discovery: bool, proposal: &str) -> (u8, Vec<u8>) {
        // Like many initiators, it would go on at once.
        let text = format!("{}AuthMethod=CHAP,None\0", names(is_discovery));
        let Answer::Same(pairs) = self.request(0x81, &text) else { panic!("not CHAP") };
        assert_eq!(pairs["AuthMethod"], "CHAP");
        let Answer::Same(pairs) = self.request(0x00, proposal) else { panic!("no challenge") };
        (pairs["CHAP_I"].parse().unwrap(), parse_binary(&pairs["CHAP_C"]).unwrap())
    }
}

/// The name and the response of Ann.
fn proof(algorithm: Algorithm, identifier: u8, challenge: &[u8], text: &str) -> String {
    let response = algorithm.response(identifier, &secret(text), challenge);
    format!("CHAP_N=ann\0CHAP_R={}\0", binary(&response))
}

#[test]
fn initiator_and_target_prove_themselves() {
    for (number, algorithm) in [(5, Algorithm::Md5), (7, Algorithm::Sha256), (8, Algorithm::Sha3)] {
        for (is_discovery, is_mutual) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let portal = portal_for(|| access(is_mutual));
            let mut client = Client::new(&portal);
            let proposal = format!("CHAP_A=6,{number},5\0");
            let (identifier, challenge) = client.challenged(is_discovery, &proposal);
            assert_eq!(challenge.len(), algorithm.response_len());
            let mut text = proof(algorithm, identifier, &challenge, "secret of ann");
            if is_mutual {
                text += "CHAP_I=0xfe\0CHAP_C=0bAQIDBA==\0";
            }
            let Answer::Next(pairs) = client.request(0x81, &text) else { panic!("refused") };
            if is_mutual {
                let own = secret("secret of the target");
                let expected = algorithm.response(0xfe, &own, &[1, 2, 3, 4]);
                assert_eq!(pairs["CHAP_N"], "target");
                assert_eq!(pairs["CHAP_R"], binary(&expected));
            } else {
                assert!(pairs.is_empty(), "{pairs:?}");
            }
            assert!(!client.connection.is_logged_in());
            assert!(matches!(client.request(0x87, "HeaderDigest=None\0"), Answer::Next(_)));
            assert!(client.connection.is_logged_in());
        }
    }
}

#[test]
fn login_without_a_proof_is_refused() {
    let failure = login_status::AUTHENTICATION_FAILURE;
    for is_discovery in [false, true] {
        let names = names(is_discovery);
        for (flags, text, status) in [
            // At once, and over the security stage without a method.
            (0x87, "", failure),
            (0x81, "", failure),
            (0x83, "", failure),
            (0x04, "", failure),
            (0x81, "AuthMethod=None\0", failure),
            (0x81, "AuthMethod=SRP,KRB5\0", failure),
            (0x81, "AuthMethod=\0", failure),
            // Too early, twice.
            (0x00, "AuthMethod=CHAP\0CHAP_A=5\0", login_status::INITIATOR_ERROR),
            (0x00, "AuthMethod=CHAP\0AuthMethod=CHAP\0", login_status::INITIATOR_ERROR),
            (0x00, "CHAP_A=5\0", login_status::INITIATOR_ERROR),
            (0x81, "CHAP_N=ann\0CHAP_R=0x00\0", login_status::INITIATOR_ERROR),
            (0x87, "AuthMethod=CHAP\0", login_status::INITIATOR_ERROR),
        ] {
            let mut client = Client::new(&portal_for(|| access(true)));
            let answer = client.request(flags, &format!("{names}{text}"));
            assert_eq!(answer, Answer::Refused(status), "{flags:#x} {text:?}");
        }
    }
}

#[test]
fn algorithms_that_are_not_known_are_refused() {
    for proposal in ["CHAP_A=6\0", "CHAP_A=\0", "CHAP_A=05\0"] {
        let mut client = Client::new(&portal_for(|| access(true)));
        client.request(0x00, &format!("{}AuthMethod=CHAP\0", names(false)));
        let answer = client.request(0x00, proposal);
        assert_eq!(answer, Answer::Refused(login_status::AUTHENTICATION_FAILURE), "{proposal}");
    }
}

#[test]
fn only_the_right_response_is_a_proof() {
    let (failure, error) = (login_status::AUTHENTICATION_FAILURE, login_status::INITIATOR_ERROR);
    let challenge: Vec<u8> = (1..=16).collect();
    let right = proof(Algorithm::Md5, 17, &challenge, "secret of ann");
    let as_bob = right.replace("=ann", "=bob");
    let truncated = &right[..right.len() - 3];
    let longer = right.replace("CHAP_R=0x", "CHAP_R=0x00");
    let long_name = right.replace("=ann", &format!("={}", "a".repeat(256)));
    let endless = format!("CHAP_N=ann\0CHAP_R=0x{}\0", "00".repeat(1_025));
    let mutual = |keys: &str| format!("{right}{keys}");
    for (text, status) in [
        (proof(Algorithm::Md5, 17, &challenge, "secret of bob"), failure),
        (proof(Algorithm::Md5, 18, &challenge, "secret of ann"), failure),
        (proof(Algorithm::Sha256, 17, &challenge, "secret of ann"), failure),
        (as_bob, failure),
        (right.replace("=ann", "=eve"), failure),
        (right.replace("=ann", "=Ann"), failure),
        (right.replace("=ann", "="), failure),
        (format!("{truncated}\0"), failure),
        (longer, failure),
        ("CHAP_N=ann\0CHAP_R=0x\0".into(), failure),
        ("CHAP_N=ann\0CHAP_R=0b\0".into(), failure),
        ("CHAP_N=ann\0CHAP_R=\0".into(), error),
        ("CHAP_N=ann\0CHAP_R=secret\0".into(), error),
        ("CHAP_N=ann\0".into(), error),
        (right.replace("CHAP_N=ann\0", ""), error),
        (long_name, error),
        (endless, error),
        // Its own challenge passed back, in both encodings.
        (mutual(&format!("CHAP_I=1\0CHAP_C={}\0", binary(&challenge))), failure),
        (mutual("CHAP_I=17\0CHAP_C=0bAQIDBAUGBwgJCgsMDQ4PEA==\0"), failure),
        (mutual("CHAP_C=0x01\0"), error),
        (mutual("CHAP_I=1\0"), error),
        (mutual("CHAP_I=1\0CHAP_C=0x\0"), error),
        (mutual("CHAP_I=256\0CHAP_C=0x01\0"), error),
        (mutual("CHAP_I=+1\0CHAP_C=0x01\0"), error),
        (mutual("CHAP_I=-1\0CHAP_C=0x01\0"), error),
        (mutual("CHAP_R=0x\0"), error),
        (mutual("CHAP_A=5\0"), error),
        (mutual("AuthMethod=CHAP\0"), error),
        (mutual("TargetName=iqn.2026-01.org.example:other\0"), error),
        (mutual("InitiatorName=iqn.2026-01.org.example:other\0"), error),
        (mutual("SessionType=Discovery\0"), error),
    ] {
        let mut client = Client::new(&portal_for(|| access(true)));
        assert_eq!(client.challenged(false, PROPOSAL), (17, challenge.clone()));
        assert_eq!(client.request(0x81, &text), Answer::Refused(status), "{text:?}");
        assert!(!client.connection.is_logged_in());
    }
}

#[test]
fn a_target_without_an_account_proves_nothing() {
    let mut client = Client::new(&portal_for(|| access(false)));
    let (identifier, challenge) = client.challenged(false, PROPOSAL);
    let mut text = proof(Algorithm::Md5, identifier, &challenge, "secret of ann");
    text += "CHAP_I=1\0CHAP_C=0x01\0";
    let answer = client.request(0x81, &text);
    assert_eq!(answer, Answer::Refused(login_status::AUTHENTICATION_FAILURE));
}

#[test]
fn no_login_goes_on_without_random_numbers() {
    let target = Target::new(Arc::new(Device::new(NAME.into(), BTreeMap::new())), access(false));
    let portal = Arc::new(Portal::new(vec![target], access(false), Random(|_| false)));
    let mut client = Client::new(&portal);
    client.request(0x00, &format!("{}AuthMethod=CHAP\0", names(false)));
    assert_eq!(client.request(0x00, PROPOSAL), Answer::Refused(login_status::TARGET_ERROR));
}

/// A request of a login, which may be in its place or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Method,
    Proposal,
    RightProof,
    WrongProof,
    /// Without a key.
    Nothing,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The table of the security stage: method, proposal, proof, and nothing else opens the way.
    #[test]
    fn only_the_order_of_the_table_leads_to_a_session(
        parts in prop::collection::vec(
            (
                prop::sample::select(vec![
                    Part::Method, Part::Method, Part::Proposal, Part::Proposal, Part::RightProof,
                    Part::RightProof, Part::WrongProof, Part::Nothing,
                ]),
                // The transit bit to the operational stage or to full feature phase, or none.
                prop::sample::select(vec![0x00, 0x81, 0x83]),
            ),
            1..8,
        ),
        is_discovery in any::<bool>(),
    ) {
        let mut client = Client::new(&portal_for(|| access(false)));
        let challenge: Vec<u8> = (1..=16).collect();
        let mut done = 0;
        for (index, (part, flags)) in parts.into_iter().enumerate() {
            let keys = match part {
                Part::Method => "AuthMethod=CHAP\0".into(),
                Part::Proposal => PROPOSAL.into(),
                Part::RightProof => proof(Algorithm::Md5, 17, &challenge, "secret of ann"),
                Part::WrongProof => proof(Algorithm::Md5, 17, &challenge, "secret of eve"),
                Part::Nothing => String::new(),
            };
            let text = if index == 0 { names(is_discovery) + &keys } else { keys };
            let is_next = [Part::Method, Part::Proposal, Part::RightProof].get(done) == Some(&part);
            done += usize::from(is_next);
            let transits = flags != 0;
            let is_refused = !is_next && part != Part::Nothing || done == 0 && transits;
            match client.request(flags, &text) {
                Answer::Refused(_) => {
                    prop_assert!(is_refused, "{:?}", part);
                    prop_assert!(!client.connection.is_logged_in());
                    break;
                }
                Answer::Same(_) => prop_assert!(!is_refused && (done < 3 || !transits)),
                Answer::Next(_) => {
                    prop_assert!(done == 3 && transits);
                    prop_assert_eq!(client.connection.is_logged_in(), flags == 0x83);
                    break;
                }
            }
        }
    }
}
