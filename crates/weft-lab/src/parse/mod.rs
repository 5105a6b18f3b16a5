//! Parsers for the output of the measuring programs.

pub mod iperf3;
pub mod memcaslap;
pub mod perftest;
pub mod qperf;
pub mod redis;
pub mod sockperf;
pub mod ucx;
pub mod wrk;
