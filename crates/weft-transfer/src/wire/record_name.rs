//! Checked names: single components of a path.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::limits::NAME_LEN_MAX;

/// Why bytes are no valid component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the name is empty")]
    Empty,
    /// The name is longer than file systems allow.
    #[error("the name is too long: {0} bytes")]
    Long(usize),
    /// The name is `.` or `..`.
    #[error("the name is `.` or `..`")]
    Dots,
    /// The name contains a slash or a zero byte.
    #[error("the name contains a slash or a zero byte")]
    Byte,
}

/// The name of an entry in its directory: any bytes but `/` and zero, and neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Creates a name from checked bytes.
    ///
    /// # Errors
    /// If the bytes are no valid component of a path.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            _ if bytes.len() > NAME_LEN_MAX => Err(NameError::Long(bytes.len())),
            _ if bytes.iter().any(|&byte| byte == b'/' || byte == 0) => Err(NameError::Byte),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// Returns the name's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name as a path with one component.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns the path that these names make, the first one at the top.
    #[must_use]
    pub fn joined(names: &[Self]) -> Vec<u8> {
        let names: Vec<&[u8]> = names.iter().map(Self::as_bytes).collect();
        names.join(&b'/')
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
    fn names_that_leave_the_directory_are_refused() {
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
