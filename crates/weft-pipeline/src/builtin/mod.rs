//! The filters that Weft brings.

mod image;
mod measure;
mod speed;

use crate::failure::Failure;
use crate::filter::Filter;
use crate::parameters::Parameters;

/// Creates a copy of a filter.
pub(crate) fn create(
    name: &str,
    parameters: &Parameters,
    copy: usize,
    copies: usize,
) -> Result<Box<dyn Filter>, Failure> {
    let filter: Box<dyn Filter> = match name {
        "read" => Box::new(image::Read::new(copy, copies)),
        "clip" => Box::<image::Clip>::default(),
        "subsample" => Box::<image::Subsample>::default(),
        "view" => Box::<image::View>::default(),
        "generate" => Box::<measure::Generate>::default(),
        "pass" => Box::new(measure::Pass),
        "measure" => Box::<measure::Measure>::default(),
        _ => return Err(Failure::filter(format!("no built-in filter is called {name}"))),
    };
    speed::limited(filter, parameters, copy)
}
