//! Lists of iSCSI names.

/// Whether a name is in a list. Names are compared without case (RFC 7143, section 4.2.7.2).
pub(super) fn is_named(names: &[String], name: &str) -> bool {
    names.iter().any(|each| each.eq_ignore_ascii_case(name))
}
