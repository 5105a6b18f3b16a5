//! The targets and units to serve, as the command line or a file describes them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use weft_target::security::Access;
use weft_target::server::LoginLimits;

use super::secrets;
use super::unit::{self, Parsed};
use crate::args::TargetServeArgs;

/// The targets and units to serve.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) targets: Vec<TargetPlan>,
    /// The initiators that may ask for the names of targets.
    pub(super) discovery: Access,
    pub(super) sessions_max: usize,
    pub(super) fixed: Fixed,
}

/// Settings that a process keeps from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) listen: Vec<SocketAddr>,
    /// Where iSER is served.
    pub(super) iser: Vec<SocketAddr>,
    pub(super) logins: LoginLimits,
    pub(super) drain_time: Duration,
    /// Event loops. `None`: one for each core.
    pub(super) loops: Option<usize>,
    /// Where the control socket is to be.
    pub(super) control: Option<PathBuf>,
    /// Where persistent reservations are kept.
    pub(super) state: Option<PathBuf>,
    /// The length of the cache of blocks in bytes. `None`: there is none.
    pub(super) cache: Option<u64>,
}

/// A target with its units.
#[derive(Debug)]
pub(super) struct TargetPlan {
    pub(super) name: String,
    pub(super) access: Access,
    /// Initiators learn at once what happens to units.
    pub(super) announces: bool,
    pub(super) units: BTreeMap<u8, Parsed>,
}

impl Plan {
    /// One target, of the command line.
    pub(super) fn of_arguments(args: &TargetServeArgs) -> Result<Self> {
        let access = || {
            let chap = args.chap.as_deref().map(secrets::read).transpose()?;
            let initiators = (!args.initiator.is_empty()).then(|| args.initiator.clone());
            let networks = (!args.from.is_empty()).then(|| args.from.clone());
            anyhow::Ok(Access { chap, initiators, networks })
        };
        let parsed = args.units.iter().map(|text| unit::parse(text)).collect::<Result<_>>()?;
        let units = numbered(parsed)?;
        let fixed = Fixed {
            listen: vec![args.listening.listen],
            iser: args.iser.into_iter().collect(),
            logins: LoginLimits {
                count: args.logins as usize,
                count_per_address: args.logins_per_address as usize,
                time: Duration::from_secs(args.login_time.into()),
            },
            drain_time: Duration::from_secs(args.drain_time.into()),
            loops: args.loops.map(usize::from),
            control: args.control.clone(),
            state: args.state.clone(),
            cache: args.cache,
        };
        let (name, announces) = (args.name.clone(), args.announce);
        Ok(Self {
            targets: vec![TargetPlan { name, access: access()?, announces, units }],
            discovery: access()?,
            sessions_max: args.sessions as usize,
            fixed,
        })
    }
}

impl Fixed {
    /// The keys of a file whose values are others in `new`.
    pub(super) fn differences(&self, new: &Self) -> Vec<&'static str> {
        let rows = [
            ("listen", self.listen == new.listen),
            ("iser", self.iser == new.iser),
            ("control", self.control == new.control),
            ("state", self.state == new.state),
            ("cache", self.cache == new.cache),
            ("loops", self.loops == new.loops),
            ("drain-time", self.drain_time == new.drain_time),
            ("logins", self.logins.count == new.logins.count),
            ("logins-per-address", self.logins.count_per_address == new.logins.count_per_address),
            ("login-time", self.logins.time == new.logins.time),
        ];
        rows.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect()
    }
}

/// Gives numbers to units that have none: the next free ones.
pub(super) fn numbered(parsed: Vec<Parsed>) -> Result<BTreeMap<u8, Parsed>> {
    let mut units = BTreeMap::new();
    for unit in parsed {
        let free = || (0..=u8::MAX).find(|number| !units.contains_key(number));
        let Some(number) = unit.number.or_else(free) else { bail!("more than 256 units") };
        if units.insert(number, unit).is_some() {
            bail!("two units have the number {number}");
        }
    }
    Ok(units)
}
