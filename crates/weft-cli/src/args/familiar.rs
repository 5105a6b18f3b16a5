//! What users of rsync and cp type: options for what `weft cp` does anyway, and those that it does
//! not have, with the ones to use instead.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// An option that another program has.
#[derive(Debug)]
struct Known {
    short: Option<char>,
    long: &'static str,
    value: Value,
}

/// The value of an option.
#[derive(Debug, Clone, Copy)]
enum Value {
    None,
    /// After `=` only.
    Optional,
    Required,
}

const fn flag(short: Option<char>, long: &'static str) -> Known {
    Known { short, long, value: Value::None }
}

const fn optional(short: Option<char>, long: &'static str) -> Known {
    Known { short, long, value: Value::Optional }
}

const fn valued(short: Option<char>, long: &'static str) -> Known {
    Known { short, long, value: Value::Required }
}

/// The options for what `weft cp` does anyway.
const DEFAULTS: [Known; 18] = [
    flag(Some('r'), RECURSIVE),
    flag(Some('p'), "perms"),
    flag(Some('E'), "executability"),
    flag(Some('t'), "times"),
    flag(Some('U'), "atimes"),
    flag(Some('l'), "links"),
    flag(None, "no-dereference"),
    flag(Some('H'), "hard-links"),
    flag(Some('S'), "sparse"),
    flag(None, "progress"),
    flag(Some('s'), "secluded-args"),
    flag(None, "protect-args"),
    flag(None, "no-inc-recursive"),
    flag(None, "inc-recursive"),
    flag(Some('I'), IGNORE_TIMES),
    flag(None, "no-motd"),
    flag(None, "blocking-io"),
    flag(None, "no-blocking-io"),
];

const REPLACED: &str = "a file gets its name when it is complete, unless --inplace writes into the \
    one that is there";
const PATTERNS: &str = "use --exclude, --include, --exclude-from and --include-from";
const LINKS: &str = "use -L for what links lead to; otherwise they are copied as links";
const ADDRESS: &str = "name the host by the address that is meant, [ADDRESS] for IPv6";
const LIVENESS: &str = "connecting has a limit by itself; --timeout limits the silence afterwards";
const COMPRESSION: &str = "use --compress=auto, zstd or none";
const OWNER_MAPS: &str = "use --owners, with --numeric-ids by number";
const SELECTION: &str = "use --update, --skip-unchanged, --ignore-existing, --exclude";
const THIRD: &str = "use --link-dest, or --skip-unchanged, which leaves out what is there";
const EVENTS: &str = "use --json, whose events are on standard output";
const NO_OWNERS: &str = "leave out -a, which keeps them: the rest is kept without it";
const TIME: &str = "use timeout, and the same command with --resume another time";
const SHELL: &str = "no shell sees the names of files";
const DEVICES: &str = "use weft cp - for what is in a device, with < or >";
const MODES: &str = "use --chmod; otherwise modes are those of the source";

