//! Splits Rust source into words and marks, without comments, strings and numbers.
//!
//! The module parses only as much of the language as finding paths needs. It keeps line numbers, so
//! that a finding can name the place.

/// A word or a mark, and its line, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'text> {
    pub(super) text: &'text str,
    pub(super) line: usize,
}

impl Token<'_> {
    /// Returns whether the token is a keyword or a name.
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

/// Returns the tokens of a source text in order. `::` is one token; every other mark is one
/// character.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut line = 1;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (len, is_token) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            '/' if rest.starts_with("/*") => (block_comment_len(rest), false),
            '"' => (string_len(rest), false),
            '\'' => (quote_len(rest), false),
            _ if first.is_ascii_digit() => (number_len(rest), false),
            _ if first.is_alphabetic() || first == '_' => match prefixed_string_len(rest) {
                Some(len) => (len, false),
                None => (word_len(rest), true),
            },
            ':' if rest.starts_with("::") => (2, true),
            _ => (first.len_utf8(), !first.is_whitespace()),
        };
        if is_token {
            found.push(Token { text: &rest[..len], line });
        }
        line += rest[..len].matches('\n').count();
        at += len;
    }
    found
}

fn word_len(text: &str) -> usize {
    text.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(text.len())
}

/// Returns the length of a number. `1.5` may be read as two numbers, because no caller needs
/// numbers.
fn number_len(text: &str) -> usize {
    word_len(text)
}

/// Returns the length of a block comment. Block comments nest.
fn block_comment_len(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let step = if rest.starts_with("/*") {
            depth += 1;
            2
        } else if rest.starts_with("*/") {
            depth -= 1;
            2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, next) in text.char_indices().skip(1) {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a string with a prefix: `b"…"`, `c"…"`, `r#"…"#`, `br"…"`.
fn prefixed_string_len(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r"].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(['"', '#', '\'']))
    })?;
    let rest = &text[prefix.len()..];
    if rest.starts_with('\'') {
        return (prefix == "b").then(|| prefix.len() + quote_len(rest));
    }
    if !prefix.ends_with('r') {
        return rest.starts_with('"').then(|| prefix.len() + string_len(rest));
    }
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if !rest[hashes..].starts_with('"') {
        return None; // A raw name, such as `r#type`.
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = prefix.len() + hashes + 1;
    Some(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()))
}

/// Returns the length of a character literal, or of a lifetime.
fn quote_len(text: &str) -> usize {
    let mut rest = text.char_indices().skip(1);
    match (rest.next(), rest.next()) {
        (Some((_, '\\')), Some(_)) => {
            rest.find(|(_, next)| *next == '\'').map_or(text.len(), |(at, _)| at + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1 + word_len(&text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::tokens;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_strings_are_skipped() {
        let text = "a /* b /* c */ d */ e // f\n\"crate::g\" r#\"h\"i\"# b'\\'' 'j' k";
        assert_eq!(words(text), ["a", "e", "k"]);
    }

    #[test]
    fn lifetime_is_not_read_as_a_character() {
        assert_eq!(
            words("fn a<'b>(c: &'b str) {'\\n'; '\"'; d}"),
            ["fn", "a", "<", ">", "(", "c", ":", "&", "str", ")", "{", ";", ";", "d", "}"]
        );
    }

    #[test]
    fn lines_inside_strings_are_counted() {
        let found = tokens("\"a\nb\"\nc::d");
        let lines: Vec<_> = found.iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(lines, [("c", 3), ("::", 3), ("d", 3)]);
    }
}
