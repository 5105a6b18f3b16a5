//! Compression of blocks by Zstandard, and the decision whether it pays.
//!
//! A compressed payload is the length of the plain payload, u32, and one Zstandard frame
//! (RFC 8878).

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use zstd_safe::{CCtx, CParameter, DCtx, find_frame_compressed_size};

use crate::limits::{
    BLIND_DECISIONS_MAX, COMPRESS_SAMPLE_LEN, COMPRESS_SAMPLES, PATH_FULL, RATE_MEMORY,
    SAMPLE_PAUSE_MAX,
};
use weft_sys::lock;

/// Length of the plain length before the frame.
const PREFIX_LEN: usize = 4;
/// A block is sent plain if compression saves less than this part of it.
const SAVING_LEAST: usize = 16;
/// The level of compression, the fastest one of zstd's ordinary levels.
const LEVEL: i32 = 1;

/// When a source compresses blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Never.
    #[default]
    Never,
    /// While the network is slower than compression, and for blocks that become smaller.
    Auto,
    /// For all blocks that become smaller.
    Always,
}

/// Why a compressed payload is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressError {
    /// The payload ends within its length field.
    #[error("a compressed block of {0} bytes has no length")]
    NoLength(usize),
    /// The block expands to more than a block may have.
    #[error("a compressed block expands to {len} bytes, the limit is {limit}")]
    TooLong {
        /// The plain length that the block declares.
        len: usize,
        /// The most bytes of a plain payload.
        limit: usize,
    },
    /// The data is damaged, or expands to another length than the block declares.
    #[error("a compressed block is damaged: it does not expand to {0} bytes")]
    Damaged(usize),
    /// The system has no memory for the decoder.
    #[error("no memory to expand a compressed block")]
    NoMemory,
}

/// Compresses payloads. It keeps its memory from one payload to the next.
#[derive(Default)]
pub struct Encoder {
    context: Option<CCtx<'static>>,
    /// The last result. It never shrinks, because each growth clears the new bytes.
    out: Vec<u8>,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// Compresses a payload. Returns `None` if that would save little.
    pub fn compress(&mut self, plain: &[u8]) -> Option<&[u8]> {
        let prefix = u32::try_from(plain.len()).ok()?.to_be_bytes();
        // The compressor ends when the result would become longer.
        let longest = plain.len() - plain.len() / SAVING_LEAST;
        if longest <= PREFIX_LEN {
            return None;
        }
        if self.out.len() < longest {
            self.out.resize(longest, 0);
        }
        let context = match &mut self.context {
            Some(context) => context,
            // Without memory for it, blocks go plain.
            none => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(LEVEL)).ok()?;
                none.insert(context)
            }
        };
        self.out[..PREFIX_LEN].copy_from_slice(&prefix);
        let len = context.compress2(&mut self.out[PREFIX_LEN..longest], plain).ok()?;
        self.out.get(..PREFIX_LEN + len)
    }
}

/// Returns the plain length that a compressed payload declares, before it is checked.
#[must_use]
pub fn declared_len(payload: &[u8]) -> Option<usize> {
    payload.first_chunk().map(|&prefix| u32::from_be_bytes(prefix) as usize)
}

/// Expands compressed payloads. It keeps its memory from one payload to the next.
#[derive(Default)]
pub struct Decoder {
    context: Option<DCtx<'static>>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Decoder {
    /// Expands a compressed payload into `plain`, and returns the length. Nothing beyond `plain` is
    /// written, whatever the payload contains, and the memory of the decoder does not depend on
    /// the payload: it decodes into `plain`, so the frame's window needs no memory of its own.
    ///
    /// # Errors
    /// If the payload is damaged, is not exactly one frame, or does not expand to exactly the
    /// length that it declares.
    pub fn decompress(&mut self, payload: &[u8], plain: &mut [u8]) -> Result<usize, CompressError> {
        let prefix = payload.split_first_chunk();
        let (&prefix, data) = prefix.ok_or(CompressError::NoLength(payload.len()))?;
        let (len, limit) = (u32::from_be_bytes(prefix) as usize, plain.len());
        let plain = plain.get_mut(..len).ok_or(CompressError::TooLong { len, limit })?;
        // The decoder would also accept several frames, and frames that it skips.
        if find_frame_compressed_size(data) != Ok(data.len()) {
            return Err(CompressError::Damaged(len));
        }
        let context = match &mut self.context {
            Some(context) => context,
            none => none.insert(DCtx::try_create().ok_or(CompressError::NoMemory)?),
        };
        match context.decompress(plain, data) {
            Ok(expanded) if expanded == len => Ok(len),
            _ => Err(CompressError::Damaged(len)),
        }
    }
}