/// The options that `weft cp` does not have, with what to do instead.
const REFUSED: [(Known, &str); 89] = [
    (valued(None, "partial-dir"), "use --resume; what is partial is in the same directory"),
    (flag(None, "delay-updates"), REPLACED),
    (valued(Some('T'), "temp-dir"), REPLACED),
    (flag(None, "preallocate"), REPLACED),
    (valued(None, "compare-dest"), THIRD),
    (valued(None, "copy-dest"), THIRD),
    (flag(Some('y'), "fuzzy"), THIRD),
    (flag(Some('C'), "cvs-exclude"), PATTERNS),
    (flag(Some('d'), "dirs"), "directories are copied with what is in them; see --exclude"),
    (flag(Some('k'), "copy-dirlinks"), LINKS),
    (flag(Some('K'), "keep-dirlinks"), LINKS),
    (flag(None, "copy-unsafe-links"), LINKS),
    (flag(None, "safe-links"), LINKS),
    (flag(None, "munge-links"), LINKS),
    (flag(Some('O'), "omit-dir-times"), "times are kept"),
    (flag(Some('J'), "omit-link-times"), "times are kept"),
    (flag(Some('N'), "crtimes"), "Linux cannot set the time at which a file was made"),
    (flag(None, "delete-excluded"), "what patterns leave out is never deleted"),
    (flag(None, "ignore-errors"), "nothing is deleted if some of the source cannot be read"),
    (flag(None, "ignore-missing-args"), "the exit status is 3 if a source is missing"),
    (flag(None, "delete-missing-args"), "the exit status is 3 if a source is missing"),
    (flag(None, "existing"), SELECTION),
    (flag(None, "ignore-non-existing"), SELECTION),
    (valued(None, "max-size"), SELECTION),
    (valued(None, "min-size"), SELECTION),
    (valued(Some('@'), "modify-window"), "use --size-only or --checksum"),
    (flag(None, "no-clobber"), "use --ignore-existing"),
    (flag(None, "no-perms"), MODES),
    (valued(None, "chown"), OWNER_MAPS),
    (valued(None, "usermap"), OWNER_MAPS),
    (valued(None, "groupmap"), OWNER_MAPS),
    (flag(None, "super"), OWNER_MAPS),
    (flag(None, "fake-super"), OWNER_MAPS),
    (optional(None, "preserve"), "use --owners and --xattrs; modes, times and links are kept"),
    (valued(None, "contimeout"), LIVENESS),
    (valued(None, "rsync-path"), "use --remote-weft PROGRAM"),
    (valued(None, "port"), "use HOST:PORT//SHARE/PATH; with --rsh, an option of the shell"),
    (valued(None, "password-file"), "keys take the place of passwords: weft cp --show-key"),
    (flag(Some('4'), "ipv4"), ADDRESS),
    (flag(Some('6'), "ipv6"), ADDRESS),
    (valued(None, "address"), ADDRESS),
    (valued(None, "sockopts"), "use --congestion, --fair-share or --limit"),
    (valued(None, "compress-level"), COMPRESSION),
    (valued(None, "compress-choice"), COMPRESSION),
    (valued(None, "skip-compress"), COMPRESSION),
    (valued(None, "checksum-choice"), "the only one is BLAKE3: --checksum"),
    (valued(Some('B'), "block-size"), "block sizes follow from the data: --explain"),
    (valued(None, "log-file"), EVENTS),
    (valued(None, "out-format"), EVENTS),
    (valued(None, "info"), EVENTS),
    (valued(None, "debug"), EVENTS),
    (valued(None, "target-directory"), "the last place is the destination"),
    (optional(None, "reflink"), "the kernel shares data by itself, where the file system can"),
    (valued(None, "write-batch"), "use weft cp twice"),
    (valued(None, "read-batch"), "use weft cp twice"),
    (flag(None, "list-only"), "use -n"),
    (flag(None, "mkpath"), "make the directory first: only the last name of a place may be new"),
    (flag(Some('m'), "prune-empty-dirs"), "directories are copied also if nothing is in them"),
    (
        flag(None, "no-implied-dirs"),
        "with --relative the directories above are those of the source",
    ),
    (flag(None, "no-owner"), NO_OWNERS),
    (flag(None, "no-o"), NO_OWNERS),
    (flag(None, "no-group"), NO_OWNERS),
    (flag(None, "no-g"), NO_OWNERS),
    (flag(None, "no-p"), MODES),
    (flag(None, "no-times"), "times are kept"),
    (flag(None, "no-t"), "times are kept"),
    (flag(None, "no-links"), LINKS),
    (flag(None, "no-l"), LINKS),
    (flag(None, "no-recursive"), "directories are copied with what is in them; see --exclude"),
    (flag(None, "no-r"), "directories are copied with what is in them; see --exclude"),
    (valued(None, "stop-after"), TIME),
    (valued(None, "time-limit"), TIME),
    (valued(None, "stop-at"), TIME),
    (flag(None, "old-args"), SHELL),
    (valued(Some('M'), "remote-option"), "the other end does what the options here say"),
    (valued(None, "iconv"), "names are bytes, and stay as they are"),
    (flag(Some('8'), "8-bit-output"), EVENTS),
    (valued(None, "outbuf"), EVENTS),
    (valued(None, "stderr"), EVENTS),
    (valued(None, "log-file-format"), EVENTS),
    (valued(None, "protocol"), "the two ends agree on a version by themselves"),
    (valued(None, "checksum-seed"), "the only checksum is BLAKE3, without a seed: --checksum"),
    (valued(None, "compress-threads"), COMPRESSION),
    (flag(None, "copy-devices"), DEVICES),
    (flag(None, "write-devices"), DEVICES),
    (flag(None, "open-noatime"), "mount what is read with noatime"),
    (valued(None, "copy-as"), "start weft cp, or the remote weft, as that user"),
    (valued(None, "only-write-batch"), "use weft cp twice"),
    (flag(None, "daemon"), "use weft serve"),
];

const IGNORE_TIMES: &str = "ignore-times";
const RECURSIVE: &str = "recursive";
const OWNER: &str = "owner";
const GROUP: &str = "group";
const ACLS: &str = "acls";

/// What was typed of these options.
#[derive(Debug)]
pub(crate) struct Familiar {
    /// The first option that `weft cp` does not have, with what to do instead.
    refused: Option<&'static (Known, &'static str)>,
    is_recursive: bool,
    has_owner: bool,
    has_group: bool,
    has_acls: bool,
}

impl Familiar {
    /// Returns what the options demand of owners: whether they are kept.
    pub(crate) fn keeps_owners(&self) -> bool {
        self.has_owner && self.has_group
    }

    /// Whether `--recursive` was given, which matters only with `--files-from`.
    pub(crate) fn is_recursive(&self) -> bool {
        self.is_recursive
    }

