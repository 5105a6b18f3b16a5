//! The subcommands that there are. Redis looks for them before it keeps a command for later.

use super::problem::Problem;
use super::words::is;
use crate::resp::parse::Words;

/// Commands with their subcommands, and the number of words with both names; a negative one is the
/// least number.
const SUBCOMMANDS: [(&str, &[(&str, i64)]); 5] = [
    ("acl", &[("whoami", 2)]),
    (
        "client",
        &[
            ("getname", 2),
            ("id", 2),
            ("info", 2),
            ("list", -2),
            ("no-evict", 3),
            ("setinfo", 4),
            ("setname", 3),
        ],
    ),
    ("command", &[("count", 2), ("docs", -2), ("info", -2), ("list", -2)]),
    ("config", &[("get", -3), ("set", -4)]),
    ("xinfo", &[("stream", -3)]),
];

/// Checks the name of a subcommand and the number of words, if the command has subcommands.
pub(super) fn check(command: &'static str, words: &Words) -> Result<(), Problem> {
    let all = SUBCOMMANDS.iter().find(|(name, _)| *name == command);
    let (Some((_, all)), Some(sub)) = (all, words.get(1)) else { return Ok(()) };
    let Some((name, arity)) = all.iter().find(|(name, _)| is(sub, name)) else {
        return Err(Problem::unknown_sub(&command.to_ascii_uppercase(), sub));
    };
    let wanted = arity.unsigned_abs() as usize;
    let is_right = if *arity < 0 { words.len() >= wanted } else { words.len() == wanted };
    if is_right { Ok(()) } else { Err(Problem::sub_arguments(command, name)) }
}
