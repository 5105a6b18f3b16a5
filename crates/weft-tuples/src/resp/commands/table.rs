//! The commands that there are.

use super::problem::Problem;
use super::{Call, Step};
use crate::access::Need;
use crate::model::ElementEnd::{Back, Front};

/// A command.
pub(super) struct Command {
    /// [`key_of`] its name.
    key: u128,
    /// Its name in small letters.
    pub(super) name: &'static str,
    /// The number of words, with the name; a negative one is the least number.
    pub(super) arity: i64,
    /// The places of the first and the last key among the words, negative ones from the end, and
    /// from one key to the next. All are 0 if they are not fixed.
    pub(super) keys: [i64; 3],
    /// What it does with the first key, and with each other one. `None` if it has no keys.
    pub(super) needs: Option<[Need; 2]>,
    pub(super) run: fn(&mut Call<'_>, &[Vec<u8>]) -> Result<Step, Problem>,
}

impl Command {
    /// Whether clients may use it that have not shown a password.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.name, "auth" | "hello" | "quit" | "reset")
    }

    /// Whether it is done at once within a transaction, too.
    pub(super) fn is_of_transactions(&self) -> bool {
        matches!(self.name, "discard" | "exec" | "multi" | "quit" | "reset" | "watch")
    }

    /// Whether the command has this many words.
    pub(super) fn takes(&self, words: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { words >= wanted } else { words == wanted }
    }
}

/// Returns the command with a name, in capitals or not.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    let key = key_of(name)?;
    let found = COMMANDS.binary_search_by_key(&key, |command| command.key).ok();
    // Zeros at the end of a name do not change its key.
    found.map(|at| &COMMANDS[at]).filter(|command| command.name.len() == name.len())
}

/// Returns the bytes of a name in small letters as one number, which compares as the name does.
/// `None` if it is longer than that of any command.
const fn key_of(name: &[u8]) -> Option<u128> {
    const BYTES: usize = size_of::<u128>();
    if name.len() > BYTES {
        return None;
    }
    let mut bytes = [0; BYTES];
    let mut at = 0;
    while at < name.len() {
        bytes[at] = name[at].to_ascii_lowercase();
        at += 1;
    }
    Some(u128::from_be_bytes(bytes))
}

const NONE: Option<[Need; 2]> = None;
const KNOW: Option<[Need; 2]> = Some([Need::Know; 2]);
const READ: Option<[Need; 2]> = Some([Need::Read; 2]);
const WRITE: Option<[Need; 2]> = Some([Need::Write; 2]);
const BOTH: Option<[Need; 2]> = Some([Need::Both; 2]);
const MOVE: Option<[Need; 2]> = Some([Need::Both, Need::Write]);

macro_rules! commands {
    ($($name:literal $arity:literal $keys:tt $needs:ident $run:expr;)*) => {
        /// All commands, in the order of their names.
        pub(super) static COMMANDS: &[Command] =
            &[$(Command {
                key: key_of($name.as_bytes()).expect("the name is short"),
                name: $name,
                arity: $arity,
                keys: $keys,
                needs: $needs,
                run: $run,
            }),*];
    };
}

