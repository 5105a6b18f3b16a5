//! The names and parameters of the filters that Weft brings.

/// Which streams a filter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    /// Only an output.
    Source,
    /// Inputs and an output.
    Inner,
    /// Only inputs.
    Sink,
}

/// A filter that Weft brings.
#[derive(Debug)]
pub(crate) struct Entry {
    name: &'static str,
    pub(crate) arity: Arity,
    parameters: &'static [&'static str],
}

/// Parameters of all of them, which make a copy as slow as another host would be.
const SPEED: [&str; 3] = ["ns_per_byte", "slow_copy", "slow_times"];

const TABLE: &[Entry] = &[
    Entry { name: "read", arity: Arity::Source, parameters: &["image", "chunk"] },
    Entry { name: "clip", arity: Arity::Inner, parameters: &["x", "y", "width", "height"] },
    Entry { name: "subsample", arity: Arity::Inner, parameters: &["step"] },
    Entry { name: "view", arity: Arity::Sink, parameters: &["output"] },
    Entry { name: "generate", arity: Arity::Source, parameters: &["count", "size", "interval_us"] },
    Entry { name: "pass", arity: Arity::Inner, parameters: &[] },
    Entry { name: "measure", arity: Arity::Sink, parameters: &[] },
];

impl Entry {
    /// Whether it has a parameter.
    pub(crate) fn takes(&self, parameter: &str) -> bool {
        self.parameters.contains(&parameter) || SPEED.contains(&parameter)
    }
}

/// Returns the filter of that name.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == name)
}

/// Returns all names.
pub(crate) fn names() -> String {
    TABLE.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}