/// A rate over about the last [`RATE_MEMORY`] bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    time: Duration,
}

impl Rate {
    fn add(&mut self, bytes: usize, time: Duration) {
        if self.bytes >= RATE_MEMORY {
            (self.bytes, self.time) = (self.bytes / 2, self.time / 2);
        }
        self.bytes += bytes as u64;
        self.time += time;
    }

    /// Returns the seconds that one thread takes for a byte; `None` if nothing has been measured.
    fn seconds(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.time.as_secs_f64() / self.bytes as f64)
    }
}

/// Decides whether compression pays, for all threads of a source that fill blocks.
#[derive(Debug)]
pub struct Compressor {
    compression: Compression,
    threads: usize,
    rates: Mutex<Rates>,
}

/// The blocks between the threads that fill them and the sink, and the rate of the path.
///
/// The rate is measured while many blocks wait, because then the source does not limit it, and
/// while the write of a block has begun that has not been acknowledged. Otherwise the sink has no
/// free buffer, and the path is idle.
#[derive(Debug, Default)]
struct Path {
    rate: Rate,
    /// Full blocks that have not been acknowledged.
    waiting: u32,
    /// Those whose write has begun.
    under_way: u32,
    /// The time up to which `rate` has been measured, while it is measured.
    since: Option<Instant>,
}

impl Path {
    /// Whether the path takes blocks more slowly than the source fills them.
    fn is_full(&self) -> bool {
        self.waiting >= PATH_FULL
    }

    /// Measures the rate up to a change. Returns whether it was measured just before.
    fn change(&mut self, now: Instant, arrived: usize, change: impl FnOnce(&mut Self)) -> bool {
        let since = self.since.take();
        if let Some(since) = since {
            self.rate.add(arrived, now.saturating_duration_since(since));
        }
        change(self);
        self.since = (self.is_full() && self.under_way > 0).then_some(now);
        since.is_some()
    }
}

#[derive(Debug, Default)]
struct Rates {
    /// Plain bytes per time in which a thread compressed.
    compressing: Rate,
    /// Plain bytes per time in which a thread read and sealed blocks.
    filling: Rate,
    path: Path,
    /// Decisions since the copy began, up to [`PATH_FULL`].
    first: u32,
    /// Decisions since the rate of the path was measured.
    blind: u32,
}

impl Rates {
    /// Whether `threads` threads that also compress fill blocks faster than the path takes them. If
    /// not, the processor or the files would limit the rate, and compression would lower it.
    ///
    /// While the rate of the path is not known, the first blocks are compressed, and then those
    /// before which many wait.
    fn pays(&mut self, threads: usize) -> bool {
        self.blind += 1;
        if self.blind > BLIND_DECISIONS_MAX {
            self.path.rate = Rate::default();
        }
        if let (Some(compressing), Some(sending)) =
            (self.compressing.seconds(), self.path.rate.seconds())
        {
            let filling = self.filling.seconds().unwrap_or_default();
            return threads as f64 * sending > filling + compressing;
        }
        let is_first = self.first < PATH_FULL;
        self.first += u32::from(is_first);
        is_first || self.path.is_full()
    }
}

impl Compressor {
    /// Creates a compressor for a source with so many threads that fill blocks.
    #[must_use]
    pub fn new(compression: Compression, threads: usize) -> Self {
        Self { compression, threads, rates: Mutex::default() }
    }

    /// Whether any block may be compressed.
    pub fn is_on(&self) -> bool {
        self.compression != Compression::Never
    }

    /// Records that a full block waits for its write.
    pub fn submit(&self, now: Instant) {
        lock(&self.rates).path.change(now, 0, |path| path.waiting += 1);
    }

    /// Records that the write of a waiting block begins for the first time.
    pub fn begin_write(&self, now: Instant) {
        lock(&self.rates).path.change(now, 0, |path| path.under_way += 1);
    }

