//! The options that select names: patterns and rules.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueHint};

/// The names of a tree that are copied: rules in the order of the command line.
#[derive(Debug, Default)]
pub(crate) struct Filters(pub(crate) Vec<Filter>);

/// An option that includes or excludes names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Includes or excludes the names that match the pattern.
    Pattern { includes: bool, pattern: String },
    /// Includes or excludes names by a file of patterns, one a line.
    File { includes: bool, path: PathBuf },
    /// Reads more of these from a file of rules, one a line.
    Rules(PathBuf),
    /// Forgets those before it.
    Clear,
}

impl Filter {
    /// Parses a pattern of --include or --exclude, or a line of a file of them. As in rsync, it may
    /// say itself which of the two it is, or be a `!` alone.
    pub(crate) fn of(includes: bool, text: &str) -> Self {
        let (includes, pattern) = match text.split_at_checked(2) {
            Some(("+ ", pattern)) => (true, pattern),
            Some(("- ", pattern)) => (false, pattern),
            _ if text == "!" => return Self::Clear,
            _ => (includes, text),
        };
        Self::Pattern { includes, pattern: pattern.to_owned() }
    }

    /// Parses a rule as rsync's `--filter` has them.
    ///
    /// # Errors
    /// If it is none, or one that `weft cp` does not have.
    pub(crate) fn parse(rule: &str) -> Result<Self, String> {
        let (name, rest) = match rule.chars().next() {
            Some('+' | '-' | '.' | '!') => rule.split_at(1),
            _ => rule.split_at(rule.find([' ', '_']).unwrap_or(rule.len())),
        };
        let value = rest.strip_prefix([' ', '_']).filter(|value| !value.is_empty());
        let pattern = |includes| {
            let pattern = value.map(str::to_owned).ok_or_else(|| refusal(rule))?;
            Ok(Self::Pattern { includes, pattern })
        };
        match name {
            "+" | "include" => pattern(true),
            "-" | "exclude" => pattern(false),
            "." | "merge" => {
                value.map(|path| Self::Rules(path.into())).ok_or_else(|| refusal(rule))
            }
            "!" | "clear" if rest.is_empty() => Ok(Self::Clear),
            _ => Err(refusal(rule)),
        }
    }
}

fn refusal(rule: &str) -> String {
    format!(
        "{rule:?} is none of the rules that weft cp has: `- PATTERN`, `+ PATTERN`, `. FILE`, `!`"
    )
}

const INCLUDE: &str = "include";
const EXCLUDE: &str = "exclude";
const INCLUDE_FROM: &str = "include-from";
const EXCLUDE_FROM: &str = "exclude-from";
const FILTER: &str = "filter";

