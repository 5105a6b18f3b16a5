//! Limits, sizes and times of the whole crate.

use std::time::Duration;

/// The default TCP port of `weft serve`.
pub const PORT: u16 = 29_338;

/// Processors of a machine; copies are not bound to those with higher numbers.
pub const CPUS_MAX: usize = 1_024;
/// The most network interfaces between one with an address and its device, such as a VLAN of a
/// bond, that are searched.
pub const LOWER_DEVICES_MAX: u32 = 4;

/// The longest header of a block in bytes.
pub const HEAD_LEN_MAX: usize = 64;
/// The longest control message in bytes.
pub const CONTROL_LEN_MAX: usize = 64 << 10;
/// Control messages that may be queued between two ends in one process.
pub const MEMORY_CONTROL_MAX: usize = 1_024;

/// The most bytes of a data channel that one frame of a pipe carries.
pub const PIPE_FRAME_LEN_MAX: usize = 64 << 10;
/// Block size over a pipe. It is small because a remote shell may buffer much of the data.
pub const PIPE_BLOCK_SIZE: u32 = 256 << 10;

/// The longest time that each of two steps of connecting over RDMA may take. The peer waits
/// meanwhile, and must not take this end for lost.
pub const RDMA_CONNECT_TIME: Duration = Duration::from_secs(8);
/// How often an idle source looks whether its data channels are up.
pub const CHANNEL_CHECK: Duration = Duration::from_secs(1);
/// How long an end without data channels waits for the peer to end the session before it connects
/// others. A source's end waits longer for the reason (`REASON_WAIT`).
pub const SPARE_WAIT: Duration = Duration::from_secs(1);
/// Blocks that a source has under way on one data channel over RDMA.
pub const RDMA_SLOTS: u32 = 4;
/// Alignment of the buffers of blocks over RDMA, in bytes: a page.
pub const RDMA_ALIGNMENT: usize = 4_096;

/// Number of data channels of a copy over the fabric.
pub const FABRIC_CHANNELS: u16 = 2;
/// Blocks that a source has under way on one data channel over the fabric.
pub const FABRIC_SLOTS: usize = 4;
/// Bytes of the longest message on a data channel over the fabric.
pub const FABRIC_MESSAGE_MAX: usize = 256;
/// The longest time of each step of connecting over the fabric. The peer waits meanwhile, and must
/// not take this end for lost.
pub const FABRIC_TIME: Duration = Duration::from_secs(8);

/// The longest component of a path in bytes, Linux's limit.
pub const NAME_LEN_MAX: usize = 255;
/// The longest target of a symbolic link in bytes, Linux's limit.
pub const LINK_TARGET_LEN_MAX: usize = 4095;
/// The most levels of nested directories, the root included.
pub const DEPTH_MAX: usize = 2_000;
/// The most extended attributes of one file.
pub const XATTRS_MAX: usize = 256;
/// The longest value of an extended attribute in bytes, Linux's limit.
pub const XATTR_VALUE_LEN_MAX: usize = 1 << 16;
/// The most bytes of names and values of all extended attributes of one file.
pub const XATTRS_LEN_MAX: usize = 1 << 17;
/// The longest record table of a block in bytes.
pub const TABLE_LEN_MAX: usize = 1 << 20;
/// The longest name of a user or group in bytes.
pub const OWNER_NAME_LEN_MAX: usize = 255;
/// The most numeric owners that one session names.
pub const OWNERS_MAX: usize = 1 << 16;
/// The most entry numbers that one answer of the sink spans.
pub const WANTS_SPAN_MAX: usize = 1 << 16;
/// The most pieces of one partly received file that the sink reports. The source sends the rest
/// again.
pub const HAVE_PIECES_MAX: usize = 64;
/// The most pieces of all files in one answer of the sink.
pub const HAVE_PIECES_ALL_MAX: usize = 1 << 9;
/// The shortest pieces into which the sink splits what it has of a file. The source sends a piece
/// again if one of its bytes is different.
pub const HAVE_PIECE_LEN: u64 = 16 << 20;

