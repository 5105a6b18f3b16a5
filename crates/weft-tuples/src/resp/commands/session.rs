//! Commands for the connection itself.

use super::problem::{Problem, SYNTAX};
use super::words::{integer, is, number};
use super::{Call, Step};

/// The version of Redis whose protocol this is, for clients that look at it.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// A command of a client that has not shown a password.
pub(super) const NO_AUTH: Problem = Problem::Text("NOAUTH Authentication required.");
const NO_AUTH_HELLO: Problem = Problem::Text(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
     <user> <pass> option can be used to authenticate the client and select the RESP protocol \
     version at the same time",
);
const WRONG_PASSWORD: Problem =
    Problem::Text("WRONGPASS invalid username-password pair or user is disabled.");

impl Call<'_> {
    pub(super) fn ping(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        match words {
            [] => self.replies.simple("PONG"),
            [text] => self.replies.bulk(text),
            _ => return Err(Problem::Arguments),
        }
        Ok(Step::Replied)
    }

    pub(super) fn echo(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        words.iter().for_each(|text| self.replies.bulk(text));
        Ok(Step::Replied)
    }

    pub(super) fn quit(&mut self) -> Result<Step, Problem> {
        self.replies.simple("OK");
        Ok(Step::Quit)
    }

    pub(super) fn select(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        match words {
            [index] if number(index)? == 0 => self.replies.simple("OK"),
            _ => return Err(Problem::Text("ERR DB index is out of range")),
        }
        Ok(Step::Replied)
    }

    /// Makes the connection as it was when it was new.
    pub(super) fn reset(&mut self) -> Result<Step, Problem> {
        self.replies.is_resp3 = false;
        self.session.set_name("");
        self.session.log_out();
        self.session.transaction.end(self.space);
        self.replies.simple("RESET");
        Ok(Step::Replied)
    }

    pub(super) fn auth(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let (user, password) = match words {
            [_] if self.session.is_open() => {
                return Err(Problem::Text(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?",
                ));
            }
            [password] => (&b"default"[..], password),
            // Without a password, each one is right.
            [user, password] => (&user[..], password),
            _ => return Err(SYNTAX),
        };
        if !self.session.log_in(user, password) {
            return Err(WRONG_PASSWORD);
        }
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    pub(super) fn hello(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let (mut is_resp3, mut options) = (self.replies.is_resp3, words);
        if let [version, rest @ ..] = words {
            const NO_NUMBER: Problem =
                Problem::Text("ERR Protocol version is not an integer or out of range");
            is_resp3 = match integer(version).ok_or(NO_NUMBER)? {
                2 => false,
                3 => true,
                _ => return Err(Problem::Text("NOPROTO unsupported protocol version")),
            };
            options = rest;
        }
        let (mut login, mut name) = (None, None);
        while let [option, rest @ ..] = options {
            options = match rest {
                [user, password, rest @ ..] if is(option, "AUTH") => {
                    login = Some((user, password));
                    rest
                }
                [given, rest @ ..] if is(option, "SETNAME") => {
                    name = Some(name_of(given)?);
                    rest
                }
                _ => {
                    let option = String::from_utf8_lossy(option);
                    let text = format!("ERR Syntax error in HELLO option '{option}'");
                    return Err(Problem::Quoting(text));
                }
            };
        }
        if login.is_some_and(|(user, password)| !self.session.log_in(user, password)) {
            return Err(WRONG_PASSWORD);
        }
        if !self.session.is_admitted {
            return Err(NO_AUTH_HELLO);
        }
        if let Some(name) = name {
            self.session.set_name(name);
        }
        self.replies.is_resp3 = is_resp3;
        self.introduce();
        Ok(Step::Replied)
    }

    fn introduce(&mut self) {
        let id = self.session.id();
        let version = if self.replies.is_resp3 { 3 } else { 2 };
        self.replies.map(7);
        for (key, value) in [("server", "weft"), ("version", REDIS_VERSION)] {
            self.replies.bulk(key.as_bytes());
            self.replies.bulk(value.as_bytes());
        }
        self.replies.bulk(b"proto");
        self.replies.number(version);
        self.replies.bulk(b"id");
        self.replies.signed(id.cast_signed());
        for (key, value) in [("mode", "standalone"), ("role", "master")] {
            self.replies.bulk(key.as_bytes());
            self.replies.bulk(value.as_bytes());
        }
        self.replies.bulk(b"modules");
        self.replies.array(0);
    }

    /// `ACL WHOAMI`: the users are set where the server is started.
    pub(super) fn acl(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        match words {
            [sub] if is(sub, "WHOAMI") => self.replies.bulk(self.session.user.name().as_bytes()),
            [sub, ..] if is(sub, "WHOAMI") => {
                return Err(Problem::sub_arguments("acl", "whoami"));
            }
            [sub, ..] => return Err(Problem::unknown_sub("ACL", sub)),
            [] => return Err(Problem::Arguments),
        }
        Ok(Step::Replied)
    }

    pub(super) fn client(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [sub, arguments @ ..] = words else { return Err(Problem::Arguments) };
        let is_resp3 = self.replies.is_resp3;
        match (sub.to_ascii_lowercase().as_slice(), arguments) {
            (b"id", []) => self.replies.signed(self.session.id().cast_signed()),
            (b"getname", []) if self.session.name.is_empty() => self.replies.null(),
            (b"getname", []) => self.replies.bulk(self.session.name.as_bytes()),
            (b"setname", [name]) => {
                self.session.set_name(name_of(name)?);
                self.replies.simple("OK");
            }
            // A client says which library it is.
            (b"setinfo", [_, _]) => self.replies.simple("OK"),
            (b"info", []) => {
                let text = self.session.describe(self.now.clock, is_resp3);
                self.replies.verbatim(&text);
            }
            (b"list", options) => {
                let ids = self.listed(options)?;
                let text = self.session.describe_these(&ids, self.now.clock, is_resp3);
                self.replies.verbatim(&text);
            }
            // No client is evicted.
            (b"no-evict", [state]) if is(state, "ON") || is(state, "OFF") => {
                self.replies.simple("OK");
            }
            (b"no-evict", [_]) => return Err(SYNTAX),
            (b"id", _) => return Err(Problem::sub_arguments("client", "id")),
            (b"getname", _) => return Err(Problem::sub_arguments("client", "getname")),
            (b"setname", _) => return Err(Problem::sub_arguments("client", "setname")),
            (b"setinfo", _) => return Err(Problem::sub_arguments("client", "setinfo")),
            (b"info", _) => return Err(Problem::sub_arguments("client", "info")),
            (b"no-evict", _) => return Err(Problem::sub_arguments("client", "no-evict")),
            _ => return Err(Problem::unknown_sub("CLIENT", sub)),
        }
        Ok(Step::Replied)
    }
}

