//! Reports: the results of a run, and the forms in which they are printed.

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
