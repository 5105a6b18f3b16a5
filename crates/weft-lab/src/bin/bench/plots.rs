//! A page with bars: what several tools reach with the same work.

use std::fmt::Write as _;

/// What one tool reaches.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) tool: String,
    /// The median rate, and the lowest and the highest one; each figure has a unit of its own.
    pub(crate) rate: f64,
    pub(crate) range: [f64; 2],
    /// The median rate and the processor time, in words.
    pub(crate) text: String,
}

/// Tools that do the same work, Weft's first.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
}

/// Sizes in units of the drawing: the whole width, the longest bar, and the height of a bar with
/// the gap behind it.
const WIDTH: f64 = 900.0;
const LONGEST: f64 = 480.0;
const STEP: f64 = 40.0;

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
    <title>Copies of files</title><style>\
    body{font:15px sans-serif;margin:2em;max-width:60em;color:#222;background:#fff}\
    svg{width:100%;font:13px sans-serif}</style></head><body>\n<h1>Copies of files</h1>\n";

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Returns the page. It needs no other file and no network.
pub(crate) fn page(about: &str, figures: &[Figure]) -> String {
    let mut page = format!("{HEAD}<p>{}</p>\n", escaped(about));
    page += "<p>A bar is the median, the line in it reaches from the slowest to the fastest run. \
             CPU is the processor time of both ends.</p>\n";
    for figure in figures {
        page += &drawing(figure);
    }
    page + "</body></html>\n"
}

fn drawing(figure: &Figure) -> String {
    let fastest = figure.bars.iter().map(|bar| bar.range[1]).fold(f64::MIN_POSITIVE, f64::max);
    let length = |rate: f64| rate / fastest * LONGEST;
    let height = STEP * figure.bars.len() as f64;
    let mut svg = format!(
        "<h2>{}</h2>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n",
        escaped(&figure.title)
    );
    for (index, bar) in figure.bars.iter().enumerate() {
        let top = STEP * index as f64;
        let colour = if index == 0 { "#2a6fb0" } else { "#b8bec6" };
        let [low, high] = bar.range.map(length);
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\">{}</text>\
             <rect x=\"0\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" fill=\"{colour}\"/>\
             <path d=\"M{low:.1} {middle:.1}H{high:.1}\" stroke=\"#222\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            top + 13.0,
            escaped(&bar.tool),
            top + 18.0,
            length(bar.rate),
            length(bar.rate).max(high) + 8.0,
            top + 30.0,
            escaped(&bar.text),
            middle = top + 25.0,
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_rates_and_text_is_escaped() {
        let bar = |tool: &str, rate| Bar {
            tool: tool.into(),
            rate,
            range: [rate, rate],
            text: String::new(),
        };
        let bars = vec![bar("a<b", 2.0), bar("c", 1.0)];
        let page = page("x & y", &[Figure { title: "t".into(), bars }]);
        assert!(page.contains("a&lt;b") && page.contains("x &amp; y"), "{page}");
        assert!(page.contains("width=\"480.0\"") && page.contains("width=\"240.0\""), "{page}");
    }
}
