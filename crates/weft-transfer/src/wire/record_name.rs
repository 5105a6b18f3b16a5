//! A component of a path, checked.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::limits::NAME_LEN_MAX;

/// Why bytes are no component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has no byte.
    #[error("an empty name")]
    Empty,
    /// It has more bytes than a file system takes.
    #[error("a name of {0} bytes")]
    Long(usize),
    /// It names the directory itself, or the one above.
    #[error("a name that is `.` or `..`")]
    Dots,
    /// It has a slash, or a byte that is zero.
    #[error("a name with a slash or a zero byte")]
    Byte,
}

/// The name of an entry in its directory: any bytes but `/` and zero, and neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks bytes and copies them.
    ///
    /// # Errors
    /// If they are no component of a path.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            _ if bytes.len() > NAME_LEN_MAX => Err(NameError::Long(bytes.len())),
            _ if bytes.iter().any(|&byte| byte == b'/' || byte == 0) => Err(NameError::Byte),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as a path of one component.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::{Name, NameError};

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        let error = |bytes: &[u8]| Name::new(bytes).unwrap_err();
        assert_eq!(error(b""), NameError::Empty);
        assert_eq!(error(b"."), NameError::Dots);
        assert_eq!(error(b".."), NameError::Dots);
        assert_eq!(error(b"a/b"), NameError::Byte);
        assert_eq!(error(b"/"), NameError::Byte);
        assert_eq!(error(b"a\0"), NameError::Byte);
        assert_eq!(error(&[b'a'; 256]), NameError::Long(256));
        for odd in [&b"..."[..], b"-rf", b" ", b"\n", b"\xff\xfe", &[b'a'; 255]] {
            assert_eq!(Name::new(odd).unwrap().as_bytes(), odd);
        }
    }
}
