//! Marker PDU Aligned Framing (RFC 5044), and its enhanced connection setup (RFC 6581).
//!
//! A connection starts with one MPA Request and one MPA Reply ([`frame`], [`negotiate`]). All later
//! bytes belong to FPDUs ([`fpdu`]), with markers between them if the receiver has asked for
//! markers ([`marker`]).

pub mod fpdu;
pub mod frame;
pub mod marker;
pub mod negotiate;
