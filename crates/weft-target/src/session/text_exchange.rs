//! An exchange of text, whose requests and answers may be cut into several PDUs (RFC 7143, section
//! 11.10).

use std::collections::HashSet;

use super::addresses::Addresses;
use super::closed::Closed;
use super::portal::Portal;
use crate::limits::TEXT_LEN_MAX;
use crate::wire::{NO_TAG, Text, pairs, push_pair, reject_reason};

/// The text of a request that goes on, and the answer that is left to send.
#[derive(Debug, Default)]
pub(super) struct TextExchange {
    text: Vec<u8>,
    answer: Vec<u8>,
}

/// A part of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its text.
    pub(super) text: Vec<u8>,
    /// More of the answer follows.
    pub(super) continues: bool,
    /// The exchange is over.
    pub(super) is_over: bool,
}

impl TextExchange {
    /// Takes a request with its text. Returns the next part of the answer, of at most `len_max`
    /// bytes, or the reason why the request is rejected.
    ///
    /// # Errors
    ///
    /// If the text is none.
    pub(super) fn receive(
        &mut self,
        (request, data): (&Text, &[u8]),
        len_max: usize,
        visible: &Visible<'_>,
    ) -> Result<Result<Answer, u8>, Closed> {
        if request.transfer == NO_TAG {
            // A new exchange; what is left of another one is dropped.
            self.text.clear();
            self.answer.clear();
        }
        if self.text.len() + data.len() > TEXT_LEN_MAX {
            return Ok(Err(reject_reason::OUT_OF_RESOURCES));
        }
        self.text.extend_from_slice(data);
        if !request.continues && !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            let pairs = pairs(&text)?;
            let mut keys = HashSet::new();
            // A key that came again and again would have a long answer each time.
            if !pairs.iter().all(|(key, _)| keys.insert(*key)) {
                return Ok(Err(reject_reason::PROTOCOL_ERROR));
            }
            for (key, value) in pairs {
                visible.answer(key, value, &mut self.answer);
            }
        }
        let len = self.answer.len().min(len_max);
        let text = self.answer.drain(..len).collect();
        let continues = !self.answer.is_empty();
        let is_over = !continues && !request.continues && request.is_final;
        Ok(Ok(Answer { text, continues, is_over }))
    }
}

/// What an initiator may learn.
#[derive(Debug)]
pub(super) struct Visible<'a> {
    /// The targets.
    pub(super) portal: &'a Portal,
    /// The ends of the connection.
    pub(super) addresses: Addresses,
    /// The name of its target, unless the session is one of discovery.
    pub(super) own: Option<&'a str>,
    /// The iSCSI name of the initiator.
    pub(super) initiator: &'a str,
}

impl Visible<'_> {
    /// Appends the answer to a key.
    fn answer(&self, key: &str, value: &str, answer: &mut Vec<u8>) {
        if key != "SendTargets" {
            push_pair(answer, key, "NotUnderstood");
            return;
        }
        // Discovery may ask for all, a normal session for its own target (RFC 7143, appendix C).
        let own = self.own;
        for target in self.portal.targets() {
            let device = target.device();
            let is_own = own == Some(device.name());
            let wanted = match value {
                "All" => own.is_none(),
                "" => is_own,
                name => device.name().eq_ignore_ascii_case(name) && (own.is_none() || is_own),
            };
            let access = target.access();
            let is_visible = access.admits_address(self.addresses.remote.ip())
                && access.admits_name(self.initiator);
            if wanted && is_visible {
                push_pair(answer, "TargetName", device.name());
                let address = format!("{},1", self.addresses.local);
                push_pair(answer, "TargetAddress", &address);
            }
        }
    }
}
