//! Files that describe what `weft serve` shares, and with whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;
use toml::Spanned;
use weft_transfer::job::{Bounds, Network, is_within};
use weft_transfer::limits::PORT;
use weft_transfer::secure::PublicKey;
use weft_transfer::tree::apply::Usage;
use weft_transfer::wire::record_name;

use crate::args::{Networks, rate};
use crate::limits::USER_NAME_LEN_MAX;
use crate::values::{self, Number, Size, Text};

/// All users, in `read` and `write`.
const EVERYBODY: &str = "*";

/// A number of copies at a time.
type Copies = Number<1, 1_000_000>;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    bind: Option<IpAddr>,
    port: Option<u16>,
    #[serde(default)]
    rdma: bool,
    #[serde(default)]
    allow_clear: bool,
    #[serde(default)]
    third_party: Vec<Text<Networks>>,
    log: Option<PathBuf>,
    #[serde(default)]
    limits: LimitsEntry,
    #[serde(default)]
    user: Vec<UserEntry>,
    #[serde(default)]
    share: Vec<ShareEntry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsEntry {
    copies: Option<Copies>,
    rate: Option<Text<Rate>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    name: Spanned<Text<UserName>>,
    keys: Spanned<Vec<Spanned<Text<PublicKey>>>>,
    copies: Option<Copies>,
    rate: Option<Text<Rate>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ShareEntry {
    name: Spanned<Text<ShareName>>,
    path: Spanned<PathBuf>,
    #[serde(default)]
    read: Vec<Spanned<String>>,
    #[serde(default)]
    write: Vec<Spanned<String>>,
    quota: Option<Text<Size>>,
    quota_files: Option<Number<0, { u32::MAX }>>,
    copies: Option<Copies>,
    rate: Option<Text<Rate>>,
}

/// Bytes in a second.
struct Rate(u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        rate(text).map(Self)
    }
}

/// The name of a user.
struct UserName(String);

impl FromStr for UserName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-@".contains(letter);
        match (1..=USER_NAME_LEN_MAX).contains(&text.len()) && text.chars().all(is_letter) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "{text:?} is no name: 1 to {USER_NAME_LEN_MAX} of the letters a to z and A to Z, \
                 digits, and . _ - @"
            )),
        }
    }
}

/// The name of a share.
struct ShareName(String);

impl FromStr for ShareName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match record_name::Name::new(text.as_bytes()) {
            Ok(_) if !text.chars().any(char::is_control) => Ok(Self(text.to_owned())),
            _ => Err(format!("{text:?} is no name of a directory")),
        }
    }
}

/// What to serve.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) fixed: Fixed,
    pub(super) allows_clear: bool,
    /// The file of the log; standard error without one.
    pub(super) log: Option<PathBuf>,
    /// What all copies together may do.
    pub(super) bounds: Bounds,
    /// The users by their names.
    pub(super) users: BTreeMap<String, User>,
    pub(super) shares: Vec<SharePlan>,
}

/// Settings that a process keeps from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) bind: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) rdma: bool,
    /// The networks in which it may connect to other servers.
    pub(super) third_party: Vec<Network>,
}

/// A user.
#[derive(Debug)]
pub(super) struct User {
    pub(super) keys: Vec<PublicKey>,
    pub(super) bounds: Bounds,
}

/// A directory to share.
#[derive(Debug)]
pub(super) struct SharePlan {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) root: Arc<OwnedFd>,
    pub(super) readers: Users,
    pub(super) writers: Users,
    pub(super) quota: Option<Usage>,
    pub(super) bounds: Bounds,
}

/// Some users.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// All of them.
    All,
    /// Those of these names.
    These(BTreeSet<String>),
}

impl Users {
    /// Whether this user is one of them.
    pub(super) fn has(&self, user: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.contains(user),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::These(names) if names.is_empty())
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all users"),
            Self::These(names) if names.is_empty() => f.write_str("nobody"),
            Self::These(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

impl Fixed {
    /// Returns the keys of the file that have another value.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let rows = [
            ("bind", self.bind == other.bind),
            ("port", self.port == other.port),
            ("rdma", self.rdma == other.rdma),
            ("third-party", self.third_party == other.third_party),
        ];
        rows.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect()
    }
}

