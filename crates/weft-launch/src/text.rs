//! Strings for the kernel, in memory of their own.

use core::ffi::CStr;

use crate::limits::TEXT_LEN_MAX;

/// A string without nulls, of a bounded length.
#[derive(Debug)]
pub(crate) struct Text {
    /// Behind the string there are nulls only.
    bytes: [u8; TEXT_LEN_MAX],
    len: usize,
}

impl Text {
    /// Puts a string together. `None` if it is too long, or has nulls.
    pub(crate) fn of(parts: &[&[u8]]) -> Option<Self> {
        let mut text = Self { bytes: [0; TEXT_LEN_MAX], len: 0 };
        parts.iter().try_for_each(|part| text.push(part))?;
        Some(text)
    }

    /// Appends to it. `None` if it is then too long, or has nulls.
    pub(crate) fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len.checked_add(part.len()).filter(|&end| end < TEXT_LEN_MAX)?;
        if part.contains(&0) {
            return None;
        }
        self.bytes.get_mut(self.len..end)?.copy_from_slice(part);
        self.len = end;
        Some(())
    }

    /// The string without its null.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// Returns what is before the last slash of a path: its directory. `None` without a slash.
pub(crate) fn directory_of(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|&byte| byte == b'/').and_then(|slash| path.get(..slash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_null_or_is_refused() {
        let text = Text::of(&[b"/usr", b"", b"/lib"]).unwrap();
        assert_eq!((text.as_bytes(), text.as_c_str()), (&b"/usr/lib"[..], c"/usr/lib"));
        assert!(Text::of(&[b"a\0b"]).is_none());
        let longest = [b'a'; TEXT_LEN_MAX - 1];
        let mut text = Text::of(&[&longest]).unwrap();
        assert_eq!(text.as_c_str().to_bytes(), longest);
        assert!(text.push(b"").is_some() && text.push(b"a").is_none());
    }

    #[test]
    fn directories_are_what_precedes_the_last_slash() {
        assert_eq!(directory_of(b"/usr/bin/weft"), Some(&b"/usr/bin"[..]));
        assert_eq!(directory_of(b"/weft"), Some(&b""[..]));
        assert_eq!(directory_of(b"weft"), None);
    }
}
