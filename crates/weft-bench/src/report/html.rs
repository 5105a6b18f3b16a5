//! The report as one HTML page that refers to no other file.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Document, Table, plot, short};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;\
    padding:0 1rem;color:#222;background:#fff}table{border-collapse:collapse;margin:1rem 0}\
    th,td{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}\
    th.label,td.label{text-align:left}svg{max-width:100%;height:auto}";

/// Returns the page.
///
/// # Errors
/// If a plot cannot be drawn.
pub(crate) fn html(document: &Document) -> Result<String> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>weft bench</title><style>{STYLE}</style></head><body>\n<h1>weft bench</h1>\n"
    );
    for line in document.heading() {
        writeln!(page, "<p>{}</p>", escaped(&line))?;
    }
    for table in &document.benchmarks {
        writeln!(page, "<h2>{}</h2>\n<p>{}</p>", escaped(&table.name), escaped(&table.about))?;
        for value in table.plotted() {
            page.push_str(&plot::svg(table, value)?.unwrap_or_default());
        }
        push_table(&mut page, table)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn push_table(page: &mut String, table: &Table) -> Result<()> {
    let columns = table.columns();
    write!(page, "<table><tr><th>{} {}</th>", escaped(&table.axis), escaped(&table.axis_unit))?;
    page.push_str("<th class=\"label\">over</th><th class=\"label\">transport</th>");
    for (name, unit) in &columns {
        write!(page, "<th>{} {}</th>", escaped(name), escaped(unit))?;
    }
    let divisor = table.divisor();
    if let Some(divisor) = divisor {
        write!(page, "<th>{divisor}</th>")?;
    }
    page.push_str("</tr>\n");
    for row in &table.rows {
        let (series, transport) = (escaped(&table.series_of(row)), escaped(&row.transport));
        write!(
            page,
            "<tr><td>{}</td><td class=\"label\">{series}</td><td class=\"label\">{transport}</td>",
            row.x
        )?;
        for (name, _) in &columns {
            write!(page, "<td>{}</td>", row.median(name).map(short).unwrap_or_default())?;
        }
        if divisor.is_some() {
            write!(page, "<td>{}</td>", row.ratio_text())?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::document;
    use super::*;

    #[test]
    fn page_refers_to_no_other_file() {
        let page = html(&document()).expect("drawn");
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        assert!(page.contains("<svg") && page.contains("</svg>"));
        assert!(page.contains("a &lt;fast&gt; CPU") && page.contains("tcp-sockets"));
        let foreign = ["src=", "href=", "@import", "url("];
        assert!(foreign.iter().all(|link| !page.contains(link)), "no other file");
    }
}
