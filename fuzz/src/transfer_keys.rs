//! Bodies of the targets for keys as text and bytes, key files, and sealed blocks.

use std::path::Path;

use weft_transfer::secure::{AuthorisedClients, KnownServers, PublicKey, ReplayWindow};

/// Parses `input` in each of the formats. A key that parses must be written back unchanged.
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

/// Uses `input` as block counters of eight bytes each. The replay window must accept no counter
/// twice.
pub fn replay(input: &[u8]) {
    let mut window = ReplayWindow::default();
    let mut seen = std::collections::HashSet::new();
    for counter in input.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok()) {
        let counter = u64::from_be_bytes(counter);
        if window.note(counter) {
            assert!(seen.insert(counter), "{counter} was accepted twice");
        }
        assert!(!window.is_new(counter) || counter == u64::MAX);
    }
}
