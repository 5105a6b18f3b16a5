//! `cargo xtask rfc`: lists the sections of the RFCs that the code implements, tests, or leaves out
//! with a reason.
//!
//! A citation is a run of comment lines in Rust code:
//!
//! ```text
//! //= type=test                  in a test only
//! //= rfc5044#section-4.1
//! //# quoted sentence
//! ```
//!
//! `crates/weft-wire/rfc` has the list of sections, the exceptions, and the quotations that were
//! compared with the RFCs. `cargo xtask rfc --texts DIRECTORY` compares the quotations with the
//! texts `rfc5044.txt` (or `.txt.gz`) of that directory, and writes the file of quotations.

mod citation;
mod quotations;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use citation::{Citation, Id, Section};
use quotations::QUOTATIONS;
use text::append_line;

const SECTIONS: &str = "crates/weft-wire/rfc/sections.txt";
const EXCEPTIONS: &str = "crates/weft-wire/rfc/exceptions.toml";
const CODE: &str = "crates";
/// Width of the table's column for file names.
const FILES_WIDTH: usize = 36;

/// Prints the table. Fails if a section has neither code nor an exception, if a quotation was not
/// compared with its RFC, or if a citation cannot be parsed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let texts = match args {
        [] => None,
        [option, directory] if option == "--texts" => Some(Path::new(directory)),
        _ => return Err("usage: cargo xtask rfc [--texts DIRECTORY]".into()),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."));
    let sections = sections(&read(&root.join(SECTIONS))?)?;
    let exceptions = exceptions(&read(&root.join(EXCEPTIONS))?)?;
    let mut citations = Vec::new();
    for file in rust_files(&root.join(CODE))? {
        let name = file.strip_prefix(root.join(CODE)).unwrap_or(&file).display().to_string();
        citations.extend(parse_citations(&name, &read(&file)?)?);
    }
    let path = root.join(QUOTATIONS);
    let mut file = read(&path)?;
    let mut problems = Vec::new();
    if let Some(directory) = texts {
        problems = quotations::compare_with_texts(directory, &sections, &citations)?;
        if problems.is_empty() {
            file = quotations::render(&file, &sections, &citations);
            fs::write(&path, &file).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    let quotations = quotations::parse(&file)?;
    if problems.is_empty() {
        problems = quotations::compare(&quotations, &citations);
    }
    let report = Report::new(&sections, &exceptions, &citations);
    problems.extend(report.problems);
    print!("{}", report.table);
    if problems.is_empty() {
        println!("{} quotations, each found in the text of its RFC", quotations.len());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n  ")) }
}

struct Report {
    table: String,
    problems: Vec<String>,
}

impl Report {
    fn new(
        sections: &[Section],
        exceptions: &BTreeMap<Id, String>,
        citations: &[Citation],
    ) -> Self {
        let mut problems = Vec::new();
        let known: BTreeSet<&Id> = sections.iter().map(|section| &section.id).collect();
        for citation in citations.iter().filter(|citation| !known.contains(&citation.section)) {
            let Citation { file, line, section, .. } = citation;
            problems.push(format!("{file}:{line}: {section} is not in {SECTIONS}"));
        }
        for id in exceptions.keys().filter(|id| !known.contains(id)) {
            problems.push(format!("{EXCEPTIONS}: {id} is not in {SECTIONS}"));
        }
        let mut table = format!(
            "{:<15} {:<51} {:<FILES_WIDTH$} {}\n",
            "section", "title", "implemented", "rules tested"
        );
        let mut missing = 0;
        for Section { id, title } in sections {
            let of_section = || citations.iter().filter(|citation| citation.section == *id);
            let texts = |is_test| -> BTreeSet<&str> {
                let of_kind = of_section().filter(|citation| citation.is_test == is_test);
                of_kind.map(|citation| citation.text.as_str()).collect()
            };
            let (rules, tests) = (texts(false), texts(true));
            for text in tests.difference(&rules) {
                problems.push(format!("{id}: a test cites a rule that no code cites: {text}"));
            }
            let exception = exceptions.get(id);
            let files: BTreeSet<&str> = of_section()
                .filter(|citation| !citation.is_test)
                .map(|citation| citation.file.as_str())
                .collect();
            let implemented = match (files.len(), exception) {
                (0, Some(_)) => "left out".into(),
                (0, None) => {
                    missing += 1;
                    "MISSING".into()
                }
                _ => short(&files),
            };
            let tested = match rules.len() {
                0 => String::new(),
                all => format!("{} of {all}", rules.intersection(&tests).count()),
            };
            let id = id.replace("#section-", " ");
            let line = format!("{id:<15} {title:<51.51} {implemented:<FILES_WIDTH$} {tested}");
            table += line.trim_end();
            table.push('\n');
            if let Some(reason) = exception {
                table += &format!("{:<15} because: {reason}\n", "");
            }
        }
        if missing > 0 {
            problems.push(format!("{missing} of {} sections are missing", sections.len()));
        }
        Self { table, problems }
    }
}

/// Returns the first file's name and the number of further files.
fn short(files: &BTreeSet<&str>) -> String {
    let first = files.first().copied().unwrap_or_default().replace("/src/", "/");
    match files.len() {
        0 | 1 => first,
        all => format!("{first} +{}", all - 1),
    }
}

fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(rfc), Some(number)) = (words.next(), words.next()) else {
            return Err(format!("{SECTIONS}: not \"RFC section title\": {line}"));
        };
        let title = words.collect::<Vec<_>>().join(" ");
        sections.push(Section { id: format!("{rfc}#section-{number}"), title });
    }
    Ok(sections)
}

