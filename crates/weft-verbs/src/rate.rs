//! Conversions of link rates between `enum ibv_rate`, multiples of 2.5 Gb/s, and Mb/s.
//!
//! # Safety
//! The exported names are those of rdma-core, with its signatures.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use crate::abi::{
    IBV_RATE_2_5_GBPS, IBV_RATE_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_14_GBPS, IBV_RATE_20_GBPS,
    IBV_RATE_25_GBPS, IBV_RATE_28_GBPS, IBV_RATE_30_GBPS, IBV_RATE_40_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_56_GBPS, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_100_GBPS, IBV_RATE_112_GBPS,
    IBV_RATE_120_GBPS, IBV_RATE_168_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_400_GBPS,
    IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS, IBV_RATE_MAX, ibv_rate,
};

/// Each rate with its multiple of 2.5 Gb/s, if any, and its Mb/s, with the values of rdma-core.
const RATES: [(ibv_rate, Option<c_int>, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, Some(1), 2_500),
    (IBV_RATE_5_GBPS, Some(2), 5_000),
    (IBV_RATE_10_GBPS, Some(4), 10_000),
    (IBV_RATE_14_GBPS, None, 14_062),
    (IBV_RATE_20_GBPS, Some(8), 20_000),
    (IBV_RATE_25_GBPS, None, 25_781),
    (IBV_RATE_28_GBPS, Some(11), 28_125),
    (IBV_RATE_30_GBPS, Some(12), 30_000),
    (IBV_RATE_40_GBPS, Some(16), 40_000),
    (IBV_RATE_50_GBPS, Some(20), 53_125),
    (IBV_RATE_56_GBPS, None, 56_250),
    (IBV_RATE_60_GBPS, Some(24), 60_000),
    (IBV_RATE_80_GBPS, Some(32), 80_000),
    (IBV_RATE_100_GBPS, None, 103_125),
    (IBV_RATE_112_GBPS, None, 112_500),
    (IBV_RATE_120_GBPS, Some(48), 120_000),
    (IBV_RATE_168_GBPS, None, 168_750),
    (IBV_RATE_200_GBPS, None, 206_250),
    (IBV_RATE_300_GBPS, None, 309_375),
    (IBV_RATE_400_GBPS, Some(160), 425_000),
    (IBV_RATE_600_GBPS, Some(240), 637_500),
    (IBV_RATE_800_GBPS, Some(320), 850_000),
    (IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

/// Returns the rate as a multiple of 2.5 Gb/s, or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|&&(known, ..)| known == rate);
    found.and_then(|&(_, mult, _)| mult).unwrap_or(-1)
}

/// Returns the rate of a multiple of 2.5 Gb/s, or `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    let found = RATES.iter().find(|&&(_, known, _)| known == Some(mult));
    found.map_or(IBV_RATE_MAX, |&(rate, ..)| rate)
}

/// Returns the rate in Mb/s, or -1.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|&&(known, ..)| known == rate).map_or(-1, |&(_, _, mbps)| mbps)
}

/// Returns the rate of a number of Mb/s, or `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|&&(_, _, known)| known == mbps).map_or(IBV_RATE_MAX, |&(rate, ..)| rate)
}
