//! Seals blocks in place, and opens them.
//!
//! A sealed block is [`SEAL_LEN`] bytes longer: a tag follows the encrypted payload. The tag covers
//! the payload and the bytes of the unencrypted header that the caller passes. The nonce is four
//! zero bytes and a counter, which the header carries. The sealer counts its blocks, so no nonce
//! repeats under the keys of one direction of one session. A retransmitted block has the same bytes
//! and the same counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use super::SecureError;
use super::replay::ReplayWindow;
use super::secrets::Secret;
use crate::limits::SEALS_MAX;
use weft_sys::lock;

/// Length of a seal's tag in bytes.
pub const SEAL_LEN: usize = 16;
/// Counters that share one key, as a power of two.
const EPOCH_BITS: u32 = 14;

/// Issues each counter once. It is not `Clone`.
#[derive(Debug)]
struct Counter {
    next: AtomicU64,
    end: u64,
}

impl Counter {
    fn take(&self) -> Result<u64, SecureError> {
        let add = |next: u64| (next < self.end).then(|| next + 1);
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.map_err(|_| SecureError::Exhausted)
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - size_of::<u64>()..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// A cache of the keys of the most recent epochs.
#[derive(Debug)]
struct Keys {
    secret: Secret,
    /// At most two keys, the most recently used first: around a change of epochs both are in use.
    recent: Mutex<Vec<(u64, Arc<LessSafeKey>)>>,
}

impl Keys {
    fn new(secret: Secret) -> Self {
        Self { secret, recent: Mutex::default() }
    }

    fn of(&self, counter: u64) -> Result<Arc<LessSafeKey>, SecureError> {
        let epoch = counter >> EPOCH_BITS;
        let mut recent = lock(&self.recent);
        if let Some(at) = recent.iter().position(|(it, _)| *it == epoch) {
            recent.swap(0, at);
        } else {
            recent.insert(0, (epoch, Arc::new(self.secret.key(epoch)?)));
            recent.truncate(2);
        }
        Ok(Arc::clone(&recent[0].1))
    }
}

/// Seals the blocks of one direction of one session. Threads share it. It is not `Clone`, so that
/// no counter is used twice.
#[derive(Debug)]
pub struct Sealer {
    counter: Counter,
    keys: Keys,
}

impl Sealer {
    /// Creates the sealer of a secret, and consumes the secret.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        Self::with_counter(secret, 0, SEALS_MAX)
    }

    fn with_counter(secret: Secret, next: u64, end: u64) -> Self {
        Self { counter: Counter { next: AtomicU64::new(next), end }, keys: Keys::new(secret) }
    }

    /// Begins to seal a block: issues the counter for its header.
    ///
    /// # Errors
    /// `Exhausted` if all counters are used.
    pub fn begin(&self) -> Result<Ticket<'_>, SecureError> {
        Ok(Ticket { counter: self.counter.take()?, sealer: self })
    }
}

/// A unique counter for one block. Sealing consumes it, and it is not `Clone`.
#[derive(Debug)]
pub struct Ticket<'a> {
    counter: u64,
    sealer: &'a Sealer,
}

impl Ticket<'_> {
    /// The counter, for the block's header.
    #[must_use]
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Seals the first `len` bytes of `block` in place, and authenticates `head` with them.
    /// Returns the sealed length.
    ///
    /// # Errors
    /// `NoRoom` if the block has no room for the tag.
    pub fn seal_in_place(
        self,
        head: &[u8],
        block: &mut [u8],
        len: usize,
    ) -> Result<usize, SecureError> {
        let sealed_len = len.checked_add(SEAL_LEN).ok_or(SecureError::NoRoom)?;
        let block = block.get_mut(..sealed_len).ok_or(SecureError::NoRoom)?;
        let key = self.sealer.keys.of(self.counter)?;
        let (payload, seal) = block.split_at_mut(len);
        let sealed = key.seal_in_place_separate_tag(nonce(self.counter), Aad::from(head), payload);
        let tag = sealed.map_err(|_| SecureError::Library("no seal"))?;
        seal.copy_from_slice(tag.as_ref());
        Ok(sealed_len)
    }
}

/// Opens the blocks of one direction of one session, each once. Threads share it.
#[derive(Debug)]
pub struct Opener {
    keys: Keys,
    window: Mutex<ReplayWindow>,
}

