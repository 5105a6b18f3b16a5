//! Path patterns with the syntax and meaning of rsync's.
//!
//! - `*` matches any bytes but `/`, `?` matches one of them, `**` matches any bytes, `[…]` matches
//!   one of several (`[a-z]`, `[!x]` or `[^x]`, `[[:digit:]]`), never `/`.
//! - A pattern that begins with `/` matches from the top of the tree. Any other pattern matches the
//!   last components of a path: the last one, or as many as the pattern has if it contains a `/`.
//!   A pattern with `**` may begin to match at any component. Every match reaches the path's end.
//! - A pattern that ends in `/` matches only directories; one that ends in `/***` matches a
//!   directory and all of its contents.
//! - In a pattern that contains `*`, `?` or `[`, `\` makes the next byte literal.

use std::fmt;

/// A syntax error in a pattern.
#[derive(Clone, Debug, thiserror::Error)]
#[error("pattern `{pattern}`: {why}")]
pub struct PatternError {
    pattern: String,
    why: &'static str,
}

/// An element of a pattern.
#[derive(Clone, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Star,
    /// `**`
    Stars,
    Class(Box<[bool; 256]>),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(byte) => write!(f, "{:?}", char::from(*byte)),
            Self::One => f.write_str("?"),
            Self::Star => f.write_str("*"),
            Self::Stars => f.write_str("**"),
            Self::Class(_) => f.write_str("[]"),
        }
    }
}

/// Where in a path a match may begin. It always ends at the end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// At the top of the tree.
    Top,
    /// At the top, with a `/` before the path: the pattern begins with `**`.
    Slash,
    /// At the beginning of any component.
    AnyName,
    /// At the beginning of the last component.
    LastName,
}

/// One pattern.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    tokens: Vec<Token>,
    start: Start,
    only_directories: bool,
    /// The pattern ends in `***`: a directory's path is matched as if it ended in `/`.
    with_content: bool,
}

impl Pattern {
    pub(super) fn new(pattern: &str) -> Result<Self, PatternError> {
        let error = |why| PatternError { pattern: pattern.into(), why };
        if pattern.trim_matches('/').is_empty() {
            return Err(error("it names nothing"));
        }
        let body = pattern.strip_suffix('/').unwrap_or(pattern);
        let is_wild = body.contains(['*', '?', '[']);
        let (is_anchored, rest) = match body.strip_prefix('/') {
            Some(rest) => (true, rest),
            None => (false, body),
        };
        let start = match body.find("**") {
            _ if is_anchored => Start::Top,
            Some(0) => Start::Slash,
            Some(_) => Start::AnyName,
            None if body.contains('/') => Start::AnyName,
            None => Start::LastName,
        };
        let tokens = match is_wild {
            true => parse(rest.as_bytes()).map_err(error)?,
            false => rest.bytes().map(Token::Byte).collect(),
        };
        let only_directories = pattern.ends_with('/');
        Ok(Self { tokens, start, only_directories, with_content: body.ends_with("***") })
    }

    /// Whether the pattern matches a path from the top of the tree.
    pub(super) fn fits(&self, path: &[u8], is_directory: bool) -> bool {
        if self.only_directories && !is_directory {
            return false;
        }
        if self.start == Start::LastName {
            let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            return self.reaches_end(last, |at| at == 0);
        }
        let before: &[u8] = if self.start == Start::Slash { b"/" } else { b"" };
        let behind: &[u8] = if self.with_content && is_directory { b"/" } else { b"" };
        let text = [before, path, behind].concat();
        match self.start {
            Start::AnyName => self.reaches_end(&text, |at| at == 0 || text[at - 1] == b'/'),
            _ => self.reaches_end(&text, |at| at == 0),
        }
    }

    /// Whether the pattern matches the text from one of these positions to its end. Each token
    /// examines each byte once, so no pattern takes exponential time.
    fn reaches_end(&self, text: &[u8], is_start: impl Fn(usize) -> bool) -> bool {
        // The positions of the text that the tokens so far can reach.
        let mut reached: Vec<bool> = (0..=text.len()).map(is_start).collect();
        let mut next = reached.clone();
        for token in &self.tokens {
            next.fill(false);
            let mut is_open = false;
            for at in 0..=text.len() {
                match token {
                    Token::Star | Token::Stars => {
                        let stops = at > 0 && text[at - 1] == b'/' && *token == Token::Star;
                        is_open = reached[at] || (is_open && !stops);
                        next[at] = is_open;
                    }
                    _ if at == text.len() => {}
                    Token::Byte(byte) => next[at + 1] = reached[at] && text[at] == *byte,
                    Token::One => next[at + 1] = reached[at] && text[at] != b'/',
                    Token::Class(class) => {
                        next[at + 1] = reached[at] && class[usize::from(text[at])];
                    }
                }
            }
            std::mem::swap(&mut reached, &mut next);
        }
        reached[text.len()]
    }
}

fn parse(mut rest: &[u8]) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        tokens.push(match byte {
            b'*' => {
                let more = rest.iter().take_while(|&&byte| byte == b'*').count();
                rest = &rest[more..];
                if more == 0 { Token::Star } else { Token::Stars }
            }
            b'?' => Token::One,
            b'[' => Token::Class(class(&mut rest)?),
            b'\\' => {
                let (&byte, behind) = rest.split_first().ok_or("it ends in a backslash")?;
                rest = behind;
                Token::Byte(byte)
            }
            byte => Token::Byte(byte),
        });
    }
    Ok(tokens)
}

