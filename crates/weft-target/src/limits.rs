//! Limits and sizes of the whole crate.

use std::time::Duration;

/// The TCP port of iSCSI (RFC 7143, section 4.1).
pub const PORT: u16 = 3_260;

/// The longest data segment of a PDU that the target accepts in full feature phase, in bytes: its
/// `MaxRecvDataSegmentLength`.
pub const DATA_SEGMENT_LEN_MAX: usize = 256 << 10;
/// The longest data segment of a login request in bytes (RFC 7143, section 6.1).
pub const LOGIN_SEGMENT_LEN_MAX: usize = 8_192;
/// The most bytes of text that the requests of one login or one text exchange may carry.
pub const TEXT_LEN_MAX: usize = 64 << 10;
/// The longest key of a text request in bytes (RFC 7143, section 6.1).
pub const KEY_LEN_MAX: usize = 63;
/// The longest value of a text request in bytes (RFC 7143, section 6.1).
pub const VALUE_LEN_MAX: usize = 255;
/// The longest binary value in a text in bytes (RFC 7143, section 12.1.3).
pub const BINARY_LEN_MAX: usize = 1_024;
/// The shortest secret of CHAP in bytes (RFC 7143, section 9.2.1: 96 bits).
pub const SECRET_LEN_MIN: usize = 12;
/// The longest secret of CHAP in bytes.
pub const SECRET_LEN_MAX: usize = 255;
/// The longest name of an initiator or a target in bytes (RFC 7143, section 4.2.7.1).
pub const NAME_LEN_MAX: usize = 223;
/// The most requests of one login.
pub const LOGIN_REQUESTS_MAX: u32 = 64;
/// The most connections that have not logged in, unless the user sets another limit.
pub const LOGINS_MAX: usize = 128;
/// The most connections from one address that have not logged in, unless the user sets another
/// limit.
pub const LOGINS_PER_ADDRESS_MAX: usize = 32;
/// The most sessions, unless the user sets another limit.
pub const SESSIONS_MAX: usize = 512;
/// A connection that has not logged in after this time is closed, unless the user sets another one.
pub const LOGIN_TIME_MAX: Duration = Duration::from_secs(15);
/// The time that initiators have to log out before the target ends, unless the user sets another.
pub const DRAIN_TIME: Duration = Duration::from_secs(10);
/// A connection without traffic is probed after this time, to find initiators that are gone.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Interval of the probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A connection ends when this many probes have no answer.
pub const KEEPALIVE_PROBES_MAX: u32 = 6;
/// A connection ends when what was sent is not acknowledged for this time.
pub const UNACKNOWLEDGED_TIME_MAX: Duration = Duration::from_secs(120);
/// Interval at which an event loop looks for connections that have not logged in.
pub const LOGIN_SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a loop receives, handles and sends for one connection before the others have their
/// turn.
pub const SERVE_ROUNDS_MAX: usize = 2;
/// How often a loop that polls looks for events before it offers its core to other threads.
pub const LOOKS_PER_YIELD: u32 = 8;
/// Events that a loop takes from the kernel at once.
pub const LOOP_EVENTS_MAX: usize = 64;

/// The most bytes of a sequence of Data-In or solicited Data-Out PDUs: `MaxBurstLength`.
pub const BURST_LEN_MAX: u32 = 1 << 20;
/// The most bytes of unsolicited data of a command: `FirstBurstLength`.
pub const FIRST_BURST_LEN_MAX: u32 = 256 << 10;
/// The most R2Ts that one command has outstanding: `MaxOutstandingR2T`.
pub const OUTSTANDING_R2T_MAX: u32 = 1;
/// The most connections of one session: `MaxConnections`.
pub const CONNECTIONS_MAX: u16 = 8;
/// The commands that a session may have outstanding: the size of its command window.
pub const COMMAND_WINDOW: u32 = 128;
/// The most bytes of parameters, and of data that a command needs whole, that one connection holds.
pub const HELD_LEN_MAX: usize = 16 << 20;
/// Bytes of responses that a connection holds before it stops to read requests.
pub const OUTPUT_LEN_MAX: usize = 4 << 20;
/// The buffer for received bytes of a new connection. It grows to the longest PDU.
pub const INPUT_BUFFER_LEN: usize = 64 << 10;

