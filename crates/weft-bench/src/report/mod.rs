//! Reports: one document, and the forms in which it is shown.

mod csv;
mod document;
mod html;
mod plot;
mod text;

pub(crate) use csv::csv;
use document::short;
pub(crate) use document::{Document, Measured, Row, Settings, Table};
pub(crate) use html::html;
pub(crate) use text::text;
