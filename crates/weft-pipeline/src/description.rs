//! Descriptions of pipelines: the file's format, and the checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::builtin_table::{self, Arity};
use crate::limits::{
    BUFFER_LEN, BUFFER_LEN_MAX, COPIES_MAX, FILE_LEN_MAX, NAME_LEN_MAX, PROCESSES_MAX, UNITS_MAX,
    WINDOW, WINDOW_MAX,
};
use crate::parameters::Parameters;
use crate::schedule::Policy;

/// The name of the host on which a pipeline is started.
pub const LOCAL: &str = "local";

/// The error of a description.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

fn invalid(why: impl Into<String>) -> Invalid {
    Invalid(why.into())
}

/// A number of bytes, which may be written with a unit of 1024: `64K`, `1M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Number")]
pub struct Size(pub usize);

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Bytes(usize),
    Text(String),
}

impl TryFrom<Number> for Size {
    type Error = String;

    fn try_from(number: Number) -> Result<Self, String> {
        match number {
            Number::Bytes(bytes) => Ok(Self(bytes)),
            Number::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[number.len()..].to_ascii_uppercase()[..] {
            "" | "B" => 1,
            "K" | "KIB" => 1 << 10,
            "M" | "MIB" => 1 << 20,
            _ => return Err(format!("{text}: not a number of bytes, like 4096, 64K or 1M")),
        };
        let number: Option<usize> = number.parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(unit));
        bytes.map(Self).ok_or_else(|| format!("{text}: not a number of bytes, like 64K"))
    }
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    buffer: Option<Size>,
    window: Option<u32>,
    #[serde(default)]
    schedule: Policy,
    #[serde(default)]
    host: BTreeMap<String, HostEntry>,
    filter: BTreeMap<String, FilterEntry>,
    #[serde(default)]
    unit: Vec<Parameters>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    login: Option<String>,
    address: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterEntry {
    builtin: Option<String>,
    command: Option<String>,
    program: Option<String>,
    #[serde(default)]
    from: OneOrMore,
    copies: Option<usize>,
    #[serde(default)]
    hosts: OneOrMore,
    #[serde(default)]
    split: Split,
    #[serde(default, rename = "with")]
    parameters: Parameters,
}

#[derive(Default, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    #[default]
    None,
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Vec<String> {
    fn from(names: OneOrMore) -> Self {
        match names {
            OneOrMore::None => Self::new(),
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        }
    }
}

/// The kind of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    /// A filter that Weft brings.
    Builtin(String),
    /// A command of the shell, started for each unit, through which the bytes are piped.
    Command(String),
    /// A command of the shell that reads and writes frames.
    Program(String),
}

/// Where the output of a command is split into buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Split {
    /// Anywhere.
    #[default]
    Bytes,
    /// After a line.
    Lines,
}

/// A host of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its name for a remote shell; `None` for the host on which the pipeline is started.
    pub(crate) login: Option<String>,
    /// The address at which other hosts reach it, if it is known.
    pub(crate) address: Option<String>,
}

/// A filter of a pipeline.
#[derive(Clone, Debug)]
pub struct FilterPlan {
    /// Its name.
    pub name: String,
    /// The filters of which it reads the output, as indices of the pipeline's filters.
    pub from: Vec<usize>,
    /// For each copy the name of its host.
    pub hosts: Vec<String>,
    pub(crate) action: Action,
    pub(crate) split: Split,
    pub(crate) parameters: Parameters,
}

/// A checked description of a pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The filters. Each comes after those that it reads from.
    pub filters: Vec<FilterPlan>,
    /// The longest buffer in bytes.
    pub buffer_len: usize,
    /// The most unacknowledged buffers of a copy at a copy of a consumer.
    pub window: u32,
    /// How copies share a stream.
    pub policy: Policy,
    pub(crate) units: Vec<Parameters>,
    pub(crate) hosts: BTreeMap<String, Host>,
}

/// Settings that replace those of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// The longest buffer.
    pub buffer: Option<Size>,
    /// The window.
    pub window: Option<u32>,
    /// How copies share a stream.
    pub policy: Option<Policy>,
}