/// Returns the reasons by section. Parses only the part of TOML that the file's head describes.
fn exceptions(text: &str) -> Result<BTreeMap<Id, String>, String> {
    let mut exceptions = BTreeMap::new();
    let mut section = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with('#') || line == "[[exception]]" {
            continue;
        }
        let wrong = || format!("{EXCEPTIONS}: cannot read: {line}");
        let (key, value) = line.split_once(" = ").ok_or_else(wrong)?;
        let value = if value == "\"\"\"" {
            let mut words = Vec::new();
            for line in lines.by_ref() {
                words.extend(line.trim_end_matches("\"\"\"").split_whitespace());
                if line.ends_with("\"\"\"") {
                    break;
                }
            }
            words.join(" ")
        } else {
            let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            inner.ok_or_else(wrong)?.to_owned()
        };
        match (key, section.take()) {
            ("section", None) => section = Some(value),
            ("reason", Some(id)) => _ = exceptions.insert(id, value),
            _ => return Err(wrong()),
        }
    }
    Ok(exceptions)
}

fn parse_citations(file: &str, code: &str) -> Result<Vec<Citation>, String> {
    let mut citations: Vec<Citation> = Vec::new();
    let mut is_test = false;
    let mut is_open = false;
    for (line, content) in (1..).zip(code.lines()) {
        let comment = content.trim_start();
        if let Some(target) = comment.strip_prefix("//= ") {
            if target == "type=test" {
                is_test = true;
            } else if target.starts_with("rfc") {
                let (section, file) = (target.to_owned(), file.to_owned());
                citations.push(Citation { section, text: String::new(), is_test, file, line });
                is_open = true;
            } else {
                return Err(format!("{file}:{line}: neither type=test nor an RFC: {target}"));
            }
        } else if let Some(text) = comment.strip_prefix("//# ") {
            let Some(citation) = citations.last_mut().filter(|_| is_open) else {
                return Err(format!("{file}:{line}: a quotation without its section"));
            };
            append_line(&mut citation.text, text);
        } else if comment.starts_with("//%") {
            return Err(format!("{file}:{line}: a paraphrase; quote the sentence with //#"));
        } else {
            (is_test, is_open) = (false, false);
        }
    }
    match citations.iter().find(|citation| citation.text.is_empty()) {
        Some(Citation { line, section, .. }) => {
            Err(format!("{file}:{line}: {section} without a sentence"))
        }
        None => Ok(citations),
    }
}

/// Returns the Rust files below `directory`, sorted.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", directory.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "
//= rfc1#section-1
//# A thing MUST
//# be so.
fn thing() {}

    //= type=test
    //= rfc1#section-1
    //# A thing  MUST be so.
    //= rfc1#section-2
    //# Another.
    #[test]
";

    fn report(sections: &str, exceptions: &str, code: &str) -> Report {
        let citations = parse_citations("a.rs", code).unwrap();
        Report::new(&super::sections(sections).unwrap(), &super::exceptions(exceptions).unwrap(), {
            &citations
        })
    }

    #[test]
    fn citations_are_parsed() {
        let found = parse_citations("a.rs", CODE).unwrap();
        let summary: Vec<_> = found
            .iter()
            .map(|c| (c.section.as_str(), c.text.as_str(), c.is_test, c.line))
            .collect();
        assert_eq!(
            summary,
            [
                ("rfc1#section-1", "A thing MUST be so.", false, 2),
                ("rfc1#section-1", "A thing MUST be so.", true, 8),
                ("rfc1#section-2", "Another.", true, 10),
            ]
        );
        assert!(parse_citations("a.rs", "//= rfc1#section-1\n//% So it is.\n").is_err());
        assert!(parse_citations("a.rs", "//# Alone.\n").is_err());
        assert!(parse_citations("a.rs", "//= rfc1#section-1\nfn f() {}\n").is_err());
        assert!(parse_citations("a.rs", "//= rfc1#section-1\nfn f() {}\n//# Late.\n").is_err());
    }

    #[test]
    fn sections_without_code_are_problems() {
        let sections = "# Comment\nrfc1 1 One\nrfc1 2 Two\nrfc1 3 Three\n";
        let report = report(sections, "", CODE);
        assert_eq!(
            report.problems,
            [
                "rfc1#section-2: a test cites a rule that no code cites: Another.",
                "2 of 3 sections are missing",
            ]
        );
        assert!(report.table.contains("1 of 1"));
        assert!(report.table.contains("MISSING"));
    }

    #[test]
    fn exceptions_replace_missing_code() {
        let exceptions = "[[exception]]\nsection = \"rfc1#section-3\"\nreason = \"\"\"\nNot\n\
                          ours.\"\"\"\n\n[[exception]]\nsection = \"rfc1#section-9\"\n\
                          reason = \"Gone.\"\n";
        let code = "//= rfc1#section-8\n//# Eight.\n";
        let report = report("rfc1 3 Three\n", exceptions, code);
        assert!(report.table.contains("left out"));
        assert!(report.table.contains("because: Not ours."));
        assert_eq!(
            report.problems,
            [
                format!("a.rs:1: rfc1#section-8 is not in {SECTIONS}"),
                format!("{EXCEPTIONS}: rfc1#section-9 is not in {SECTIONS}"),
            ]
        );
        assert!(super::exceptions("section = 3\n").is_err());
        assert!(super::exceptions("reason = \"Of what?\"\n").is_err());
    }
}
