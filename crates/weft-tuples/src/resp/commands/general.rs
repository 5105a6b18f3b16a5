//! Commands for the server and for elements of every kind.

use std::fmt::Write as _;
use std::rc::Rc;

use super::problem::{Problem, SYNTAX};
use super::session::REDIS_VERSION;
use super::table::{self, COMMANDS, Command};
use super::words::{is, number};
use super::{Call, Step};
use crate::access::Need;
use crate::model::{Description, Name, Operation, Order, Outcome};
use crate::resp::glob;

/// The settings that tools ask for, with the values that describe this server.
const SETTINGS: [(&str, &str); 3] = [("save", ""), ("appendonly", "no"), ("databases", "1")];

impl Call<'_> {
    pub(super) fn config(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [sub, arguments @ ..] = words else { return Err(Problem::Arguments) };
        if is(sub, "SET") {
            let [name, _, ..] = arguments else {
                return Err(Problem::sub_arguments("config", "set"));
            };
            let name = String::from_utf8_lossy(name);
            return Err(Problem::Quoting(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            )));
        }
        if !is(sub, "GET") {
            return Err(Problem::unknown_sub("CONFIG", sub));
        }
        if arguments.is_empty() {
            return Err(Problem::sub_arguments("config", "get"));
        }
        let matches = |it: &&(&str, &str)| {
            arguments.iter().any(|pattern| glob::matches(pattern, it.0.as_bytes()))
        };
        let found: Vec<_> = SETTINGS.iter().filter(matches).collect();
        self.replies.map(found.len());
        for (key, value) in found {
            self.replies.bulk(key.as_bytes());
            self.replies.bulk(value.as_bytes());
        }
        Ok(Step::Replied)
    }

    pub(super) fn command(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let Some((sub, arguments)) = words.split_first() else {
            self.replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| self.command_info(command));
            return Ok(Step::Replied);
        };
        match sub.to_ascii_lowercase().as_slice() {
            b"count" => self.replies.number(COMMANDS.len()),
            b"list" if arguments.is_empty() => {
                self.replies.array(COMMANDS.len());
                COMMANDS.iter().for_each(|command| self.replies.bulk(command.name.as_bytes()));
            }
            b"info" if arguments.is_empty() => return self.command(&[]),
            b"info" => {
                self.replies.array(arguments.len());
                for name in arguments {
                    match table::find(name) {
                        Some(command) => self.command_info(command),
                        None => self.replies.null_array(),
                    }
                }
            }
            // Tools that ask for descriptions of commands do without.
            b"docs" => self.replies.map(0),
            _ => return Err(Problem::unknown_sub("COMMAND", sub)),
        }
        Ok(Step::Replied)
    }

    fn command_info(&mut self, command: &Command) {
        self.replies.array(6);
        self.replies.bulk(command.name.as_bytes());
        self.replies.signed(command.arity);
        self.replies.array(0);
        command.keys.iter().for_each(|place| self.replies.signed(*place));
    }

    pub(super) fn info(&mut self) -> Result<Step, Problem> {
        let mut text = String::from("# Server\r\n");
        let version = env!("CARGO_PKG_VERSION");
        let (bytes, waiting) = (self.space.bytes(), self.space.waiting());
        let (bits, elements) = (usize::BITS, self.all()?.len());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "redis_version:{REDIS_VERSION}\r\nserver_name:weft\r\nweft_version:{version}\r\n\
             redis_mode:standalone\r\narch_bits:{bits}\r\n\
             # Clients\r\nblocked_clients:{waiting}\r\n\
             # Memory\r\nused_memory:{bytes}\r\n# Persistence\r\nloading:0\r\n\
             # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
             # Cluster\r\ncluster_enabled:0\r\n# Keyspace\r\n"
        );
        if elements != 0 {
            let _ = write!(text, "db0:keys={elements},expires=0,avg_ttl=0\r\n");
        }
        self.replies.verbatim(&text);
        Ok(Step::Replied)
    }

    pub(super) fn count_all(&mut self) -> Result<Step, Problem> {
        let all = self.all()?.len();
        self.replies.number(all);
        Ok(Step::Replied)
    }

    pub(super) fn keys(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [pattern] = words else { return Err(Problem::Arguments) };
        let mut all = self.all()?;
        all.retain(|it| glob::matches(pattern, &it.name));
        self.replies.array(all.len());
        all.iter().for_each(|it| self.replies.bulk(&it.name));
        Ok(Step::Replied)
    }

    /// `SCAN`. The first reply has all elements.
    pub(super) fn scan(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        const NO_CURSOR: Problem = Problem::Text("ERR invalid cursor");
        let [cursor, options @ ..] = words else { return Err(Problem::Arguments) };
        let cursor = std::str::from_utf8(cursor).ok().and_then(|it| it.parse::<u64>().ok());
        let cursor = cursor.ok_or(NO_CURSOR)?;
        let (mut pattern, mut kind, mut options) = (&b"*"[..], None, options);
        while let [option, argument, rest @ ..] = options {
            match option.to_ascii_uppercase().as_slice() {
                b"COUNT" if number(argument)? < 1 => return Err(SYNTAX),
                b"COUNT" => {}
                b"MATCH" => pattern = argument,
                b"TYPE" => kind = Some(argument),
                _ => return Err(SYNTAX),
            }
            options = rest;
        }
        if !options.is_empty() {
            return Err(SYNTAX);
        }
        let mut all = if cursor == 0 { self.all()? } else { Vec::new() };
        all.retain(|it| {
            glob::matches(pattern, &it.name)
                && kind.is_none_or(|kind| is(kind, kind_of(it.criteria.order)))
        });
        self.replies.array(2);
        self.replies.bulk(b"0");
        self.replies.array(all.len());
        all.iter().for_each(|it| self.replies.bulk(&it.name));
        Ok(Step::Replied)
    }

    pub(super) fn kind(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let [element] = words else { return Err(Problem::Arguments) };
        self.replies.simple(self.space.look(element).map_or("none", |it| kind_of(it.order)));
        Ok(Step::Replied)
    }

    pub(super) fn exist(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let mut found = 0;
        for element in words {
            found += usize::from(self.space.look(element).is_some());
        }
        self.replies.number(found);
        Ok(Step::Replied)
    }

    pub(super) fn delete(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        let mut deleted = 0;
        for element in words {
            let element: Name = Rc::from(&element[..]);
            let outcome = self.now(Operation::Delete { element })?;
            deleted += usize::from(outcome == Outcome::Deleted(true));
        }
        self.replies.number(deleted);
        Ok(Step::Replied)
    }

    pub(super) fn flush(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        match words {
            [] => {}
            [how] if is(how, "SYNC") || is(how, "ASYNC") => {}
            _ => return Err(SYNTAX),
        }
        for found in self.all()? {
            self.now(Operation::Delete { element: found.name })?;
        }
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    /// All elements that the user may know of.
    fn all(&mut self) -> Result<Vec<Description>, Problem> {
        let Outcome::Listed(mut all) = self.now(Operation::List)? else { return Ok(Vec::new()) };
        all.retain(|it| self.session.user.may(Need::Know, &it.name));
        Ok(all)
    }
}

fn kind_of(order: Order) -> &'static str {
    if order == Order::Time { "stream" } else { "list" }
}