commands! {
    "acl" -2 [0, 0, 0] NONE |call, words| call.acl(words);
    "auth" -2 [0, 0, 0] NONE |call, words| call.auth(words);
    "blmove" 6 [1, 2, 1] MOVE |call, words| call.moves(words, true);
    "blmpop" -5 [0, 0, 0] BOTH |call, words| call.multi_pop(words, true);
    "blpop" -3 [1, -2, 1] BOTH |call, words| call.blocking_pop(words, Front);
    "brpop" -3 [1, -2, 1] BOTH |call, words| call.blocking_pop(words, Back);
    "brpoplpush" 4 [1, 2, 1] MOVE |call, words| call.pops_and_pushes(words, true);
    "client" -2 [0, 0, 0] NONE |call, words| call.client(words);
    "command" -1 [0, 0, 0] NONE |call, words| call.command(words);
    "config" -2 [0, 0, 0] NONE |call, words| call.config(words);
    "dbsize" 1 [0, 0, 0] NONE |call, _| call.count_all();
    "del" -2 [1, -1, 1] WRITE |call, words| call.delete(words);
    "discard" 1 [0, 0, 0] NONE |call, _| call.discard();
    "echo" 2 [0, 0, 0] NONE |call, words| call.echo(words);
    "exec" 1 [0, 0, 0] NONE |call, _| call.exec();
    "exists" -2 [1, -1, 1] KNOW |call, words| call.exist(words);
    "flushall" -1 [0, 0, 0] NONE |call, words| call.flush(words);
    "flushdb" -1 [0, 0, 0] NONE |call, words| call.flush(words);
    "hello" -1 [0, 0, 0] NONE |call, words| call.hello(words);
    "info" -1 [0, 0, 0] NONE |call, _| call.info();
    "keys" 2 [0, 0, 0] NONE |call, words| call.keys(words);
    "lindex" 3 [1, 1, 1] READ |call, words| call.index(words);
    "linsert" 5 [1, 1, 1] WRITE |call, words| call.insert(words);
    "llen" 2 [1, 1, 1] KNOW |call, words| call.length(words);
    "lmove" 5 [1, 2, 1] MOVE |call, words| call.moves(words, false);
    "lmpop" -4 [0, 0, 0] BOTH |call, words| call.multi_pop(words, false);
    "lpop" -2 [1, 1, 1] BOTH |call, words| call.pop(words, Front);
    "lpos" -3 [1, 1, 1] READ |call, words| call.position(words);
    "lpush" -3 [1, 1, 1] WRITE |call, words| call.push(words, Front, false);
    "lpushx" -3 [1, 1, 1] WRITE |call, words| call.push(words, Front, true);
    "lrange" 4 [1, 1, 1] READ |call, words| call.range(words);
    "lrem" 4 [1, 1, 1] WRITE |call, words| call.remove_value(words);
    "lset" 4 [1, 1, 1] WRITE |call, words| call.set(words);
    "ltrim" 4 [1, 1, 1] WRITE |call, words| call.trim_list(words);
    "multi" 1 [0, 0, 0] NONE |call, _| call.multi();
    "ping" -1 [0, 0, 0] NONE |call, words| call.ping(words);
    "quit" -1 [0, 0, 0] NONE |call, _| call.quit();
    "reset" 1 [0, 0, 0] NONE |call, _| call.reset();
    "rpop" -2 [1, 1, 1] BOTH |call, words| call.pop(words, Back);
    "rpoplpush" 3 [1, 2, 1] MOVE |call, words| call.pops_and_pushes(words, false);
    "rpush" -3 [1, 1, 1] WRITE |call, words| call.push(words, Back, false);
    "rpushx" -3 [1, 1, 1] WRITE |call, words| call.push(words, Back, true);
    "scan" -2 [0, 0, 0] NONE |call, words| call.scan(words);
    "select" 2 [0, 0, 0] NONE |call, words| call.select(words);
    "touch" -2 [1, -1, 1] KNOW |call, words| call.exist(words);
    "type" 2 [1, 1, 1] KNOW |call, words| call.kind(words);
    "unlink" -2 [1, -1, 1] WRITE |call, words| call.delete(words);
    "unwatch" 1 [0, 0, 0] NONE |call, _| call.unwatch();
    "watch" -2 [1, -1, 1] KNOW |call, words| call.watch(words);
    "xadd" -5 [1, 1, 1] WRITE |call, words| call.add(words);
    "xdel" -3 [1, 1, 1] WRITE |call, words| call.delete_entries(words);
    "xinfo" -2 [0, 0, 0] READ |call, words| call.stream_info(words);
    "xlen" 2 [1, 1, 1] KNOW |call, words| call.stream_length(words);
    "xrange" -4 [1, 1, 1] READ |call, words| call.stream_range(words, false);
    "xread" -4 [0, 0, 0] READ |call, words| call.read_streams(words);
    "xrevrange" -4 [1, 1, 1] READ |call, words| call.stream_range(words, true);
    "xtrim" -4 [1, 1, 1] WRITE |call, words| call.trim_stream(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_found_by_its_name() {
        for command in COMMANDS {
            let found = find(command.name.to_ascii_uppercase().as_bytes());
            assert_eq!(found.map(|it| it.name), Some(command.name));
        }
        assert!(find(b"get").is_none() && find(&[b'x'; 100]).is_none() && find(b"").is_none());
        assert!(find(b"llen\0").is_none(), "a zero at the end is a byte");
    }
}
