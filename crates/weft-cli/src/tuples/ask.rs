//! The commands that ask a running server.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use serde_json::json;
use weft_tuples::access::Trust;
use weft_tuples::limits::PUT_TUPLES_MAX;
use weft_tuples::model::{
    Count, Criteria, Description, ElementEnd, Item, Name, Operation, Order, Outcome, Rank, Refusal,
    Selection, Sync, Tuple,
};
use weft_tuples::native::{Address, Client, Credentials, Failure};

use super::serve::token as token_of;
use crate::args::{
    TuplesCreateArgs, TuplesDeleteArgs, TuplesListArgs, TuplesOrder, TuplesPutArgs,
    TuplesServerArgs, TuplesTakeArgs, TuplesWatchArgs,
};
use crate::limits::TUPLES_AT_ONCE_MAX;
use crate::output;

/// The environment variable with the file of a token.
const TOKEN_FILE: &str = "WEFT_TUPLES_TOKEN_FILE";
/// That with a file of certificates.
const CA_FILE: &str = "WEFT_TUPLES_CA_FILE";

pub(super) fn create(args: &TuplesCreateArgs) -> Result<()> {
    let order = match args.order {
        TuplesOrder::Arrival => Order::Arrival,
        TuplesOrder::Key => Order::Key,
        TuplesOrder::Time => Order::Time,
    };
    let sync = match (args.bound, args.unread, args.exactly) {
        (Some(bound), ..) => Sync::Bound(bound),
        (_, Some(bound), _) => Sync::Unread(bound),
        (.., Some(bound)) => Sync::Exactly(bound),
        (None, None, None) => Sync::Unbounded,
    };
    let criteria = Criteria { order, sync };
    let create = Operation::Create { element: name(&args.element), criteria };
    call(&mut connect(&args.server)?, create, None).map(drop)
}

pub(super) fn put(args: &TuplesPutArgs) -> Result<()> {
    let mut client = connect(&args.server)?;
    let mut put = |values: Vec<Vec<u8>>| {
        let key = args.key.as_bytes();
        let tuple = |value| Tuple { key: key.to_vec(), ..Tuple::of(value) };
        let put = Operation::Put {
            element: name(&args.element),
            criteria: Criteria::default(),
            end: if args.front { ElementEnd::Front } else { ElementEnd::Back },
            tuples: values.into_iter().map(tuple).collect(),
            is_append: false,
        };
        match call(&mut client, put, args.timeout) {
            Ok(Outcome::Nothing) => Err(anyhow!("the element was full for all of the time")),
            result => result.map(drop),
        }
    };
    if args.values.is_empty() {
        for line in io::stdin().lock().split(b'\n') {
            put(vec![line.context("standard input")?])?;
        }
        return Ok(());
    }
    let values: Vec<Vec<u8>> = args.values.iter().map(|value| value.as_bytes().to_vec()).collect();
    values.chunks(PUT_TUPLES_MAX).try_for_each(|values| put(values.to_vec()))
}

pub(super) fn take(args: &TuplesTakeArgs) -> Result<()> {
    let (count, end) = (args.count, if args.back { ElementEnd::Back } else { ElementEnd::Front });
    let count = if args.exactly { Count::Exactly(count) } else { Count::AtMost(count) };
    let elements = args.elements.iter().map(|element| name(element)).collect();
    let take = Operation::Take { elements, end, count };
    match call(&mut connect(&args.server)?, take, args.timeout)? {
        Outcome::Taken(_, items) => print(&items),
        _ => bail!("no tuples in the time"),
    }
}

pub(super) fn watch(args: &TuplesWatchArgs) -> Result<()> {
    let mut client = connect(&args.server)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut elements: Vec<(Name, Option<Rank>)> = Vec::new();
    for element in &args.elements {
        elements.push((name(element), last(&mut client, name(element))?));
    }
    while left != 0 {
        let most = left.min(u64::from(TUPLES_AT_ONCE_MAX)) as u32;
        let observe = Operation::Observe { elements: elements.clone(), count: Count::AtMost(most) };
        let Outcome::Observed(found) = call(&mut client, observe, None)? else {
            bail!("an answer to another question");
        };
        for (at, mut items) in found {
            items.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= items.len() as u64;
            print(&items)?;
            if let (Some(last), Some(element)) = (items.pop(), elements.get_mut(at)) {
                element.1 = Some(last.rank);
            }
        }
    }
    Ok(())
}

/// The rank of the last tuple of an element.
fn last(client: &mut Client, element: Name) -> Result<Option<Rank>> {
    let read = Operation::Read { element, selection: Selection::Places(-1, -1), count: 1 };
    match call(client, read, None)? {
        Outcome::Read(mut items) => Ok(items.pop().map(|item| item.rank)),
        _ => Ok(None),
    }
}

