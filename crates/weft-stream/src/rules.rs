//! The rule file, which decides which TCP connections may use shared memory.
//!
//! Each line has one rule. The first that matches decides; a connection that none matches may use
//! shared memory:
//!
//! ```text
//! # transport  role     program  address[/prefix]:port[-port]
//! use tcp      server   sshd     *:22
//! use tcp      *        *        [fe80::]/10:*
//! use shm      connect  redis-*  127.0.0.0/8:6379-6389
//! use verbs    *        *        10.0.0.0/8:*
//! use tcp      *        *        *:*
//! ```
//!
//! A rule with `shm` offers memory to a connection even if the last connections to its address were
//! too short to gain by it. `verbs` applies to connections to other hosts, and replaces shared
//! memory for those on this host. For connections to other hosts `shm` has no effect: `weft run`'s
//! option decides.
//!
//! The syntax is that of `libsdp.conf`, which did this for the Sockets Direct Protocol. The file is
//! read once, when a program starts. Matching neither allocates nor locks, so any hook may do it.

use std::env;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use thiserror::Error;
use weft_sys::calls;
use weft_sys::calls::fs::{FileType, Mode, OFlags};
use weft_sys::calls::io::Errno;

use crate::limits::{RULES_BYTES_MAX, RULES_MAX};

/// The environment variable that names the rule file.
pub const VARIABLE: &str = "WEFT_SOCKETS_RULES";

/// The side of a connection that a program is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It accepts; the rule's address is compared with its own.
    Listen,
    /// It connects; the rule's address is compared with the peer's.
    Connect,
}

/// An ordered list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// Why the rules could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be opened or read.
    #[error("cannot read the rules in {}: {error}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: Errno,
    },
    /// A directory, pipe or device, which may have no end, or give different contents each time.
    #[error("cannot read the rules in {}: not a regular file", .file.display())]
    NotRegular {
        /// The file.
        file: PathBuf,
    },
    /// The file is longer than [`RULES_BYTES_MAX`].
    #[error("the rules in {} are longer than {RULES_BYTES_MAX} bytes", .file.display())]
    TooLong {
        /// The file.
        file: PathBuf,
    },
    /// A line is not a rule.
    #[error("{}:{line}: {fault}", .file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line's number, counted from 1.
        line: usize,
        /// What is wrong with the line.
        fault: Fault,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages say it.
pub enum Fault {
    #[error("the line is not UTF-8")]
    Encoding,
    #[error("a rule is `use shm|verbs|tcp server|connect|* PROGRAM ADDRESS[/PREFIX]:PORT[-PORT]`")]
    Form,
    #[error("the transport is `shm`, `verbs` or `tcp`, not {0:?}")]
    Transport(String),
    #[error("the role is `server`, `connect` or `*`, not {0:?}")]
    Role(String),
    #[error("no port behind {0:?}: write `:PORT`, `:PORT-PORT` or `:*`")]
    NoPort(String),
    #[error("a port is a number up to 65535, or `*`, not {0:?}")]
    Port(String),
    #[error("no port is in {0}-{1}")]
    PortOrder(u16, u16),
    #[error("an address is `*`, like 192.0.2.1, or like [2001:db8::1], not {0:?}")]
    Address(String),
    #[error("a prefix of this address is a number up to {0}, not {1:?}")]
    Prefix(u8, String),
    #[error("more than {RULES_MAX} rules")]
    TooMany,
}