/// The most files that the source offers in one block.
pub const OFFERS_IN_BLOCK_MAX: usize = 2_048;
/// The most offered files that the sink has not answered.
pub const OFFERS_MAX: usize = 1 << 15;
/// The most file descriptors that the source keeps open between planning and reading.
pub const PLANNED_FILES_OPEN_MAX: usize = 256;
/// Length of the buffer of a thread that reads or writes files directly.
pub const DIRECT_BUFFER_LEN: usize = 1 << 20;
/// The smallest file that is read or written directly. Smaller ones cost more calls than they save.
pub const DIRECT_FILE_LEN_MIN: u64 = 1 << 20;
/// The largest file that the source sends in one record.
pub const WHOLE_FILE_LEN_MAX: usize = 256 << 10;
/// The smallest file whose parts the kernel sends from the page cache.
pub const EXTENT_FILE_LEN_MIN: u64 = 4 << 20;
/// The smallest part of a file that the kernel sends from the page cache.
pub const EXTENT_LEN_MIN: usize = 64 << 10;
/// The most files whose ends wait until all parts have arrived. Each holds a descriptor.
pub const EXTENT_FILES_MAX: usize = 64;
/// The most bytes of one read of a file that the kernel does not send itself.
pub const EXTENT_READ_LEN: usize = 64 << 10;
/// The most bytes that one block has the kernel copy. A larger number delays the end of a stopped
/// copy.
pub const COPIES_IN_BLOCK_MAX: u64 = 16 << 20;
/// Length of the sample of a block that shows whether compression pays.
pub const COMPRESS_SAMPLE_LEN: usize = 16 << 10;
/// The pieces of a sample, which come from all over the block.
pub const COMPRESS_SAMPLES: usize = 4;
/// The most blocks of one thread that go plain without a sample.
pub const SAMPLE_PAUSE_MAX: u32 = 16;
/// Full blocks that wait for the network at least when the network limits the rate.
pub const PATH_FULL: u32 = POOL_BLOCKS / 4;
/// The most decisions on compression by an old rate of the network.
pub const BLIND_DECISIONS_MAX: u32 = 512;
/// The rates that decide on compression are those of at most about twice as many bytes.
pub const RATE_MEMORY: u64 = 16 << 20;
/// The most files that one block begins for the kernel to copy: each stays open until the sink has
/// copied it.
pub const COPIED_FILES_IN_BLOCK_MAX: usize = 4;
/// Length of the buffer for a range that the kernel does not copy.
pub const COPY_BUFFER_LEN: usize = 256 << 10;
/// The most directory descriptors that each end keeps open.
pub const DIRECTORIES_CACHED_MAX: usize = 64;
/// The most directories for what is replaced that a sink keeps open.
pub const BACKUP_DIRECTORIES_OPEN_MAX: usize = 32;
/// The most entries of a source that wait to be removed until the sink has them.
pub const REMOVALS_WAITING_MAX: usize = 500_000;
/// The most entries that a sink has, and has not reported to a source that removes them.
pub const CONFIRMED_WAITING_MAX: usize = 10 * REMOVALS_WAITING_MAX;
/// The most numbers of entries in one note that the sink has them.
pub const NUMBERS_IN_NOTE_MAX: usize = 1024;
/// The most small files that one task of the sink writes.
pub const FILES_IN_TASK_MAX: usize = 16;
/// The most incomplete files at the sink. Each holds a descriptor.
pub const FILES_BEGUN_MAX: usize = 128;
/// The most incomplete directories at the sink.
pub const DIRECTORIES_BEGUN_MAX: usize = 1 << 16;
/// The most files with several hard links that the sink remembers.
pub const LINKED_FILES_MAX: usize = 1 << 22;
/// The most names that the sink remembers at a time. It uses them to delete other names, to find
/// names that differ only in case, and to create hard links once their target is written.
pub const NAMES_KEPT_MAX: usize = 1 << 22;
/// The most disjoint ranges of one file at the sink. The source sends parts in order; only the
/// ranges that an earlier session wrote leave gaps.
pub const RANGES_MAX: usize = 1 << 12;
/// The longest record of a journal in bytes.
pub const JOURNAL_RECORD_LEN_MAX: usize = 1 << 16;
/// Bytes of a journal that are read. The source sends again what later records cover.
pub const JOURNAL_LEN_MAX: u64 = 1 << 30;
/// The most files that a journal names.
pub const JOURNAL_FILES_MAX: usize = 1 << 20;

/// Width of the replay window in blocks: an older block counts as replayed. It is a multiple of 64
/// and larger than any pool.
pub const REPLAY_WINDOW_MAX: u64 = 1 << 16;
/// The most blocks that the keys of one direction of one session seal.
pub const SEALS_MAX: u64 = 1 << 48;
/// Bytes of one read of a control channel.
pub const CONTROL_READ_LEN: usize = 16 << 10;
/// Default time without progress after which a channel has failed.
pub const STALL_TIME: Duration = Duration::from_secs(60);
/// The longest time that connecting and the handshake may take.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(20);
/// The longest sleep of a thread under a rate limit before it checks whether it should stop.
pub const RATE_SLEEP_MAX: Duration = Duration::from_millis(50);
/// Bytes of one read of a block that the receiver discards.
pub const DROP_READ_LEN: usize = 64 << 10;

