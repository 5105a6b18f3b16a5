//! Writes replies of the Redis protocol (RESP2 and RESP3).

use std::io::Write as _;

use crate::model::{Fields, Item, Stamp};

/// Replies that are to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
    /// The client has asked for RESP3.
    pub(super) is_resp3: bool,
}

impl Replies {
    /// A short text.
    pub(super) fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error. The text begins with a code in capitals.
    pub(super) fn error(&mut self, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        // Writing to a vector does not fail.
        let _ = write!(self.bytes, "-{text}\r\n");
    }

    pub(super) fn number(&mut self, number: usize) {
        self.length(b':', number);
    }

    /// A number that may be negative.
    pub(super) fn signed(&mut self, number: i64) {
        let _ = write!(self.bytes, ":{number}\r\n");
    }

    /// Bytes of any kind.
    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    /// A text for people.
    pub(super) fn verbatim(&mut self, text: &str) {
        if !self.is_resp3 {
            return self.bulk(text.as_bytes());
        }
        self.length(b'=', 4 + text.len());
        self.bytes.extend_from_slice(b"txt:");
        self.bytes.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// No bytes, which differs from an empty text.
    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// No array.
    pub(super) fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// An array; its members follow.
    pub(super) fn array(&mut self, len: usize) {
        self.length(b'*', len);
    }

    /// A map, whose keys and values follow: in RESP2 an array of them.
    pub(super) fn map(&mut self, len: usize) {
        if self.is_resp3 { self.length(b'%', len) } else { self.array(2 * len) }
    }

    /// A member of a list: a text, or an array if the tuple has not just one field.
    pub(super) fn member(&mut self, fields: &Fields) {
        match fields.as_slice() {
            [field] => self.bulk(field),
            fields => self.texts(fields),
        }
    }

    pub(super) fn members(&mut self, items: &[Item]) {
        self.array(items.len());
        items.iter().for_each(|item| self.member(&item.fields));
    }

    /// Entries of a stream, with their time stamps.
    pub(super) fn entries(&mut self, items: &[Item]) {
        self.array(items.len());
        items.iter().for_each(|item| self.entry(item.rank.stamp, &item.fields));
    }

    pub(super) fn entry(&mut self, stamp: Stamp, fields: &Fields) {
        self.array(2);
        self.stamp(stamp);
        self.texts(fields);
    }

    pub(super) fn stamp(&mut self, stamp: Stamp) {
        self.bulk(format!("{}-{}", stamp.ms, stamp.count).as_bytes());
    }

    fn texts(&mut self, texts: &[Vec<u8>]) {
        self.array(texts.len());
        texts.iter().for_each(|text| self.bulk(text));
    }

    fn length(&mut self, kind: u8, len: usize) {
        self.bytes.push(kind);
        if let Ok(digit @ 0..=9) = u8::try_from(len) {
            self.bytes.push(b'0' + digit);
        } else {
            let _ = write!(self.bytes, "{len}");
        }
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}
