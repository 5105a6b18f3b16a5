//! Commands for connections, the server and elements of every kind.

use std::fmt::Write as _;
use std::rc::Rc;

use super::words::{is, number};
use super::{Call, Problem, Step, arguments};
use crate::model::{Operation, Order, Outcome};
use crate::resp::glob;

/// The settings that tools ask for, with the values that describe this server.
const SETTINGS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];

impl Call<'_> {
    pub(super) fn general(&mut self, name: &str, words: &[Vec<u8>]) -> Result<Step, Problem> {
        match (name, words) {
            ("ping", []) => self.replies.simple("PONG"),
            ("ping" | "echo", [text]) => self.replies.bulk(text),
            ("hello", _) => self.hello(words)?,
            ("select", [index]) => match number::<u32>(index)? {
                0 => self.replies.simple("OK"),
                _ => return Err(Problem::Database),
            },
            ("client", [sub, ..]) if is(sub, "SETNAME") || is(sub, "SETINFO") => {
                self.replies.simple("OK");
            }
            ("command", [sub]) if is(sub, "COUNT") => self.replies.number(0),
            // Tools that ask for descriptions of commands do without.
            ("command", _) => self.replies.array(0),
            ("config", [sub, pattern]) if is(sub, "GET") => {
                let matches = |it: &&(&str, &str)| glob::matches(pattern, it.0.as_bytes());
                let found: Vec<_> = SETTINGS.iter().filter(matches).collect();
                self.replies.array(2 * found.len());
                for (key, value) in found {
                    self.replies.bulk(key.as_bytes());
                    self.replies.bulk(value.as_bytes());
                }
            }
            ("info", _) => self.info()?,
            ("dbsize", []) => {
                let all = self.all()?.len();
                self.replies.number(all);
            }
            ("keys", [pattern]) => {
                let mut names = self.all()?;
                names.retain(|name| glob::matches(pattern, name));
                self.replies.array(names.len());
                names.iter().for_each(|name| self.replies.bulk(name));
            }
            ("type", [element]) => {
                let kind = match self.describe(&Rc::from(&element[..]))? {
                    None => "none",
                    Some(it) if it.criteria.order == Order::Time => "stream",
                    Some(_) => "list",
                };
                self.replies.simple(kind);
            }
            ("del" | "exists", _) => return self.each(words, name),
            ("quit", _) => {
                self.replies.simple("OK");
                return Ok(Step::Quit);
            }
            ("ping" | "echo" | "select" | "dbsize" | "keys" | "type", _) => {
                return Err(arguments());
            }
            _ => return Err(Problem::Unknown(name.to_owned())),
        }
        Ok(Step::Replied)
    }

    fn hello(&mut self, words: &[Vec<u8>]) -> Result<(), Problem> {
        match words {
            [] => {}
            [version] if is(version, "2") => {}
            [_] => return Err(Problem::Version),
            _ => return Err(Problem::Syntax),
        }
        self.replies.array(8);
        self.replies.bulk(b"server");
        self.replies.bulk(b"weft");
        self.replies.bulk(b"version");
        self.replies.bulk(env!("CARGO_PKG_VERSION").as_bytes());
        self.replies.bulk(b"proto");
        self.replies.number(2);
        self.replies.bulk(b"role");
        self.replies.bulk(b"master");
        Ok(())
    }

    fn info(&mut self) -> Result<(), Problem> {
        let mut text = String::from("# Server\r\nredis_mode:standalone\r\n");
        let version = env!("CARGO_PKG_VERSION");
        let (bytes, waiting) = (self.space.bytes(), self.space.waiting());
        let elements = self.all()?.len();
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "weft_version:{version}\r\n# Clients\r\nblocked_clients:{waiting}\r\n\
             # Memory\r\nused_memory:{bytes}\r\n# Keyspace\r\ndb0:keys={elements}\r\n"
        );
        self.replies.bulk(text.as_bytes());
        Ok(())
    }

    fn all(&mut self) -> Result<Vec<crate::model::Name>, Problem> {
        match self.now(Operation::List)? {
            Outcome::Listed(all) => Ok(all.into_iter().map(|it| it.name).collect()),
            _ => Ok(Vec::new()),
        }
    }
}