pub(super) fn list(args: &TuplesListArgs) -> Result<()> {
    let mut client = connect(&args.server)?;
    if let Some(element) = &args.element {
        let (element, selection) = (name(element), Selection::Places(0, -1));
        let read = Operation::Read { element, selection, count: u32::MAX };
        return match call(&mut client, read, None)? {
            Outcome::Read(items) => print(&items),
            _ => bail!("an answer to another question"),
        };
    }
    let Outcome::Listed(all) = call(&mut client, Operation::List, None)? else {
        bail!("an answer to another question");
    };
    if args.json {
        let all: Vec<_> = all.iter().map(as_json).collect();
        return output::print(&format!("{:#}\n", json!(all)));
    }
    let mut table = output::table(["ELEMENT", "TUPLES", "WAITING", "ORDER", "SYNCHRONISATION"]);
    for element in &all {
        let Criteria { order, sync } = element.criteria;
        let name = output::printable(&String::from_utf8_lossy(&element.name));
        let (len, waiting) = (element.len.to_string(), element.waiting.to_string());
        table.add_row([name, len, waiting, order_name(order).into(), sync_name(sync)]);
    }
    output::print(&format!("{table}\n"))
}

fn as_json(element: &Description) -> serde_json::Value {
    json!({
        "element": String::from_utf8_lossy(&element.name),
        "tuples": element.len,
        "waiting": element.waiting,
        "order": order_name(element.criteria.order),
        "synchronisation": sync_name(element.criteria.sync),
    })
}

fn order_name(order: Order) -> &'static str {
    match order {
        Order::Arrival => "arrival",
        Order::Key => "key",
        Order::Time => "time",
    }
}

fn sync_name(sync: Sync) -> String {
    match sync {
        Sync::Unbounded => "unbounded".into(),
        Sync::Bound(bound) => format!("bound {bound}"),
        Sync::Unread(bound) => format!("unread {bound}"),
        Sync::Exactly(bound) => format!("exactly {bound}"),
    }
}

pub(super) fn delete(args: &TuplesDeleteArgs) -> Result<()> {
    let delete = Operation::Delete { element: name(&args.element) };
    match call(&mut connect(&args.server)?, delete, None)? {
        Outcome::Deleted(true) => Ok(()),
        _ => bail!("there is no such element"),
    }
}

pub(super) fn connect(args: &TuplesServerArgs) -> Result<Client> {
    let mut client = connect_to(args.server.clone(), args)?;
    report_fallback(&mut client);
    Ok(client)
}

/// Connects to a server at an address, with the credentials that the user has given.
pub(super) fn connect_to(address: Address, args: &TuplesServerArgs) -> Result<Client> {
    let text = address.to_string();
    let or = |given: &Option<PathBuf>, variable| {
        given.clone().or_else(|| env::var_os(variable).map(PathBuf::from))
    };
    let token = or(&args.token_file, TOKEN_FILE).as_deref().map(token_of).transpose()?;
    let trust = or(&args.tls_ca, CA_FILE).as_deref().map(trust_of).transpose()?;
    let connected = Client::connect_with(address, args.retry, Credentials { token, trust });
    connected.map_err(|failure| {
        let hint =
            if nobody_listens(&failure) { ": does weft tuples serve run there?" } else { "" };
        Error::from(failure).context(format!("{text}{hint}"))
    })
}

fn nobody_listens(failure: &Failure) -> bool {
    let Failure::Io(error) = failure else { return false };
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

fn trust_of(path: &Path) -> Result<Trust> {
    Trust::read(path).with_context(|| format!("certificates {}", path.display()))
}

/// Says why a client has not connected by the fabric.
fn report_fallback(client: &mut Client) {
    if let Some(error) = client.take_fallback() {
        output::complain(format!("connected by TCP, because not by the fabric: {error}"));
    }
}

pub(super) fn call(
    client: &mut Client,
    operation: Operation,
    wait: Option<Duration>,
) -> Result<Outcome> {
    let outcome = client.call(operation, wait);
    report_fallback(client);
    match outcome? {
        Outcome::Refused(refusal) => bail!(text(refusal)),
        outcome => Ok(outcome),
    }
}

pub(super) fn name(element: &OsStr) -> Name {
    Rc::from(element.as_bytes())
}

/// Prints tuples, each as a line.
pub(super) fn print(items: &[Item]) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut lines = Vec::new();
    for item in items {
        lines.extend(item.fields.join(&b'\t'));
        lines.push(b'\n');
    }
    out.write_all(&lines).and_then(|()| out.flush()).context("cannot write to standard output")
}

fn text(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Limit => "a name, a tuple or a number is beyond the limits",
        Refusal::Exists => "the element exists with other criteria",
        Refusal::Count => "the element never has so many tuples for this",
        Refusal::Order => "the order of the element does not allow this",
        Refusal::Stamp => "the time stamp does not follow the last one",
        Refusal::Full => "the element is full",
        Refusal::Memory => "the server has no memory for it",
        Refusal::Answer => "the answer would be too long",
        Refusal::Busy => "too many operations wait, or too many elements exist",
        Refusal::Deleted => "the element was deleted",
        Refusal::Log => "the server cannot write its log",
        Refusal::Elsewhere => "another server is the leader, or none is",
        Refusal::Token => "the server asks for a token",
        Refusal::Rights => "the user may not do this with the element",
        Refusal::Stale | Refusal::Window => "the server does not know the operation any more",
    }
}
