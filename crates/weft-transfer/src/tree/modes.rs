//! Changes of modes, like those of rsync's `--chmod`.

use crate::limits::MODE_CHANGES_MAX;
use crate::tree::metadata;
use crate::wire::record_bytes::{Reader, Short};

/// All bits of a mode.
const ALL: u16 = 0o7777;
/// Length of the encoding of one change.
const LEN: usize = 8;

const FILES_ONLY: u8 = 1;
const DIRECTORIES_ONLY: u8 = 2;
const KEEPS_X: u8 = 4;
const COPIES: u8 = 8;
const REMOVES: u8 = 16;

/// Why a text or bytes are no changes of modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModesError {
    /// A text is none.
    #[error("the modes are not like those of chmod: u=rwX,go-w, D755,F644, g=u")]
    Text,
    /// Bytes are none.
    #[error("the changes of modes are invalid")]
    Bytes,
    /// There are too many.
    #[error("there are too many changes of modes")]
    TooMany,
}

impl From<Short> for ModesError {
    fn from(_: Short) -> Self {
        Self::Bytes
    }
}

/// Changes of modes, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modes(Vec<Change>);

/// One change. It does not depend on a umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    flags: u8,
    /// The bits that stay.
    stays: u16,
    /// The bits that are set.
    sets: u16,
    /// By how much the permissions that are copied are shifted in a mode.
    shift: u8,
    /// The bits to which they are copied.
    to: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Remove,
    Set,
}

/// An item of a text, as far as it has been read.
#[derive(Debug, Default)]
struct Item {
    flags: u8,
    /// The lowest bit of each class that is named.
    classes: u16,
    /// The special bits of these classes: setuid and setgid, and sticky.
    specials: u16,
    /// Permissions of one class.
    bits: u16,
    /// The special bits that are named.
    named: u16,
    shift: Option<u8>,
}

impl Modes {
    /// Returns the changes that a text describes, with the umask of this process for items that
    /// name no class.
    ///
    /// # Errors
    /// If the text describes none.
    pub fn parse(text: &str) -> Result<Self, ModesError> {
        Self::with_umask(text, metadata::umask())
    }

    fn with_umask(text: &str, umask: u16) -> Result<Self, ModesError> {
        let changes: Result<Vec<_>, _> = text.split(',').map(|item| change(item, umask)).collect();
        Self(changes?).checked()
    }

    /// Appends changes.
    ///
    /// # Errors
    /// If they become too many.
    pub fn append(self, mut more: Self) -> Result<Self, ModesError> {
        let Self(mut all) = self;
        all.append(&mut more.0);
        Self(all).checked()
    }

    fn checked(self) -> Result<Self, ModesError> {
        if self.0.len() > MODE_CHANGES_MAX { Err(ModesError::TooMany) } else { Ok(self) }
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the mode that an entry gets, which is no symbolic link.
    #[must_use]
    pub fn apply(&self, mode: u16, is_directory: bool) -> u16 {
        let gets_x = is_directory || mode & 0o111 != 0;
        self.0.iter().fold(mode, |mode, change| change.apply(mode, is_directory, gets_x))
    }

    /// Returns the bytes of the changes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN * self.0.len());
        for Change { flags, stays, sets, shift, to } in &self.0 {
            out.extend_from_slice(&[*flags, *shift]);
            for bits in [stays, sets, to] {
                out.extend_from_slice(&bits.to_be_bytes());
            }
        }
        out
    }

    /// Parses the untrusted bytes of changes.
    ///
    /// # Errors
    /// If they are no changes.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, ModesError> {
        let mut from = Reader::new(bytes);
        let mut all = Vec::new();
        while from.left() > 0 && all.len() <= MODE_CHANGES_MAX {
            let (flags, shift) = (from.u8()?, from.u8()?);
            let (stays, sets, to) = (from.u16()?, from.u16()?, from.u16()?);
            let is_known = flags <= 31 && matches!(shift, 0 | 3 | 6);
            if !is_known || (stays | sets | to) & !ALL != 0 {
                return Err(ModesError::Bytes);
            }
            all.push(Change { flags, stays, sets, shift, to });
        }
        Self(all).checked()
    }
}

impl Change {
    fn apply(self, mode: u16, is_directory: bool, gets_x: bool) -> u16 {
        let has = |flag| self.flags & flag != 0;
        if has(if is_directory { FILES_ONLY } else { DIRECTORIES_ONLY }) {
            return mode;
        }
        let copied = match has(COPIES) {
            true => ((mode >> self.shift & 0o7) * 0o111) & self.to,
            false => 0,
        };
        if has(REMOVES) {
            return mode & self.stays & !copied;
        }
        let sets = if has(KEEPS_X) && !gets_x { self.sets & !0o111 } else { self.sets };
        mode & self.stays | sets | copied
    }
}

