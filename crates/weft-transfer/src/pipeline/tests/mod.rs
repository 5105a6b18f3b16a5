//! Whole pipelines: order, completeness, errors, flow control.

mod ends;
mod flow;