impl FromArgMatches for Filters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = Vec::new();
        for (name, includes) in [(INCLUDE, true), (EXCLUDE, false)] {
            let indices = matches.indices_of(name).into_iter().flatten();
            let patterns = matches.get_many::<String>(name).into_iter().flatten();
            let filters = patterns.map(|pattern| Filter::of(includes, pattern));
            all.extend(indices.zip(filters));
        }
        for (name, includes) in [(INCLUDE_FROM, true), (EXCLUDE_FROM, false)] {
            let indices = matches.indices_of(name).into_iter().flatten();
            let paths = matches.get_many::<PathBuf>(name).into_iter().flatten().cloned();
            all.extend(indices.zip(paths.map(|path| Filter::File { includes, path })));
        }
        let indices = matches.indices_of(FILTER).into_iter().flatten();
        let rules = matches.get_many::<Filter>(FILTER).into_iter().flatten().cloned();
        all.extend(indices.zip(rules));
        all.sort_by_key(|(index, _)| *index);
        Ok(Self(all.into_iter().map(|(_, filter)| filter).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Filters {
    fn augment_args(command: clap::Command) -> clap::Command {
        let arg = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        let pattern = |name| arg(name).value_name("PATTERN").allow_hyphen_values(true);
        let file = |name| {
            let parser = clap::value_parser!(PathBuf);
            arg(name).value_name("FILE").value_hint(ValueHint::FilePath).value_parser(parser)
        };
        command
            .arg(
                pattern(EXCLUDE)
                    .help("Leave out names that fit this pattern; may be repeated")
                    .long_help(
                        "Leave out names that fit this pattern; may be repeated\n\n\
                Of all --exclude and --include in their order, the first that fits a name \
                decides. A name that none fits is copied. What is in a directory that is left out \
                is not looked at, and --delete deletes nothing that is left out. `*` and `?` stand \
                for anything but `/`, `**` for anything, `[...]` for one of several characters. A \
                pattern that begins with `/` fits from the top of what is copied on, one that ends \
                in `/` fits directories only. `+ ` before a pattern makes it one of --include, \
                `- ` one of --exclude, and `!` alone forgets all that came before. All this is as \
                it is in rsync.",
                    ),
            )
            .arg(
                pattern(INCLUDE).help("Copy names that fit this pattern, whatever patterns follow"),
            )
            .arg(file(EXCLUDE_FROM).help(
                "Leave out names that fit a line of this file; empty lines, and those that begin \
                with # or ;, are none",
            ))
            .arg(file(INCLUDE_FROM).help("The same for names to copy"))
            .arg(
                arg(FILTER)
                    .short('f')
                    .value_name("RULE")
                    .allow_hyphen_values(true)
                    .value_parser(Filter::parse)
                    .help("A rule of rsync: `- PATTERN`, `+ PATTERN`, `. FILE` of rules, or `!`")
                    .long_help(
                        "A rule as rsync has them; may be repeated\n\n\
                `- PATTERN` is --exclude, `+ PATTERN` is --include, `. FILE` reads rules from a \
                file, one a line, and `!` forgets all that came before. Their long names are \
                exclude, include, merge and clear.",
                    ),
            )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, Weft};

    #[test]
    fn filters_keep_the_order_of_the_command_line() {
        let line =
            "weft cp --exclude=a --include b --exclude-from f --exclude c --include-from g x y";
        let Command::Cp(args) = Weft::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("not a copy");
        };
        let pattern =
            |includes, pattern: &str| Filter::Pattern { includes, pattern: pattern.into() };
        let file = |includes, path: &str| Filter::File { includes, path: path.into() };
        let expected = [
            pattern(false, "a"),
            pattern(true, "b"),
            file(false, "f"),
            pattern(false, "c"),
            file(true, "g"),
        ];
        assert_eq!(args.filters.0, expected);
    }

    #[test]
    fn patterns_may_say_what_they_are_as_in_rsync() {
        let pattern =
            |includes, pattern: &str| Filter::Pattern { includes, pattern: pattern.into() };
        for (text, expected) in [
            ("x", pattern(false, "x")),
            ("+ x", pattern(true, "x")),
            ("- x", pattern(false, "x")),
            ("+x", pattern(false, "+x")),
            ("!x", pattern(false, "!x")),
            ("é", pattern(false, "é")),
            ("!", Filter::Clear),
        ] {
            assert_eq!(Filter::of(false, text), expected, "{text}");
        }
        assert_eq!(Filter::of(true, "- *"), pattern(false, "*"));
        let line = ["weft", "cp", "--include", "- a", "--exclude", "+ b", "x", "y"];
        let Command::Cp(args) = Weft::try_parse_from(line).unwrap().command else {
            panic!("not a copy");
        };
        assert_eq!(args.filters.0, [pattern(false, "a"), pattern(true, "b")]);
    }

    #[test]
    fn rules_are_those_of_rsync() {
        let pattern =
            |includes, pattern: &str| Filter::Pattern { includes, pattern: pattern.into() };
        for (rule, expected) in [
            ("- *.o", pattern(false, "*.o")),
            ("+_a b", pattern(true, "a b")),
            ("exclude  x", pattern(false, " x")),
            ("include_/a/", pattern(true, "/a/")),
            (". rules", Filter::Rules("rules".into())),
            ("merge a_b", Filter::Rules("a_b".into())),
            ("!", Filter::Clear),
            ("clear", Filter::Clear),
        ] {
            assert_eq!(Filter::parse(rule), Ok(expected), "{rule}");
        }
        for rule in ["", "-", "- ", "-r x", "-,! x", "+", "x", ": .rules", "P x", "hide y", "! x"] {
            let why = Filter::parse(rule).expect_err("refused");
            assert!(why.contains("- PATTERN"), "{why}");
        }
    }
}
