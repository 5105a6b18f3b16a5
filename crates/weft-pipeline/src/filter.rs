//! Filters within a worker's process.

use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::merge::Taken;
use crate::outputs::Outputs;
use crate::parameters::Parameters;

/// A filter. For each unit of work it is called in this order: `init`; `produce` if it has no
/// inputs, otherwise `process` for each buffer; `finalize`.
pub(crate) trait Filter {
    /// Begins a unit of work. The parameters are those of the filter and the unit.
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure>;

    /// Writes all buffers of the unit, if the filter has no inputs.
    fn produce(&mut self, _out: &mut Outputs) -> Result<(), Failure> {
        Ok(())
    }

    /// Processes a buffer.
    fn process(&mut self, _buffer: &[u8], _out: &mut Outputs) -> Result<(), Failure> {
        Ok(())
    }

    /// Ends the unit of work. It may still write buffers.
    fn finalize(&mut self, _out: &mut Outputs) -> Result<(), Failure> {
        Ok(())
    }
}

/// Runs a copy of a filter for all units.
pub(crate) fn run(
    filter: &mut dyn Filter,
    parameters: &Parameters,
    units: &[Parameters],
    inputs: Option<&Inputs>,
    out: &mut Outputs,
) -> Result<(), Failure> {
    for unit in units {
        filter.init(&parameters.with(unit))?;
        match inputs {
            None => filter.produce(out)?,
            Some(inputs) => {
                while let Taken::Item(_, buffer) = inputs.next()? {
                    filter.process(&buffer, out)?;
                }
            }
        }
        filter.finalize(out)?;
        out.end_unit()?;
    }
    Ok(())
}
