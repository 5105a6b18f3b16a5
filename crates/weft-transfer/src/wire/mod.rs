//! The bytes of what goes between the ends.

pub mod record;
pub mod record_bytes;
pub mod record_name;
pub mod record_table;
pub mod record_wants;