/// Parses one item of a text.
fn change(text: &str, umask: u16) -> Result<Change, ModesError> {
    let mut item = Item::default();
    let mut letters = text.chars();
    loop {
        let rest = letters.as_str();
        match letters.next().ok_or(ModesError::Text)? {
            'D' if item.flags & FILES_ONLY == 0 => item.flags |= DIRECTORIES_ONLY,
            'F' if item.flags & DIRECTORIES_ONLY == 0 => item.flags |= FILES_ONLY,
            'u' => (item.classes, item.specials) = (item.classes | 0o100, item.specials | 0o4000),
            'g' => (item.classes, item.specials) = (item.classes | 0o010, item.specials | 0o2000),
            'o' => item.classes |= 0o001,
            'a' => item.classes |= 0o111,
            '+' => return item.operation(Operator::Add, letters.as_str(), umask),
            '-' => return item.operation(Operator::Remove, letters.as_str(), umask),
            '=' => return item.operation(Operator::Set, letters.as_str(), umask),
            '0'..='7' if item.classes == 0 => {
                let bits = u16::from_str_radix(rest, 8).ok().filter(|bits| *bits <= ALL);
                let sets = bits.ok_or(ModesError::Text)?;
                return Ok(Change { flags: item.flags, stays: 0, sets, shift: 0, to: 0 });
            }
            _ => return Err(ModesError::Text),
        }
    }
}

impl Item {
    /// Parses what is behind the operator of an item.
    fn operation(
        mut self,
        operator: Operator,
        text: &str,
        umask: u16,
    ) -> Result<Change, ModesError> {
        for letter in text.chars() {
            match letter {
                'r' => self.bits |= 4,
                'w' => self.bits |= 2,
                'x' => self.bits |= 1,
                'X' => (self.bits, self.flags) = (self.bits | 1, self.flags | KEEPS_X),
                's' if self.specials != 0 => self.named |= self.specials,
                's' => self.named |= 0o4000,
                't' => self.named |= 0o1000,
                'u' if self.shift.is_none() => self.shift = Some(6),
                'g' if self.shift.is_none() => self.shift = Some(3),
                'o' if self.shift.is_none() => self.shift = Some(0),
                _ => return Err(ModesError::Text),
            }
        }
        if self.shift.is_some() && text.len() > 1 {
            return Err(ModesError::Text);
        }
        let (classes, allowed) = match self.classes {
            0 => (0o111, ALL & !umask),
            classes => (classes, ALL),
        };
        let sets = ((classes * self.bits) & allowed) | self.named;
        let to = (classes * 7) & allowed;
        let copies = if self.shift.is_some() { COPIES } else { 0 };
        let specials = match (self.shift, self.named) {
            (Some(_), _) => {
                let sticky = if classes & 1 != 0 { 0o1000 } else { 0 };
                let of_user = if classes & 0o100 != 0 { 0o4000 } else { 0 };
                let of_group = if classes & 0o010 != 0 { 0o2000 } else { 0 };
                sticky | of_user | of_group
            }
            (None, 0) => 0,
            (None, _) => self.specials,
        };
        let flags = self.flags | copies;
        let shift = self.shift.unwrap_or(0);
        Ok(match operator {
            Operator::Add => Change { flags, stays: ALL, sets, shift, to },
            Operator::Remove => {
                Change { flags: flags | REMOVES, stays: ALL & !sets, sets: 0, shift, to }
            }
            Operator::Set => {
                Change { flags, stays: ALL & !((classes * 7) | specials), sets, shift, to }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn applied(text: &str, mode: u16, is_directory: bool) -> u16 {
        Modes::with_umask(text, 0o022).expect("modes").apply(mode, is_directory)
    }

    #[test]
    fn texts_change_modes_as_chmod_does() {
        for (text, mode, is_directory, expected) in [
            ("600", 0o4755, false, 0o600),
            ("D2775,F664", 0o700, true, 0o2775),
            ("D2775,F664", 0o700, false, 0o664),
            ("go-w,u+x", 0o666, false, 0o744),
            ("+X", 0o644, false, 0o644),
            ("+X", 0o644, true, 0o755),
            ("+X", 0o744, false, 0o755),
            ("a=r,+w", 0o777, false, 0o644),
            ("Dg+s", 0o755, true, 0o2755),
            ("Dg+s", 0o755, false, 0o755),
            ("g=u,o=g", 0o740, false, 0o777),
            ("g-o", 0o765, false, 0o725),
            ("u=,a+t", 0o755, true, 0o1055),
            ("ug=rwX", 0o604, false, 0o664),
        ] {
            let found = applied(text, mode, is_directory);
            assert_eq!(found, expected, "{text} {mode:o}: {found:o}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", ",", "u", "u+,", "DF600", "8", "77777", "u+rg", "ux", "D", "6o0", "u+é"] {
            assert_eq!(Modes::with_umask(text, 0), Err(ModesError::Text), "{text}");
        }
        let many = vec!["u+r"; MODE_CHANGES_MAX].join(",");
        let many = Modes::with_umask(&many, 0).expect("not too many");
        assert_eq!(Modes::parse_bytes(&many.emit()), Ok(many.clone()));
        assert_eq!(
            many.append(Modes::with_umask("600", 0).expect("one")),
            Err(ModesError::TooMany)
        );
    }

    proptest! {
        #[test]
        fn bytes_round_trip_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(modes) = Modes::parse_bytes(&bytes) {
                prop_assert_eq!(modes.emit(), bytes);
                prop_assert!(modes.apply(0o7777, false) <= ALL && modes.apply(0, true) <= ALL);
            }
        }

        #[test]
        fn modes_of_any_text_survive_their_encoding(text in "[DFugoa]{0,3}[-+=][rwxXstugo]{0,3}") {
            if let Ok(modes) = Modes::with_umask(&text, 0o027) {
                prop_assert_eq!(Modes::parse_bytes(&modes.emit()), Ok(modes));
            }
        }
    }
}
