//! How much there is of everything.

use std::time::Duration;

/// The TCP port of `weft serve` unless another is named.
pub const PORT: u16 = 29_338;

/// Workers of all stages of a pipeline together, unless another number is asked for.
pub const PIPELINE_THREADS_MAX: usize = 64;
/// How often the monitor of a pipeline looks at its stages.
pub const MONITOR_INTERVAL: Duration = Duration::from_millis(20);
/// Intervals in a row in which a stage has to be short of workers to get one.
pub const MONITOR_SHORT_MAX: u32 = 2;
/// Intervals in a row in which a stage has to have one worker too many to lose one.
pub const MONITOR_SLACK_MAX: u32 = 5;
/// Intervals over which the rate of a stage with one more worker is measured.
pub const MONITOR_TRIAL: u32 = 2;
/// Intervals in which a stage gets no worker after one did not help.
pub const MONITOR_HOLD: u32 = 50;
/// Results that a parallel stage holds back at most, to keep their order.
pub const ORDER_WINDOW_MAX: usize = 256;
/// How long an asynchronous stage waits for completions before it looks at its queue again, should
/// the wakeup be lost.
pub const ENGINE_WAIT_MAX: Duration = Duration::from_millis(100);

/// Bytes of a block's header.
pub const HEAD_LEN_MAX: usize = 64;
/// Bytes of a control message.
pub const CONTROL_LEN_MAX: usize = 64 << 10;
/// Control messages that are on the way between two ends in one process.
pub const MEMORY_CONTROL_MAX: usize = 1_024;

/// Bytes of the data channel in one frame of a pipe.
pub const PIPE_FRAME_LEN_MAX: usize = 64 << 10;
/// Bytes of a block that goes over a pipe, where much may be on the way in buffers of a remote
/// shell.
pub const PIPE_BLOCK_SIZE: u32 = 256 << 10;

/// Bytes of one component of a path: what Linux allows.
pub const NAME_LEN_MAX: usize = 255;
/// Bytes of what a symbolic link says: what Linux allows.
pub const LINK_TARGET_LEN_MAX: usize = 4095;
/// Directories within directories, the root being the first.
pub const DEPTH_MAX: usize = 2_000;
/// Extended attributes of one file.
pub const XATTRS_MAX: usize = 256;
/// Bytes of the value of one extended attribute: what Linux allows.
pub const XATTR_VALUE_LEN_MAX: usize = 1 << 16;
/// Bytes of names and values of all extended attributes of one file.
pub const XATTRS_LEN_MAX: usize = 1 << 17;
/// Bytes of the table of records of one block.
pub const TABLE_LEN_MAX: usize = 1 << 20;
/// Bytes of the name of a user or a group.
pub const OWNER_NAME_LEN_MAX: usize = 255;
/// Numeric owners that one session names.
pub const OWNERS_MAX: usize = 1 << 16;
/// Numbers of entries that one answer of the sink spans.
pub const WANTS_SPAN_MAX: usize = 1 << 16;
/// Ranges of one file that the sink says it has; a file with more is sent again in part.
pub const HAVE_RANGES_MAX: usize = 64;
/// Ranges of all files that one answer of the sink says it has.
pub const HAVE_RANGES_ALL_MAX: usize = 1 << 11;

/// Files that the source offers in one block.
pub const OFFERS_IN_BLOCK_MAX: usize = 2_048;
/// Files that the source has offered without an answer.
pub const OFFERS_MAX: usize = 1 << 15;
/// Descriptors of files that the source keeps open between planning and reading.
pub const PLANNED_FILES_OPEN_MAX: usize = 256;
/// Size of the largest file that goes as a whole, in one record.
pub const WHOLE_FILE_LEN_MAX: usize = 256 << 10;
/// Descriptors of directories that each end keeps open.
pub const DIRECTORIES_CACHED_MAX: usize = 64;
/// Small files that one task of the sink writes.
pub const FILES_IN_TASK_MAX: usize = 16;
/// Files that the sink has begun and not ended, each with a descriptor.
pub const FILES_BEGUN_MAX: usize = 128;
/// Directories that the sink has begun and not ended.
pub const DIRECTORIES_BEGUN_MAX: usize = 1 << 16;
/// Files with several names that the sink remembers.
pub const LINKED_FILES_MAX: usize = 1 << 22;
/// Names that the sink remembers at a time, so as to delete what is not among them, to tell names
/// that differ in case, and to make them when the file is there that they are other names of.
pub const NAMES_KEPT_MAX: usize = 1 << 22;
/// Ranges of one file that the sink has and that do not touch. Parts come in their order: what an
/// earlier session has left makes the gaps.
pub const RANGES_MAX: usize = 1 << 12;
/// Bytes that the sink writes before it makes them durable and the journal says so.
pub const DURABLE_EACH: u64 = 256 << 20;
/// Bytes of one record of the journal.
pub const JOURNAL_RECORD_LEN_MAX: usize = 1 << 16;
/// Bytes of a journal that are read: what is behind is sent again.
pub const JOURNAL_LEN_MAX: u64 = 1 << 30;
/// Files that a journal names.
pub const JOURNAL_FILES_MAX: usize = 1 << 20;