impl Rules {
    /// Reads the rules in the file that [`VARIABLE`] names; there are none if it is unset or empty.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read). The caller must not go on as if there were no rules.
    pub fn from_environment() -> Result<Self, RulesError> {
        match env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
            Some(file) => Self::read(Path::new(&file)),
            None => Ok(Self::default()),
        }
    }

    /// Reads the rules in `file`.
    ///
    /// Makes only system calls, because a preload may have hooked the C library's functions.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not a regular file or too long, or if a line is not a rule.
    pub fn read(file: &Path) -> Result<Self, RulesError> {
        let text = contents(file)?;
        Self::parse(&text).map_err(|(line, fault)| RulesError::Line {
            file: file.to_owned(),
            line,
            fault,
        })
    }

    /// Parses the rules in `text`. The error has the number of the first wrong line, from 1.
    fn parse(text: &[u8]) -> Result<Self, (usize, Fault)> {
        let mut rules = Vec::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let fail = |fault| (index + 1, fault);
            let line = str::from_utf8(line).map_err(|_| fail(Fault::Encoding))?;
            let Some(rule) = Rule::parse(line).map_err(fail)? else { continue };
            if rules.len() == RULES_MAX {
                return Err(fail(Fault::TooMany));
            }
            rules.push(rule);
        }
        Ok(Self { rules })
    }

    /// Whether a connection may go through shared memory.
    ///
    /// `program` is the file name of the program. `address` is the local address for
    /// [`Role::Listen`], and the peer's for [`Role::Connect`]. An IPv4-mapped IPv6 address equals
    /// the IPv4 address.
    pub fn allows(&self, role: Role, program: &[u8], address: SocketAddr) -> bool {
        self.transport(role, program, address) != Some(Transport::Tcp)
    }

    /// Whether a rule asks for shared memory, even for a short connection.
    pub fn wants_memory(&self, role: Role, program: &[u8], address: SocketAddr) -> bool {
        self.transport(role, program, address) == Some(Transport::Shm)
    }

    /// Whether a connection uses verbs; `otherwise` is the answer if no rule decides.
    pub fn wants_verbs(
        &self,
        role: Role,
        program: &[u8],
        address: SocketAddr,
        otherwise: bool,
    ) -> bool {
        match self.transport(role, program, address) {
            Some(Transport::Verbs) => true,
            Some(Transport::Tcp) => false,
            Some(Transport::Shm) | None => otherwise,
        }
    }

    fn transport(&self, role: Role, program: &[u8], address: SocketAddr) -> Option<Transport> {
        let host = address.ip().to_canonical();
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.matches(role, program, host, address.port()));
        rule.map(|rule| rule.transport)
    }
}

