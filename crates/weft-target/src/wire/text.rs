//! Text of login and text requests: `key=value` pairs, each ended by a zero byte (RFC 7143, section
//! 6.1).

use thiserror::Error;

use crate::limits::{KEY_LEN_MAX, VALUE_LEN_MAX};

/// The error of a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// A pair has no `=`.
    #[error("a pair has no `=`")]
    NoValue,
    /// A key is empty, too long, or has other characters than letters, digits and `.-+@_`.
    #[error("a key is invalid")]
    Key,
    /// A value is too long, or is not UTF-8.
    #[error("the value of {0} is invalid")]
    Value(String),
}

/// The pairs of a text, in order. The last zero byte may be missing.
///
/// # Errors
///
/// If the text has something else.
pub fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let pairs = text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty());
    pairs.map(pair).collect()
}

fn pair(pair: &[u8]) -> Result<(&str, &str), TextError> {
    let at = pair.iter().position(|&byte| byte == b'=').ok_or(TextError::NoValue)?;
    let (key, value) = (&pair[..at], &pair[at + 1..]);
    let is_key = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+@_".contains(byte);
    if key.is_empty() || key.len() > KEY_LEN_MAX || !key.iter().all(is_key) {
        return Err(TextError::Key);
    }
    let key = std::str::from_utf8(key).map_err(|_| TextError::Key)?;
    // CHAP's challenges and responses may be longer than other values (section 6.1: 255 bytes "if
    // not otherwise specified"; 1,024 bytes of binary data for CHAP in section 12.1.3).
    let len_max = if key.starts_with("CHAP_") { 16 * VALUE_LEN_MAX } else { VALUE_LEN_MAX };
    match std::str::from_utf8(value) {
        Ok(text) if value.len() <= len_max => Ok((key, text)),
        _ => Err(TextError::Value(key.to_owned())),
    }
}

/// Appends a pair.
pub fn push_pair(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}
