//! The number of violations of a rule that a crate may still have.
//!
//! The numbers only shrink: the check fails if a crate has more violations than its allowance, and
//! also if it has fewer, so that a change that removes a violation also lowers the number.

/// The number of flaky tests in `docs/internals/flaky.md`. A commit that raises it says why.
pub(super) const FLAKY: usize = 0;

/// The allowed violations of one crate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Modules that use a module of a higher layer. Each pair of modules counts once.
    pub(super) upward: usize,
    /// Modules that belong to cycles.
    pub(super) in_cycles: usize,
    /// Limits that are declared outside of a `limits.rs`.
    pub(super) limits: usize,
    /// Types whose name says too little.
    pub(super) names: usize,
}

impl Allowance {
    /// No violations.
    pub(super) const NONE: Self = Self { upward: 0, in_cycles: 0, limits: 0, names: 0 };
}

/// The allowances. Currently no crate needs one.
const ALLOWANCES: &[(&str, Allowance)] = &[];

/// Returns the allowance of a crate.
pub(super) fn of(krate: &str) -> Allowance {
    let found = ALLOWANCES.iter().find(|(name, _)| *name == krate);
    found.map_or(Allowance::NONE, |(_, allowance)| *allowance)
}

/// Reports a count that differs from the allowance. `details` are the counted findings.
pub(super) fn compare(
    krate: &str,
    what: &str,
    allowed: usize,
    count: usize,
    details: Vec<String>,
    findings: &mut Vec<String>,
) {
    if count > allowed {
        findings.extend(details);
        findings.push(format!("{krate}: {count} {what}, {allowed} allowed"));
    } else if count < allowed {
        findings.push(format!("{krate}: {count} {what}: lower its allowance of {allowed}"));
    }
}
