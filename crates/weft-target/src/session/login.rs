//! Login (RFC 7143, sections 6.2 and 6.3): who the initiator is, which target it wants, and what
//! both agree on.

use std::net::IpAddr;
use std::sync::Arc;

use super::authentication::{Authentication, SecurityKeys};
use super::portal::{Portal, Target};
use super::settings::Settings;
use crate::limits::{LOGIN_REQUESTS_MAX, NAME_LEN_MAX, TEXT_LEN_MAX};
use crate::scsi::Initiator;
use crate::wire::{Login, LoginResponse, login_status, pairs, push_pair};

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// The keys of the first text that say who logs in, and to what.
const NAMES: [&str; 4] = ["InitiatorName", "InitiatorAlias", "TargetName", "SessionType"];

/// The group of the only portal.
const PORTAL_GROUP: &str = "1";

/// A login that is under way.
#[derive(Debug, Default)]
pub(super) struct LoginState {
    requests: u32,
    stage: Option<u8>,
    /// Text of requests that go on in the next one.
    text: Vec<u8>,
    isid: [u8; 6],
    /// The session that the connection joins, 0 for a new one.
    tsih: u16,
    connection: u16,
    /// What the first text says. It does not change, so that a proof is good for what follows.
    identity: Option<Identity>,
    authentication: Authentication,
    has_declared: bool,
    settings: Settings,
}

/// The initiator that logs in, and the target that it logs in to.
#[derive(Clone, Debug)]
struct Identity {
    initiator: String,
    /// The target. `None` for a discovery session.
    target: Option<Arc<Target>>,
}

/// The result of a login request.
#[derive(Debug)]
pub(super) enum Step {
    /// The response, and the login goes on.
    Continue(LoginResponse, Vec<u8>),
    /// The response, whose TSIH is to be filled in: the initiator is logged in.
    Done(LoginResponse, Vec<u8>, LoggedIn),
    /// The response, after which the connection is closed.
    Refused(LoginResponse),
}

/// The initiator that has logged in, and the target that it has logged in to.
#[derive(Debug)]
pub(super) struct LoggedIn {
    /// The initiator.
    pub(super) initiator: Initiator,
    /// The target. `None` for a discovery session.
    pub(super) target: Option<Arc<Target>>,
    /// The settings that the login has agreed on.
    pub(super) settings: Settings,
    /// The session that the connection joins, 0 for a new one.
    pub(super) tsih: u16,
    /// The initiator's number of the connection: the CID.
    pub(super) connection: u16,
}

impl LoginState {
    /// A login over RDMA.
    pub(super) fn over_rdma() -> Self {
        Self { settings: Settings::over_rdma(), ..Self::default() }
    }

    /// Handles a login request from an address.
    pub(super) fn handle(
        &mut self,
        request: &Login,
        data: &[u8],
        portal: &Portal,
        from: IpAddr,
    ) -> Step {
        let mut response = LoginResponse {
            transits: false,
            current: request.current,
            next: request.next,
            isid: request.isid,
            tsih: request.tsih,
            task: request.task,
            status: login_status::SUCCESS,
        };
        let mut answer = Vec::new();
        match self.advance(request, data, (portal, from), &mut answer) {
            Ok(Advance::More) => Step::Continue(response, answer),
            Ok(Advance::To(next)) => {
                response.transits = true;
                self.stage = Some(next);
                Step::Continue(response, answer)
            }
            Ok(Advance::Done(logged_in)) => {
                response.transits = true;
                Step::Done(response, answer, logged_in)
            }
            Err(status) => Step::Refused(LoginResponse { status, ..response }),
        }
    }

    fn advance(
        &mut self,
        request: &Login,
        data: &[u8],
        (portal, from): (&Portal, IpAddr),
        answer: &mut Vec<u8>,
    ) -> Result<Advance, u16> {
        self.check(request)?;
        if self.text.len() + data.len() > TEXT_LEN_MAX {
            return Err(login_status::OUT_OF_RESOURCES);
        }
        self.text.extend_from_slice(data);
        if request.continues {
            return Ok(Advance::More);
        }
        let text = std::mem::take(&mut self.text);
        let pairs = pairs(&text).map_err(|_| login_status::INITIATOR_ERROR)?;
        let is_first = self.identity.is_none();
        let identity = self.identify(&pairs, portal, from)?;
        let discovery = portal.discovery();
        let access = match &identity.target {
            Some(target) => target.access(),
            None => &*discovery,
        };
        let mut keys = SecurityKeys::default();
        for (key, value) in &pairs {
            if !NAMES.contains(key) && !keys.take(key, value)? {
                if self.tsih != 0 && Settings::is_leading_only(key) {
                    return Err(login_status::INITIATOR_ERROR);
                }
                let negotiated = self.settings.negotiate(key, value, answer);
                negotiated.map_err(|_| login_status::INITIATOR_ERROR)?;
            }
        }
        if request.current == SECURITY {
            let initiator = &identity.initiator;
            self.authentication.advance(&keys, access, initiator, portal.random(), answer)?;
        } else if !keys.is_empty() {
            return Err(login_status::INITIATOR_ERROR);
        }
        let is_enough = self.authentication.is_enough(access);
        if !is_enough && request.current == OPERATIONAL {
            return Err(login_status::AUTHENTICATION_FAILURE);
        }
        // Only initiators that have proven who they are learn which ones may log in.
        if is_enough && !access.admits_name(&identity.initiator) {
            return Err(login_status::AUTHORIZATION_FAILURE);
        }
        if is_first && identity.target.is_some() {
            push_pair(answer, "TargetPortalGroupTag", PORTAL_GROUP);
        }
        if request.current == OPERATIONAL && !self.has_declared {
            self.settings.declare(answer);
            self.has_declared = true;
        }
        if !request.transits || self.authentication.is_under_way() {
            return Ok(Advance::More);
        }
        if !is_enough {
            // It wants to go on, and has not offered to prove anything.
            return Err(login_status::AUTHENTICATION_FAILURE);
        }
        match request.next {
            OPERATIONAL => Ok(Advance::To(OPERATIONAL)),
            _ => {
                self.settings.settle();
                let Identity { initiator: name, target } = identity;
                let initiator = Initiator { name, isid: self.isid };
                let (settings, tsih, connection) = (self.settings, self.tsih, self.connection);
                let logged_in = LoggedIn { initiator, target, settings, tsih, connection };
                Ok(Advance::Done(logged_in))
            }
        }
    }