/// Reads a file, and opens the directories that it names. Paths in it start at its directory.
///
/// # Errors
///
/// If it cannot be read, or has something that is not allowed: with the line, if one is to blame.
pub(super) fn read(path: &Path) -> Result<Plan> {
    let context = || path.display().to_string();
    // Opening a pipe would wait for its writer.
    let is_file = fs::metadata(path).with_context(context)?.is_file();
    ensure!(is_file, "{}: not a regular file", context());
    values::read_by(path, parse)
}

fn parse(text: &str, directory: &Path) -> Result<Plan> {
    let config: Config =
        toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))?;
    ensure!(!config.user.is_empty(), "there is no [[user]]");
    ensure!(!config.share.is_empty(), "there is no [[share]]");
    let reader = Reader { text, directory };
    let users = reader.users(config.user)?;
    let shares = reader.shares(config.share, &users)?;
    let (bind, port) = (config.bind, config.port.unwrap_or(PORT));
    let third_party = config.third_party.into_iter().flat_map(|Text(Networks(it))| it).collect();
    Ok(Plan {
        fixed: Fixed { bind, port, rdma: config.rdma, third_party },
        allows_clear: config.allow_clear,
        log: config.log.map(|path| directory.join(path)),
        bounds: bounds(config.limits.copies, config.limits.rate),
        users,
        shares,
    })
}

fn bounds(copies: Option<Copies>, rate: Option<Text<Rate>>) -> Bounds {
    Bounds { copies: copies.map(|copies| copies.0), rate: rate.map(|rate| rate.0.0) }
}

/// The text of a file, and the directory in which it is.
struct Reader<'file> {
    text: &'file str,
    directory: &'file Path,
}

impl Reader<'_> {
    /// Returns an error about what is at this place of the text.
    fn error(&self, place: Range<usize>, what: impl fmt::Display) -> anyhow::Error {
        let line = self.text[..place.start].matches('\n').count() + 1;
        anyhow!("line {line}: {what}")
    }

    fn users(&self, entries: Vec<UserEntry>) -> Result<BTreeMap<String, User>> {
        let (mut users, mut owners) = (BTreeMap::new(), BTreeMap::new());
        for entry in entries {
            let place = entry.name.span();
            let Text(UserName(name)) = entry.name.into_inner();
            if users.contains_key(&name) {
                return Err(self.error(place, format!("`name`: two users are called {name}")));
            }
            if entry.keys.get_ref().is_empty() {
                let what = format!("`keys` of {name} is empty: no client would be {name}");
                return Err(self.error(entry.keys.span(), what));
            }
            let mut keys = Vec::new();
            for key in entry.keys.into_inner() {
                let place = key.span();
                let Text(key) = key.into_inner();
                if let Some(other) = owners.insert(key, name.clone()) {
                    let what = format!("`keys` of {name}: {key} is a key of {other} already");
                    return Err(self.error(place, what));
                }
                keys.push(key);
            }
            users.insert(name, User { keys, bounds: bounds(entry.copies, entry.rate) });
        }
        Ok(users)
    }

    fn shares(
        &self,
        entries: Vec<ShareEntry>,
        users: &BTreeMap<String, User>,
    ) -> Result<Vec<SharePlan>> {
        let mut shares: Vec<SharePlan> = Vec::new();
        for entry in entries {
            let (name, path) = (entry.name.span(), entry.path.span());
            let share = self.share(entry, users)?;
            if shares.iter().any(|other| other.name == share.name) {
                let what = format!("`name`: two shares are called {}", share.name);
                return Err(self.error(name, what));
            }
            for other in &shares {
                let has_quota = share.quota.is_some() || other.quota.is_some();
                if has_quota && overlap(&share, other)? {
                    let what = format!(
                        "`path`: the directories of {} and {} overlap, so the quota of one would \
                         not count what is written to the other one",
                        other.name, share.name
                    );
                    return Err(self.error(path, what));
                }
            }
            shares.push(share);
        }
        Ok(shares)
    }

    fn share(&self, entry: ShareEntry, users: &BTreeMap<String, User>) -> Result<SharePlan> {
        let name_at = entry.name.span();
        let Text(ShareName(name)) = entry.name.into_inner();
        let readers = self.named(entry.read, users, "read")?;
        let writers = self.named(entry.write, users, "write")?;
        if readers.is_empty() && writers.is_empty() {
            let what = format!("{name} has neither `read` nor `write`: nobody could use it");
            return Err(self.error(name_at, what));
        }
        let place = entry.path.span();
        let path = self.directory.join(entry.path.into_inner());
        let failed = |error| self.error(place, format!("`path`: {}: {error}", path.display()));
        let root = directory(&path).map_err(failed)?;
        let quota = match (entry.quota, entry.quota_files) {
            (None, None) => None,
            (bytes, names) => Some(Usage {
                bytes: bytes.map_or(u64::MAX, |bytes| bytes.0.0),
                names: names.map_or(u64::MAX, |names| names.0.into()),
            }),
        };
        let bounds = bounds(entry.copies, entry.rate);
        Ok(SharePlan { name, path, root: Arc::new(root), readers, writers, quota, bounds })
    }

    /// Returns the users of these names.
    fn named(
        &self,
        names: Vec<Spanned<String>>,
        users: &BTreeMap<String, User>,
        key: &str,
    ) -> Result<Users> {
        let mut these = BTreeSet::new();
        let mut are_all = false;
        for name in names {
            let place = name.span();
            let name = name.into_inner();
            are_all |= name == EVERYBODY;
            if name != EVERYBODY && !users.contains_key(&name) {
                let what = format!("`{key}`: there is no [[user]] of the name {name:?}");
                return Err(self.error(place, what));
            }
            these.insert(name);
        }
        Ok(if are_all { Users::All } else { Users::These(these) })
    }
}

