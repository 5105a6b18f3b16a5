//! `weft tuples tail`: reads the last tuple of an element one-sidedly.

use std::os::unix::ffi::OsStrExt as _;
use std::thread::sleep;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use weft_tuples::model::{Operation, Outcome, Selection};
use weft_tuples::native::{Address, Client, Transport};
use weft_tuples::tail::{Last, Seen, Tail};

use super::ask::{call, connect_to, name, print};
use crate::args::TuplesTailArgs;
use crate::limits::TAIL_READ_TIME_MAX;
use crate::output;

/// Prints the last tuple of an element.
pub(super) fn tail(args: &TuplesTailArgs) -> Result<()> {
    let (mut client, mut tail) = connect(args)?;
    let mut before = None;
    loop {
        let seen = tail.read(TAIL_READ_TIME_MAX)?;
        if before.as_ref() != Some(&seen) {
            show(args, &mut client, &seen)?;
            before = Some(seen);
        }
        if !args.follow {
            return Ok(());
        }
        sleep(args.interval);
    }
}

fn connect(args: &TuplesTailArgs) -> Result<(Client, Tail)> {
    let address = match &args.server.server {
        // There is no other way to read a tail.
        Address::Tcp(address) => Address::Fabric(address.clone()),
        address => address.clone(),
    };
    let text = address.to_string();
    let mut client = connect_to(address, &args.server)?;
    if let Some(error) = client.take_fallback() {
        bail!("{text}: {error}");
    }
    let tail = client.tail(args.element.as_bytes())?;
    let tail = tail.with_context(|| match client.transport() {
        Some(Transport::Memory | Transport::Iwarp) => {
            format!("{text}: there is no place for another tail")
        }
        _ => format!("{text}: tails are read by the fabric only (fabric://HOST:PORT)"),
    })?;
    Ok((client, tail))
}

fn show(args: &TuplesTailArgs, client: &mut Client, seen: &Seen) -> Result<()> {
    let items = match &seen.last {
        Last::None => Vec::new(),
        Last::Tuple(item) => vec![item.clone()],
        // It is not in the memory, so the server has to be asked.
        Last::Long(_) => {
            let (element, selection) = (name(&args.element), Selection::Places(-1, -1));
            let read = Operation::Read { element, selection, count: 1 };
            match call(client, read, None)? {
                Outcome::Read(items) => items,
                _ => bail!("an answer to another question"),
            }
        }
    };
    if !args.json {
        return print(&items);
    }
    let text = |field: &Vec<u8>| String::from_utf8_lossy(field).into_owned();
    let last = items.first().map(|item| item.fields.iter().map(text).collect::<Vec<_>>());
    output::print(&format!("{}\n", json!({ "tuples": seen.len, "last": last })))
}