impl Pipeline {
    /// Reads the description in a file.
    ///
    /// # Errors
    /// If it cannot be read or something in it is wrong.
    pub fn load(path: &Path, changes: Changes) -> Result<Self, Invalid> {
        let named = |error: String| invalid(format!("{}: {error}", path.display()));
        let mut text = String::new();
        let read = File::open(path);
        let read = read.and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_string(&mut text));
        match read {
            Err(error) => Err(named(error.to_string())),
            Ok(len) if len as u64 > FILE_LEN_MAX => Err(named("longer than 1 MiB".into())),
            Ok(_) => Self::parse(&text, changes).map_err(|error| named(error.0)),
        }
    }

    /// Reads a description.
    ///
    /// # Errors
    /// If something in it is wrong.
    pub fn parse(text: &str, changes: Changes) -> Result<Self, Invalid> {
        let file: Description =
            toml::from_str(text).map_err(|error| invalid(error.to_string().trim_end()))?;
        let buffer_len = changes.buffer.or(file.buffer).map_or(BUFFER_LEN, |size| size.0);
        let window = changes.window.or(file.window).unwrap_or(WINDOW);
        if !(1..=BUFFER_LEN_MAX).contains(&buffer_len) {
            return Err(invalid(format!("buffer: from 1 to {BUFFER_LEN_MAX} bytes")));
        }
        if !(1..=WINDOW_MAX).contains(&window) {
            return Err(invalid(format!("window: from 1 to {WINDOW_MAX} buffers")));
        }
        let filters = in_order(filters(file.filter)?)?;
        let units = if file.unit.is_empty() { vec![Parameters::default()] } else { file.unit };
        if units.len() > UNITS_MAX {
            return Err(invalid(format!("more than {UNITS_MAX} units")));
        }
        for parameters in units.iter().chain(filters.iter().map(|filter| &filter.parameters)) {
            parameters.iter().try_for_each(|(name, _)| check_parameter(name))?;
        }
        let hosts = hosts(file.host, &filters)?;
        let policy = changes.policy.unwrap_or(file.schedule);
        let pipeline = Self { filters, buffer_len, window, policy, units, hosts };
        pipeline.check_hosts()?;
        Ok(pipeline)
    }

    /// The number of units of work.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// The number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.filters.iter().map(|filter| filter.hosts.len()).sum()
    }

    /// The most bytes of buffers that all copies hold.
    #[must_use]
    pub fn memory(&self) -> usize {
        let producers = |filter: &FilterPlan| -> usize {
            filter.from.iter().map(|&from| self.filters[from].hosts.len()).sum()
        };
        let buffers = |filter: &FilterPlan| {
            filter.hosts.len() * (producers(filter) * self.window as usize + 1)
        };
        self.filters.iter().map(buffers).sum::<usize>() * self.buffer_len
    }

    /// Returns the name of a copy for messages.
    #[must_use]
    pub fn copy_name(&self, filter: usize, copy: usize) -> String {
        let FilterPlan { name, hosts, .. } = &self.filters[filter];
        let mut text = name.clone();
        if hosts.len() > 1 {
            let _ = write!(text, ", copy {copy}");
        }
        if hosts[copy] != LOCAL {
            let _ = write!(text, ", on {}", hosts[copy]);
        }
        text
    }

    /// The filters that read the output of a filter, each with the number of the stream among its
    /// inputs.
    pub(crate) fn consumers(&self, filter: usize) -> impl Iterator<Item = (usize, usize)> {
        self.filters.iter().enumerate().filter_map(move |(consumer, plan)| {
            let input = plan.from.iter().position(|&from| from == filter)?;
            Some((consumer, input))
        })
    }

    /// Whether a copy reads from copies on other hosts.
    pub(crate) fn has_remote_producers(&self, filter: usize, copy: usize) -> bool {
        let FilterPlan { from, hosts, .. } = &self.filters[filter];
        from.iter().flat_map(|&from| &self.filters[from].hosts).any(|host| *host != hosts[copy])
    }

    /// Checks that each host is reachable for those that send to it, and that output that no filter
    /// reads has a place.
    fn check_hosts(&self) -> Result<(), Invalid> {
        for (index, filter) in self.filters.iter().enumerate() {
            for (copy, host) in filter.hosts.iter().enumerate() {
                if self.has_remote_producers(index, copy) && self.hosts[host].address.is_none() {
                    return Err(invalid(format!(
                        "filter {}: copies on other hosts send to host {host}, so its address \
                         there is needed: [host.{host}] address = \"…\"",
                        filter.name
                    )));
                }
            }
        }
        Ok(())
    }
}