/// The version of the transfer protocol.
pub const VERSION: u16 = 1;
/// The smallest block size in bytes of payload.
pub const BLOCK_SIZE_MIN: u32 = 4 << 10;
/// The largest block size in bytes of payload.
pub const BLOCK_SIZE_MAX: u32 = 64 << 20;
/// The longest body of a control message in bytes. Body and header have 64 KiB together.
pub const BODY_LEN_MAX: u32 = (64 << 10) - 16;
/// The longest error text in bytes.
pub const TEXT_LEN_MAX: usize = 1 << 10;
/// The longest job description, and the longest answer to one, in bytes.
pub const JOB_LEN_MAX: usize = 60 << 10;
/// The longest message of records in bytes.
pub const RECORDS_LEN_MAX: usize = 60 << 10;
/// The most credits in one message.
pub const GRANTS_MAX: usize = 1_024;
/// The most ranges of acknowledged blocks in one message.
pub const ACK_RANGES_MAX: usize = 512;
/// The most buffers of a sink's pool, and the most credits of a source.
pub const BUFFERS_MAX: u32 = 1 << 16;
/// The most data channels of a connection at a time.
pub const CHANNELS_MAX: u16 = 256;
/// Window of the records in bytes: those that are sent and that the receiver has not taken.
pub const RECORDS_WINDOW: u64 = 1 << 20;
/// The most sessions of one control channel at a time.
pub const SESSIONS_MAX: usize = 1_024;
/// Silence of the peer after which an end sends it a ping.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Silence of the peer after which an end considers it gone.
pub const SILENCE_MAX: Duration = Duration::from_secs(40);
/// The most offers that one task of the sink checks.
pub const OFFERS_IN_TASK_MAX: usize = 256;
/// The most bytes of small files that one task of the sink writes.
pub const BYTES_IN_TASK_MAX: usize = 256 << 10;
/// Linux's highest error number.
pub const ERRNO_MAX: u32 = 4_095;

/// The most connections to a listener beside a pipe whose first bytes have not come.
pub const STRANGERS_MAX: usize = 32;
/// The longest time for a connection beside a pipe. A packet filter may discard it without an
/// answer, and small copies should not wait for that.
pub const BESIDE_TIME_MAX: Duration = Duration::from_secs(3);
/// The shortest time for a connection beside a pipe. A busy host may need some of it.
pub const BESIDE_TIME_MIN: Duration = Duration::from_secs(1);
/// The time for a connection beside a pipe, in round trips of the pipe.
pub const BESIDE_ROUND_TRIPS: u32 = 4;

