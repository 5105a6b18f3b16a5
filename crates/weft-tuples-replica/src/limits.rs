//! Limits and times of the whole crate.

use std::time::Duration;

/// The most servers of a group.
pub const SERVERS_MAX: usize = 7;
/// The longest name of a server in bytes.
pub const NAME_LEN_MAX: usize = 64;
/// The shortest secret in bytes.
pub const SECRET_LEN_MIN: usize = 16;
/// The longest file that describes a group, in bytes.
pub const GROUP_FILE_LEN_MAX: u64 = 64 << 10;
/// The most bytes of effects in one entry of the log. A longer proposal has several entries.
pub const PART_LEN_MAX: usize = 1 << 20;
/// The most parts of a proposal.
pub const PARTS_MAX: u32 = 1 << 10;
/// Entries of this length in all are sent to a follower at once, or a single one.
pub const SENT_LEN_MAX: usize = 1 << 20;
/// The most entries that are sent to a follower at once.
pub const SENT_ENTRIES_MAX: u64 = 256;
/// The most bytes of a snapshot that are sent at once.
pub const SNAPSHOT_CHUNK_LEN: u64 = 1 << 20;
/// The longest message between two servers in bytes.
pub const FRAME_LEN_MAX: usize = 4 << 20;
/// The most connections that other servers have to this one, and peers that are none.
pub const CONNECTIONS_MAX: usize = 64;
/// What the log may tell the event loop before it waits for the loop.
pub const MESSAGES_MAX: usize = 256;
/// The most messages that the event loop takes up before it serves clients.
pub const FOLLOWED_MAX: usize = 1 << 10;
/// Entries that are kept behind a snapshot for followers that are late.
pub const KEPT_ENTRIES: u64 = 64;
/// The leader tells its followers this often that it is there. Each message must arrive and be
/// written within this time.
pub const HEARTBEAT: Duration = Duration::from_millis(150);
/// A follower that has got nothing for the longer of these, and then for a random time between
/// both, wants to be the leader.
pub const ELECTION: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(450)];
/// Time in which a proposal has to be agreed on. After that its clients have to look for the
/// leader.
pub const PROPOSAL_TIME_MAX: Duration = Duration::from_millis(1_500);
/// More time for each part of a long proposal.
pub const PART_TIME: Duration = Duration::from_millis(100);
/// A leader without answers from a majority for this time lets clients look for another one.
pub const QUORUM_TIME_MAX: Duration = Duration::from_millis(1_000);
/// How often a server looks whether it still is the leader.
pub const ROLE_INTERVAL: Duration = Duration::from_millis(50);
/// Pause before a server that could not be reached is tried again.
pub const BACKOFF: Duration = Duration::from_millis(100);
/// Time for both ends of a new connection to prove that they know the secret.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Time to send a part of a snapshot; the last part is installed in it.
pub const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause after a connection could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
