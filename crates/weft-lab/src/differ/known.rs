//! What is known to differ, and is left out of the random programs of `make test`.

/// A word of a step that has another in its place.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The steps that are meant, all of them if this is empty.
    pub operation: &'static str,
    /// The word.
    pub word: &'static str,
    /// What is in its place, if anything.
    pub instead: &'static str,
    /// What differs with it, and why that is left.
    pub reason: &'static str,
}

/// All of them. `make differ` leaves out nothing by itself: `--without-known` does.
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

/// The step without what is known to differ.
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
