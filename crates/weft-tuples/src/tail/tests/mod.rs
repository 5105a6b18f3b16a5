//! A slot whose words are written and read one by one in any order, and the table of slots.

use fastrand::Rng;
use smallvec::smallvec;

use super::slot::{Last, Looks, SLOT_LEN, Version, offset};
use crate::limits::TAIL_HALF_LEN;
use crate::model::{Item, Rank};

/// Random runs; more of them with `WEFT_SIM_SEEDS`.
const SEEDS: u64 = 3_000;
const WORD: usize = 8;
/// Bytes of a half that versions of these tests use.
const USED: usize = 128;
const USAGE: u64 = 7;

fn seeds() -> u64 {
    std::env::var("WEFT_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// The tuple of a version, whose length differs from that of others.
fn item(number: u64) -> Item {
    let field = number.to_string().repeat(1 + number as usize % 5).into_bytes();
    let rank = Rank { position: number as i64, ..Rank::default() };
    Item { rank, fields: smallvec![field] }
}

fn encode(number: u64) -> Vec<u8> {
    let item = item(number);
    Version::encode(number, USAGE, number, Some((&item.rank, &item.fields)))
}

/// The words of a version, with their places in the slot, in a random order.
fn words(rng: &mut Rng, number: u64) -> Vec<(usize, Vec<u8>)> {
    let bytes = encode(number);
    assert!(bytes.len() <= USED);
    let place = |(at, word): (usize, &[u8])| (offset(number) + at * WORD, word.to_vec());
    let mut words: Vec<_> = bytes.chunks(WORD).enumerate().map(place).collect();
    rng.shuffle(&mut words);
    words
}

struct Server {
    memory: Vec<u8>,
    /// The last version that is whole.
    whole: u64,
    /// What is left to write of the next one.
    left: Vec<(usize, Vec<u8>)>,
    /// Steps until it is stopped for good.
    steps: u64,
}

impl Server {
    fn new(steps: u64) -> Self {
        let mut memory = vec![0; SLOT_LEN];
        for number in [0, 1] {
            let bytes = encode(number);
            memory[offset(number)..][..bytes.len()].copy_from_slice(&bytes);
        }
        Self { memory, whole: 1, left: Vec::new(), steps }
    }

    /// Writes a word.
    fn step(&mut self, rng: &mut Rng) {
        if self.steps == 0 {
            return;
        }
        self.steps -= 1;
        if self.left.is_empty() {
            self.left = words(rng, self.whole + 1);
        }
        if let Some((at, word)) = self.left.pop() {
            self.memory[at..at + word.len()].copy_from_slice(&word);
        }
        // What is left may be words that are there already.
        let (next, at) = (encode(self.whole + 1), offset(self.whole + 1));
        if self.memory[at..at + next.len()] == next {
            self.whole += 1;
            self.left.clear();
        }
    }
}

/// One read of a tail.
struct Read {
    looks: Looks,
    /// The version that was whole when it began.
    first: u64,
    copy: Vec<u8>,
    left: Vec<usize>,
    count: usize,
}

impl Read {
    fn new(server: &Server) -> Self {
        let (looks, first, copy) = (Looks::default(), server.whole, vec![0; SLOT_LEN]);
        Self { looks, first, copy, left: Vec::new(), count: 0 }
    }

    /// Reads a word. Returns the version, when there is one.
    fn step(&mut self, server: &Server, rng: &mut Rng) -> Option<Version> {
        if self.left.is_empty() {
            let first = (0..USED).step_by(WORD);
            self.left = first.clone().chain(first.map(|at| TAIL_HALF_LEN + at)).collect();
            rng.shuffle(&mut self.left);
        }
        let at = self.left.pop()?;
        self.copy[at..at + WORD].copy_from_slice(&server.memory[at..at + WORD]);
        if !self.left.is_empty() {
            return None;
        }
        self.count += 1;
        self.looks.look(&self.copy)
    }
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut server = Server::new(rng.u64(..600));
    // How often the server writes a word while one is read.
    let share = rng.u64(1..8);
    for _ in 0..20 {
        let (mut read, mut stopped_at) = (Read::new(&server), None);
        let found = loop {
            if rng.u64(..8) < share {
                server.step(&mut rng);
            }
            if let Some(found) = read.step(&server, &mut rng) {
                break found;
            }
            if server.steps == 0 {
                let stopped_at = *stopped_at.get_or_insert(read.count);
                assert!(read.count < stopped_at + 4, "stopped, and not read; WEFT_SIM_SEED={seed}");
            }
        };
        let Last::Tuple(tuple) = &found.seen.last else { panic!("WEFT_SIM_SEED={seed}: none") };
        let number = found.number;
        assert!(
            *tuple == item(number) && found.seen.len == number && found.usage == USAGE,
            "torn: {found:?}; WEFT_SIM_SEED={seed}"
        );
        assert!(
            (read.first..=server.whole).contains(&number),
            "{number} was not the tail meanwhile, but {} to {}; WEFT_SIM_SEED={seed}",
            read.first,
            server.whole
        );
    }
}

#[test]
fn readers_see_whole_tails_of_their_time_while_the_server_writes_or_is_stopped() {
    match std::env::var("WEFT_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run(seed),
        None => (0..seeds()).for_each(run),
    }
}

#[test]
fn long_and_missing_tuples_are_named() {
    let rank = Rank { position: -3, ..Rank::default() };
    for (len, is_long) in [(0, false), (1_972, false), (1_973, true), (1 << 20, true)] {
        let fields = smallvec![vec![7; len]];
        let bytes = Version::encode(1, 2, 3, Some((&rank, &fields)));
        assert!(bytes.len() <= TAIL_HALF_LEN);
        let found = Version::decode(&bytes, true).expect("whole").seen;
        let expected = match is_long {
            true => Last::Long(-3),
            false => Last::Tuple(Item { rank: rank.clone(), fields }),
        };
        assert_eq!((found.len, found.last), (3, expected), "{len}");
    }
    let none = Version::decode(&Version::encode(0, 2, 0, None), false).expect("whole").seen;
    assert_eq!(none.last, Last::None);
}

#[test]
fn changed_bytes_are_no_version() {
    let bytes = encode(5);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert_eq!(Version::decode(&changed, true), None, "byte {at}");
        }
    }
    assert_eq!(Version::decode(&bytes, false), None);
    for len in 0..bytes.len() {
        assert_eq!(Version::decode(&bytes[..len], true), None, "{len} bytes");
    }
}
