//! Limits of input sizes and waiting times.

/// Longest answer of a process: enough for the largest number of queue pairs that one can have.
pub(crate) const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Longest file that describes what is served.
pub(crate) const CONFIG_LEN_MAX: u64 = 1 << 20;
/// Longest request to a running target, in bytes.
pub(crate) const CONTROL_REQUEST_LEN_MAX: usize = 64 << 10;
/// Clients of a running target's control socket that are served at a time.
pub(crate) const CONTROL_CLIENTS_MAX: usize = 64;
/// Pause after a client could not be accepted.
pub(crate) const CONTROL_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// Time that a process may take to send its request to a running target.
pub(crate) const CONTROL_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);
/// Longest file of the persistent reservations of a unit.
pub(crate) const KEPT_LEN_MAX: u64 = 1 << 20;
/// Longest file of secrets of `weft target`, and of users of `weft tuples`.
pub(crate) const SECRETS_LEN_MAX: u64 = 1 << 20;
/// The most users of `weft tuples`: a token that is shown is compared with those of all.
pub(crate) const TUPLE_USERS_MAX: usize = 256;
/// Time until the second sample, because rates need two.
pub(crate) const FIRST_INTERVAL_MAX: std::time::Duration = std::time::Duration::from_millis(300);
/// Connections to a Unix socket that are not accepted yet.
pub(crate) const PENDING_MAX: i32 = 128;
/// Longest time for which `weft cp` connects again, in seconds: a day.
pub(crate) const RETRY_SECONDS_MAX: i64 = 24 * 60 * 60;
/// The longest silence of the other end that `weft cp --timeout` allows, in seconds: a day.
pub(crate) const TIMEOUT_SECONDS_MAX: i64 = 24 * 60 * 60;
/// The first pause before `weft cp` connects again, and the longest one.
pub(crate) const RETRY_PAUSES: [std::time::Duration; 2] =
    [std::time::Duration::from_millis(250), std::time::Duration::from_secs(5)];
/// Connections that one copy may lose.
pub(crate) const LOSSES_MAX: u32 = 1_000;
/// Tuples that `weft tuples watch` reads at once.
pub(crate) const TUPLES_AT_ONCE_MAX: u32 = 1_000;
/// How long a read of a tail may take, if the server's process has to answer it.
pub(crate) const TAIL_READ_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// The longest name of a user of `weft serve`.
pub(crate) const USER_NAME_LEN_MAX: usize = 64;
/// How deeply files of rules may name others.
pub(crate) const RULES_DEPTH_MAX: u32 = 10;
/// The most patterns with which a second try of a copy names entries; beyond, it copies all.
pub(crate) const RETRY_PATTERNS_MAX: usize = 200;
/// The most bytes of these patterns.
pub(crate) const RETRY_BYTES_MAX: usize = 20 << 10;