/// Reads a regular file of at most [`RULES_BYTES_MAX`].
fn contents(file: &Path) -> Result<Vec<u8>, RulesError> {
    let fail = |error| RulesError::Unreadable { file: file.to_owned(), error };
    // Opening a pipe without a writer must not block the start of a program.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = calls::fs::open(file, flags, Mode::empty()).map_err(fail)?;
    let kind = calls::fs::fstat(&opened).map_err(fail)?.st_mode;
    if FileType::from_raw_mode(kind) != FileType::RegularFile {
        return Err(RulesError::NotRegular { file: file.to_owned() });
    }
    let mut text = vec![0; RULES_BYTES_MAX + 1];
    let mut length = 0;
    while length < text.len() {
        match calls::io::read(&opened, &mut text[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    if length > RULES_BYTES_MAX {
        return Err(RulesError::TooLong { file: file.to_owned() });
    }
    text.truncate(length);
    Ok(text)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    transport: Transport,
    /// `None` matches both roles.
    role: Option<Role>,
    program: String,
    network: Network,
    ports: RangeInclusive<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Shm,
    Verbs,
    Tcp,
}

impl Rule {
    /// Parses a line; `None` if it is empty or has only a comment.
    fn parse(line: &str) -> Result<Option<Self>, Fault> {
        let mut words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        let Some(first) = words.next() else { return Ok(None) };
        let mut word = || words.next().ok_or(Fault::Form);
        if first != "use" {
            return Err(Fault::Form);
        }
        let transport = match word()? {
            "shm" => Transport::Shm,
            "verbs" => Transport::Verbs,
            "tcp" => Transport::Tcp,
            other => return Err(Fault::Transport(other.to_owned())),
        };
        let role = match word()? {
            "server" => Some(Role::Listen),
            "connect" => Some(Role::Connect),
            "*" => None,
            other => return Err(Fault::Role(other.to_owned())),
        };
        let program = word()?.to_owned();
        let place = word()?;
        if words.next().is_some() {
            return Err(Fault::Form);
        }
        let (network, ports) =
            place.rsplit_once(':').ok_or_else(|| Fault::NoPort(place.to_owned()))?;
        // The colon was a part of an IPv6 address.
        if network.starts_with('[') && !network.contains(']') {
            return Err(Fault::NoPort(place.to_owned()));
        }
        let (network, ports) = (Network::parse(network)?, parse_ports(ports)?);
        Ok(Some(Self { transport, role, program, network, ports }))
    }

    fn matches(&self, role: Role, program: &[u8], host: IpAddr, port: u16) -> bool {
        self.role.is_none_or(|own| own == role)
            && self.ports.contains(&port)
            && self.network.contains(host)
            && glob_matches(self.program.as_bytes(), program)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// Every address of both families.
    Any,
    /// The addresses that share the first bits with the given one.
    Prefix(IpAddr, u8),
}

impl Network {
    fn parse(text: &str) -> Result<Self, Fault> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let (host, prefix) =
            text.split_once('/').map_or((text, None), |(host, bits)| (host, Some(bits)));
        let wrong = || Fault::Address(host.to_owned());
        let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            // An IPv4-mapped address would match nothing, because hosts are compared as IPv4.
            Some(host) => {
                let host: Ipv6Addr = host.parse().map_err(|_| wrong())?;
                host.to_ipv4_mapped().is_none().then_some(IpAddr::V6(host)).ok_or_else(wrong)?
            }
            None => IpAddr::V4(host.parse().map_err(|_| wrong())?),
        };
        let width = if address.is_ipv4() { 32 } else { 128 };
        let Some(prefix) = prefix else { return Ok(Self::Prefix(address, width)) };
        let bits = number(prefix).and_then(|bits| u8::try_from(bits).ok());
        let bits = bits.filter(|&bits| bits <= width);
        let bits = bits.ok_or_else(|| Fault::Prefix(width, prefix.to_owned()))?;
        Ok(Self::Prefix(address, bits))
    }

    fn contains(self, host: IpAddr) -> bool {
        let Self::Prefix(network, bits) = self else { return true };
        match (network, host) {
            (IpAddr::V4(network), IpAddr::V4(host)) => {
                let different = network.to_bits() ^ host.to_bits();
                different.leading_zeros() >= u32::from(bits)
            }
            (IpAddr::V6(network), IpAddr::V6(host)) => {
                let different = network.to_bits() ^ host.to_bits();
                different.leading_zeros() >= u32::from(bits)
            }
            _ => false,
        }
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, Fault> {
    if text == "*" {
        return Ok(0..=u16::MAX);
    }
    let port = |text| number(text).ok_or_else(|| Fault::Port(str::to_owned(text)));
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    if first > last {
        return Err(Fault::PortOrder(first, last));
    }
    Ok(first..=last)
}

/// Parses digits only: `str::parse` alone would accept a sign.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Whether `pattern`, in which `*` matches any bytes and `?` any single one, matches the whole
/// `name`.
fn glob_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The position of the last star, and the end of what it matches at the moment.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                // The last star matches one more byte; earlier stars need not change.
                let Some((at, end)) = star else { return false };
                star = Some((at, end + 1));
                p = at + 1;
                n = end + 1;
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text.as_bytes()).unwrap()
    }

    fn connects(rules: &Rules, program: &str, address: &str) -> bool {
        rules.allows(Role::Connect, program.as_bytes(), address.parse().unwrap())
    }

    #[test]
    fn everything_is_allowed_without_rules() {
        for text in ["", "\n\n", "# nothing\n  # use tcp * * *:*\n"] {
            assert_eq!(rules(text), Rules::default());
            assert!(connects(&rules(text), "redis-cli", "127.0.0.1:6379"));
        }
    }

    #[test]
    fn first_match_wins() {
        let rules = rules(
            "use tcp connect redis-benchmark *:6380 # but not this one\r\n\
             use shm * redis-* 127.0.0.0/8:6379-6389\n\
             use tcp * * *:*",
        );
        assert!(!connects(&rules, "redis-benchmark", "127.0.0.1:6380"));
        assert!(connects(&rules, "redis-benchmark", "127.0.0.1:6381"));
        assert!(connects(&rules, "redis-cli", "127.9.9.9:6389"));
        assert!(!connects(&rules, "redis-cli", "127.0.0.1:6390"));
        assert!(!connects(&rules, "redis-cli", "128.0.0.1:6379"));
        assert!(!connects(&rules, "memtier", "127.0.0.1:6379"));
    }

    #[test]
    fn only_connections_that_a_rule_names_use_verbs() {
        let rules =
            rules("use verbs * * 10.0.0.0/8:*\nuse tcp * * 10.1.0.0/16:*\nuse shm * * *:80");
        let allows = |address: &str, otherwise| {
            rules.wants_verbs(Role::Connect, b"x", address.parse().unwrap(), otherwise)
        };
        for otherwise in [false, true] {
            assert!(allows("10.1.2.3:80", otherwise));
            assert_eq!(allows("192.0.2.1:80", otherwise), otherwise);
            assert_eq!(allows("192.0.2.1:81", otherwise), otherwise);
        }
        let tcp = Rules::parse(b"use tcp * * *:*").unwrap();
        assert!(!tcp.wants_verbs(Role::Listen, b"x", "10.1.2.3:80".parse().unwrap(), true));
    }

    #[test]
    fn rule_applies_to_its_role_only() {
        let rules = rules("use tcp server * *:80\nuse tcp connect * *:81");
        let allows = |role, port| rules.allows(role, b"x", ([127, 0, 0, 1], port).into());
        assert!(!allows(Role::Listen, 80));
        assert!(allows(Role::Connect, 80));
        assert!(allows(Role::Listen, 81));
        assert!(!allows(Role::Connect, 81));
    }

    #[test]
    fn prefixes_of_both_families_match() {
        let rules = rules(
            "use tcp * * [fe80::]/10:*\nuse tcp * * [2001:db8::1]:443\n\
             use tcp * * 0.0.0.0/0:7\nuse tcp * * 10.1.2.3/31:9",
        );
        for (address, allowed) in [
            ("[febf::1]:1", false),
            ("[fec0::1]:1", true),
            ("[2001:db8::1]:443", false),
            ("[2001:db8::1]:444", true),
            ("[2001:db8::2]:443", true),
            ("192.0.2.1:7", false),
            ("[::1]:7", true),
            ("10.1.2.2:9", false),
            ("10.1.2.4:9", true),
            // An IPv4 client's address as a dual-stack server sees it.
            ("[::ffff:10.1.2.2]:9", false),
        ] {
            assert_eq!(connects(&rules, "x", address), allowed, "{address}");
        }
    }

    #[test]
    fn globs_match_whole_names() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("redis-*", "redis-", true),
            ("redis-*", "redis", false),
            ("*-server", "redis-server", true),
            ("*-server", "redis-server2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("p?stgres", "postgres", true),
            ("?", "", false),
            ("a", "ab", false),
            ("**a", "ba", true),
        ] {
            assert_eq!(
                glob_matches(pattern.as_bytes(), name.as_bytes()),
                matches,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn error_names_the_wrong_line_and_its_fault() {
        for (line, message) in [
            ("allow everything", "a rule is `use"),
            ("use", "a rule is `use"),
            ("use tcp server x", "a rule is `use"),
            ("use tcp server x *:1 more", "a rule is `use"),
            ("use sdp server x *:1", "not \"sdp\""),
            ("use tcp client x *:1", "not \"client\""),
            ("use tcp server x 10.0.0.1", "no port behind"),
            ("use tcp server x [::1]", "no port behind"),
            ("use tcp server x ::1:80", "an address is"),
            ("use tcp server x [::ffff:10.0.0.1]:80", "an address is"),
            ("use tcp server x localhost:80", "not \"localhost\""),
            ("use tcp server x 10.0.0/8:80", "an address is"),
            ("use tcp server x 10.0.0.0/33:80", "up to 32, not \"33\""),
            ("use tcp server x [::]/129:80", "up to 128"),
            ("use tcp server x 10.0.0.0/+8:80", "not \"+8\""),
            ("use tcp server x *:65536", "not \"65536\""),
            ("use tcp server x *:", "not \"\""),
            ("use tcp server x *:1-", "not \"\""),
            ("use tcp server x *:9-8", "no port is in 9-8"),
        ] {
            let text = format!("# one\nuse shm * * *:*\n{line}\nnot reached");
            let (number, fault) = Rules::parse(text.as_bytes()).unwrap_err();
            assert_eq!(number, 3, "{line}");
            assert!(fault.to_string().contains(message), "{line}: {fault}");
        }
        assert_eq!(Rules::parse(b"\n\xff"), Err((2, Fault::Encoding)));
    }

    #[test]
    fn number_of_rules_is_bounded() {
        let text = "use tcp * * *:*\n".repeat(RULES_MAX);
        assert_eq!(rules(&text).rules.len(), RULES_MAX);
        let more = Rules::parse((text + "use tcp * * *:*").as_bytes());
        assert_eq!(more, Err((RULES_MAX + 1, Fault::TooMany)));
    }

    #[test]
    fn error_says_why_the_file_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("rules");
        let message = |file: &Path| Rules::read(file).unwrap_err().to_string();
        assert!(message(&file).contains("No such file"), "{}", message(&file));
        assert!(message(directory.path()).contains("not a regular file"));
        assert!(message(Path::new("/dev/zero")).contains("not a regular file"));
        fs::write(&file, "# fine\nuse nothing").unwrap();
        assert!(
            message(&file)
                .ends_with("rules:2: the transport is `shm`, `verbs` or `tcp`, not \"nothing\"")
        );
        fs::write(&file, "#".repeat(RULES_BYTES_MAX)).unwrap();
        assert_eq!(Rules::read(&file), Ok(Rules::default()));
        fs::write(&file, "#".repeat(RULES_BYTES_MAX + 1)).unwrap();
        assert!(message(&file).contains("longer than"));
    }

    /// Lines that resemble rules, so that they pass the first checks.
    fn nearly_rules() -> impl Strategy<Value = String> {
        let line = "(use )?(shm|tcp|sdp) (server|connect|\\*) [a-z*?]{0,4} \
                    [\\[\\]0-9a-f.:*]{0,9}(/[0-9+-]{0,4})?:?[0-9*-]{0,7}( #.*)?";
        prop::collection::vec(line, 0..6).prop_map(|lines| lines.join("\n"))
    }

    proptest! {
        #[test]
        fn parser_does_not_panic_on_any_bytes(text in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Rules::parse(&text);
        }

        #[test]
        fn parser_and_matcher_do_not_panic_on_rules(
            text in nearly_rules(),
            program in prop::collection::vec(any::<u8>(), 0..8),
            host: u128,
            port: u16,
        ) {
            if let Ok(rules) = Rules::parse(text.as_bytes()) {
                let v6 = SocketAddr::from((host.to_be_bytes(), port));
                let v4 = SocketAddr::from(((host as u32).to_be_bytes(), port));
                for role in [Role::Listen, Role::Connect] {
                    rules.allows(role, &program, v6);
                    rules.allows(role, &program, v4);
                }
            }
        }

        #[test]
        fn rule_matches_exactly_what_it_names(host: u32, port: u16, server: bool) {
            let role = if server { Role::Listen } else { Role::Connect };
            let word = if server { "server" } else { "connect" };
            let address = SocketAddr::from((host.to_be_bytes(), port));
            let rules = rules(&format!("use tcp {word} prog {address}"));
            prop_assert!(!rules.allows(role, b"prog", address));
            prop_assert!(rules.allows(role, b"other", address));
            let next = SocketAddr::from((host.wrapping_add(1).to_be_bytes(), port));
            prop_assert!(rules.allows(role, b"prog", next));
        }
    }
}