    /// Records that a block does not wait any more. `is_under_way` tells whether its write has
    /// begun; `arrived` are its bytes that have arrived.
    pub fn free(&self, is_under_way: bool, arrived: usize, now: Instant) {
        let rates = &mut *lock(&self.rates);
        let is_measured = rates.path.change(now, arrived, |path| {
            path.waiting = path.waiting.saturating_sub(1);
            path.under_way = path.under_way.saturating_sub(u32::from(is_under_way));
        });
        if is_measured && arrived > 0 {
            rates.blind = 0;
        }
    }

    /// Records that a thread was busy for a time to fill a block with so many plain bytes, without
    /// their compression.
    pub fn has_filled(&self, bytes: usize, time: Duration) {
        lock(&self.rates).filling.add(bytes, time);
    }

    /// Returns the part of the compressor that one thread uses.
    pub fn packer(&self) -> Packer<'_> {
        Packer {
            of: self,
            encoder: Encoder::default(),
            sample: Vec::new(),
            pause: Pause::default(),
        }
    }
}

/// Blocks that go plain without a look at them, because the last ones went plain.
#[derive(Debug, Default)]
struct Pause {
    left: u32,
    last: u32,
}

impl Pause {
    /// Whether the next block goes plain without a look at it.
    fn holds(&mut self) -> bool {
        let holds = self.left > 0;
        self.left = self.left.saturating_sub(1);
        holds
    }

    /// Begins a pause, twice as long as the last one.
    fn begin(&mut self) {
        self.last = (2 * self.last).clamp(1, SAMPLE_PAUSE_MAX);
        self.left = self.last;
    }
}

/// Compresses the blocks of one thread if that pays.
#[derive(Debug)]
pub struct Packer<'a> {
    of: &'a Compressor,
    encoder: Encoder,
    sample: Vec<u8>,
    pause: Pause,
}

