//! Checks that `scripts/tiers.txt` names each test program in exactly one tier.

use std::collections::BTreeMap;
use std::path::Path;

use super::files::{read, rust_files};

const LIST: &str = "scripts/tiers.txt";
const TIERS: [&str; 3] = ["check", "test", "soak"];
/// The lanes of programs of the lab, and of those of other packages. `scripts/gate` looks for them
/// in these only.
const LAB_LANES: [&str; 2] = ["polls", "long"];
const OTHER_LANES: [&str; 2] = ["waits", "fuzz"];

/// Compares the list with the test programs of the crates.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let mut programs = Vec::new();
    for file in rust_files(&root.join("crates"))? {
        let path = file.strip_prefix(root.join("crates")).unwrap_or(&file);
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        if let [package, tests, name] = &parts[..]
            && tests == "tests"
            && let Some(name) = name.strip_suffix(".rs")
        {
            programs.push(format!("{package}/{name}"));
        }
    }
    findings.extend(compare(&programs, &read(&root.join(LIST))?));
    Ok(())
}

/// Returns what is wrong with the list.
fn compare(programs: &[String], list: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, line) in list.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [tier, program, lane @ ..] = &words[..] else { continue };
        let lanes = if program.starts_with("weft-lab/") { LAB_LANES } else { OTHER_LANES };
        let is_sound =
            TIERS.contains(tier) && lane.len() <= 1 && lane.iter().all(|it| lanes.contains(it));
        if !is_sound {
            findings.push(format!("{LIST}:{}: not `TIER PROGRAM [LANE]`", index + 1));
        }
        *named.entry(program).or_default() += 1;
    }
    for program in programs {
        match named.remove(program.as_str()) {
            Some(1) => {}
            Some(_) => findings.push(format!("{LIST}: {program} is in two tiers")),
            None => findings.push(format!("{LIST}: {program} is in no tier")),
        }
    }
    findings.extend(named.keys().map(|name| format!("{LIST}: there is no test program {name}")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_in_one_tier() {
        let programs = ["a/one", "a/two", "b/three", "weft-lab/four"].map(str::to_owned);
        let list = "# text\n\ntest a/one\nsoak a/two\ntest a/two waits\ntest c/gone\n\
                    some b/three\ntest weft-lab/four waits\n";
        let found = compare(&programs, list);
        assert_eq!(
            found,
            [
                "scripts/tiers.txt:7: not `TIER PROGRAM [LANE]`",
                "scripts/tiers.txt:8: not `TIER PROGRAM [LANE]`",
                "scripts/tiers.txt: a/two is in two tiers",
                "scripts/tiers.txt: there is no test program c/gone",
            ]
        );
        assert_eq!(compare(&programs[..1], ""), ["scripts/tiers.txt: a/one is in no tier"]);
    }
}
