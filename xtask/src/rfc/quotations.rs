//! `quotations.txt`: the code's quotations, as they were found in the texts of the RFCs.
//!
//! The repository does not contain the texts. Where they are available, `cargo xtask rfc --texts`
//! compares every quotation with them and writes the file. Elsewhere, the code is compared with the
//! file.

use std::collections::BTreeSet;
use std::path::Path;

use super::citation::{Citation, Id, Section};
use super::text::{Rfc, append_line};
use crate::limits::LINE_LEN_MAX;

pub(super) const QUOTATIONS: &str = "crates/weft-wire/rfc/quotations.txt";
const INDENT: &str = "    ";

/// The compared quotations, with their sections.
pub(super) type Quotations = BTreeSet<(Id, String)>;

pub(super) fn parse(file: &str) -> Result<Quotations, String> {
    let mut entries: Vec<(Id, String)> = Vec::new();
    for line in file.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix(INDENT), entries.last_mut()) {
            (None, _) => entries.push((line.to_owned(), String::new())),
            (Some(words), Some((_, text))) => append_line(text, words),
            (Some(_), None) => {
                return Err(format!("{QUOTATIONS}: a quotation without its section: {line}"));
            }
        }
    }
    match entries.iter().find(|(_, text)| text.is_empty()) {
        Some((id, _)) => Err(format!("{QUOTATIONS}: {id} without a quotation")),
        None => Ok(entries.into_iter().collect()),
    }
}

/// Returns the new contents of the file: the head of the old `file`, and the quotations of
/// `citations` in the order of `sections`.
pub(super) fn render(file: &str, sections: &[Section], citations: &[Citation]) -> String {
    let head = file.lines().take_while(|line| line.starts_with('#'));
    let mut out: String = head.flat_map(|line| [line, "\n"]).collect();
    for Section { id, .. } in sections {
        let of_section = citations.iter().filter(|citation| citation.section == *id);
        let texts: BTreeSet<&str> = of_section.map(|citation| citation.text.as_str()).collect();
        for text in texts {
            out += &format!("\n{id}\n");
            let mut line = INDENT.to_owned();
            for word in text.split(' ') {
                if line.len() > INDENT.len() {
                    if line.len() + 1 + word.len() > LINE_LEN_MAX {
                        out += &line;
                        out.push('\n');
                        line = INDENT.to_owned();
                    } else {
                        line.push(' ');
                    }
                }
                line.push_str(word);
            }
            out += &line;
            out.push('\n');
        }
    }
    out
}

/// Returns a problem for each quotation that is only in the code or only in the file.
pub(super) fn compare(quotations: &Quotations, citations: &[Citation]) -> Vec<String> {
    let mut problems = Vec::new();
    for Citation { section, text, file, line, .. } in citations {
        if !quotations.contains(&(section.clone(), text.clone())) {
            problems.push(format!(
                "{file}:{line}: {section} has no such sentence in {QUOTATIONS}; compare with the \
                 RFC's text by --texts: {text}"
            ));
        }
    }
    for (id, text) in quotations {
        let is_cited = |c: &Citation| c.section == *id && c.text == *text;
        if !citations.iter().any(is_cited) {
            problems.push(format!("{QUOTATIONS}: {id}: quoted nowhere: {text}"));
        }
    }
    problems
}

/// Compares the citations and the titles of the sections with the texts in `directory`.
pub(super) fn compare_with_texts(
    directory: &Path,
    sections: &[Section],
    citations: &[Citation],
) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    let names: BTreeSet<&str> = sections.iter().map(|section| split(&section.id).0).collect();
    for name in names {
        let rfc = Rfc::load(directory, name)?;
        problems.extend(compare_with_text(name, &rfc, sections, citations));
    }
    Ok(problems)
}

