//! Marker PDU Aligned Framing (RFC 5044), and its enhanced connection setup (RFC 6581).
//!
//! A connection starts with one MPA Request and one MPA Reply ([`frame`], [`negotiate`]); every
//! byte after them belongs to FPDUs ([`fpdu`]), with markers among them when the receiver asked for
//! them ([`marker`]).

pub mod fpdu;
pub mod frame;
pub mod marker;
pub mod negotiate;
