//! What the users of a server may do, as Redis says it.

use super::Call;
use super::problem::{NO_KEYS, Problem};
use super::table::Command;
use super::words::is;
use crate::access::{Need, User};

/// Why a user may not do a command.
enum Reason {
    Command,
    Keys,
}

impl Call<'_> {
    /// Returns why the user may not do a command. It breaks off a transaction in which it would be
    /// kept.
    pub(super) fn forbidden(&mut self, command: &Command, words: &[Vec<u8>]) -> Option<Problem> {
        let reason = reason(&self.session.user, command, words)?;
        // Within a transaction: the client has become another user since the command was kept.
        if !self.may_wait {
            let reason = match reason {
                Reason::Command => "no permission to execute the command or subcommand",
                Reason::Keys => "no permission to touch the specified keys",
            };
            return Some(Problem::Quoting(format!(
                "NOPERM ACLs rules changed between the moment the transaction was accumulated and \
                 the EXEC call. This command is no longer allowed for the following reason: \
                 {reason}"
            )));
        }
        let problem = match reason {
            Reason::Command => Problem::Quoting(format!(
                "NOPERM this user has no permissions to run the '{}' command",
                command.name
            )),
            Reason::Keys => Problem::Text(NO_KEYS),
        };
        Some(self.rejected(command.name, problem))
    }
}

fn reason(user: &User, command: &Command, words: &[Vec<u8>]) -> Option<Reason> {
    if matches!(command.name, "flushall" | "flushdb") {
        return (!user.may_for_all(Need::Write)).then_some(Reason::Command);
    }
    let [first, others] = command.needs?;
    let mut need = first;
    for key in keys(command, words) {
        if !user.may(need, key) {
            return Some(Reason::Keys);
        }
        need = others;
    }
    None
}

/// The keys of a command. One whose keys cannot be found is refused because of its syntax.
fn keys<'a>(command: &Command, words: &'a [Vec<u8>]) -> impl Iterator<Item = &'a [u8]> {
    let (start, end, step) = match command.name {
        "xinfo" if words.get(1).is_some_and(|sub| is(sub, "STREAM")) => (2, words.len().min(3), 1),
        "xinfo" => (0, 0, 1),
        "lmpop" => counted(words, 1),
        "blmpop" => counted(words, 2),
        "xread" => streams(words),
        _ => {
            let [first, last, step] = command.keys;
            let len = words.len() as i64;
            let end = if last < 0 { len + last } else { last } + 1;
            (first as usize, end.clamp(0, len) as usize, step as usize)
        }
    };
    words.get(start..end).unwrap_or_default().iter().step_by(step).map(|key| &key[..])
}

/// The keys behind their number, which Redis takes here from what the word begins with. There are
/// none if there are fewer words.
fn counted(words: &[Vec<u8>], at: usize) -> (usize, usize, usize) {
    let start = at + 1;
    let word = words.get(at).map(|word| word.trim_ascii_start()).unwrap_or_default();
    let word = word.strip_prefix(b"+").unwrap_or(word);
    let digits = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let count = std::str::from_utf8(&word[..digits]).ok().and_then(|count| count.parse().ok());
    let end = count.and_then(|count: usize| start.checked_add(count));
    (start, end.filter(|end| *end <= words.len()).unwrap_or(start), 1)
}

/// The streams of `XREAD`: the first half of what follows `STREAMS`.
fn streams(words: &[Vec<u8>]) -> (usize, usize, usize) {
    let mut at = 1;
    while let Some(word) = words.get(at) {
        if is(word, "STREAMS") {
            let start = at + 1;
            return (start, start + (words.len() - start) / 2, 1);
        }
        at += if is(word, "BLOCK") || is(word, "COUNT") { 2 } else { 1 };
    }
    (0, 0, 1)
}
