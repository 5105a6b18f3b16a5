//! Names of incomplete files and of sessions' files in the root.
//!
//! A file is written as `.NAME.weft-12345678`, in which the digits are the number of the session.
//! The session's file in the root is `.weft-12345678`. A lock on it shows that the session is
//! alive.

use crate::limits::NAME_LEN_MAX;
use crate::wire::record_name::Name;

const MARK: &[u8] = b".weft-";
const DIGITS: usize = 8;

/// Returns the temporary name of a file in a session.
pub(crate) fn name_of(name: &Name, session: u32) -> Name {
    let suffix = format!(".weft-{session:08x}");
    let mut bytes = vec![b'.'];
    let room = NAME_LEN_MAX - 1 - suffix.len();
    if name.as_bytes().len() <= room {
        bytes.extend_from_slice(name.as_bytes());
    } else {
        // A hash distinguishes long names that differ only in the part that is cut off.
        let hash = blake3::hash(name.as_bytes()).to_hex();
        let tag = format!("~{}", &hash[..16]);
        bytes.extend_from_slice(&name.as_bytes()[..room - tag.len()]);
        bytes.extend_from_slice(tag.as_bytes());
    }
    bytes.extend_from_slice(suffix.as_bytes());
    Name::new(&bytes).expect("no slash, no zero byte, and short enough")
}

/// Returns the name of a session's file.
pub(crate) fn name_of_session(session: u32) -> Name {
    Name::new(format!(".weft-{session:08x}").as_bytes()).expect("a plain name")
}

/// Returns the session of a temporary file's name.
pub(crate) fn session_of(name: &Name) -> Option<u32> {
    let (head, session) = split(name.as_bytes())?;
    (head.len() > 1 && head[0] == b'.').then_some(session)
}

/// Returns the session of a session's file.
pub(crate) fn session_itself(name: &Name) -> Option<u32> {
    split(name.as_bytes()).filter(|(head, _)| head.is_empty()).map(|(_, session)| session)
}

fn split(name: &[u8]) -> Option<(&[u8], u32)> {
    let (rest, digits) = name.split_at_checked(name.len().checked_sub(DIGITS)?)?;
    let head = rest.strip_suffix(MARK)?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if !digits.iter().all(is_digit) {
        return None;
    }
    let session = u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    Some((head, session))
}

#[cfg(test)]
mod tests {
    use super::{name_of, name_of_session, session_itself, session_of};
    use crate::wire::record_name::Name;

    #[test]
    fn temporary_names_contain_their_session_and_differ() {
        let names = [&b"a"[..], b".", b"..", b"\xff\n", &[b'x'; 254], &[b'x'; 255]];
        let names: Vec<Name> = names.iter().filter_map(|name| Name::new(name).ok()).collect();
        let temporary: Vec<Name> = names.iter().map(|name| name_of(name, 0xab)).collect();
        for (at, name) in temporary.iter().enumerate() {
            assert_eq!(session_of(name), Some(0xab));
            assert_eq!(session_itself(name), None);
            assert!(!temporary[..at].contains(name));
        }
        assert_eq!(session_itself(&name_of_session(7)), Some(7));
        assert_eq!(session_of(&name_of_session(7)), None);
        for other in ["x.weft-0000000g", ".x.weft-0000000G", "x", ".x.weft-1", "y.weft-00000000"] {
            assert_eq!(session_of(&Name::new(other.as_bytes()).unwrap()), None, "{other}");
        }
    }
}
