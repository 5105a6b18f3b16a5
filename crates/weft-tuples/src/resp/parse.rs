//! Parses commands of the Redis protocol (RESP2), however they are cut into pieces.

use crate::input::Input;
use crate::limits::{
    ARGUMENTS_MAX, COMMAND_LEN_MAX, INLINE_LEN_MAX, LENGTH_LEN_MAX, TUPLE_LEN_MAX,
    UNPROVEN_ARGUMENTS_MAX, UNPROVEN_COMMAND_LEN_MAX,
};

/// The name of a command and its arguments.
pub type Words = Vec<Vec<u8>>;

/// The bytes are no command, or one that is too long. The text is for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// A parser, and what it has of a command that is not complete.
#[derive(Debug, Default)]
pub struct Parser {
    words: Words,
    /// How many words are still to come. `None` between commands.
    left: Option<usize>,
    /// The length of the word that comes now.
    word_len: Option<usize>,
    /// The bytes of the words so far.
    len: usize,
}

impl Parser {
    /// Returns the next command. `None` if it is not complete. A client that is not admitted has
    /// short ones only.
    ///
    /// # Errors
    ///
    /// If there is none; nothing after it can be parsed.
    pub fn next(
        &mut self,
        input: &mut Input,
        is_admitted: bool,
    ) -> Result<Option<Words>, Malformed> {
        loop {
            match (self.left, self.word_len) {
                (None, _) => match input.bytes().first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(count) = length(input)? else { return Ok(None) };
                        if count > ARGUMENTS_MAX as i64 {
                            return Err(Malformed("invalid multibulk length"));
                        }
                        if !is_admitted && count > UNPROVEN_ARGUMENTS_MAX as i64 {
                            return Err(Malformed("unauthenticated multibulk length"));
                        }
                        // No command: Redis passes over it.
                        if count > 0 {
                            self.left = Some(count as usize);
                        }
                    }
                    Some(_) => {
                        let Some(words) = line(input)? else { return Ok(None) };
                        if !words.is_empty() {
                            return Ok(Some(words));
                        }
                    }
                },
                (Some(0), _) => {
                    (self.left, self.len) = (None, 0);
                    return Ok(Some(std::mem::take(&mut self.words)));
                }
                (Some(_), None) => {
                    match input.bytes().first() {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(_) => return Err(Malformed("expected '$'")),
                    }
                    let Some(len) = length(input)? else { return Ok(None) };
                    let len = usize::try_from(len).ok().filter(|len| *len <= TUPLE_LEN_MAX);
                    let len = len.ok_or(Malformed("invalid bulk length"))?;
                    self.len += len;
                    if !is_admitted && self.len > UNPROVEN_COMMAND_LEN_MAX {
                        return Err(Malformed("unauthenticated bulk length"));
                    }
                    if self.len > COMMAND_LEN_MAX {
                        return Err(Malformed("too long a command"));
                    }
                    self.word_len = Some(len);
                }
                (Some(left), Some(len)) => {
                    let Some(bytes) = input.bytes().get(..len + 2) else { return Ok(None) };
                    if bytes[len..] != *b"\r\n" {
                        return Err(Malformed("expected the end of a line"));
                    }
                    self.words.push(bytes[..len].to_vec());
                    input.consume(len + 2);
                    (self.left, self.word_len) = (Some(left - 1), None);
                }
            }
        }
    }
}

/// Parses a line of one character and a number.
fn length(input: &mut Input) -> Result<Option<i64>, Malformed> {
    let bytes = input.bytes();
    // Most lengths have one digit.
    if let [_, first, b'\r', b'\n', ..] = *bytes
        && first.is_ascii_digit()
    {
        input.consume(4);
        return Ok(Some(i64::from(first - b'0')));
    }
    let within = &bytes[..bytes.len().min(LENGTH_LEN_MAX)];
    let Some(end) = within.windows(2).position(|pair| pair == b"\r\n") else {
        let is_open = bytes.len() < LENGTH_LEN_MAX;
        return if is_open { Ok(None) } else { Err(Malformed("too long a line")) };
    };
    let number = std::str::from_utf8(&bytes[1..end]).ok().and_then(|text| text.parse().ok());
    let number = number.ok_or(Malformed("invalid length"))?;
    input.consume(end + 2);
    Ok(Some(number))
}