impl Opener {
    /// Creates the opener of a secret, and consumes the secret.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        Self { keys: Keys::new(secret), window: Mutex::default() }
    }

    /// Opens a sealed block of `len` bytes in place, with its counter and the authenticated part of
    /// its header. Returns the length of the payload, which begins at the first byte. After an
    /// error the contents of the block are undefined.
    ///
    /// # Errors
    /// `TooShort` or `NoRoom`; `NotAuthentic` if the block, the counter or the header was changed;
    /// `Replayed` if the block was opened before.
    pub fn open_in_place(
        &self,
        counter: u64,
        head: &[u8],
        block: &mut [u8],
        len: usize,
    ) -> Result<usize, SecureError> {
        let block = block.get_mut(..len).ok_or(SecureError::NoRoom)?;
        let payload_len = len.checked_sub(SEAL_LEN).ok_or(SecureError::TooShort(len))?;
        if !lock(&self.window).is_new(counter) {
            return Err(SecureError::Replayed);
        }
        let key = self.keys.of(counter)?;
        let opened = key.open_in_place(nonce(counter), Aad::from(head), block);
        opened.map_err(|_| SecureError::NotAuthentic)?;
        // Only authentic blocks are recorded. If two threads open the same block, one of them
        // fails.
        if lock(&self.window).note(counter) { Ok(payload_len) } else { Err(SecureError::Replayed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secure::Cipher;
    use proptest::prelude::*;

    const HEAD: &[u8] = b"session 1, block 7";

    fn secret(cipher: Cipher, seed: u8) -> Secret {
        Secret::new(cipher, &[seed; 32])
    }

    fn ends(cipher: Cipher) -> (Sealer, Opener) {
        (Sealer::new(secret(cipher, 1)), Opener::new(secret(cipher, 1)))
    }

    /// A sealed block: its counter and its bytes.
    type Sealed = (u64, Vec<u8>);

    fn sealed(sealer: &Sealer, head: &[u8], payload: &[u8]) -> Sealed {
        let mut block = payload.to_vec();
        block.resize(payload.len() + SEAL_LEN, 0);
        let ticket = sealer.begin().expect("a counter");
        let counter = ticket.counter();
        let len = ticket.seal_in_place(head, &mut block, payload.len()).expect("room");
        assert_eq!(len, block.len());
        (counter, block)
    }

    fn open(opener: &Opener, head: &[u8], block: &Sealed) -> Result<Vec<u8>, SecureError> {
        let (counter, mut block) = block.clone();
        let len = block.len();
        let len = opener.open_in_place(counter, head, &mut block, len)?;
        block.truncate(len);
        Ok(block)
    }

    fn ciphers() -> impl Strategy<Value = Cipher> {
        prop_oneof![Just(Cipher::Aes128Gcm), Just(Cipher::ChaCha20Poly1305)]
    }

    proptest! {
        #[test]
        fn opened_blocks_equal_the_sealed_ones_in_any_order(
            cipher in ciphers(),
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
            order in any::<prop::sample::Index>(),
        ) {
            let (sealer, opener) = ends(cipher);
            let sealed: Vec<_> = payloads.iter().map(|it| sealed(&sealer, HEAD, it)).collect();
            let mut blocks: Vec<_> = payloads.iter().zip(sealed).collect();
            let len = blocks.len();
            blocks.rotate_left(order.index(len));
            for (payload, block) in blocks {
                if payload.len() > 15 {
                    prop_assert_ne!(&block.1[..payload.len()], &payload[..]);
                }
                prop_assert_eq!(&open(&opener, HEAD, &block).expect("authentic"), payload);
            }
        }

        #[test]
        fn any_changed_bit_is_detected(
            cipher in ciphers(),
            payload in prop::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u8,
            part in 0..3,
        ) {
            let (sealer, opener) = ends(cipher);
            let mut block = sealed(&sealer, HEAD, &payload);
            let (mut head, mut counter) = (HEAD.to_vec(), block.0.to_be_bytes());
            let target = match part {
                0 => &mut head[..],
                1 => &mut counter[..],
                _ => &mut block.1[..],
            };
            let at = at.index(target.len());
            target[at] ^= 1 << bit;
            block.0 = u64::from_be_bytes(counter);
            let opened = open(&opener, &head, &block);
            prop_assert!(matches!(opened, Err(SecureError::NotAuthentic)), "{:?}", opened);
        }

        #[test]
        fn truncated_block_is_detected(cipher in ciphers(), len in 0..=60_usize) {
            let (sealer, opener) = ends(cipher);
            let (counter, block) = sealed(&sealer, HEAD, &[7; 44]);
            let opened = open(&opener, HEAD, &(counter, block[..len].to_vec()));
            prop_assert!(opened.is_err() == (len < block.len()));
        }
    }

    #[test]
    fn block_opens_once() {
        let (sealer, opener) = ends(Cipher::Aes128Gcm);
        let block = sealed(&sealer, HEAD, b"payload");
        open(&opener, HEAD, &block).expect("authentic");
        assert!(matches!(open(&opener, HEAD, &block), Err(SecureError::Replayed)));
    }

    #[test]
    fn forged_counter_does_not_block_the_genuine_block() {
        let (sealer, opener) = ends(Cipher::Aes128Gcm);
        let block = sealed(&sealer, HEAD, b"payload");
        let mut forged = block.clone();
        forged.1[0] ^= 1;
        assert!(matches!(open(&opener, HEAD, &forged), Err(SecureError::NotAuthentic)));
        open(&opener, HEAD, &block).expect("authentic");
    }

    #[test]
    fn header_of_another_block_is_refused() {
        let (sealer, opener) = ends(Cipher::ChaCha20Poly1305);
        let one = sealed(&sealer, b"block 1", b"same payload");
        let two = sealed(&sealer, b"block 2", b"same payload");
        assert_ne!(one, two, "no nonce comes twice");
        assert!(matches!(open(&opener, b"block 2", &one), Err(SecureError::NotAuthentic)));
        assert!(matches!(open(&opener, b"block 1", &two), Err(SecureError::NotAuthentic)));
        open(&opener, b"block 1", &one).expect("authentic");
        open(&opener, b"block 2", &two).expect("authentic");
    }

    #[test]
    fn other_key_does_not_open() {
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
            let block = sealed(&ends(cipher).0, HEAD, b"payload");
            let others = [secret(cipher, 2), secret(Cipher::Aes128Gcm, 3)];
            for other in others {
                let opened = open(&Opener::new(other), HEAD, &block);
                assert!(matches!(opened, Err(SecureError::NotAuthentic)), "{opened:?}");
            }
        }
    }

    #[test]
    fn counters_are_exhausted_at_their_limit() {
        let sealer = Sealer::with_counter(secret(Cipher::Aes128Gcm, 1), 5, 7);
        assert_eq!(sealer.begin().expect("a counter").counter(), 5);
        assert_eq!(sealer.begin().expect("a counter").counter(), 6);
        for _ in 0..2 {
            let refused = sealer.begin();
            assert!(matches!(refused, Err(SecureError::Exhausted)), "{refused:?}");
        }
    }

    #[test]
    fn keys_change_with_the_epoch() {
        let last = (1 << EPOCH_BITS) - 1;
        let sealer = Sealer::with_counter(secret(Cipher::Aes128Gcm, 1), last, SEALS_MAX);
        let opener = Opener::new(secret(Cipher::Aes128Gcm, 1));
        let blocks = [(); 3].map(|()| sealed(&sealer, HEAD, b"payload"));
        // The block before the change of epochs is opened last.
        for block in blocks.iter().rev() {
            assert_eq!(open(&opener, HEAD, block).expect("authentic"), b"payload");
        }
        let (before, after) = (opener.keys.of(last), opener.keys.of(last + 1));
        assert!(!Arc::ptr_eq(&before.expect("a key"), &after.expect("a key")));
    }

    #[test]
    fn block_without_room_is_left_unchanged() {
        let sealer = ends(Cipher::Aes128Gcm).0;
        let mut block = [7; 30];
        for len in [30, 15, usize::MAX] {
            let ticket = sealer.begin().expect("a counter");
            let refused = ticket.seal_in_place(HEAD, &mut block, len);
            assert!(matches!(refused, Err(SecureError::NoRoom)), "{refused:?}");
        }
        assert_eq!(block, [7; 30]);
        sealer.begin().expect("a counter").seal_in_place(HEAD, &mut block, 14).expect("room");
    }

    #[test]
    fn threads_never_share_a_counter() {
        let (sealer, opener) = ends(Cipher::Aes128Gcm);
        let blocks = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..50).map(|_| sealed(&sealer, HEAD, b"x")).collect()))
                .collect();
            let blocks = threads.into_iter().map(|it| it.join().expect("no panic"));
            blocks.flat_map(|it: Vec<_>| it).collect::<Vec<_>>()
        });
        for block in blocks {
            open(&opener, HEAD, &block).expect("each counter came once");
        }
    }
}
