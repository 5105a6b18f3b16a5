//! The report as comma-separated values: one line for each value and round (RFC 4180).

use super::Document;

const HEADER: &str =
    "benchmark,axis,x,over,transport,operation,wait,variant,value,unit,round,result\r\n";

/// Returns all values of all rounds.
pub(crate) fn csv(document: &Document) -> String {
    let mut text = HEADER.to_owned();
    for table in &document.benchmarks {
        for row in &table.rows {
            for value in &row.values {
                for (round, result) in value.rounds.iter().enumerate() {
                    let fields = [
                        &table.name,
                        &table.axis,
                        &row.x.to_string(),
                        &row.over,
                        &row.transport,
                        &row.operation,
                        &row.wait,
                        &row.variant,
                        &value.name,
                        &value.unit,
                        &(round + 1).to_string(),
                        &result.to_string(),
                    ];
                    let fields: Vec<_> = fields.iter().map(|field| quoted(field)).collect();
                    text.push_str(&fields.join(","));
                    text.push_str("\r\n");
                }
            }
        }
    }
    text
}

fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::document;
    use super::*;

    #[test]
    fn each_line_has_all_fields() {
        let text = csv(&document());
        assert_eq!(text.lines().count(), 5);
        assert!(text.lines().all(|line| line.split(',').count() == 12), "{text}");
        assert!(text.contains("latency,size,8,rc,tcp,send,poll,,p50,us,1,5.25"));
    }

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