/// The most bytes that one READ, WRITE or VERIFY transfers.
pub const TRANSFER_LEN_MAX: u64 = 256 << 20;
/// The most bytes of one ORWRITE or WRITE ATOMIC, which need their data whole.
pub const WHOLE_LEN_MAX: u64 = 4 << 20;
/// The most blocks of a COMPARE AND WRITE, whose count is one byte.
pub const COMPARE_BLOCKS_MAX: u64 = 255;
/// The most bytes of one WRITE SAME, which is one step without a response.
pub const WRITE_SAME_LEN_MAX: u64 = 256 << 20;
/// The longest parameter list that the target accepts, in bytes.
pub const PARAMETER_LEN_MAX: usize = 64 << 10;
/// The most block descriptors of an UNMAP.
pub const UNMAP_DESCRIPTORS_MAX: usize = 256;
/// The most registrations of persistent reservations of one unit.
pub const REGISTRATIONS_MAX: usize = 256;
/// Unit attentions that are kept for one initiator and one unit. More are replaced by one of a
/// reset.
pub const ATTENTIONS_MAX: usize = 8;
/// Copies of one initiator whose status is kept.
pub const COPIES_KEPT: usize = 8;
/// Segments of an EXTENDED COPY.
pub const COPY_SEGMENTS_MAX: usize = 8;
/// Target descriptors of an EXTENDED COPY.
pub const COPY_TARGETS_MAX: usize = 8;
/// The length of a target descriptor of an EXTENDED COPY in bytes.
pub const COPY_TARGET_LEN: usize = 32;
/// The length of a segment descriptor "block device to block device" in bytes, with its header.
pub const COPY_SEGMENT_LEN: usize = 28;
/// The most bytes of all descriptors of an EXTENDED COPY.
pub const COPY_DESCRIPTORS_LEN_MAX: usize =
    COPY_TARGETS_MAX * COPY_TARGET_LEN + COPY_SEGMENTS_MAX * COPY_SEGMENT_LEN;
/// The most bytes that one segment of an EXTENDED COPY moves.
pub const COPY_SEGMENT_LEN_MAX: u64 = 16 << 20;
/// Bytes that are moved at once where data of a store passes through a buffer.
pub const STEP_LEN: usize = 256 << 10;

/// Jobs of one session that wait for a store. The session takes no input while it has more.
pub const JOBS_MAX: usize = 2 * COMMAND_WINDOW as usize;
/// Bytes that one session has on their way to a store before it takes no more input.
pub const WRITING_LEN_MAX: usize = 16 << 20;
/// Threads that wait for one store: what it has to do at a time.
pub const WORKERS_MAX: usize = 32;
/// A thread that waits for stores ends when it has nothing to do for this time.
pub const WORKER_IDLE_TIME: Duration = Duration::from_secs(10);

/// The longest data segment of a message over RDMA in bytes: `TargetRecvDataSegmentLength`. Longer
/// data is read from the initiator's memory.
pub const MESSAGE_DATA_LEN_MAX: usize = 8_192;
/// Messages that an initiator may send over RDMA before one is handled: commands, and requests that
/// the command window does not count.
pub const MESSAGES_MAX: usize = 2 * COMMAND_WINDOW as usize;
/// Commands over RDMA of one connection that have not ended, as far as the initiator's memory is
/// kept.
pub const ISER_COMMANDS_MAX: usize = 4_096;
/// Bytes of a connection over RDMA that are on their way to or from the initiator's memory.
pub const STAGING_LEN: usize = 2 << 20;
/// Messages and transfers over RDMA of one connection that are under way.
pub const TRANSFERS_MAX: usize = 256;
/// Connections over RDMA. Each has a thread, and memory that is registered.
pub const RDMA_CONNECTIONS_MAX: usize = 256;
/// How long a connection over RDMA looks for the next message before it sleeps.
pub const RDMA_SPIN_TIME: Duration = Duration::from_micros(50);
/// How long an RDMA connection may take until it is established, and at its end for what is under
/// way.
pub const RDMA_TIME_MAX: Duration = Duration::from_secs(5);

/// The unit of memory of the kernel, and of direct I/O, in bytes.
pub const PAGE_LEN: usize = 4_096;
/// Bytes of a block of the cache.
pub const CACHE_BLOCK_LEN: usize = 64 << 10;
/// Neighbouring blocks in one partition: a request of up to 1 MiB uses at most two partitions.
pub const CACHE_GROUP: u64 = 16;
/// The most partitions of the cache at each node.
pub const PARTITIONS_PER_NODE: usize = 16;
/// The fewest blocks of a partition.
pub const PARTITION_BLOCKS_MIN: u32 = 4;
/// Blocks of a partition before there is another one: several groups, so that one group does not
/// take all its slots.
pub const PARTITION_BLOCKS: u64 = 4 * CACHE_GROUP;
/// The most blocks of a partition.
pub const PARTITION_BLOCKS_MAX: u32 = 1 << 28;
/// Blocks that one write holds at once. A longer one is written in several steps.
pub const OWNED_BLOCKS_MAX: usize = 8;
/// Slots that are looked at for a new block, before it is read without being kept.
pub const VICTIMS_MAX: usize = 16;
/// Blocks of a partition that are written without a slot at a time, before memory is allocated.
pub const BARRED_MAX: usize = 64;
/// The most NUMA nodes.
pub const NODES_MAX: usize = 64;
/// The most processors of a machine that is described.
pub const CPUS_MAX: usize = 1_024;
/// The shortest request that is handed to a thread of another node, whose memory has most of it.
/// Shorter ones take less time than that.
pub const FORWARD_LEN_MIN: u64 = 64 << 10;