/// Parses a class after its `[`.
fn class(rest: &mut &[u8]) -> Result<Box<[bool; 256]>, &'static str> {
    const OPEN: &str = "a `[` without its `]`";
    let mut set = Box::new([false; 256]);
    let mut byte = take(rest).ok_or(OPEN)?;
    let is_negated = byte == b'!' || byte == b'^';
    if is_negated {
        byte = take(rest).ok_or(OPEN)?;
    }
    // The byte that may begin a range; `None` after a range or a named class.
    let mut before = None;
    loop {
        let next = rest.first().copied();
        let name = rest.strip_prefix(b":").and_then(name_of_class).filter(|_| byte == b'[');
        before = match (byte, before) {
            (b'-', Some(first)) if next.is_some_and(|next| next != b']') => {
                let last = take_escaped(rest).ok_or(OPEN)?;
                (first..=last).for_each(|byte| set[usize::from(byte)] = true);
                None
            }
            _ if let Some(name) = name => {
                let is_in = named(name).ok_or("an unknown class of characters")?;
                (0..=u8::MAX).for_each(|byte| set[usize::from(byte)] |= is_in(&byte));
                *rest = &rest[name.len() + 3..];
                None
            }
            _ => {
                let byte = if byte == b'\\' { take(rest).ok_or(OPEN)? } else { byte };
                set[usize::from(byte)] = true;
                Some(byte)
            }
        };
        byte = take(rest).ok_or(OPEN)?;
        if byte == b']' {
            break;
        }
    }
    if is_negated {
        set.iter_mut().for_each(|is_in| *is_in = !*is_in);
    }
    set[usize::from(b'/')] = false;
    Ok(set)
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, behind) = rest.split_first()?;
    *rest = behind;
    Some(byte)
}

fn take_escaped(rest: &mut &[u8]) -> Option<u8> {
    match take(rest)? {
        b'\\' => take(rest),
        byte => Some(byte),
    }
}

/// Returns the name of a class, if the bytes begin with one and `:]`.
fn name_of_class(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&byte| byte == b']')?;
    bytes[..end].strip_suffix(b":")
}

fn named(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::Pattern;
    use proptest::prelude::*;

    fn fits(pattern: &str, path: &str) -> bool {
        // A path that ends in `/` is a directory.
        let name = path.strip_suffix('/');
        let pattern = Pattern::new(pattern).expect("a pattern");
        pattern.fits(name.unwrap_or(path).as_bytes(), name.is_some())
    }

    #[test]
    fn patterns_match_like_those_of_rsync() {
        for (pattern, fitting, others) in [
            // Without a slash, the last component matches; with one, as many components as in the
            // pattern.
            ("foo", &["foo", "a/foo", "a/foo/"][..], &["foo/a", "xfoo"][..]),
            ("foo/bar", &["foo/bar", "a/foo/bar"], &["foo/bar/a", "xfoo/bar", "bar"]),
            ("f*/b?r", &["foo/bar", "a/f/bxr"], &["foo/br", "f/a/bar"]),
            ("/foo", &["foo", "foo/"], &["a/foo"]),
            ("/a/*/c", &["a/b/c", "a//c"], &["a/b/b/c", "x/a/b/c"]),
            ("foo/", &["foo/", "a/foo/"], &["foo"]),
            // `*` may match nothing and stops at a slash; `**` does not stop.
            ("*.o", &[".o", "a.o", "a/b.o"], &["a.o/b"]),
            ("/x/**/z", &["x/y/z", "x/y/y/z"], &["x/z"]),
            ("/x**z", &["xz", "x/z", "x/y/z"], &["a/x/z"]),
            ("a**c", &["ac", "a/b/c", "x/a/c"], &["xac"]),
            ("**/z", &["z", "a/z", "a/b/z"], &["az"]),
            ("**z", &["z", "a/bz"], &["z/a"]),
            ("foo/***", &["foo/", "foo/a", "x/foo/a/b"], &["foo", "xfoo/a"]),
            ("foo/**", &["foo/a", "x/foo/a/b"], &["foo", "foo/"]),
            // Classes.
            ("b?[0-9]", &["bb1", "x/b-9"], &["bbb", "b1"]),
            ("[!a-c]", &["d", "-"], &["a", "b", "c", "dd"]),
            ("[^]x]", &["a"], &["]", "x"]),
            ("[]-]", &["]", "-"], &["a"]),
            ("[a\\]b]", &["a", "]", "b"], &["\\"]),
            ("x[[:digit:]_]", &["x1", "x_"], &["xa", "x:"]),
            ("[[:x]", &["[", ":", "x"], &["a"]),
            ("a[!b]c", &["axc"], &["abc", "a/c"]),
            // A backslash is literal in a pattern without wildcards.
            ("a\\b", &["a\\b"], &["ab"]),
            ("a\\b*", &["ab", "abc"], &["a\\b"]),
            ("\\*", &["*"], &["a", "\\*"]),
            ("{a,b}", &["{a,b}"], &["a"]),
        ] {
            for path in fitting {
                assert!(fits(pattern, path), "{pattern} {path}");
            }
            for path in others {
                assert!(!fits(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for (pattern, why) in [
            ("", "names nothing"),
            ("//", "names nothing"),
            ("a[", "without its"),
            ("[]", "without its"),
            ("[a-", "without its"),
            ("*\\", "ends in a backslash"),
            ("[[:none:]]", "unknown class"),
        ] {
            let error = Pattern::new(pattern).expect_err(pattern).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_patterns_never_panic(
            pattern in "[a\\[\\]*?/!:\\\\^-]{0,9}",
            path in "[a/\\]-]{1,6}",
        ) {
            if let Ok(pattern) = Pattern::new(&pattern) {
                let _ = pattern.fits(path.as_bytes(), true);
            }
        }
    }
}
