//! What is still to mend in each crate, counted.
//!
//! The figures can only shrink: a check fails if a crate is worse than its figure, and also if it
//! is better, so that the figure is lowered with the change.

/// How often a crate may break a rule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowance {
    /// Modules that use one of a higher layer; each pair of modules counts once.
    pub(super) upward: usize,
    /// Modules that are in cycles.
    pub(super) in_cycles: usize,
    /// Limits that do not stand in a `limits.rs`.
    pub(super) limits: usize,
}

/// None is left.
const ALLOWANCES: &[(&str, Allowance)] = &[];

/// The allowance of a crate.
pub(super) fn of(krate: &str) -> Allowance {
    let found = ALLOWANCES.iter().find(|(name, _)| *name == krate);
    found.map(|(_, allowance)| *allowance).unwrap_or_default()
}

/// Reports a count that is not the allowed one; `details` are the findings that were counted.
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
