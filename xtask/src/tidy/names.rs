//! Checks that a word which says too little by itself is no type's name, or only that of one type.

use std::path::{Path, PathBuf};

use super::files::read;
use super::tokens::tokens;
use super::{allowances, crates};

/// The words, each with the file of the one type that is called by it, if there is one. Other types
/// say more: `CmPhase`, `ShmPeer`.
const WORDS: [(&str, Option<&str>); 6] = [
    ("End", Some("crates/weft-stream/src/end/mod.rs")),
    ("Held", Some("crates/weft-sockets/src/table.rs")),
    ("Link", Some("crates/weft-engine/src/link/mod.rs")),
    ("Peer", None),
    ("Phase", None),
    ("Shared", None),
];

/// Reports the types that are called by one of the words.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(
    root: &Path,
    sources: &[PathBuf],
    findings: &mut Vec<String>,
) -> Result<(), String> {
    for (krate, folder) in crates::folders() {
        let mut found = Vec::new();
        for file in sources.iter().filter(|file| file.starts_with(root.join(&folder))) {
            let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
            let types = types(&read(file)?, &name);
            found.extend(types.into_iter().map(|(word, line)| {
                format!("{name}:{line}: `{word}` can be many types: say which one it is")
            }));
        }
        let (allowed, count) = (allowances::of(krate).names, found.len());
        allowances::compare(krate, "names that say too little", allowed, count, found, findings);
    }
    Ok(())
}

/// Returns the types of a file that are called by one of the words and may not be, with their
/// lines. Another name for a type with the same last word is the same type: `type Held =
/// table::Held<Kind>`.
fn types(text: &str, file: &str) -> Vec<(&'static str, usize)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (index, pair) in tokens.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        let Some((word, owner)) = WORDS.into_iter().find(|(word, _)| *word == name.text) else {
            continue;
        };
        let is_type = match keyword.text {
            "struct" | "enum" | "union" | "trait" => true,
            "type" => {
                let rest = tokens[index + 2..].iter().take_while(|token| token.text != ";");
                !rest.skip_while(|token| token.text != "=").any(|token| token.text == word)
            }
            _ => false,
        };
        if is_type && owner != Some(file) {
            found.push((word, name.line));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::types;

    #[test]
    fn each_kind_of_type_is_found() {
        let text = "struct End;\nenum Phase { Peer }\npub trait Shared {}\ntype Peer = (u8, u8);";
        let found = types(text, "a.rs");
        assert_eq!(found, [("End", 1), ("Phase", 2), ("Shared", 3), ("Peer", 4)]);
    }

    #[test]
    fn the_one_type_of_a_word_and_its_other_names_are_none() {
        assert!(
            types("struct End; fn f(_: Shared) {}", "crates/weft-stream/src/end/mod.rs").is_empty()
        );
        assert!(types("type Held = table::Held<Kind>; struct HeldBlock;", "a.rs").is_empty());
        assert_eq!(types("type Held = Entry; fn f(_: Held) {}", "a.rs"), [("Held", 1)]);
    }
}