    /// Checks stages, versions and identities (RFC 7143, sections 11.12 and 6.3).
    fn check(&mut self, request: &Login) -> Result<(), u16> {
        self.requests += 1;
        if self.requests > LOGIN_REQUESTS_MAX {
            return Err(login_status::INITIATOR_ERROR);
        }
        if request.version_min > 0 {
            return Err(login_status::UNSUPPORTED_VERSION);
        }
        let is_stage = matches!(request.current, SECURITY | OPERATIONAL);
        let is_next = match request.next {
            _ if !request.transits => true,
            OPERATIONAL => request.current == SECURITY,
            FULL_FEATURE => true,
            _ => false,
        };
        if !is_stage || !is_next || request.transits && request.continues {
            return Err(login_status::INITIATOR_ERROR);
        }
        match self.stage {
            None => {
                (self.isid, self.tsih) = (request.isid, request.tsih);
                self.connection = request.connection;
                self.stage = Some(request.current);
            }
            Some(stage)
                if stage != request.current
                    || (self.isid, self.tsih) != (request.isid, request.tsih)
                    || self.connection != request.connection =>
            {
                return Err(login_status::INITIATOR_ERROR);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Reads the names, which the first text has and others do not change.
    fn identify(
        &mut self,
        pairs: &[(&str, &str)],
        portal: &Portal,
        from: IpAddr,
    ) -> Result<Identity, u16> {
        let [mut initiator, mut target, mut session] = [None; 3];
        for &(key, value) in pairs {
            let place = match key {
                "InitiatorName" => &mut initiator,
                "TargetName" => &mut target,
                "SessionType" => &mut session,
                _ => continue,
            };
            if place.replace(value).is_some_and(|before| before != value) {
                return Err(login_status::INITIATOR_ERROR);
            }
        }
        if let Some(identity) = &self.identity {
            if !identity.agrees(initiator, target, session) {
                return Err(login_status::INITIATOR_ERROR);
            }
            return Ok(identity.clone());
        }
        let initiator = initiator.ok_or(login_status::MISSING_PARAMETER)?;
        if !is_name(initiator) {
            return Err(login_status::INITIATOR_ERROR);
        }
        let target = match (session, target) {
            (Some("Discovery"), _) if !portal.discovery().admits_address(from) => {
                return Err(login_status::AUTHORIZATION_FAILURE);
            }
            (Some("Discovery"), _) => None,
            (Some("Normal") | None, Some(name)) => {
                // For an initiator at another address there is no such target.
                let target = portal.target(name);
                let found = target.filter(|target| target.access().admits_address(from));
                Some(found.ok_or(login_status::NOT_FOUND)?)
            }
            (Some("Normal") | None, None) => return Err(login_status::MISSING_PARAMETER),
            (Some(_), _) => return Err(login_status::SESSION_TYPE_NOT_SUPPORTED),
        };
        let identity = Identity { initiator: initiator.to_owned(), target };
        self.identity = Some(identity.clone());
        Ok(identity)
    }
}

impl Identity {
    /// Whether the names of a later text are the same.
    fn agrees(&self, initiator: Option<&str>, target: Option<&str>, session: Option<&str>) -> bool {
        let is_target = |name: &str| match &self.target {
            Some(target) => target.device().name().eq_ignore_ascii_case(name),
            None => true,
        };
        let is_session = |kind| kind == if self.target.is_some() { "Normal" } else { "Discovery" };
        initiator.is_none_or(|name| name == self.initiator)
            && target.is_none_or(is_target)
            && session.is_none_or(is_session)
    }
}

enum Advance {
    More,
    To(u8),
    Done(LoggedIn),
}

/// Whether a text can be an iSCSI name: characters that do not change by normalisation (RFC 7143,
/// section 4.2.7.2).
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_".contains(&byte);
    // Other scripts are allowed in names, without spaces and control characters.
    let is_other = |c: char| !c.is_ascii() && !c.is_whitespace() && !c.is_control();
    !text.is_empty()
        && text.len() <= NAME_LEN_MAX
        && text.chars().all(|c| u8::try_from(c).is_ok_and(is_part) || is_other(c))
}