fn check_name(kind: &str, name: &str) -> Result<(), Invalid> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_good = name.bytes().all(is_letter) && !name.starts_with(['-', '.']);
    if name.is_empty() || name.len() > NAME_LEN_MAX || !is_good {
        return Err(invalid(format!(
            "{kind} {name:?}: a name has letters, digits, - _ and ., up to {NAME_LEN_MAX} of them"
        )));
    }
    Ok(())
}

/// Parameters are variables of commands, which must not replace PATH and the like.
fn check_parameter(name: &str) -> Result<(), Invalid> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if !starts || name.len() > NAME_LEN_MAX || !name.bytes().all(is_letter) {
        return Err(invalid(format!(
            "parameter {name:?}: its name has lower-case letters, digits and _, and begins with a \
             letter"
        )));
    }
    Ok(())
}

/// A filter whose inputs are names.
type Named = (FilterPlan, Vec<String>);

fn filters(entries: BTreeMap<String, FilterEntry>) -> Result<Vec<Named>, Invalid> {
    let mut filters = Vec::new();
    for (name, entry) in entries {
        check_name("filter", &name)?;
        let within = |why: String| invalid(format!("filter {name}: {why}"));
        let from: Vec<String> = entry.from.into();
        let action = match (entry.builtin, entry.command, entry.program) {
            (Some(builtin), None, None) => Action::Builtin(builtin),
            (None, Some(command), None) => Action::Command(command),
            (None, None, Some(program)) => Action::Program(program),
            _ => return Err(within("needs one of builtin, command and program".into())),
        };
        if entry.split != Split::Bytes && !matches!(action, Action::Command(_)) {
            return Err(within("only the output of a command can be split".into()));
        }
        if let Action::Builtin(builtin) = &action {
            check_builtin(builtin, !from.is_empty(), &entry.parameters).map_err(within)?;
        }
        let hosts: Vec<String> = entry.hosts.into();
        let hosts = if hosts.is_empty() { vec![LOCAL.to_owned()] } else { hosts };
        let copies = entry.copies.unwrap_or(hosts.len());
        if !(1..=COPIES_MAX).contains(&copies) {
            return Err(within(format!("copies: from 1 to {COPIES_MAX}")));
        }
        if from.iter().collect::<BTreeSet<_>>().len() < from.len() {
            return Err(within("reads from a filter twice".into()));
        }
        let hosts = hosts.iter().cycle().take(copies).cloned().collect();
        let (split, parameters) = (entry.split, entry.parameters);
        let plan = FilterPlan { name, from: Vec::new(), hosts, action, split, parameters };
        filters.push((plan, from));
    }
    if filters.is_empty() {
        return Err(invalid("no filters"));
    }
    if filters.iter().map(|(plan, _)| plan.hosts.len()).sum::<usize>() > PROCESSES_MAX {
        return Err(invalid(format!("more than {PROCESSES_MAX} copies of all filters")));
    }
    Ok(filters)
}

fn check_builtin(name: &str, has_inputs: bool, parameters: &Parameters) -> Result<(), String> {
    let Some(builtin) = builtin_table::find(name) else {
        return Err(format!("no built-in filter is called {name}: {}", builtin_table::names()));
    };
    match (builtin.arity, has_inputs) {
        (Arity::Source, true) => return Err(format!("{name} reads no other filter")),
        (Arity::Inner | Arity::Sink, false) => {
            return Err(format!("{name} needs an input: from = \"…\""));
        }
        _ => {}
    }
    let unknown = parameters.iter().find(|(parameter, _)| !builtin.takes(parameter));
    match unknown {
        Some((parameter, _)) => Err(format!("{name} has no parameter {parameter}")),
        None => Ok(()),
    }
}

