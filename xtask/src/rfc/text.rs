//! Parses the text of an RFC as the RFC Editor publishes it, in pages of plain text.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The sections of an RFC by number, `4.1` or `A`.
pub(super) struct Rfc(BTreeMap<String, Section>);

/// A section without its subsections.
pub(super) struct Section {
    pub(super) title: String,
    /// Its words and figures, with single spaces.
    pub(super) text: String,
}

impl Rfc {
    /// Reads `rfc5044.txt` or `rfc5044.txt.gz` in `directory`; `name` is `rfc5044`.
    pub(super) fn load(directory: &Path, name: &str) -> Result<Self, String> {
        let plain = directory.join(format!("{name}.txt"));
        let packed = directory.join(format!("{name}.txt.gz"));
        let text = if plain.exists() {
            fs::read(&plain).map_err(|error| format!("{}: {error}", plain.display()))?
        } else {
            let output = Command::new("gzip").arg("-cd").arg(&packed).output();
            let output = output.map_err(|error| format!("gzip: {error}"))?;
            if !output.status.success() {
                let reason = String::from_utf8_lossy(&output.stderr);
                return Err(format!("{name}: found neither .txt nor .txt.gz: {}", reason.trim()));
            }
            output.stdout
        };
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    pub(super) fn parse(text: &str) -> Self {
        let mut sections = BTreeMap::new();
        let mut number = None;
        let mut is_title = false;
        for line in text.split('\x0c').flat_map(page_lines) {
            if let Some((found, title)) = heading(line) {
                let section = Section { title: String::new(), text: String::new() };
                sections.insert(found.clone(), section);
                number = Some(found);
                append(section_of(&mut sections, &number), true, title);
                is_title = true;
                continue;
            }
            is_title &= !line.trim().is_empty();
            append(section_of(&mut sections, &number), is_title, line);
        }
        Self(sections)
    }

    pub(super) fn section(&self, number: &str) -> Option<&Section> {
        self.0.get(number)
    }
}

fn section_of<'a>(
    sections: &'a mut BTreeMap<String, Section>,
    number: &Option<String>,
) -> Option<&'a mut Section> {
    number.as_ref().and_then(|number| sections.get_mut(number))
}

fn append(section: Option<&mut Section>, is_title: bool, line: &str) {
    if let Some(section) = section {
        append_line(if is_title { &mut section.title } else { &mut section.text }, line);
    }
}

/// Returns the lines of a page without its header (`RFC 5044 ... October 2007`) and its footer
/// (`... [Page 9]`).
fn page_lines(page: &str) -> impl Iterator<Item = &str> {
    let is_head = |line: &str| line.starts_with("RFC ");
    let is_foot = |line: &str| line.contains("[Page ") && line.trim_end().ends_with(']');
    let head = page.lines().position(|line| !line.trim().is_empty());
    let lines = page.lines().enumerate();
    lines
        .filter(move |&(at, line)| !(Some(at) == head && is_head(line) || is_foot(line)))
        .map(|(_, line)| line)
}

/// Returns the number and title if the line is a heading. Only headings start in the first column.
fn heading(line: &str) -> Option<(String, &str)> {
    let (number, title) = line.strip_prefix("Appendix ").unwrap_or(line).split_once(' ')?;
    let mut parts = number.trim_end_matches('.').split('.');
    let first = parts.next()?;
    let is_letter = first.len() == 1 && first.chars().all(|c| c.is_ascii_uppercase());
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let is_heading =
        number.contains('.') && (is_letter || is_number(first)) && parts.all(is_number);
    is_heading.then(|| (number.trim_end_matches('.').to_owned(), title.trim()))
}

/// Appends a line's words. A word that was split after its hyphen is joined again.
pub(super) fn append_line(text: &mut String, line: &str) {
    for (at, word) in line.split_whitespace().enumerate() {
        let mut before = text.chars().rev();
        let is_broken = at == 0
            && before.next() == Some('-')
            && before.next().is_some_and(char::is_alphanumeric);
        if !text.is_empty() && !is_broken {
            text.push(' ');
        }
        text.push_str(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
Network Working Group                                       A. Author

Table of Contents

   1.  Introduction .....................1

1.  Introduction

   Words of the introduction, and an in-
   order one.

Author                     Standards Track                 [Page 1]
\x0c
RFC 1                      A Title                     October 2007

   They go on, as RFC 2 has it
RFC 2 or not.

1.1  A Title
     of Two Lines

   * a list -
     item

Appendix A.  More

   |A|   B |
A.1.  Below

   Last.
";

    #[test]
    fn sections_are_found_across_pages() {
        let rfc = Rfc::parse(TEXT);
        let found: Vec<_> = rfc
            .0
            .iter()
            .map(|(number, s)| (number.as_str(), s.title.as_str(), s.text.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (
                    "1",
                    "Introduction",
                    "Words of the introduction, and an in-order one. They go on, as RFC 2 has it \
                     RFC 2 or not."
                ),
                ("1.1", "A Title of Two Lines", "* a list - item"),
                ("A", "More", "|A| B |"),
                ("A.1", "Below", "Last."),
            ]
        );
    }
}
