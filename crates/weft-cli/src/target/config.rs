//! Files that describe what is to be served.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weft_target::limits::{
    DRAIN_TIME, LOGIN_TIME_MAX, LOGINS_MAX, LOGINS_PER_ADDRESS_MAX, PORT, SESSIONS_MAX,
};
use weft_target::scsi;
use weft_target::security::{Access, Network};
use weft_target::server::LoginLimits;
use weft_target::session::is_name;

use super::plan::{Fixed, Plan, TargetPlan, numbered};
use super::secrets;
use super::unit::{Parsed, Place, block_len};
use crate::values::{self, Number, Size, Text};

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    listen: Option<Vec<SocketAddr>>,
    iser: Option<Vec<SocketAddr>>,
    control: Option<PathBuf>,
    state: Option<PathBuf>,
    cache: Option<Text<Size>>,
    loops: Option<Number<1, 1_024>>,
    drain_time: Option<Number<0, 3_600>>,
    #[serde(default)]
    limits: Limits,
    discovery: Option<Rules>,
    #[serde(default)]
    target: Vec<TargetEntry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Limits {
    sessions: Option<Number<1, 16_384>>,
    logins: Option<Number<1, 65_536>>,
    logins_per_address: Option<Number<1, 65_536>>,
    login_time: Option<Number<1, 3_600>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    chap: Option<PathBuf>,
    initiators: Option<Vec<Text<Name>>>,
    from: Option<Vec<Text<Network>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetEntry {
    name: Text<Name>,
    chap: Option<PathBuf>,
    initiators: Option<Vec<Text<Name>>>,
    from: Option<Vec<Text<Network>>>,
    #[serde(default)]
    announce: bool,
    #[serde(default)]
    unit: Vec<UnitEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct UnitEntry {
    store: Text<Store>,
    lun: Option<Number<0, 255>>,
    block: Option<BlockLen>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    removable: bool,
    #[serde(default)]
    write_back: bool,
    #[serde(default)]
    direct: bool,
}

struct BlockLen(u32);

impl<'de> Deserialize<'de> for BlockLen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        block_len(u32::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

/// An iSCSI name.
struct Name(String);

impl FromStr for Name {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let has_type = ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind));
        let form = "begin with iqn., eui. or naa., as in iqn.2026-01.org.example:disk";
        ensure!(has_type && is_name(text), "{text:?} is no iSCSI name: names {form}");
        Ok(Self(text.to_owned()))
    }
}

struct Store(Place);

impl FromStr for Store {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Place::parse(text.as_ref()).map(Self)
    }
}

/// Reads a file. Paths in it start at its directory.
///
/// # Errors
///
/// If it cannot be read, or has something that is not allowed: with the line, if one is to blame.
pub(super) fn read(path: &Path) -> Result<Plan> {
    values::read_by(path, parse)
}

fn parse(text: &str, directory: &Path) -> Result<Plan> {
    let config: Config =
        toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))?;
    if config.target.is_empty() {
        bail!("there is no [[target]]");
    }
    let seconds = |number: u32| Duration::from_secs(number.into());
    let Limits { sessions, logins, logins_per_address, login_time } = config.limits;
    let logins = LoginLimits {
        count: logins.map_or(LOGINS_MAX, |number| number.0 as usize),
        count_per_address: logins_per_address
            .map_or(LOGINS_PER_ADDRESS_MAX, |number| number.0 as usize),
        time: login_time.map_or(LOGIN_TIME_MAX, |number| seconds(number.0)),
    };
    let mut targets: Vec<TargetPlan> = Vec::new();
    for entry in config.target {
        let target = entry.plan(directory)?;
        if targets.iter().any(|other| other.name.eq_ignore_ascii_case(&target.name)) {
            bail!("two targets have the name {}", target.name);
        }
        targets.push(target);
    }
    let needs_proof = targets.iter().any(|target| target.access.chap.is_some());
    ensure!(
        config.discovery.is_some() || !needs_proof,
        "[discovery] is missing: its `chap`, `initiators` and `from` say who may see the names of \
         targets, and all may if it is empty"
    );
    let discovery = config.discovery.unwrap_or_default().access(directory);
    let fixed = Fixed {
        listen: config.listen.unwrap_or_else(|| vec![SocketAddr::from(([127, 0, 0, 1], PORT))]),
        iser: config.iser.unwrap_or_default(),
        logins,
        drain_time: config.drain_time.map_or(DRAIN_TIME, |number| seconds(number.0)),
        loops: config.loops.map(|number| number.0 as usize),
        control: config.control.map(|path| directory.join(path)),
        state: config.state.map(|path| directory.join(path)),
        cache: config.cache.map(|size| size.0.0),
    };
    Ok(Plan {
        targets,
        discovery: discovery.context("discovery")?,
        sessions_max: sessions.map_or(SESSIONS_MAX, |number| number.0 as usize),
        fixed,
    })
}