    /// Checks that there is nothing that another option has to be used for. `owners` and `xattrs`
    /// tell what other options keep.
    ///
    /// # Errors
    /// What to use instead.
    pub(crate) fn check(&self, owners: bool, xattrs: bool) -> Result<(), String> {
        if let Some((Known { short, long, .. }, advice)) = self.refused {
            let short = short.map(|short| format!("-{short}, ")).unwrap_or_default();
            return Err(format!("weft cp has no {short}--{long}: {advice}"));
        }
        if (self.has_owner || self.has_group) && !owners {
            return Err("owners and groups are kept together: use --owners (-og)".into());
        }
        if self.has_acls && !xattrs {
            let text = "ACLs are kept with the other extended attributes: use --xattrs (-X)";
            return Err(text.into());
        }
        Ok(())
    }
}

impl FromArgMatches for Familiar {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |known: &Known| match known.value {
            Value::None => matches.get_flag(known.long),
            Value::Optional | Value::Required => matches.contains_id(known.long),
        };
        Ok(Self {
            refused: REFUSED.iter().find(|(known, _)| is_given(known)),
            is_recursive: matches.get_flag(RECURSIVE),
            has_owner: matches.get_flag(OWNER),
            has_group: matches.get_flag(GROUP),
            has_acls: matches.get_flag(ACLS),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn arg(known: &Known) -> Arg {
    let arg = Arg::new(known.long).long(known.long).hide(true);
    let arg = match known.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    let arg = match known.long {
        // They leave files out by their times.
        IGNORE_TIMES => arg.conflicts_with_all(["skip_unchanged", "resume", "update"]),
        _ => arg,
    };
    // Whatever the value is, the option is refused.
    let value = clap::value_parser!(std::ffi::OsString);
    match known.value {
        Value::None => arg.action(ArgAction::SetTrue),
        Value::Optional => arg.num_args(0..=1).require_equals(true).value_parser(value),
        Value::Required => arg.allow_hyphen_values(true).value_parser(value),
    }
}

impl Args for Familiar {
    fn augment_args(command: Command) -> Command {
        let others = [flag(Some('o'), OWNER), flag(Some('g'), GROUP), flag(Some('A'), ACLS)];
        let refused = REFUSED.iter().map(|(known, _)| known);
        let all = DEFAULTS.iter().chain(refused).chain(&others);
        command.args(all.map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{self, CpArgs, Weft};

    fn parsed(words: &[&str]) -> CpArgs {
        let line = [&["weft", "cp"], words, &["from", "to"]].concat();
        let parsed =
            Weft::try_parse_from(line).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let args::Command::Cp(args) = parsed.command else { panic!("not a copy") };
        assert_eq!(args.paths, ["from", "to"], "{words:?}");
        args
    }

    fn settled(words: &[&str]) -> Result<CpArgs, String> {
        let mut args = parsed(words);
        args.settle().map(|()| args)
    }

    #[test]
    fn options_for_what_is_done_anyway_are_accepted() {
        for Known { short, long, .. } in &DEFAULTS {
            let args = settled(&[&format!("--{long}")]).expect("accepted");
            assert!(!args.owners && !args.xattrs && !args.specials && args.limit.is_none());
            if let Some(short) = short {
                settled(&[&format!("-{short}")]).expect("accepted");
            }
        }
    }

    #[test]
    fn options_are_bundled_and_repeated_as_in_rsync() {
        for words in [&["-rlptgoD"][..], &["-aa"], &["-aHSW", "--progress"], &["-og", "--devices"]]
        {
            let args = settled(words).expect("accepted");
            assert!(args.owners && args.specials && !args.resume, "{words:?}");
        }
        let args = settled(&["-aAXzP", "--bwlimit=100"]).expect("accepted");
        assert!(args.xattrs && args.resume && args.limit == Some(100 << 10));
        for (text, limit) in [("0", None), ("1.5M", Some(3 << 19)), ("2MB", Some(2_000_000))] {
            let args = settled(&["--bwlimit", text]).expect("accepted");
            assert_eq!(args.limit, limit);
        }
    }

    #[test]
    fn other_options_are_refused_with_what_to_use() {
        for (Known { short, long, value }, advice) in &REFUSED {
            let (option, word) = (format!("--{long}"), format!("--{long}=- x"));
            let short = short.map(|short| format!("-{short}"));
            let all: Vec<Vec<&str>> = match value {
                Value::None => [Some(&option), short.as_ref()]
                    .map(|it| it.into_iter().map(|it| &it[..]).collect())
                    .into(),
                Value::Optional => vec![vec![&option], vec![&word]],
                Value::Required => vec![vec![&option, "- x"], vec![&word]],
            };
            for words in all.iter().filter(|words| !words.is_empty()) {
                let why = settled(words).expect_err("refused");
                assert!(why.contains(&option) && why.ends_with(advice), "{why}");
            }
        }
        for words in [&["-o"][..], &["-g"], &["-A"], &["-aA"]] {
            settled(words).expect_err("refused");
        }
        for option in ["--skip-unchanged", "--resume", "--update"] {
            let line = ["weft", "cp", "-I", option, "from", "to"];
            assert!(Weft::try_parse_from(line).is_err(), "{option}");
        }
    }
}
