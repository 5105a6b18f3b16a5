//! Numbers of bytes, with units.

/// Parses a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: f64 = match &text[number.len()..].to_ascii_uppercase()[..] {
        "" | "B" => 1.0,
        "K" | "KIB" => 1024.0,
        "M" | "MIB" => 1024.0 * 1024.0,
        "G" | "GIB" => 1024.0 * 1024.0 * 1024.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "T" | "TIB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "TB" => 1e12,
        unit => return Err(format!("no unit: {unit}")),
    };
    let number: f64 = number.parse().map_err(|_| "not a number of bytes".to_owned())?;
    let bytes = number * unit;
    if !(0.0..=1e18).contains(&bytes) {
        return Err("from 0 to 1000000TB".to_owned());
    }
    Ok(bytes as u64)
}