impl Rules {
    fn access(self, directory: &Path) -> Result<Access> {
        let is_empty = |key| format!("`{key}` is empty: without this key all may log in");
        ensure!(self.initiators.as_ref().is_none_or(|all| !all.is_empty()), is_empty("initiators"));
        ensure!(self.from.as_ref().is_none_or(|all| !all.is_empty()), is_empty("from"));
        let chap = self.chap.map(|path| secrets::read(&directory.join(path))).transpose()?;
        let names = |names: Vec<Text<Name>>| names.into_iter().map(|name| name.0.0).collect();
        let networks = |all: Vec<Text<Network>>| all.into_iter().map(|each| each.0).collect();
        let (initiators, networks) = (self.initiators.map(names), self.from.map(networks));
        Ok(Access { chap, initiators, networks })
    }
}

impl TargetEntry {
    fn plan(self, directory: &Path) -> Result<TargetPlan> {
        let Name(name) = self.name.0;
        let announces = self.announce;
        let rules = Rules { chap: self.chap, initiators: self.initiators, from: self.from };
        let units: Result<_> = self.unit.into_iter().map(|unit| unit.parsed(directory)).collect();
        let units = units.and_then(numbered).with_context(|| format!("target {name}"))?;
        let access = rules.access(directory).with_context(|| format!("target {name}"))?;
        Ok(TargetPlan { name, access, announces, units })
    }
}