/// Opens a directory.
fn directory(path: &Path) -> Result<OwnedFd, std::io::Error> {
    // Opening a pipe would wait for its writer.
    if !fs::metadata(path)?.is_dir() {
        return Err(std::io::ErrorKind::NotADirectory.into());
    }
    File::open(path).map(OwnedFd::from)
}

/// Whether one of two directories is in the other one, or is the other one.
fn overlap(one: &SharePlan, other: &SharePlan) -> Result<bool> {
    let (one, other) = (one.root.as_fd(), other.root.as_fd());
    Ok(is_within(one, other)? || is_within(other, one)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ed25519:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// Returns a file of one user and this text.
    fn with_user(text: &str) -> String {
        format!("[[user]]\nname = \"ann\"\nkeys = [\"{KEY}\"]\n{text}")
    }

    #[test]
    fn file_sets_every_option() {
        let folder = tempfile::tempdir().expect("room");
        fs::create_dir(folder.path().join("data")).expect("room");
        let other = KEY.replace('0', "f");
        let text = format!(
            "bind = \"::1\"\nport = 7\nrdma = true\nallow-clear = true\nlog = \"log\"\n\
             third-party = [\"192.0.2.0/24\", \"::1\"]\n\
             [limits]\ncopies = 9\nrate = \"1M\"\n\
             [[user]]\nname = \"ann\"\nkeys = [\"{KEY}\"]\ncopies = 3\nrate = \"10KB\"\n\
             [[user]]\nname = \"bob@host\"\nkeys = [\"{other}\"]\n\
             [[share]]\nname = \"data\"\npath = \"data\"\nread = [\"*\"]\nwrite = [\"ann\"]\n\
             quota = \"1G\"\nquota-files = 5\ncopies = 2\nrate = \"8K\"\n\
             [[share]]\nname = \"drop\"\npath = \"/\"\nwrite = [\"bob@host\"]\n"
        );
        let text = text.replace("\"/\"", "\"/proc\"");
        let plan = parse(&text, folder.path()).expect("a plan");
        let third_party = ["192.0.2.0/24", "::1"].map(|it| it.parse().expect("a network")).to_vec();
        let fixed = Fixed { bind: "::1".parse().ok(), port: 7, rdma: true, third_party };
        assert_eq!(plan.fixed, fixed);
        assert_eq!(plan.log, Some(folder.path().join("log")));
        assert!(plan.allows_clear);
        assert_eq!(plan.bounds, Bounds { copies: Some(9), rate: Some(1 << 20) });
        let ann = &plan.users["ann"];
        assert_eq!(ann.bounds, Bounds { copies: Some(3), rate: Some(10_000) });
        assert_eq!(ann.keys, [KEY.parse().expect("a key")]);
        let [data, drop] = &plan.shares[..] else { panic!("two shares") };
        assert_eq!(data.path, folder.path().join("data"));
        assert!(data.readers.has("bob@host") && !data.writers.has("bob@host"));
        assert!(data.writers.has("ann") && !drop.writers.has("ann"));
        assert!(drop.readers.is_empty() && drop.quota.is_none());
        assert_eq!(data.quota, Some(Usage { bytes: 1 << 30, names: 5 }));
        assert_eq!(data.bounds, Bounds { copies: Some(2), rate: Some(8 << 10) });
        let before = &plan.fixed;
        for (text, key) in [("", "bind"), ("bind = \"::1\"\nport = 8\nrdma = true\n", "port")] {
            let share = "[[share]]\nname = \"x\"\npath = \"data\"\nread = [\"*\"]\n";
            let plan = parse(&format!("{text}{}", with_user(share)), folder.path());
            assert!(before.differences(&plan.expect("a plan").fixed).contains(&key));
        }
    }

    #[test]
    fn errors_name_line_and_key_and_what_is_allowed() {
        let share = |text: &str| with_user(&format!("[[share]]\nname = \"x\"\n{text}"));
        for (text, expected) in [
            (String::new(), &["no [[user]]"][..]),
            (with_user(""), &["no [[share]]"]),
            ("\nports = 1\n".into(), &["line 2", "unknown field `ports`", "`port`"]),
            ("port = 70000\n".into(), &["line 1", "port"]),
            ("bind = \"host\"\n".into(), &["line 1", "IP address"]),
            ("[limits]\ncopies = 0\n".into(), &["line 2", "copies", "from 1 to 1000000"]),
            ("[limits]\nrate = \"1K\"\n".into(), &["line 2", "rate", "from 8K on"]),
            ("[limits]\nquota = 1\n".into(), &["line 2", "unknown field `quota`"]),
            ("[[user]]\nname = \"a b\"\n".into(), &["line 2", "\"a b\" is no name"]),
            ("[[user]]\nname = \"*\"\n".into(), &["line 2", "is no name"]),
            ("[[user]]\nname = \"a\"\nkeys = [\"x\"]\n".into(), &["line 3", "keys"]),
            ("[[user]]\nname = \"a\"\n".into(), &["line 1", "missing field `keys`"]),
            (
                "[[user]]\nname = \"a\"\nkeys = []\n[[share]]\nname=\"x\"\npath=\"/proc\"".into(),
                &["line 3", "`keys` of a is empty"],
            ),
            (
                format!("{}{}", with_user(""), share("path = \"/proc\"\nread = [\"*\"]\n")),
                &["line 5", "`name`: two users are called ann"],
            ),
            (
                format!(
                    "{}{}",
                    with_user("").replace("ann", "bob"),
                    share("path = \"/proc\"\nread = [\"*\"]\n")
                ),
                &["line 6", "`keys` of ann", "is a key of bob already"],
            ),
            (share(""), &["line 4", "missing field `path`"]),
            (share("path = \"/proc\"\n"), &["line 5", "nobody could use it"]),
            (
                share("path = \"/proc\"\nread = [\"bob\"]\n"),
                &["line 7", "`read`: there is no [[user]] of the name \"bob\""],
            ),
            (
                share("path = \"/proc\"\nwrite = [\n\"ann\",\n\"bob\"]\n"),
                &["line 9", "`write`: there is no [[user]] of the name \"bob\""],
            ),
            (
                share("path = \"/nonexistent\"\nread = [\"*\"]\n"),
                &["line 6", "`path`: /nonexistent", "No such file"],
            ),
            (
                share("path = \"/proc/version\"\nread = [\"*\"]\n"),
                &["line 6", "`path`: /proc/version", "not a directory"],
            ),
            (share("read-only = true\n"), &["line 6", "unknown field `read-only`", "`read`"]),
            (with_user("[[share]]\nname = \"a/b\"\n"), &["line 5", "no name of a directory"]),
            (share("path = \"/proc\"\nquota = \"1X\"\n"), &["line 7", "no unit: X"]),
            (
                share(
                    "path = \"/proc\"\nread = [\"*\"]\n[[share]]\nname = \"x\"\npath = \"/sys\"\n\
                     write = [\"*\"]\n",
                ),
                &["line 9", "`name`: two shares are called x"],
            ),
            (
                share(
                    "path = \"/proc\"\nread = [\"*\"]\nquota = \"1G\"\n[[share]]\nname = \"y\"\n\
                     path = \"/proc/self\"\nwrite = [\"*\"]\n",
                ),
                &["line 11", "`path`: the directories of x and y overlap"],
            ),
            ("x = [".into(), &["line 1"]),
        ] {
            let error = format!("{:#}", parse(&text, Path::new("")).expect_err(&text));
            for part in expected {
                assert!(error.contains(part), "{text}: {part:?} is not in {error}");
            }
        }
    }
}