impl Packer<'_> {
    /// Whether the next block goes plain whatever is in it, so that it need not be in memory. Then
    /// do not call [`Packer::pack`] for it.
    pub fn passes(&mut self) -> bool {
        match self.of.compression {
            Compression::Never => true,
            Compression::Always => false,
            Compression::Auto => self.pause.holds(),
        }
    }

    /// Compresses a payload if that pays. Returns `None` if the block goes plain.
    ///
    /// A sample of the block shows whether its data can be compressed, and how fast. So the
    /// decision follows the data and the rates while blocks go plain. The more blocks have gone
    /// plain one after the other, the fewer of them are sampled.
    pub fn pack(&mut self, plain: &[u8]) -> Option<&[u8]> {
        match self.of.compression {
            Compression::Never => return None,
            Compression::Always => {}
            Compression::Auto => {
                if !self.sample_pays(plain) {
                    self.pause.begin();
                    return None;
                }
                self.pause = Pause::default();
            }
        }
        let start = Instant::now();
        let compressed = self.encoder.compress(plain)?;
        lock(&self.of.rates).compressing.add(plain.len(), start.elapsed());
        Some(compressed)
    }

    /// Compresses pieces from all over the block, and returns whether to compress all of it.
    fn sample_pays(&mut self, plain: &[u8]) -> bool {
        let piece = COMPRESS_SAMPLE_LEN / COMPRESS_SAMPLES;
        let distance = (plain.len() / COMPRESS_SAMPLES).max(piece);
        self.sample.clear();
        for part in plain.chunks(distance) {
            self.sample.extend_from_slice(&part[..part.len().min(piece)]);
        }
        let start = Instant::now();
        if self.encoder.compress(&self.sample).is_none() {
            // Data that does not become smaller takes less time, so its rate is not counted.
            return false;
        }
        let mut rates = lock(&self.of.rates);
        rates.compressing.add(self.sample.len(), start.elapsed());
        rates.pays(self.of.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Packer<'_> {
        /// Decides on a block as a source does.
        fn decide(&mut self, plain: &[u8]) -> Option<&[u8]> {
            if self.passes() { None } else { self.pack(plain) }
        }
    }

    fn text(len: usize) -> Vec<u8> {
        b"the same words again and again, and some others "
            .iter()
            .copied()
            .cycle()
            .take(len)
            .collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(1);
        (0..len).map(|_| rng.u8(..)).collect()
    }

    #[test]
    fn payload_that_becomes_smaller_expands_to_itself() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut again = vec![0; 100_000];
        for plain in [text(100_000), text(70_000)] {
            let smaller = encoder.compress(&plain).expect("text");
            assert!(smaller.len() < 10_000, "{}", smaller.len());
            assert_eq!(decoder.decompress(smaller, &mut again), Ok(plain.len()));
            assert_eq!(again[..plain.len()], plain);
        }
    }

    #[test]
    fn payload_that_stays_as_large_goes_plain() {
        let mut encoder = Encoder::default();
        assert_eq!(encoder.compress(&noise(100_000)), None);
        assert_eq!(encoder.compress(&[]), None);
        assert_eq!(encoder.compress(b"abc"), None);
        // A failure does not spoil the next payload.
        assert!(encoder.compress(&text(1_000)).is_some());
    }

    #[test]
    fn payload_that_expands_to_another_length_is_refused() {
        let (plain, mut to) = (text(5_000), vec![0; 5_000]);
        let mut encoder = Encoder::default();
        let data = encoder.compress(&plain).expect("text")[PREFIX_LEN..].to_vec();
        let with = |declared: u32, parts: &[&[u8]]| {
            [&declared.to_be_bytes()[..], &parts.concat()].concat()
        };
        let mut expand = |payload: &[u8]| Decoder::default().decompress(payload, &mut to);
        assert_eq!(expand(&with(5_000, &[&data])), Ok(5_000));
        assert_eq!(expand(&with(4_999, &[&data])), Err(CompressError::Damaged(4_999)));
        let long = CompressError::TooLong { len: 5_001, limit: 5_000 };
        assert_eq!(expand(&with(5_001, &[&data])), Err(long));
        assert!(expand(&with(u32::MAX, &[&data])).is_err());
        assert!(expand(&with(5_000, &[&data, b"garbage"])).is_err());
        assert!(expand(&with(5_000, &[&data[..data.len() - 1]])).is_err());
        assert_eq!(expand(&[0, 0, 1]), Err(CompressError::NoLength(3)));
        // Several frames, and one that the decoder would skip, with a length of its own.
        let half = encoder.compress(&plain[..2_500]).expect("text")[PREFIX_LEN..].to_vec();
        assert_eq!(expand(&with(2_500, &[&half])), Ok(2_500));
        assert_eq!(expand(&with(5_000, &[&half, &half])), Err(CompressError::Damaged(5_000)));
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        assert!(expand(&with(5_000, &[&data, &skipped])).is_err());
        assert!(expand(&with(5_000, &[&skipped, &data])).is_err());
    }

    /// A frame's header may announce any size and window; neither is allocated.
    #[test]
    fn bomb_is_refused() {
        let mut to = vec![0; 1 << 20];
        // A single segment of 2^50 bytes, and a window of 2^41 bytes; then a run of 128 KiB zeros.
        let segment = [&[0xe0][..], &(1_u64 << 50).to_le_bytes()].concat();
        for header in [segment, vec![0x00, 0xf8]] {
            let mut frame = [&[0x28, 0xb5, 0x2f, 0xfd][..], &header].concat();
            for number in 0..64_u32 {
                let block = u32::from(number == 63) | (1 << 1) | ((128 << 10) << 3);
                frame.extend_from_slice(&block.to_le_bytes()[..3]);
                frame.push(0);
            }
            let payload = [&(1_u32 << 20).to_be_bytes()[..], &frame].concat();
            let expanded = Decoder::default().decompress(&payload, &mut to);
            assert_eq!(expanded, Err(CompressError::Damaged(1 << 20)));
        }
    }

    /// Sends some blocks over a full path, each in this time.
    fn send(compressor: &Compressor, bytes: usize, time: Duration) {
        let mut now = Instant::now();
        for _ in 0..PATH_FULL {
            compressor.submit(now);
        }
        for _ in 0..60 {
            compressor.begin_write(now);
            now += time;
            compressor.free(true, bytes, now);
            // Time without a block under way does not count.
            now += Duration::from_secs(1);
            compressor.submit(now);
        }
        for _ in 0..PATH_FULL {
            compressor.free(false, 0, now);
        }
    }

    /// Returns the compressor of a source of two threads that takes these seconds to fill a MiB
    /// and to send it.
    fn with_rates(compression: Compression, fill: u64, seconds: u64) -> Compressor {
        let compressor = Compressor::new(compression, 2);
        for _ in 0..60 {
            compressor.has_filled(1 << 20, Duration::from_secs(fill));
        }
        send(&compressor, 1 << 20, Duration::from_secs(seconds));
        compressor
    }

    #[test]
    fn path_is_measured_while_it_is_full_and_not_idle() {
        let (compressor, start) = (Compressor::new(Compression::Auto, 2), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..PATH_FULL - 1 {
            compressor.submit(at(0));
        }
        compressor.begin_write(at(0));
        compressor.begin_write(at(2));
        compressor.submit(at(5));
        // Two blocks were under way while the path was full: their time counts once.
        compressor.free(true, 100, at(8));
        compressor.submit(at(20));
        compressor.free(true, 100, at(24));
        compressor.submit(at(30));
        // No block is under way.
        compressor.begin_write(at(40));
        // One that is lost with its channel.
        compressor.free(true, 0, at(41));
        let rate = lock(&compressor.rates).path.rate;
        assert_eq!((rate.bytes, rate.time), (200, Duration::from_secs(3 + 4 + 1)));
    }

    #[test]
    fn auto_begins_with_compression_and_goes_on_while_the_path_is_full() {
        let (compressor, text) = (Compressor::new(Compression::Auto, 2), text(1 << 20));
        for _ in 0..PATH_FULL {
            assert!(compressor.packer().decide(&text).is_some());
        }
        assert_eq!(compressor.packer().decide(&text), None, "nothing waits");
        for _ in 0..PATH_FULL {
            compressor.submit(Instant::now());
        }
        assert!(compressor.packer().decide(&text).is_some());
    }

    #[test]
    fn old_measurement_of_the_path_is_forgotten() {
        let compressor = with_rates(Compression::Auto, 0, 3_600);
        let mut packer = compressor.packer();
        let text = text(1_000);
        let count = (0..2 * BLIND_DECISIONS_MAX).filter(|_| packer.decide(&text).is_some()).count();
        // The first ones after that are those of an unknown path.
        assert_eq!(count as u32, BLIND_DECISIONS_MAX + PATH_FULL);
    }

    #[test]
    fn auto_compresses_only_if_the_channels_stay_the_slowest_part() {
        let text = text(1 << 20);
        for (fill, send, is_compressed) in
            // The processor compresses a MiB in less than 100 s.
            [(0, 3_600, true), (0, 0, false), (3_500, 2_000, true), (3_600, 1_700, false)]
        {
            let compressor = with_rates(Compression::Auto, fill, send);
            let packed = compressor.packer().decide(&text).is_some();
            assert_eq!(packed, is_compressed, "fill {fill}, send {send}");
            assert_eq!(compressor.packer().decide(&noise(1 << 20)), None);
        }
    }

    #[test]
    fn auto_follows_the_rate_of_the_network() {
        let compressor = with_rates(Compression::Auto, 0, 3_600);
        let (plain, mut packer) = (text(1 << 20), compressor.packer());
        assert!(packer.decide(&plain).is_some());
        // The old rate fades.
        send(&compressor, 1 << 30, Duration::from_nanos(1));
        assert_eq!(packer.decide(&plain), None);
        send(&compressor, 1 << 30, Duration::from_secs(3_600));
        let compressed = (0..=SAMPLE_PAUSE_MAX).position(|_| packer.decide(&plain).is_some());
        assert_eq!(compressed, Some(1), "a short pause after one plain block");
    }

    #[test]
    fn pauses_between_samples_grow_up_to_a_limit() {
        let mut pause = Pause::default();
        let mut lens = Vec::new();
        for _ in 0..7 {
            pause.begin();
            lens.push(std::iter::from_fn(|| pause.holds().then_some(())).count());
        }
        assert_eq!(lens, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn sample_comes_from_all_parts_of_a_block() {
        let compressor = with_rates(Compression::Auto, 0, 3_600);
        let mixed = [noise(1 << 18), text(1 << 20), noise(1 << 18)].concat();
        assert!(compressor.packer().decide(&mixed).is_some());
        // Short blocks are samples as a whole.
        assert!(compressor.packer().decide(&text(100)).is_some());
        assert_eq!(compressor.packer().decide(&[]), None);
    }

    #[test]
    fn never_and_always_do_not_ask_for_the_rate() {
        let plain = text(1 << 20);
        assert_eq!(with_rates(Compression::Never, 0, 3_600).packer().decide(&plain), None);
        assert!(with_rates(Compression::Always, 0, 0).packer().decide(&plain).is_some());
    }

    proptest! {
        #[test]
        fn arbitrary_payloads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut plain = [0; 1_000];
            if let Ok(len) = Decoder::default().decompress(&bytes, &mut plain) {
                prop_assert!(len <= plain.len());
            }
        }
    }
}
