//! Limits and sizes of the whole crate.

/// The longest name of an element in bytes.
pub const NAME_LEN_MAX: usize = 4 << 10;
/// The longest key of a tuple in bytes.
pub const KEY_LEN_MAX: usize = 4 << 10;
/// The most fields of a tuple.
pub const FIELDS_MAX: usize = 4 << 10;
/// The longest tuple in bytes: its key and its fields.
pub const TUPLE_LEN_MAX: usize = 16 << 20;
/// The most tuples of one put.
pub const PUT_TUPLES_MAX: usize = 64 << 10;
/// The most tuples that an operation gets at once or not at all.
pub const COUNT_MAX: u32 = 1 << 20;
/// The most bytes of the tuples that one operation returns, with the overhead of each
/// tuple and field.
pub const ANSWER_LEN_MAX: usize = 256 << 20;
/// The most elements that one operation names.
pub const NAMES_MAX: usize = 1 << 10;
/// The most elements of a space.
pub const ELEMENTS_MAX: usize = 1 << 20;
/// The most elements that clients follow in a space, each counted for each client.
pub const FOLLOWED_MAX: usize = 64 << 10;
/// The most commands of a transaction.
pub const TRANSACTION_COMMANDS_MAX: usize = 64 << 10;
/// The most operations that wait in a space.
pub const WAITING_MAX: usize = 64 << 10;
/// Bytes that are counted for each tuple and each element besides their contents.
pub const OVERHEAD_LEN: usize = 128;
/// Bytes that are counted for each field besides its contents.
pub const FIELD_OVERHEAD_LEN: usize = 32;
/// The most bytes that a space stores, unless the user sets another limit.
pub const MEMORY_MAX: usize = 1 << 30;
/// The largest position of a tuple. A server cannot put that many.
pub const POSITION_MAX: i64 = 1 << 62;
/// A snapshot cuts an element into effects that are longer than this by one tuple at most.
pub const EFFECT_LEN_MAX: usize = 1 << 20;
/// While this many bytes are to be logged, no more connections are served before.
pub const BATCH_LEN_MAX: usize = 64 << 20;
/// Bytes of a damaged log that are looked at together.
pub const SEARCH_LEN: usize = 64 << 10;
/// A log that has grown by this, and by the length of its snapshot, is replaced by another one with
/// a new snapshot, unless the user sets another length.
pub const LOG_LEN_MAX: u64 = 256 << 20;
/// The most clients whose answers are kept for a retry.
pub const CLIENTS_MAX: usize = 16 << 10;
/// The most answers that are kept for one client.
pub const ANSWERS_MAX: usize = 256;
/// The most bytes of the answers that are kept for all clients.
pub const KEPT_LEN_MAX: usize = 512 << 20;
/// A client that has been away for this time is forgotten if its place is needed.
pub const CLIENT_AWAY_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(600);
/// The longest command of the Redis protocol in bytes, without the lengths in it.
pub const COMMAND_LEN_MAX: usize = 64 << 20;
/// The most arguments of a command, with its name.
pub const ARGUMENTS_MAX: usize = PUT_TUPLES_MAX + 2;
/// The longest command in one line, in bytes.
pub const INLINE_LEN_MAX: usize = 64 << 10;
/// The longest line of a length, in bytes.
pub const LENGTH_LEN_MAX: usize = 32;
/// Space for what is received at once.
pub const READ_LEN: usize = 16 << 10;
/// While a connection has this much output, it begins no more operations.
pub const OUTPUT_LEN_MAX: usize = 1 << 20;
/// The longest request of Weft's own protocol in bytes.
pub const FRAME_LEN_MAX: usize = 72 << 20;
/// The most members of a list in an answer of that protocol.
pub const LIST_LEN_MAX: usize = ANSWER_LEN_MAX / OVERHEAD_LEN;
/// The longest answer of that protocol in bytes.
pub const ANSWER_FRAME_LEN_MAX: usize = ANSWER_LEN_MAX + (1 << 20);
/// The shortest token in bytes.
pub const TOKEN_LEN_MIN: usize = 16;
/// The longest token in bytes.
pub const TOKEN_LEN_MAX: usize = 1 << 10;
/// The longest file of certificates or of a key in bytes.
pub const PEM_LEN_MAX: u64 = 1 << 20;
/// Bytes that a session of TLS keeps for a socket that does not take them.
pub const TLS_OUTPUT_LEN_MAX: usize = 64 << 10;
/// Reads of a socket that bring a session of TLS nothing for the server, one after the other.
pub const TLS_EMPTY_READS_MAX: u32 = 64;
/// The most connections whose clients have not shown that they may use the server. One more ends
/// the oldest of them.
pub const UNPROVEN_MAX: usize = 256;
/// The time for a client to show that it may use the server.
pub const UNPROVEN_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// The most arguments of a command of such a client by the Redis protocol.
pub const UNPROVEN_ARGUMENTS_MAX: usize = 10;
/// The longest such command in bytes.
pub const UNPROVEN_COMMAND_LEN_MAX: usize = 16 << 10;
/// While such a client does not receive this much output, it is not served further.
pub const UNPROVEN_OUTPUT_LEN_MAX: usize = 4 << 10;
/// Bytes that may have arrived while a connection begins no more operations.
pub const INPUT_LEN_MAX: usize = 64 << 10;
/// The most connections, unless the user sets another limit.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Events that the server takes from the kernel at once.
pub const LOOP_EVENTS_MAX: usize = 256;
/// The TCP port of the server.
pub const PORT: u16 = 7_417;
/// Pause of a client before it connects again.
pub const RECONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// A client of several servers probes one that has said nothing for this time.
pub const SILENCE_TIME: std::time::Duration = std::time::Duration::from_millis(400);
/// After so many probes without an answer it takes another server.
pub const SILENCES_MAX: u32 = 2;
/// Then it does not try the silent one for this time, in which another server becomes the leader.
pub const SHUN_TIME: std::time::Duration = std::time::Duration::from_secs(2);
/// A client of several servers tries to connect to one address for this time.
pub const CONNECT_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(1);
/// Pause after a connection could not be accepted.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// A connection without traffic is probed after this time, to find peers that are gone.
pub const KEEPALIVE_IDLE: std::time::Duration = std::time::Duration::from_secs(60);
/// Bytes of the longest message of a connection by the fabric.
pub const FABRIC_MESSAGE_LEN_MAX: usize = 32 << 10;
/// A peer by the fabric that takes only shorter messages than this is refused.
pub const FABRIC_MESSAGE_LEN_LEAST: usize = 1 << 10;
/// Messages that an end of a connection by the fabric is ready to receive.
pub const FABRIC_WINDOW: usize = 16;
/// Messages that an end sends before the first of them has arrived.
pub const FABRIC_SENDS_MAX: usize = 32;
/// Registered buffers that a connection keeps for messages.
pub const FABRIC_BUFFERS_MAX: usize = 4;
/// The most connections by the fabric: each has memory for a window of messages, and descriptors.
pub const FABRIC_CONNECTIONS_MAX: usize = 1 << 10;
/// Turns of the server with news by the fabric, after which it asks the kernel for events, too.
pub const FABRIC_TURNS_MAX: u32 = 16;
/// Looks at the connections by the fabric, after which the server asks the kernel for events, too.
pub const FABRIC_LOOKS_MAX: u32 = 16;
/// Elements whose tails clients may read at a time.
pub const TAILS_MAX: usize = 1 << 10;
/// Bytes of one of the two copies of a tail. Longer tuples are not in it.
pub const TAIL_HALF_LEN: usize = 2 << 10;
/// The longest tuple in such a copy, in the protocol's bytes. A header and a checksum are
/// around it.
pub const TAIL_BODY_LEN_MAX: usize = TAIL_HALF_LEN - 32 - 8;
/// How often a reader looks at a tail that is being written each time.
pub const TAIL_LOOKS_MAX: usize = 1_000;
