//! The command line.

use crate::kernel::Strings;

/// Returns the number of the word that is the program in a call without options: `weft run PROGRAM
/// ...` or `weft run -- PROGRAM ...`. `None`: the tool has to parse it.
pub(crate) fn program_in(words: Strings<'_>) -> Option<usize> {
    if words.get(1)? != c"run" {
        return None;
    }
    let program = if words.get(2)? == c"--" { 3 } else { 2 };
    let first = words.get(program)?.to_bytes();
    let is_option = program == 2 && first.starts_with(b"-");
    let is_doubtful = first.is_empty() || words.from(program).iter().any(|word| word == c"--");
    (!is_option && !is_doubtful).then_some(program)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::vec::Vec;

    use super::*;
    use crate::kernel::List;

    fn program(line: &str) -> Option<usize> {
        let words: Vec<_> = line.split(' ').map(|word| CString::new(word).unwrap()).collect();
        let mut list = List::new();
        words.iter().for_each(|word| list.push(word).unwrap());
        program_in(list.strings())
    }

    #[test]
    fn a_call_without_options_names_its_program() {
        assert_eq!(program("weft run true"), Some(2));
        assert_eq!(program("weft run -- true"), Some(3));
        assert_eq!(program("weft run ls -l --all run"), Some(2));
        assert_eq!(program("weft run -- -odd name"), Some(3));
    }

    #[test]
    fn all_else_is_the_tools() {
        for line in [
            "weft",
            "weft run",
            "weft run --",
            "weft run -d eth0 true",
            "weft run --help",
            "weft run - x",
            "weft run  x",
            "weft run -- ",
            "weft run sh -- x",
            "weft run -- -- x",
            "weft env run",
            "weft -h run true",
        ] {
            assert_eq!(program(line), None, "{line}");
        }
    }
}