/// Parses a command in one line.
fn line(input: &mut Input) -> Result<Option<Words>, Malformed> {
    let bytes = input.bytes();
    let within = &bytes[..bytes.len().min(INLINE_LEN_MAX)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        let is_open = bytes.len() < INLINE_LEN_MAX;
        return if is_open { Ok(None) } else { Err(Malformed("too big inline request")) };
    };
    if bytes[..end].contains(&b'"') || bytes[..end].contains(&b'\'') {
        return Err(Malformed("quotes in a line are not supported"));
    }
    let words = bytes[..end].split(|byte| byte.is_ascii_whitespace());
    let words: Words = words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect();
    input.consume(end + 1);
    Ok(Some(words))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Parses bytes that arrive in pieces of these lengths, over and over.
    fn parse(bytes: &[u8], pieces: &[usize]) -> (Vec<Words>, Option<Malformed>) {
        let (mut input, mut parser, mut commands) =
            (Input::default(), Parser::default(), Vec::new());
        let mut rest = bytes;
        for piece in pieces.iter().cycle() {
            let space = input.space();
            let len = rest.len().min(*piece).min(space.len());
            space[..len].copy_from_slice(&rest[..len]);
            input.received(len);
            rest = &rest[len..];
            loop {
                match parser.next(&mut input, true) {
                    Ok(Some(words)) => commands.push(words),
                    Ok(None) => break,
                    Err(malformed) => return (commands, Some(malformed)),
                }
            }
            if rest.is_empty() {
                break;
            }
        }
        (commands, None)
    }

    fn encode(commands: &[Words]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn commands_are_parsed_however_they_are_cut(
            commands in vec(vec(vec(any::<u8>(), 0..40), 1..5), 0..8),
            pieces in vec(1_usize..50, 1..10),
        ) {
            prop_assert_eq!(parse(&encode(&commands), &pieces), (commands, None));
        }

        #[test]
        fn any_bytes_are_parsed_alike_however_they_are_cut(
            bytes in vec(prop_oneof![Just(b'*'), Just(b'$'), Just(b'1'), Just(b'\r'), Just(b'\n'),
                Just(b'-'), any::<u8>()], 0..200),
            pieces in vec(1_usize..50, 1..10),
        ) {
            prop_assert_eq!(parse(&bytes, &pieces), parse(&bytes, &[bytes.len().max(1)]));
        }
    }

    #[test]
    fn lines_are_commands_too() {
        let words: Words = vec![b"PING".to_vec(), b"x".to_vec()];
        assert_eq!(parse(b"\r\n PING  x\r\n*-1\r\n*0\r\nPING x\n", &[3]).0, [words.clone(), words]);
    }

    #[test]
    fn lengths_are_bounded() {
        for bytes in [
            &b"*65539\r\n"[..],
            b"*1\r\n$16777217\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n:1\r\n",
            b"*x\r\n",
            b"*000000000000000000000000000000000000",
            b"*1\r\n$1\r\nab\r\n",
            b"'quoted'\n",
        ] {
            assert!(parse(bytes, &[100]).1.is_some(), "{}", String::from_utf8_lossy(bytes));
        }
        assert!(parse(&vec![b'a'; INLINE_LEN_MAX], &[1000]).1.is_some());
        let word = format!("${TUPLE_LEN_MAX}\r\n{}\r\n", "x".repeat(TUPLE_LEN_MAX));
        let command = format!("*9\r\n{}", word.repeat(5));
        assert_eq!(parse(command.as_bytes(), &[100_000]).1, Some(Malformed("too long a command")));
    }
}