/// Resolves the names of inputs, and orders the filters so that each comes after its inputs.
fn in_order(mut named: Vec<Named>) -> Result<Vec<FilterPlan>, Invalid> {
    let names: BTreeSet<&str> = named.iter().map(|(plan, _)| &plan.name[..]).collect();
    for (plan, from) in &named {
        if let Some(missing) = from.iter().find(|from| !names.contains(&from[..])) {
            return Err(invalid(format!(
                "filter {} reads from {missing}, which does not exist",
                plan.name
            )));
        }
    }
    let mut ordered: Vec<FilterPlan> = Vec::new();
    while !named.is_empty() {
        let place = |name: &String| ordered.iter().position(|plan| plan.name == *name);
        let next = named.iter().position(|(_, from)| from.iter().all(|it| place(it).is_some()));
        let Some(next) = next else {
            return Err(invalid(format!("filter {} is part of a cycle", named[0].0.name)));
        };
        let (mut plan, from) = named.remove(next);
        plan.from = from.iter().filter_map(place).collect();
        if let Some(&sink) = plan.from.iter().find(|&&from| ordered[from].is_sink()) {
            let (name, sink) = (&plan.name, &ordered[sink].name);
            return Err(invalid(format!("filter {name} reads from {sink}, which has no output")));
        }
        ordered.push(plan);
    }
    Ok(ordered)
}

impl FilterPlan {
    /// Whether it is a built-in filter without output.
    fn is_sink(&self) -> bool {
        let Action::Builtin(name) = &self.action else { return false };
        builtin_table::find(name).is_some_and(|builtin| builtin.arity == Arity::Sink)
    }

    /// Returns what the filter does, in a few words.
    #[must_use]
    pub fn action(&self) -> &str {
        let (Action::Builtin(text) | Action::Command(text) | Action::Program(text)) = &self.action;
        text
    }
}