/// How often an acceptor that works for an initiator answers it: more often than one that counts
/// as lost after a second wants to hear of it.
pub const ALIVE_INTERVAL: Duration = Duration::from_millis(200);
/// The longest time of each step of connecting a data channel to another server. The client waits
/// meanwhile.
pub const GRANT_STEP_TIME: Duration = Duration::from_secs(3);
/// How long a grant can be used: the source's server finds its files and connects in this time.
pub const GRANT_TIME: Duration = Duration::from_secs(60);
/// The most networks to which a server may connect data channels.
pub const NETWORKS_MAX: usize = 256;
/// Messages that wait for one server until the other one may send more, in a copy that goes
/// directly between two.
pub const BRIDGE_MESSAGES_MAX: usize = 256;
/// How often the source of such a copy reports its progress to the client.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Block size of a copy in bytes.
pub const BLOCK_SIZE: u32 = 1 << 20;
/// The smallest block size that an acceptor accepts.
pub const BLOCK_SIZE_LEAST: u32 = 64 << 10;
/// Blocks in the pool of each end of a copy over a short path. The pool bounds the data in flight.
pub const POOL_BLOCKS: u32 = 32;
/// The most blocks in the pool of each end of a copy.
pub const POOL_BLOCKS_MAX: u32 = 256;
/// Bytes per second for which a copy has enough blocks and connections, whatever the path's delay:
/// 20 Gbit/s.
pub const PATH_RATE: u64 = 2_500_000_000;
/// Bytes that one TCP connection has in flight. Linux limits its send buffer to 4 MiB by default,
/// and the buffer also contains what waits to be sent.
pub const CHANNEL_FLIGHT: u64 = 4 << 20;
/// Round trip from which on data channels prefer [`LONG_PATH_CONGESTION`].
pub const LONG_PATH: Duration = Duration::from_millis(5);
/// The congestion control of data channels over a long path. It does not take each lost packet for
/// a full queue; algorithms that do need seconds to grow again.
pub const LONG_PATH_CONGESTION: &str = "bbr";
/// The longest name of a congestion control in bytes, Linux's limit.
pub const CONGESTION_LEN_MAX: usize = 15;
/// The most writes that a data channel has at a time.
pub const WRITES_IN_CHANNEL_MAX: u32 = 2;
/// The most data channels of one copy.
pub const CHANNELS_EACH_MAX: u16 = 16;
/// The most threads of one end that read or write files.
pub const END_THREADS_MAX: usize = 8;
/// The most queued tasks of the sink.
pub const TASKS_MAX: usize = 256;
/// The most problems that the sink describes to the source. It counts all of them.
pub const PROBLEMS_SENT_MAX: u32 = 1_000;
/// The most answers to offers that wait until the source has taken earlier ones.
pub const ANSWERS_WAITING_MAX: usize = 64;
/// Bytes of planned changes that a dry run's sink collects before it sends them.
pub const PLAN_NOTE_LEN: usize = 16 << 10;
/// The longest path in a note in bytes.
pub const NOTE_PATH_LEN_MAX: usize = 8 << 10;
/// The most directories of a source by which a sink sees that it is in one of them.
pub const ORIGINS_MAX: usize = 256;
/// The most paths of one request.
pub const PATHS_MAX: usize = 4_096;
/// The most other directories of one request to whose files the sink may link: those of rsync.
pub const THIRDS_MAX: usize = 20;
/// The most changes of modes of one request.
pub const MODE_CHANGES_MAX: usize = 256;
/// The most patterns of one request.
pub const PATTERNS_MAX: usize = 1_024;
/// The longest wait of an end for its peer to read the last message.
pub const LINGER_TIME: Duration = Duration::from_secs(5);
/// How long a source without data channels waits for the sink's reason.
pub const REASON_WAIT: Duration = Duration::from_secs(5);
/// The shortest sleep of a thread that sends control messages.
pub const SENDER_WAIT_MIN: Duration = Duration::from_millis(1);
/// How long a thread that accepts data channels waits before it checks whether the session is over.
pub const CHANNEL_WAIT: Duration = Duration::from_millis(100);
/// Number of data channels of a copy over TCP, if the path is short.
pub const TCP_CHANNELS: u16 = 2;
/// Number of data channels of a copy over RDMA.
pub const RDMA_CHANNELS: u16 = 2;
/// Number of data channels of a copy within one process.
pub const LOCAL_CHANNELS: u16 = 2;
/// The most connections of a server at a time, data channels included.
pub const CONNECTIONS_MAX: usize = 512;
/// The most copies of the clients of one host at a time.
pub const COPIES_OF_HOST_MAX: usize = CONNECTIONS_MAX / 2;
/// How long a copy waits for a place within the limits of its user or share.
pub const PLACE_WAIT: Duration = Duration::from_secs(1);
/// The descriptors that a server needs for each connection of a stranger.
pub const DESCRIPTORS_EACH: usize = 2;
/// The connections beyond [`CONNECTIONS_MAX`] whose clients learn that the server is busy.
pub const BUSY_MAX: usize = 32;
/// How long a server waits for a refused client to read why.
pub const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// The most bytes of a refused client that a server discards.
pub const REFUSED_LEN_MAX: usize = 64 << 10;
/// Further copies for which a server keeps connections when it grants a copy's channels.
pub const COPIES_EXPECTED: usize = 32;
/// Pause after a connection was closed to make room for another one.
pub const CLOSE_PAUSE: Duration = Duration::from_millis(1);
/// How long a server waits before it retries a failed accept.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a hard link is tried whose target other copies replace meanwhile.
pub(crate) const LINK_TRIES_MAX: u32 = 100;

/// The smallest files of which the sink describes another version.
pub const DELTA_LEN_MIN: u64 = 1 << 20;
/// The shortest and the longest blocks of such a description.
pub const DELTA_BLOCK_LEN_MIN: u32 = 4 << 10;
/// See [`DELTA_BLOCK_LEN_MIN`].
pub const DELTA_BLOCK_LEN_MAX: u32 = 1 << 20;
/// The most blocks of a description.
pub const DELTA_BLOCKS_MAX: usize = 1 << 18;
/// The most blocks that a source remembers of files that it has not begun to send. Other files are
/// sent as a whole.
pub const DELTA_BLOCKS_WAITING_MAX: usize = 1 << 21;
/// The blocks in one note.
pub const DELTA_BLOCKS_IN_NOTE: usize = 4_000;
/// The most bits of a rolling hash that a filter looks at.
pub const DELTA_FILTER_BITS_MAX: u32 = 22;
/// Bytes that are read at once to describe a file.
pub const DELTA_READ_LEN: usize = 1 << 20;
/// The longest part of a file that is made of another version.
pub const DELTA_PART_LEN_MAX: u32 = 1 << 20;