fn compare_with_text(
    name: &str,
    rfc: &Rfc,
    sections: &[Section],
    citations: &[Citation],
) -> Vec<String> {
    let mut problems = Vec::new();
    for Section { id, title } in sections.iter().filter(|section| split(&section.id).0 == name) {
        match rfc.section(split(id).1) {
            None => problems.push(format!("{id}: the RFC has no such section")),
            Some(section) if section.title != *title => {
                problems.push(format!("{id}: the title is \"{}\"", section.title));
            }
            Some(_) => {}
        }
    }
    for Citation { section, text, file, line, .. } in citations {
        let (of, number) = split(section);
        let is_there = || rfc.section(number).is_some_and(|found| found.text.contains(text));
        if of == name && !is_there() {
            problems.push(format!("{file}:{line}: {section} does not say: {text}"));
        }
    }
    problems
}

/// Splits a section's name into `rfc5044` and `4.1`.
fn split(id: &str) -> (&str, &str) {
    id.split_once("#section-").unwrap_or((id, ""))
}

#[cfg(test)]
mod tests {
    use super::super::{parse_citations, sections};
    use super::*;

    const CODE: &str = "
//= rfc1#section-1
//# A thing MUST
//# be so.
//= rfc1#section-1.1
//# A zero-
//# length word is long enough that a line of the file ends before it, as this one shows by having
//# more.
";

    #[test]
    fn rendered_file_parses_to_the_same_quotations() {
        let citations = parse_citations("a.rs", CODE).unwrap();
        let sections = sections("rfc1 1 One\nrfc1 1.1 More\n").unwrap();
        let file = render("# Head.\n\nrfc1#section-9\n    Gone.\n", &sections, &citations);
        assert_eq!(
            file,
            "# Head.\n\nrfc1#section-1\n    A thing MUST be so.\n\nrfc1#section-1.1\n    A \
             zero-length word is long enough that a line of the file ends before it, as this one \
             shows by\n    having more.\n"
        );
        assert_eq!(compare(&parse(&file).unwrap(), &citations), [""; 0]);
        assert!(parse("    Alone.\n").is_err());
        assert!(parse("rfc1#section-1\n").is_err());
    }

    #[test]
    fn wrong_quotations_are_problems() {
        let file = "rfc1#section-1\n    A thing MUST be so.\n\nrfc1#section-2\n    Another.\n";
        let code = "//= rfc1#section-1\n//# A thing SHOULD be so.\n";
        let problems = |code| {
            let citations = parse_citations("a.rs", code).unwrap();
            compare(&parse(file).unwrap(), &citations)
        };
        let found = problems(code);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("a.rs:1: rfc1#section-1 has no such sentence"), "{found:?}");
        assert!(found[1].contains("quoted nowhere: A thing MUST be so."), "{found:?}");
        let elsewhere = "//= rfc1#section-2\n//# A thing MUST be so.\n";
        assert!(problems(elsewhere)[0].starts_with("a.rs:1: rfc1#section-2 has no such sentence"));
    }

    #[test]
    fn quotations_and_titles_are_compared_with_the_text() {
        let rfc = Rfc::parse("1. One\n\n   A thing\n   MUST be so.\n\n1.1 Two\n\n   Another.\n");
        let compared = |list, code| {
            let citations = parse_citations("a.rs", code).unwrap();
            compare_with_text("rfc1", &rfc, &sections(list).unwrap(), &citations)
        };
        let right = "//= rfc1#section-1\n//# A thing MUST be so.\n//= rfc2#section-1\n//# Other.\n";
        assert_eq!(compared("rfc1 1 One\nrfc1 1.1 Two\nrfc2 1 Three\n", right), [""; 0]);
        let wrong = "//= rfc1#section-1\n//# Another.\n//= rfc1#section-3\n//# Gone.\n";
        assert_eq!(
            compared("rfc1 1 Won\nrfc1 2 Two\n", wrong),
            [
                "rfc1#section-1: the title is \"One\"",
                "rfc1#section-2: the RFC has no such section",
                "a.rs:1: rfc1#section-1 does not say: Another.",
                "a.rs:3: rfc1#section-3 does not say: Gone.",
            ]
        );
    }
}