/// How far behind the last block one may come and be known from a replayed one, in blocks. A
/// multiple of 64, and more than any pool has.
pub const REPLAY_WINDOW_MAX: u64 = 1 << 16;
/// Blocks that are sealed under the keys of one direction of one session.
pub const SEALS_MAX: u64 = 1 << 48;
/// Bytes that a control channel reads at once.
pub const CONTROL_READ_LEN: usize = 16 << 10;
/// Without progress for so long, a channel has failed, unless another time is asked for.
pub const STALL_TIME: Duration = Duration::from_secs(60);
/// How long connecting and shaking hands may take.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(20);
/// How long a thread that keeps a rate limit sleeps before it looks whether it should end.
pub const RATE_SLEEP_MAX: Duration = Duration::from_millis(50);
/// Bytes that are read at once of a block of no more use.
pub const DROP_READ_LEN: usize = 64 << 10;
/// Bytes of a pool of blocks that a peer on the same host passes.
pub const SEGMENT_LEN_MAX: usize = 1 << 40;

/// The version of the protocol.
pub const VERSION: u16 = 1;
/// Bytes of a block's payload, at least and at most.
pub const BLOCK_SIZE_MIN: u32 = 4 << 10;
/// The most.
pub const BLOCK_SIZE_MAX: u32 = 64 << 20;
/// Bytes of the body of a control message. With its header it has 64 KiB.
pub const BODY_LEN_MAX: u32 = (64 << 10) - 16;
/// Bytes of a text that says what is wrong.
pub const TEXT_LEN_MAX: usize = 1 << 10;
/// Bytes of the description of a job, and of the answer to it.
pub const JOB_LEN_MAX: usize = 60 << 10;
/// Bytes of one message of records for the layer above.
pub const RECORDS_LEN_MAX: usize = 60 << 10;
/// Credits in one message.
pub const GRANTS_MAX: usize = 1_024;
/// Ranges of acknowledged blocks in one message.
pub const ACK_RANGES_MAX: usize = 512;
/// Buffers of a sink's pool, and credits that a source holds.
pub const BUFFERS_MAX: u32 = 1 << 16;
/// Data channels at a time.
pub const CHANNELS_MAX: u16 = 256;
/// Bytes of records that are on the way to an end, or wait there to be taken.
pub const RECORDS_WINDOW: u64 = 1 << 20;
/// Sessions of one control channel at a time.
pub const SESSIONS_MAX: usize = 1_024;
/// A peer that has been silent for so long is asked for a sign of life.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A peer that has been silent for so long is gone.
pub const SILENCE_MAX: Duration = Duration::from_secs(40);

/// Subtrees of the hash of a file that a session takes over; one with more has no hash in the end.
pub const SUBTREES_CARRIED_MAX: usize = 1_024;
/// Offers that one task of the sink looks at.
pub const OFFERS_IN_TASK_MAX: usize = 256;
/// Bytes of small files that one task of the sink writes.
pub const BYTES_IN_TASK_MAX: usize = 256 << 10;
/// The highest error number of Linux.
pub const ERRNO_MAX: u32 = 4_095;

/// Bytes of a block that the ends of a copy use.
pub const BLOCK_SIZE: u32 = 1 << 20;
/// The least that an acceptor takes.
pub const BLOCK_SIZE_LEAST: u32 = 64 << 10;
/// Blocks of each end of a copy. It bounds what is on the way.
pub const POOL_BLOCKS: u32 = 32;
/// Writes that a data channel is given at a time.
pub const WRITES_IN_CHANNEL_MAX: u32 = 2;
/// Data channels of one copy.
pub const CHANNELS_EACH_MAX: u16 = 16;
/// Threads of one end that read or write files.
pub const END_THREADS_MAX: usize = 8;
/// Tasks of the sink that wait for a thread.
pub const TASKS_MAX: usize = 256;
/// Problems with entries that the sink reports to the source; all are counted.
pub const PROBLEMS_SENT_MAX: u32 = 1_000;
/// Answers to offers that wait until the source has taken those before.
pub const ANSWERS_WAITING_MAX: usize = 64;
/// Bytes of what a dry run would do that the sink tells the source together, at least.
pub const PLAN_NOTE_LEN: usize = 16 << 10;
/// Bytes of a path in a note.
pub const NOTE_PATH_LEN_MAX: usize = 8 << 10;
/// Paths of one request.
pub const PATHS_MAX: usize = 4_096;
/// Patterns of one request.
pub const PATTERNS_MAX: usize = 1_024;
/// How long an end waits for its peer to take its last word.
pub const LINGER_TIME: Duration = Duration::from_secs(5);
/// How long a thread that sends control messages sleeps at least.
pub const SENDER_WAIT_MIN: Duration = Duration::from_millis(1);
/// How long a thread that takes data channels waits before it looks whether the session is over.
pub const CHANNEL_WAIT: Duration = Duration::from_millis(100);
/// Data channels of a copy over TCP.
pub const TCP_CHANNELS: u16 = 2;
/// Data channels of a copy within a process.
pub const LOCAL_CHANNELS: u16 = 2;
/// Connections of a server at a time, data channels included.
pub const CONNECTIONS_MAX: usize = 512;
/// How long a server that can accept no connection waits before it tries again.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
