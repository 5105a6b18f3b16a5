//! Where a hostile peer would write: for tests and fuzz targets that play one.

use crate::layout::{
    SOURCES_MAX, direction, direction_at, entry, entry_at, side, side_at, source, source_at,
};

/// Where in a registry's file the words of a connection are, but for the locks: a peer can hold
/// those for ever, as it can its own.
#[must_use]
pub fn peers_words(slot: usize) -> Vec<usize> {
    let sides =
        (0..2).flat_map(|at| (0..side::LEN / 4).map(move |word| side_at(slot, at) + 4 * word));
    let directions = (0..2).flat_map(|at| {
        let at = direction_at(slot, at);
        let words = (0..direction::LEN / 4).map(move |word| 4 * word);
        let locks = [direction::LOCK, direction::READER_LOCK];
        words.filter(move |word| !locks.contains(word)).map(move |word| at + word)
    });
    let sources = (0..2 * SOURCES_MAX).flat_map(|at| {
        let at = source_at(slot, at / SOURCES_MAX, at % SOURCES_MAX);
        (0..source::LEN / 4).map(move |word| at + 4 * word)
    });
    let filled = [entry::FILLED, entry::FILLED + 4].map(|word| entry_at(slot) + word);
    sides.chain(directions).chain(sources).chain(filled).collect()
}
