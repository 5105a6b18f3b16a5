//! Checks house rules that the compiler does not check. Each finding names the place and the rule.

mod allowances;
mod calls;
mod clocks;
mod crates;
mod documents;
mod files;
mod flaky;
mod limits;
mod modules;
mod mutations;
mod names;
mod promises;
mod tiers;
mod tokens;
mod words;

use crate::dist::workspace;

/// Runs all checks. With `--layers`, also prints each crate's layers.
///
/// # Errors
/// The findings, one a line.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let shows_layers = match args {
        [] => false,
        [option] if option == "--layers" => true,
        _ => return Err("takes --layers or nothing".into()),
    };
    let root = workspace();
    let mut findings = Vec::new();
    crates::check(&root, &mut findings)?;
    for report in modules::check(&root, &mut findings)? {
        report.print(shows_layers);
    }
    let mut sources = files::rust_files(&root.join("crates"))?;
    sources.extend(files::rust_files(&root.join("xtask"))?);
    files::check(&sources, &mut findings)?;
    flaky::check(&root, &sources, &mut findings)?;
    limits::check(&root, &mut findings)?;
    clocks::check(&root, &mut findings)?;
    calls::check(&root, &mut findings)?;
    mutations::check(&root, &mut findings)?;
    promises::check(&root, &mut findings)?;
    tiers::check(&root, &mut findings)?;
    documents::check(&root, &sources, &mut findings)?;
    let documents = documents::documents(&root)?;
    let mut programs = files::files_with(&root.join("crates"), &["c", "h", "py", "sh"])?;
    programs.extend(files::rust_files(&root.join("fuzz"))?);
    sources.extend(programs);
    names::check(&root, &sources, &mut findings)?;
    words::check(&root, &sources, &documents, &mut findings)?;
    if findings.is_empty() { Ok(()) } else { Err(format!("\n{}", findings.join("\n"))) }
}
