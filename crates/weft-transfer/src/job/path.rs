//! How many connections and blocks a copy has: as many as the path's delay needs.

use std::time::Duration;

use crate::limits::{
    CHANNEL_FLIGHT, CHANNELS_EACH_MAX, CONNECTIONS_MAX, COPIES_EXPECTED, PATH_RATE, POOL_BLOCKS,
    POOL_BLOCKS_MAX, TCP_CHANNELS,
};

/// Returns the bytes that are in flight over a path with this round trip.
fn flight(round_trip: Option<Duration>) -> u64 {
    let nanoseconds = round_trip.unwrap_or_default().as_nanos();
    let bytes = u128::from(PATH_RATE) * nanoseconds / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns the number of data channels over TCP. One connection has a limited number of bytes in
/// flight, so a long path takes several.
#[must_use]
pub(super) fn channels(round_trip: Option<Duration>) -> u16 {
    let more = u16::try_from(flight(round_trip) / CHANNEL_FLIGHT).unwrap_or(u16::MAX);
    TCP_CHANNELS.saturating_add(more).min(CHANNELS_EACH_MAX)
}

/// Returns the most data channels of a further copy at a server with this many connections. Copies
/// over long paths leave connections to other clients.
#[must_use]
pub(super) fn channels_beside(connections: usize) -> u16 {
    let share = CONNECTIONS_MAX.saturating_sub(connections).div_ceil(COPIES_EXPECTED);
    u16::try_from(share).unwrap_or(u16::MAX).clamp(TCP_CHANNELS, CHANNELS_EACH_MAX)
}

/// Returns the number of blocks in the pool of each end. A block of the source is in use until its
/// acknowledgement comes, and a buffer of the sink from its credit on, which is a round trip too.
#[must_use]
pub(super) fn blocks(round_trip: Option<Duration>, block_size: u32) -> u32 {
    let more = u32::try_from(flight(round_trip) / u64::from(block_size)).unwrap_or(u32::MAX);
    POOL_BLOCKS.saturating_add(more).min(POOL_BLOCKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BLOCK_SIZE;

    #[test]
    fn a_longer_path_gets_more_connections_and_blocks() {
        let of = |microseconds| {
            let round_trip = Some(Duration::from_micros(microseconds));
            (channels(round_trip), blocks(round_trip, BLOCK_SIZE))
        };
        assert_eq!((channels(None), blocks(None, BLOCK_SIZE)), (TCP_CHANNELS, POOL_BLOCKS));
        assert_eq!(of(100), (TCP_CHANNELS, POOL_BLOCKS));
        assert_eq!(of(2_000), (3, 36));
        assert_eq!(of(10_000), (7, 55));
        assert_eq!(of(50_000), (CHANNELS_EACH_MAX, 151));
        assert_eq!(of(10_000_000), (CHANNELS_EACH_MAX, POOL_BLOCKS_MAX));
        assert_eq!(blocks(Some(Duration::MAX), 1), POOL_BLOCKS_MAX);
    }

    #[test]
    fn a_busy_server_has_fewer_channels_for_each_further_copy() {
        assert_eq!(channels_beside(1), CHANNELS_EACH_MAX);
        assert_eq!(channels_beside(CONNECTIONS_MAX / 2), 8);
        assert_eq!(channels_beside(CONNECTIONS_MAX), TCP_CHANNELS);
        // Each copy also has a control channel.
        let (mut connections, mut copies) = (0, 0);
        while connections < CONNECTIONS_MAX {
            connections += 1 + usize::from(channels_beside(connections));
            copies += 1;
        }
        assert!(copies >= 50, "{copies}");
    }
}
