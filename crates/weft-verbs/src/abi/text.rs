//! Copies text into the character arrays of C structures.

use std::ffi::c_char;

/// Fills a character array with `text`, cut to leave room for the final NUL.
pub(crate) fn fill(array: &mut [c_char], text: &str) {
    let room = array.len().saturating_sub(1);
    let bytes = text.bytes().take(room).chain(std::iter::repeat(0));
    for (slot, byte) in array.iter_mut().zip(bytes) {
        *slot = byte.cast_signed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_terminated() {
        let mut array = [1; 4];
        fill(&mut array, "ab");
        assert_eq!(array.map(i8::cast_unsigned), *b"ab\0\0");
        fill(&mut array, "abcdef");
        assert_eq!(array.map(i8::cast_unsigned), *b"abc\0");
    }
}