fn hosts(
    entries: BTreeMap<String, HostEntry>,
    filters: &[FilterPlan],
) -> Result<BTreeMap<String, Host>, Invalid> {
    let mut hosts = BTreeMap::new();
    for (name, entry) in entries {
        check_name("host", &name)?;
        if name == LOCAL && entry.login.is_some() {
            return Err(invalid("host local: it is this host and has no login"));
        }
        hosts.insert(name, entry);
    }
    for name in filters.iter().flat_map(|filter| &filter.hosts) {
        check_name("host", name)?;
        hosts.entry(name.clone()).or_default();
    }
    let resolved = |(name, entry): (String, HostEntry)| {
        if name == LOCAL {
            return Ok((name, Host { login: None, address: entry.address }));
        }
        let login = entry.login.unwrap_or_else(|| name.clone());
        if login.starts_with('-') {
            return Err(invalid(format!("host {name}: {login} would be an option of the shell")));
        }
        let address = login.rsplit_once('@').map_or(&login[..], |(_, host)| host).to_owned();
        let address = Some(entry.address.unwrap_or(address));
        Ok((name, Host { login: Some(login), address }))
    };
    hosts.into_iter().map(resolved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Pipeline, String> {
        Pipeline::parse(text, Changes::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn filters_come_after_their_inputs_and_copies_take_hosts_in_turn() {
        let pipeline = parse(
            "buffer = \"4K\"\nschedule = \"round-robin\"\n\
             [host.b]\nlogin = \"me@b.example\"\n[host.local]\naddress = \"192.0.2.1\"\n\
             [filter.a]\nfrom = [\"c\", \"b\"]\ncommand = \"sort\"\n\
             [filter.b]\nfrom = \"c\"\nprogram = \"x\"\ncopies = 3\nhosts = [\"local\", \"b\"]\n\
             [filter.c]\ncommand = \"ls\"\nwith = { n = 3, f = 0.5, t = true, s = \"x\" }\n",
        );
        let pipeline = pipeline.expect("it is good");
        let names: Vec<_> = pipeline.filters.iter().map(|filter| &filter.name[..]).collect();
        assert_eq!(names, ["c", "b", "a"]);
        assert_eq!(pipeline.filters[1].hosts, ["local", "b", "local"]);
        assert_eq!(pipeline.filters[2].from, [0, 1]);
        assert_eq!(pipeline.consumers(0).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
        assert_eq!(pipeline.consumers(1).collect::<Vec<_>>(), [(2, 1)]);
        assert_eq!(pipeline.copy_name(1, 1), "b, copy 1, on b");
        assert_eq!((pipeline.processes(), pipeline.units()), (5, 1));
        // One buffer in use and four of each producer: 3 copies with 1, and 1 copy with 4.
        assert_eq!(pipeline.memory(), (1 + 3 * (4 + 1) + (4 * 4 + 1)) * 4096);
        assert_eq!(pipeline.hosts["b"].address.as_deref(), Some("b.example"));
        let values: Vec<_> = pipeline.filters[0].parameters.iter().collect();
        assert_eq!(values, [("f", "0.5"), ("n", "3"), ("s", "x"), ("t", "true")]);
    }

    #[test]
    fn examples_are_good() {
        for text in [
            include_str!("../../../docs/examples/hops.toml"),
            include_str!("../../../docs/examples/microscope.toml"),
            include_str!("../../../docs/examples/skew.toml"),
        ] {
            parse(text).expect("a good description");
        }
        let page = include_str!("../../../docs/pipelines.md");
        let start = page.find("```toml\n").expect("an example") + 8;
        let len = page[start..].find("```").expect("its end");
        assert_eq!(parse(&page[start..][..len]).expect("a good description").units(), 2);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("", "missing field `filter`"),
            ("[filter]", "no filters"),
            ("[filter.a]\ncomand = \"x\"", "unknown field `comand`"),
            ("[filter.a]\n", "filter a: needs one of builtin, command and program"),
            ("[filter.a]\ncommand = \"x\"\nprogram = \"y\"", "needs one of"),
            ("[filter.'a b']\ncommand = \"x\"", "filter \"a b\": a name has letters"),
            ("[filter.a]\ncommand = \"x\"\nfrom = \"b\"", "reads from b, which does not exist"),
            ("[filter.a]\ncommand = \"x\"\nfrom = \"a\"", "filter a is part of a cycle"),
            ("[filter.a]\ncommand = \"x\"\ncopies = 0", "copies: from 1 to 64"),
            ("[filter.a]\ncommand = \"x\"\ncopies = 65", "copies: from 1 to 64"),
            ("buffer = \"1T\"\n[filter.a]\ncommand = \"x\"", "1T: not a number of bytes"),
            ("buffer = 0\n[filter.a]\ncommand = \"x\"", "buffer: from 1"),
            ("window = 0\n[filter.a]\ncommand = \"x\"", "window: from 1"),
            ("schedule = \"lazy\"\n[filter.a]\ncommand = \"x\"", "unknown variant `lazy`"),
            ("[filter.a]\nbuiltin = \"x\"", "no built-in filter is called x"),
            ("[filter.a]\nbuiltin = \"pass\"", "pass needs an input"),
            (
                "[filter.a]\nbuiltin = \"generate\"\nwith = { cuont = 3 }",
                "generate has no parameter cuont",
            ),
            (
                "[filter.a]\nbuiltin = \"generate\"\nfrom = \"b\"\n[filter.b]\ncommand = \"x\"",
                "generate reads no other filter",
            ),
            (
                "[filter.a]\ncommand = \"x\"\n[filter.b]\nbuiltin = \"measure\"\nfrom = \"a\"\n\
                 [filter.c]\ncommand = \"x\"\nfrom = \"b\"",
                "filter c reads from b, which has no output",
            ),
            (
                "[filter.a]\ncommand = \"x\"\n[filter.b]\ncommand = \"x\"\nfrom = [\"a\", \"a\"]",
                "filter b: reads from a filter twice",
            ),
            (
                "[filter.a]\ncommand = \"x\"\nhosts = \"h\"\n[filter.b]\ncommand = \"x\"\n\
                 from = \"a\"",
                "[host.local] address = ",
            ),
            ("[filter.a]\ncommand = \"x\"\nhosts = \"-oX\"", "host \"-oX\": a name has"),
            ("[host.h]\nlogin = \"-oX\"\n[filter.a]\ncommand = \"x\"", "option of the shell"),
            ("[[unit]]\nPATH = \"x\"\n[filter.a]\ncommand = \"x\"", "parameter \"PATH\""),
            (
                "[filter.a]\nbuiltin = \"generate\"\nsplit = \"lines\"",
                "only the output of a command",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
