//! The file of `--users`. Nothing of its tokens is ever shown.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use weft_tuples::access::{Account, Guard, Rights, Token};

use crate::limits::TUPLE_USERS_MAX;
use crate::values;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    user: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    token: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    write: Vec<String>,
}

/// Reads the users of a server from a file that only its owner can read.
pub(super) fn read(path: &Path) -> Result<Guard> {
    let accounts = values::read_secrets(path).and_then(|text| parse(&text));
    Ok(Guard::of(accounts.with_context(|| format!("users {}", path.display()))?))
}

fn parse(text: &str) -> Result<Vec<Account>> {
    let format = "[[user]], each with name = \"...\", token = \"...\", read = [\"...\"] and \
                  write = [\"...\"]";
    let file: File = values::parse_secrets(text, format)?;
    ensure!(!file.user.is_empty(), "there is no [[user]] in it");
    ensure!(
        file.user.len() <= TUPLE_USERS_MAX,
        "there are more than {TUPLE_USERS_MAX} users in it"
    );
    let mut accounts: Vec<Account> = Vec::new();
    for entry in file.user {
        let Entry { name, token, read, write } = entry;
        let is_name =
            !name.is_empty() && name.len() <= 64 && name.bytes().all(|it| it.is_ascii_graphic());
        ensure!(is_name, "{name:?}: a name has 1 to 64 letters, digits and signs, and no spaces");
        ensure!(accounts.iter().all(|it| it.name != name), "{name:?} is there twice");
        let token = Token::new(token.as_bytes()).with_context(|| format!("user {name:?}"))?;
        let twin = accounts.iter().find(|it| it.token.is(token.text()));
        if let Some(twin) = twin {
            anyhow::bail!(
                "{:?} and {name:?} have one token, which has to tell them apart",
                twin.name
            );
        }
        let [read, write] = [read, write]
            .map(|beginnings| beginnings.into_iter().map(String::into_bytes).collect());
        accounts.push(Account { name, token, rights: Rights { read, write } });
    }
    Ok(accounts)
}

#[cfg(test)]
mod tests {
    use weft_tuples::access::Need;

    use super::*;

    const GOOD: &str = r#"
        [[user]]
        name = "ann"
        token = "the token of ann"
        read = [""]
        [[user]]
        name = "bob"
        token = "the token of bob"
        read = ["jobs:"]
        write = ["jobs:", "results:"]
    "#;

    #[test]
    fn users_are_read() {
        let guard = Guard::of(parse(GOOD).unwrap());
        assert!(!guard.is_open() && !guard.is_for_all());
        let bob = guard.admit(None, b"the token of bob").unwrap();
        assert_eq!(bob.name(), "bob");
        assert!(bob.may(Need::Both, b"jobs:1") && bob.may(Need::Write, b"results:1"));
        assert!(!bob.may(Need::Read, b"results:1") && !bob.may(Need::Know, b"other"));
        let ann = guard.admit(Some(b"ann"), b"the token of ann").unwrap();
        assert!(ann.may_for_all(Need::Read) && !ann.may(Need::Write, b"any"));
    }

    #[test]
    fn file_that_is_wrong_is_refused_without_its_tokens() {
        for (good, wrong, why) in [
            ("name = \"bob\"", "name = \"ann\"", "twice"),
            ("name = \"bob\"", "name = \"b b\"", "no spaces"),
            ("name = \"bob\"", "name = \"\"", "no spaces"),
            ("token of bob", "token of ann", "one token"),
            ("the token of bob", "too short", "16 to 1024 bytes"),
            ("read = [\"\"]", "red = [\"\"]", "line 5"),
            ("read = [\"\"]", "read = \"\"", "line 5"),
            ("\"the token of ann\"", "\"the token of ann", "line 4"),
            ("[[user]]", "[[usr]]", "line 2"),
        ] {
            let error = format!("{:#}", parse(&GOOD.replace(good, wrong)).unwrap_err());
            assert!(error.contains(why), "{error}");
            assert!(!error.contains("the token"), "a token is shown: {error}");
        }
        let error = format!("{:#}", parse("user = []").unwrap_err());
        assert!(error.contains("no [[user]]"), "{error}");
    }
}
