//! Known differences, which the random programs of `make test` avoid.

/// A word of a step that causes a known difference, and its replacement.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The operation of the steps concerned; empty for all steps.
    pub operation: &'static str,
    /// The word to replace.
    pub word: &'static str,
    /// The replacement; empty to remove the word.
    pub instead: &'static str,
    /// What differs, and why that is accepted.
    pub reason: &'static str,
}

/// All known differences. `make differ` avoids them only with `--without-known`.
pub const KNOWN: &[Known] = &[
    Known {
        operation: "option",
        word: "name=inq",
        instead: "name=nodelay",
        reason: "`TCP_INQ` is refused: rings tell nothing beside bytes, and programs do without it",
    },
    Known {
        operation: "dup",
        word: "least=959",
        instead: "least=900",
        reason: "numbers from 960 on may be Weft's own, and are passed over",
    },
];

/// Returns the step with the words of known differences replaced.
pub(super) fn without_known(step: &str) -> String {
    let operation = step.split(' ').nth(1).unwrap_or_default();
    let words = step.split(' ').map(|word| {
        let known = KNOWN.iter().find(|known| {
            known.word == word && (known.operation.is_empty() || known.operation == operation)
        });
        known.map_or(word, |known| known.instead)
    });
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
