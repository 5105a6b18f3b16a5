//! `weft bench sockets` measures one program over the kernel and over shared memory.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::weft;

const TIMEOUT: Duration = Duration::from_secs(120);

fn value(row: &Value, name: &str) -> Result<f64> {
    let values = row["values"].as_array().context("no values")?;
    let found = values.iter().find(|value| value["name"] == name);
    found.and_then(|value| value["median"].as_f64()).with_context(|| format!("{name} in {row}"))
}

#[test]
fn each_transport_is_the_one_that_is_named() -> Result<()> {
    let sockets = Sockets::new(Ends::Both)?;
    let bench = sockets.plain(weft()?).line("bench sockets --sizes 64,64k --rounds 1 --json");
    let report = bench.line("--duration 0.05 --no-pin").run(TIMEOUT)?.success()?;
    let report: Value = serde_json::from_str(&report.stdout)?;
    let tables = report["benchmarks"].as_array().context("no tables")?;
    let names: Vec<_> = tables.iter().filter_map(|table| table["name"].as_str()).collect();
    let all = ["latency", "throughput", "buffers", "setup", "zero copy", "overlap", "touch"];
    let all = all.map(|name| format!("sockets {name}"));
    ensure!(names == all, "{names:?}");
    for table in tables {
        let primary = table["primary"].as_str().context("no primary value")?;
        for row in table["rows"].as_array().context("no rows")? {
            let is_plain = row["over"] == "tcp-sockets";
            // On a busy machine a value may be 0: a measurement takes 50 ms.
            ensure!(value(row, primary)? >= 0.0, "{row}");
            ensure!(row["ratio"].is_null() == is_plain, "{row}");
            if table["name"] != "sockets setup" {
                ensure!(row["transport"] == if is_plain { "tcp" } else { "shm" }, "{row}");
            }
            if table["name"] == "sockets buffers" && !is_plain {
                // A message of 64 bytes in a buffer of 8 KiB, and all else end to end; the last
                // buffer may be in use just then.
                let wastes = row["over"] == "weft-credit" && row["x"] == 64;
                let used = value(row, primary)?;
                ensure!(if wastes { used < 1.0 } else { used > 90.0 }, "{row}");
            }
        }
    }
    Ok(())
}
