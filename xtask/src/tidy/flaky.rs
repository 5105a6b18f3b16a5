//! Checks the list of flaky tests: each is a test that only `make soak` runs, and the list does not
//! grow unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::allowances;
use super::files::read;

const LIST: &str = "docs/internals/flaky.md";
/// The header of the list's table.
const HEADER: &str = "| test | what fails | how often | hypothesis | since |";
/// The number of columns, all of which say something.
const COLUMNS: usize = 5;
/// How the mark of a flaky test begins.
const MARK: &str = "#[ignore = \"soak: flaky";

/// A test: the file from the root on, and the function.
type Test = (String, String);

/// Compares the list with the marks in the sources, and its length with the allowance.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(
    root: &Path,
    sources: &[PathBuf],
    findings: &mut Vec<String>,
) -> Result<(), String> {
    let listed = entries(&read(&root.join(LIST))?, findings);
    let mut marked = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.ends_with("tidy/flaky.rs")) {
        let text = read(source)?;
        let name = source.strip_prefix(root).unwrap_or(source).display().to_string();
        marked.extend(marked_tests(&text).into_iter().map(|test| (name.clone(), test)));
    }
    for (file, test) in listed.difference(&marked) {
        let is_there = fs::read_to_string(root.join(file))
            .is_ok_and(|text| text.contains(&format!("fn {test}(")));
        let wrong =
            if is_there { format!("is not marked {MARK}") } else { "does not exist".into() };
        findings.push(format!("{LIST}: `{test}` of {file} {wrong}"));
    }
    for (file, test) in marked.difference(&listed) {
        findings.push(format!("{file}: `{test}` is marked as flaky, and is not in {LIST}"));
    }
    let (allowed, count) = (allowances::FLAKY, listed.len());
    allowances::compare(LIST, "flaky tests", allowed, count, Vec::new(), findings);
    Ok(())
}

/// Returns the tests in the list's table.
fn entries(text: &str, findings: &mut Vec<String>) -> BTreeSet<Test> {
    let mut found = BTreeSet::new();
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEADER);
    if lines.next().is_none() {
        findings.push(format!("{LIST}: no table {HEADER}"));
    }
    for (index, line) in lines.skip(1).take_while(|(_, line)| line.starts_with('|')) {
        match entry(line) {
            Some(test) if found.insert(test.clone()) => {}
            Some((_, test)) => findings.push(format!("{LIST}:{}: `{test}` again", index + 1)),
            None => findings.push(format!(
                "{LIST}:{}: not an entry: `FILE`: `TEST`, and {} more columns",
                index + 1,
                COLUMNS - 1
            )),
        }
    }
    found
}

/// Returns the test in a row whose columns all say something.
fn entry(row: &str) -> Option<Test> {
    let cells: Vec<&str> =
        row.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    if cells.len() != COLUMNS || cells.contains(&"") {
        return None;
    }
    match cells[0].split('`').collect::<Vec<_>>()[..] {
        ["", file, ": ", test, ""] => Some((file.to_owned(), test.to_owned())),
        _ => None,
    }
}

/// Returns the functions of a file that are marked as flaky.
fn marked_tests(text: &str) -> Vec<String> {
    let after_marks = text.split(MARK).skip(1);
    let functions = after_marks.filter_map(|rest| Some(rest.split_once("fn ")?.1));
    functions.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_tests_are_found() {
        let text = "#[test]\n#[ignore = \"soak: flaky, a race\"]\nfn one() {}\n#[test]\n\
                    #[ignore = \"soak: long\"]\nfn two() {}\n#[ignore = \"soak: flaky\"]\n\
                    #[test]\nasync fn three() {}";
        assert_eq!(marked_tests(text), ["one", "three"]);
    }

    #[test]
    fn rows_name_a_file_and_a_test_and_fill_all_columns() {
        let row = "| `a/b.rs`: `c` | it | 1 of 9 | slow | 2026-01 |";
        assert_eq!(entry(row), Some(("a/b.rs".into(), "c".into())));
        assert_eq!(entry("| `a/b.rs`: `c` | it | 1 of 9 | | 2026-01 |"), None);
        assert_eq!(entry("| `c` | it | 1 of 9 | slow | 2026-01 |"), None);
    }

    #[test]
    fn table_is_read_to_its_end() {
        let row = "| `a.rs`: `c` | it | 1 of 9 | slow | 2026-01 |";
        let mut findings = Vec::new();
        let text = format!("# Text\n\n{HEADER}\n| --- | --- | --- | --- | --- |\n{row}\n\n{row}\n");
        assert_eq!(entries(&text, &mut findings).len(), 1);
        assert_eq!(findings, Vec::<String>::new());
        entries("no table", &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn test_without_a_mark_or_an_entry_is_reported() {
        let folder = std::env::temp_dir().join(format!("weft-flaky-{}", std::process::id()));
        fs::create_dir_all(folder.join("docs/internals")).expect("a temporary directory");
        let row = |test: &str| format!("| `a.rs`: `{test}` | it | 1 of 9 | slow | 2026-01 |\n");
        let rows = row("plain") + &row("gone") + &row("marked");
        let list = format!("{HEADER}\n| --- | --- | --- | --- | --- |\n{rows}");
        fs::write(folder.join(LIST), list).expect("a temporary file");
        let source = folder.join("a.rs");
        let mark = format!("{MARK}, a race\"]\n");
        let text = format!("fn plain() {{}}\n{mark}fn marked() {{}}\n{mark}fn other() {{}}\n");
        fs::write(&source, text).expect("a temporary file");
        let mut findings = Vec::new();
        let checked = check(&folder, &[source], &mut findings);
        fs::remove_dir_all(&folder).expect("a temporary directory");
        assert_eq!(checked, Ok(()));
        let has = |text: &str| findings.iter().any(|finding| finding.contains(text));
        assert!(has("`plain` of a.rs is not marked"), "{findings:?}");
        assert!(has("`gone` of a.rs does not exist"), "{findings:?}");
        assert!(has("`other` is marked as flaky"), "{findings:?}");
        assert!(has("3 flaky tests, 0 allowed"), "{findings:?}");
        assert_eq!(findings.len(), 4);
    }
}
