//! Names of incomplete files and of sessions' files in the root.
//!
//! A file is written as `.NAME.weft-12345678-0123456789abcdef`. The first digits are the number of
//! the session, the others a keyed hash of what stands before them. The key is in the session's
//! file in the root, `.weft-12345678`, so no file of somebody else has such a name. A lock on the
//! session's file shows that the session is alive.

use crate::limits::NAME_LEN_MAX;
use crate::wire::record_name::Name;

const MARK: &[u8] = b".weft-";
const DIGITS: usize = 8;
const HASH_DIGITS: usize = 16;

/// The key of a session's temporary names.
pub type Key = [u8; 32];

/// A session, which recognises the names that it has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    pub(crate) session: u32,
    pub(crate) key: Key,
}

impl Maker {
    /// Returns the temporary name of a file.
    pub(crate) fn name_of(&self, name: &Name) -> Name {
        self.with(name, |head| self.hash_of(head))
    }

    /// Returns another name for an entry whose name another entry gets. It counts as nobody's.
    pub(crate) fn aside(&self, name: &Name) -> Name {
        self.with(name, |head| !self.hash_of(head))
    }

    /// Whether this is a temporary name of the session.
    pub(crate) fn has_made(&self, name: &Name) -> bool {
        let Some((head, session, hash)) = split(name.as_bytes()) else { return false };
        session == self.session && hash == self.hash_of(head)
    }

    fn with(&self, name: &Name, hash: impl Fn(&[u8]) -> u64) -> Name {
        let mut bytes = vec![b'.'];
        let room = NAME_LEN_MAX - 1 - MARK.len() - DIGITS - 1 - HASH_DIGITS;
        if name.as_bytes().len() <= room {
            bytes.extend_from_slice(name.as_bytes());
        } else {
            // A hash distinguishes long names that differ only in the part that is cut off.
            let of_name = blake3::hash(name.as_bytes()).to_hex();
            let tag = format!("~{}", &of_name[..16]);
            bytes.extend_from_slice(&name.as_bytes()[..room - tag.len()]);
            bytes.extend_from_slice(tag.as_bytes());
        }
        let hash = hash(&bytes);
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(format!("{:08x}-{hash:016x}", self.session).as_bytes());
        Name::new(&bytes).expect("no slash, no zero byte, and short enough")
    }

    fn hash_of(&self, head: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.key, head);
        u64::from_be_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"))
    }
}

/// Returns the name of a session's file.
pub(crate) fn name_of_session(session: u32) -> Name {
    Name::new(format!(".weft-{session:08x}").as_bytes()).expect("a plain name")
}

/// Returns the session that may have made a name. Only its [`Maker`] knows whether it has.
pub(crate) fn session_of(name: &Name) -> Option<u32> {
    split(name.as_bytes()).map(|(_, session, _)| session)
}

/// Returns the session of which a name may be the file.
pub(crate) fn session_itself(name: &Name) -> Option<u32> {
    let digits = name.as_bytes().strip_prefix(MARK)?;
    if digits.len() == DIGITS { number(digits).map(|number| number as u32) } else { None }
}

fn split(name: &[u8]) -> Option<(&[u8], u32, u64)> {
    let (rest, hash) = name.split_at_checked(name.len().checked_sub(HASH_DIGITS)?)?;
    let rest = rest.strip_suffix(b"-")?;
    let (rest, session) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let head = rest.strip_suffix(MARK)?;
    let is_hidden = head.len() > 1 && head[0] == b'.';
    is_hidden.then_some((head, number(session)? as u32, number(hash)?))
}

/// Returns the number of lower-case hexadecimal digits.
fn number(digits: &[u8]) -> Option<u64> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = str::from_utf8(digits).ok().filter(|it| it.as_bytes().iter().all(is_digit))?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::{Maker, name_of_session, session_itself, session_of};
    use crate::wire::record_name::Name;

    const MAKER: Maker = Maker { session: 0xab, key: [1; 32] };

    fn name(bytes: &[u8]) -> Name {
        Name::new(bytes).unwrap()
    }

    #[test]
    fn temporary_names_contain_their_session_and_differ() {
        let names = [&b"a"[..], b"..x", b"\xff\n", &[b'x'; 254], &[b'x'; 255]];
        let temporary: Vec<Name> = names.iter().map(|it| MAKER.name_of(&name(it))).collect();
        for (at, of) in temporary.iter().enumerate() {
            assert!(MAKER.has_made(of));
            assert_eq!((session_of(of), session_itself(of)), (Some(0xab), None));
            assert!(!temporary[..at].contains(of));
        }
        assert_eq!(session_itself(&name_of_session(7)), Some(7));
        assert_eq!(session_of(&name_of_session(7)), None);
    }

    #[test]
    fn no_other_name_is_temporary() {
        let made = MAKER.name_of(&name(b"notes"));
        for other in [
            &b".notes.weft-000000ab"[..],
            b".notes.weft-000000ab-0123456789abcdef",
            b".weft-000000ab",
            b"notes",
            &made.as_bytes()[1..],
            &[b".", made.as_bytes()].concat(),
        ] {
            assert!(!MAKER.has_made(&name(other)), "{:?}", name(other));
        }
        assert!(!MAKER.has_made(&MAKER.aside(&name(b"notes"))));
        assert!(!Maker { key: [2; 32], ..MAKER }.has_made(&made));
        assert!(!Maker { session: 1, ..MAKER }.has_made(&made));
        for other in ["x.weft-0000000g", ".weft-0000000G", ".weft-1", ".weft-00000000a", "x"] {
            assert_eq!(session_itself(&name(other.as_bytes())), None, "{other}");
        }
    }
}
