//! Writes replies of the Redis protocol (RESP2).

use std::io::Write as _;

use crate::model::{Fields, Item, Stamp};

/// Replies that are to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies(pub(super) Vec<u8>);

impl Replies {
    /// A short text.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(format_args!("+{text}"));
    }

    /// An error. The text begins with a code in capitals.
    pub(super) fn error(&mut self, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.line(format_args!("-{text}"));
    }

    pub(super) fn number(&mut self, number: usize) {
        self.line(format_args!(":{number}"));
    }

    /// Bytes of any kind.
    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.line(format_args!("${}", bytes.len()));
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    /// No bytes, which differs from an empty text.
    pub(super) fn null(&mut self) {
        self.0.extend_from_slice(b"$-1\r\n");
    }

    /// No array.
    pub(super) fn null_array(&mut self) {
        self.0.extend_from_slice(b"*-1\r\n");
    }

    /// An array; its members follow.
    pub(super) fn array(&mut self, len: usize) {
        self.line(format_args!("*{len}"));
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
        for item in items {
            self.array(2);
            self.stamp(item.rank.stamp);
            self.texts(&item.fields);
        }
    }

    pub(super) fn stamp(&mut self, stamp: Stamp) {
        self.bulk(format!("{}-{}", stamp.ms, stamp.count).as_bytes());
    }

    fn texts(&mut self, texts: &[Vec<u8>]) {
        self.array(texts.len());
        texts.iter().for_each(|text| self.bulk(text));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a vector does not fail.
        let _ = write!(self.0, "{line}\r\n");
    }
}
