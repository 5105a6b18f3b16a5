//! Keys as text and bytes, files of keys, and sealed blocks.

use std::path::Path;

use weft_transfer::secure::{AuthorisedClients, KnownServers, PublicKey, ReplayWindow};

/// Reads `input` as each of them. What is read is what is written again.
pub fn keys(input: &[u8]) {
    if let Ok(key) = PublicKey::from_spki(input) {
        assert_eq!(key.spki(), input);
    }
    let text = String::from_utf8_lossy(input);
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string(), text.to_lowercase());
    }
    let path = Path::new("keys");
    let _ = KnownServers::parse(&text, path);
    let _ = AuthorisedClients::parse(&text, path);
}

/// Takes `input` for the counters of blocks, eight bytes each: none comes twice.
pub fn replay(input: &[u8]) {
    let mut window = ReplayWindow::default();
    let mut seen = std::collections::HashSet::new();
    for counter in input.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok()) {
        let counter = u64::from_be_bytes(counter);
        if window.note(counter) {
            assert!(seen.insert(counter), "{counter} came before");
        }
        assert!(!window.is_new(counter) || counter == u64::MAX);
    }
}