impl Call<'_> {
    /// The connections that `CLIENT LIST` has with these options.
    fn listed(&self, options: &[Vec<u8>]) -> Result<Vec<u64>, Problem> {
        match options {
            [] => Ok(self.session.all()),
            [option, kind] if is(option, "TYPE") => {
                if is(kind, "normal") {
                    return Ok(self.session.all());
                }
                let others = ["master", "pubsub", "replica", "slave"];
                if others.iter().any(|other| is(kind, other)) {
                    return Ok(Vec::new());
                }
                let kind = String::from_utf8_lossy(kind);
                Err(Problem::Quoting(format!("ERR Unknown client type '{kind}'")))
            }
            [option, ids @ ..] if is(option, "ID") && !ids.is_empty() => {
                const WRONG: Problem = Problem::Text("ERR Invalid client ID");
                let id = |id: &Vec<u8>| integer(id).map(i64::cast_unsigned).ok_or(WRONG);
                ids.iter().map(id).collect()
            }
            _ => Err(SYNTAX),
        }
    }
}

/// Whether a command is about the connection or the server, and neither reads nor changes elements.
pub(in crate::resp) fn is_of_session(name: &[u8]) -> bool {
    const NAMES: [&str; 10] =
        ["AUTH", "CLIENT", "COMMAND", "CONFIG", "ECHO", "HELLO", "PING", "QUIT", "RESET", "SELECT"];
    NAMES.iter().any(|of_session| is(name, of_session))
}

/// Parses the name of a connection.
fn name_of(argument: &[u8]) -> Result<&str, Problem> {
    let text = std::str::from_utf8(argument).ok();
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.ok_or(Problem::Text(
        "ERR Client names cannot contain spaces, newlines or special characters.",
    ))
}
