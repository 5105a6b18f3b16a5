//! The result tables of perftest (`ib_send_bw`, `ib_write_lat` and their family).

use anyhow::{Context as _, Result, bail};

/// perftest prints `MB/sec` and means 2^20 bytes per second (see its `--report_gbits` help).
const MEGABYTE: f64 = 1_048_576.0;

/// One row of a bandwidth test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Message size.
    pub bytes: u64,
    /// Number of messages.
    pub iterations: u64,
    /// Average, in bytes per second.
    pub average: f64,
    /// Messages per second.
    pub message_rate: f64,
}

/// One row of a latency test. For ping-pong tests perftest prints half of the round trip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Message size.
    pub bytes: u64,
    /// Number of exchanges.
    pub iterations: u64,
    /// Median, in microseconds.
    pub typical: f64,
    /// Mean, in microseconds.
    pub average: f64,
    /// 99th percentile, in microseconds.
    pub p99: f64,
}

/// Reads the rows of a bandwidth test.
///
/// # Errors
///
/// If there is no table, or a row does not match the header.
pub fn bandwidth(output: &str) -> Result<Vec<Bandwidth>> {
    rows(output, "BW average[MB/sec]")?
        .into_iter()
        .map(|row| match row.values[..] {
            [_peak, average, millions] => Ok(Bandwidth {
                bytes: row.bytes,
                iterations: row.iterations,
                average: average * MEGABYTE,
                message_rate: millions * 1e6,
            }),
            _ => bail!("a bandwidth row has {} values: {}", row.values.len(), row.text),
        })
        .collect()
}

/// Reads the rows of a latency test.
///
/// # Errors
///
/// As [`bandwidth`].
pub fn latency(output: &str) -> Result<Vec<Latency>> {
    rows(output, "t_typical[usec]")?
        .into_iter()
        .map(|row| match row.values[..] {
            [_min, _max, typical, average, _deviation, p99, _p999] => {
                Ok(Latency { bytes: row.bytes, iterations: row.iterations, typical, average, p99 })
            }
            _ => bail!("a latency row has {} values: {}", row.values.len(), row.text),
        })
        .collect()
}

struct Row<'a> {
    bytes: u64,
    iterations: u64,
    values: Vec<f64>,
    text: &'a str,
}

/// Returns the rows below the header that has a column named `column`.
fn rows<'a>(output: &'a str, column: &str) -> Result<Vec<Row<'a>>> {
    let mut lines = output.lines();
    lines
        .find(|line| line.trim_start().starts_with("#bytes") && line.contains(column))
        .with_context(|| format!("no table with a column {column:?} in {output:?}"))?;
    let is_row = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    // perftest may print a remark between header and rows.
    let rows: Vec<Row<'a>> = lines.filter(is_row).map(row).collect::<Result<_>>()?;
    if rows.is_empty() {
        bail!("an empty table in {output:?}");
    }
    Ok(rows)
}

fn row(text: &str) -> Result<Row<'_>> {
    let wrong = || format!("not a row of numbers: {text:?}");
    let mut words = text.split_whitespace();
    let mut integer = || words.next().and_then(|word| word.parse().ok()).with_context(wrong);
    let (bytes, iterations) = (integer()?, integer()?);
    let values = words.map(str::parse).collect::<Result<_, _>>().with_context(wrong)?;
    Ok(Row { bytes, iterations, values, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND_BW: &str = "\
---------------------------------------------------------------------------------------
                    Send BW Test
 Dual-port       : OFF\t\tDevice         : weft_lo
---------------------------------------------------------------------------------------
 local address: LID 0x0001 QPN 0x4e2100 PSN 0x9d1a6e
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:00:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 2100.000000 != 800.000000.
 64         5000             120.50             100.00\t\t   1.638400
 65536      1000             5120.32            4096.00\t\t   0.065536
---------------------------------------------------------------------------------------
";

    const SEND_LAT: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       1000          9.10           55.50        10.15     \t       10.60       \t\
1.08   \t\t13.30   \t\t55.50  
";

    #[test]
    fn reads_bandwidth() {
        let rows = bandwidth(SEND_BW).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].bytes, rows[0].iterations), (64, 5000));
        assert_eq!(rows[0].average, 100.0 * MEGABYTE);
        assert_eq!(rows[1].message_rate, 65_536.0);
    }

    #[test]
    fn reads_latency() {
        let [row] = latency(SEND_LAT).unwrap()[..] else { panic!("one row") };
        assert_eq!((row.bytes, row.iterations), (8, 1000));
        assert_eq!((row.typical, row.average, row.p99), (10.15, 10.6, 13.3));
    }

    #[test]
    fn output_without_a_valid_table_is_an_error() {
        assert!(bandwidth("").is_err());
        assert!(bandwidth(SEND_LAT).is_err());
        assert!(latency(SEND_BW).is_err());
        let (header, _) = SEND_LAT.split_once('\n').unwrap();
        assert!(latency(header).is_err());
        assert!(latency(&format!("{header}\n 8 1000 x\n")).is_err());
        assert!(latency(&format!("{header}\n 8 1000 1.0\n")).is_err());
    }
}
