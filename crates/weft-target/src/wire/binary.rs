//! Binary values in texts: `0x` with hexadecimal digits, or `0b` with base64 (RFC 7143, section
//! 6.1).

use std::fmt::Write as _;

use crate::limits::BINARY_LEN_MAX;

/// The bytes of a binary value. `None` if it is none, or longer than [`BINARY_LEN_MAX`].
#[must_use]
pub fn parse_binary(value: &str) -> Option<Vec<u8>> {
    let (kind, digits) = value.as_bytes().split_at_checked(2)?;
    let bytes = match kind {
        b"0x" | b"0X" => from_hexadecimal(digits)?,
        b"0b" | b"0B" => from_base64(digits)?,
        _ => return None,
    };
    (bytes.len() <= BINARY_LEN_MAX).then_some(bytes)
}

/// Bytes as a binary value, in hexadecimal digits, which all initiators know.
#[must_use]
pub fn binary(bytes: &[u8]) -> String {
    let mut value = "0x".to_owned();
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(value, "{byte:02x}");
    }
    value
}

fn from_hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Base64 with its padding (RFC 4648, section 4). Bits that belong to no byte are zero.
fn from_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let padding = digits.iter().rev().take_while(|&&byte| byte == b'=').count();
    if !digits.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for &byte in &digits[..digits.len() - padding] {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_encodings_are_read() {
        // RFC 4648, section 10.
        for (base64, expected) in [
            ("0b", ""),
            ("0bZg==", "f"),
            ("0BZm8=", "fo"),
            ("0bZm9v", "foo"),
            ("0bZm9vYg==", "foob"),
            ("0bZm9vYmE=", "fooba"),
            ("0bZm9vYmFy", "foobar"),
        ] {
            assert_eq!(parse_binary(base64).as_deref(), Some(expected.as_bytes()), "{base64}");
        }
        assert_eq!(parse_binary("0X00fFa1"), Some(vec![0, 0xff, 0xa1]));
        assert_eq!(parse_binary("0x"), Some(Vec::new()));
    }

    #[test]
    fn invalid_binary_values_are_refused() {
        for value in [
            "",
            "0",
            "12",
            "0x1",
            "0xgg",
            "0x+1",
            "0bZg",
            "0bZg=",
            "0bZh==",
            "0b====",
            "0bZ===",
            "0b=Zg=",
            "0bZg==Zg==",
            "0bZ-==",
            "é",
        ] {
            assert_eq!(parse_binary(value), None, "{value}");
        }
        let longest = "00".repeat(BINARY_LEN_MAX);
        assert!(parse_binary(&format!("0x{longest}")).is_some());
        assert!(parse_binary(&format!("0x{longest}00")).is_none());
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(parse_binary(&binary(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(value in "0[xXbB]?.{0,20}") {
            let _ = parse_binary(&value);
        }
    }
}