impl UnitEntry {
    fn parsed(self, directory: &Path) -> Result<Parsed> {
        let block_len = self.block.map_or(512, |len| len.0);
        let options = scsi::Options {
            block_len,
            is_read_only: self.read_only,
            is_removable: self.removable,
            write_back: self.write_back,
        };
        let Store(place) = self.store.0;
        let number = self.lun.and_then(|number| u8::try_from(number.0).ok());
        let place = place.within(directory);
        let store = if self.direct { place.direct()? } else { place };
        Ok(Parsed { number, options, store })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "[[target]]\nname = \"iqn.2026-01.org.example:a\"\n";

    #[test]
    fn file_sets_every_option() {
        let text = "listen = [\"127.0.0.1:1\", \"[::1]:2\"]\ncontrol = \"socket\"\n\
            state = \"kept\"\ncache = \"3M\"\nloops = 3\ndrain-time = 0\n[limits]\nsessions = 5\n\
            logins = 6\nlogins-per-address = 7\nlogin-time = 8\n[discovery]\nfrom = [\"::1\"]\n\
            [[target]]\nname = \"iqn.a\"\ninitiators = [\"iqn.b\", \"eui.02004567A425678D\"]\n\
            from = [\"192.0.2.0/24\"]\nannounce = true\n\
            [[target.unit]]\nstore = \"disk\"\nlun = 7\nblock = 4096\n\
            read-only = true\nremovable = true\nwrite-back = true\ndirect = true\n[[target.unit]]\n\
            store = \"ram:1G\"\n[[target.unit]]\nstore = \"/dev/disk\"\n\
            [[target]]\nname = \"iqn.c\"\n";
        let plan = parse(text, Path::new("/etc/weft")).unwrap();
        let fixed = &plan.fixed;
        assert_eq!(fixed.listen.len(), 2);
        assert_eq!(fixed.control, Some("/etc/weft/socket".into()));
        assert_eq!(fixed.state, Some("/etc/weft/kept".into()));
        assert_eq!(fixed.cache, Some(3 << 20));
        assert_eq!(
            (fixed.loops, fixed.drain_time, plan.sessions_max),
            (Some(3), Duration::ZERO, 5)
        );
        let logins = LoginLimits { count: 6, count_per_address: 7, time: Duration::from_secs(8) };
        assert_eq!(fixed.logins, logins);
        assert!(!plan.discovery.admits_address([192, 0, 2, 1].into()));
        let [first, second] = &plan.targets[..] else { panic!("{:?}", plan.targets) };
        assert!(first.announces && !second.announces);
        assert!(first.access.admits_name("iqn.B") && !first.access.admits_name("iqn.c"));
        assert!(first.access.admits_address([192, 0, 2, 1].into()));
        let stores: Vec<_> =
            first.units.iter().map(|(number, unit)| (*number, unit.store.to_string())).collect();
        let expected = [(0, "ram:1073741824"), (1, "/dev/disk"), (7, "/etc/weft/disk")];
        assert_eq!(stores, expected.map(|(number, store)| (number, store.to_owned())));
        assert_eq!(first.units[&7].store, Place::Direct("/etc/weft/disk".into()));
        let options = &first.units[&7].options;
        assert!(options.is_read_only && options.is_removable && options.write_back);
        assert_eq!(options.block_len, 4_096);
        assert!(second.units.is_empty() && second.access.admits_name("iqn.c"));
    }

    #[test]
    fn each_key_that_takes_a_restart_is_a_difference() {
        let fixed = |text: &str| parse(&format!("{text}\n{TARGET}"), Path::new("")).unwrap().fixed;
        let before = fixed("");
        assert_eq!(before.differences(&fixed("[limits]\nsessions = 3")), [""; 0]);
        for (text, key) in [
            ("listen = [\"127.0.0.1:1\"]", "listen"),
            ("iser = [\"127.0.0.1:1\"]", "iser"),
            ("control = \"a\"", "control"),
            ("state = \"a\"", "state"),
            ("cache = \"1G\"", "cache"),
            ("loops = 3", "loops"),
            ("drain-time = 3", "drain-time"),
            ("[limits]\nlogins = 3", "logins"),
            ("[limits]\nlogins-per-address = 3", "logins-per-address"),
            ("[limits]\nlogin-time = 3", "login-time"),
        ] {
            assert_eq!(before.differences(&fixed(text)), [key]);
        }
    }

    #[test]
    fn errors_name_line_and_key_and_what_is_allowed() {
        let unit = format!("{TARGET}[[target.unit]]\n");
        for (text, expected) in [
            (String::new(), &["no [[target]]"][..]),
            ("loops = 0\n".into(), &["line 1", "loops = 0", "from 1 to 1024"]),
            ("loops = -1\n".into(), &["line 1", "from 1 to 1024"]),
            ("\n\nloop = 1\n".into(), &["line 3", "unknown field `loop`", "`loops`"]),
            ("listen = [\"localhost\"]\n".into(), &["line 1", "socket address"]),
            ("[limits]\nsessions = 99999\n".into(), &["line 2", "from 1 to 16384"]),
            ("cache = \"1X\"\n".into(), &["line 1", "no unit: X"]),
            ("[[target]]\n".into(), &["line 1", "missing field `name`"]),
            ("[[target]]\nname = \"disk\"\n".into(), &["line 2", "iqn."]),
            (format!("{TARGET}from = [\"192.0.2.1/24\"]\n"), &["line 3", "192.0.2.0/24"]),
            (format!("{TARGET}from = []\n"), &["iqn.2026-01.org.example:a", "`from` is empty"]),
            (format!("{TARGET}initiators = []\n"), &["`initiators` is empty"]),
            (format!("{TARGET}initiators = [\"iqn.*\"]\n"), &["line 3", "iqn.*"]),
            (format!("{unit}store = \"ram:1X\"\n"), &["line 4", "no unit: X"]),
            (format!("{unit}store = \"a\"\nlun = 256\n"), &["line 5", "from 0 to 255"]),
            (format!("{unit}store = \"a\"\nblock = 513\n"), &["line 5", "512, 1024"]),
            (format!("{unit}lun = 1\n"), &["missing field `store`"]),
            (format!("{unit}store = \"ram:1M\"\ndirect = true\n"), &["ram:1048576 is no file"]),
            (format!("{unit}store = \"a\"\nreadonly = true\n"), &["line 5", "`read-only`"]),
            (format!("{TARGET}{TARGET}"), &["two targets have the name"]),
            (format!("{TARGET}chap = \"/nonexistent\"\n"), &["/nonexistent", "No such file"]),
            (
                format!("{unit}store = \"a\"\nlun = 1\n[[target.unit]]\nstore = \"b\"\nlun = 1\n"),
                &["target iqn.2026-01.org.example:a", "two units have the number 1"],
            ),
            ("x = [".into(), &["line 1"]),
        ] {
            let error = format!("{:#}", parse(&text, Path::new("")).unwrap_err());
            for part in expected {
                assert!(error.contains(part), "{text}: {part:?} is not in {error}");
            }
        }
    }
}
