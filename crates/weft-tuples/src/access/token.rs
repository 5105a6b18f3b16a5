//! A text that a server and its clients know.

use std::fmt;
use std::path::Path;

use super::file::{self, FileError};
use crate::limits::{TOKEN_LEN_MAX, TOKEN_LEN_MIN};

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Its file cannot be read, or others than its owner can.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is too short to be hard to guess, or too long.
    #[error("a token has {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} bytes")]
    Len,
    /// It has more than one line, which few clients could show.
    #[error("a token is one line")]
    Lines,
}

/// A token. It is never shown.
#[derive(Clone)]
pub struct Token {
    text: Vec<u8>,
    hash: blake3::Hash,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Token {
    /// Makes a token of a text.
    ///
    /// # Errors
    ///
    /// If it is too short or too long, or has more than one line.
    pub fn new(text: &[u8]) -> Result<Self, TokenError> {
        if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&text.len()) {
            return Err(TokenError::Len);
        }
        if text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return Err(TokenError::Lines);
        }
        Ok(Self { text: text.to_vec(), hash: blake3::hash(text) })
    }

    /// Reads a token from a file that only its owner can read: this user, or root. The end of the
    /// line does not belong to it.
    ///
    /// # Errors
    ///
    /// If the file is not as described.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        // With the end of a line.
        let text = file::read_private(path, TOKEN_LEN_MAX as u64 + 2)?;
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        Self::new(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Whether this is the token. It takes as long wherever they differ, because their hashes are
    /// compared, and these in constant time.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        shown.len() <= TOKEN_LEN_MAX && blake3::hash(shown) == self.hash
    }

    /// Its text, for a server that asks for it.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TEXT: &str = "a token of some length";

    #[test]
    fn token_is_the_text_and_nothing_else() {
        let token = Token::new(TEXT.as_bytes()).unwrap();
        assert!(token.is(TEXT.as_bytes()));
        for other in ["", "a token", "a token of some length ", "A token of some length"] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert!(!token.is(&[b'a'; TOKEN_LEN_MAX + 1]));
        assert!(!format!("{token:?}").contains("length"), "it is shown");
        assert!(matches!(Token::new(b"too short"), Err(TokenError::Len)));
        assert!(matches!(Token::new(&[b'a'; TOKEN_LEN_MAX + 1]), Err(TokenError::Len)));
    }

    #[test]
    fn token_is_read_from_a_file_of_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        for end in ["", "\n", "\r\n"] {
            let token = write(&format!("{TEXT}{end}"), 0o600).unwrap();
            assert_eq!(token.text(), TEXT.as_bytes());
        }
        assert!(matches!(write(TEXT, 0o640), Err(TokenError::File(FileError::Open(0o640)))));
        assert!(matches!(write(TEXT, 0o604), Err(TokenError::File(FileError::Open(0o604)))));
        for two in ["a token of some\nlength", "a token of some length\n\n"] {
            assert!(matches!(write(two, 0o600), Err(TokenError::Lines)), "{two:?}");
        }
        assert!(matches!(write("", 0o600), Err(TokenError::Len)));
        assert!(matches!(write(&"x".repeat(2_000), 0o600), Err(TokenError::File(FileError::Len))));
        assert!(matches!(Token::read(folder.path()), Err(TokenError::File(FileError::Kind))));
        assert!(matches!(
            Token::read(&folder.path().join("none")),
            Err(TokenError::File(FileError::Io(_)))
        ));
    }
}
