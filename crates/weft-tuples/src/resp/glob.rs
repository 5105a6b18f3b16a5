//! Patterns of names, as KEYS has them.

/// Whether a name matches a pattern of `*`, `?`, `[a-z]`, `[^a]` and `\x`. It takes at most a time
/// proportional to the product of both lengths.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, name);
    // Behind the last star, and the bytes that it has not yet taken.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', behind @ ..] = rest {
            (rest, star) = (behind, Some((behind, left)));
            continue;
        }
        if let Some((first, behind)) = left.split_first() {
            if let Some(pattern) = one(rest, *first) {
                (rest, left) = (pattern, behind);
                continue;
            }
        } else if rest.is_empty() {
            return true;
        }
        match star {
            Some((behind, [_, taken @ ..])) => {
                (rest, left, star) = (behind, taken, Some((behind, taken)));
            }
            _ => return false,
        }
    }
}

/// Returns what is behind the first element of a pattern, if that matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'\\', escaped, rest @ ..] => (*escaped == byte).then_some(rest),
        [b'[', class @ ..] => {
            let (is_not, mut class) = match class {
                [b'^', class @ ..] => (true, class),
                class => (false, class),
            };
            let mut is_in = false;
            loop {
                class = match class {
                    [] => break,
                    [b']', rest @ ..] => {
                        class = rest;
                        break;
                    }
                    [b'\\', escaped, rest @ ..] => {
                        is_in |= *escaped == byte;
                        rest
                    }
                    [from, b'-', to, rest @ ..] if *to != b']' => {
                        is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                        rest
                    }
                    [one, rest @ ..] => {
                        is_in |= *one == byte;
                        rest
                    }
                };
            }
            (is_in != is_not).then_some(class)
        }
        [same, rest @ ..] => (*same == byte).then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_those_of_redis() {
        for (pattern, name, is_match) in [
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeello", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xaxxbc", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[a", "a", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "*a".repeat(50) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(5_000).as_bytes()));
    }
}
