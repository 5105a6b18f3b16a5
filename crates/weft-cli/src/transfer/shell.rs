//! A remote shell that starts the other end of a copy.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use weft_transfer::transport::pipe::PipeControl;

/// Time that a shell has to end, and the interval between two checks.
const END_TIME: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A running remote shell.
#[derive(Debug)]
pub(super) struct Shell {
    child: Child,
    program: String,
}

/// Splits a command into words at white space. Quotes of either kind keep white space in a word.
pub(crate) fn words(command: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in command.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        bail!("{command}: a quote without its end");
    }
    words.extend(word);
    Ok(words)
}

impl Shell {
    /// Starts a remote shell that runs `weft` on a host, and connects to that `weft`.
    ///
    /// # Errors
    /// If the shell cannot be started, or its output is not the protocol.
    pub(super) fn start(command: &str, host: &str, weft: &str) -> Result<(Self, PipeControl)> {
        let words = words(command)?;
        let (program, options) = words.split_first().context("no remote shell")?;
        let (ours, theirs) = UnixStream::pair()?;
        let input: OwnedFd = theirs.try_clone()?.into();
        let output: OwnedFd = theirs.into();
        let mut remote: Vec<OsString> = options.iter().map(OsString::from).collect();
        remote.extend([host, weft, "serve", "--stdio"].map(OsString::from));
        // `Command` keeps descriptors of the stream, so it must be dropped with this statement.
        let child = Command::new(program)
            .args(remote)
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .spawn();
        let child = child.with_context(|| program.clone())?;
        let mut shell = Self { child, program: program.clone() };
        let input: OwnedFd = ours.try_clone()?.into();
        match PipeControl::meet(input, ours.into()) {
            Ok(control) => Ok((shell, control)),
            Err(error) => {
                let error = anyhow::Error::new(error);
                Err(shell.explain(error.context(
                    "the remote shell does not start weft, or its startup files print something",
                )))
            }
        }
    }

    /// Waits until the shell ends, whose standard streams are closed by now, and adds its exit
    /// status to an error.
    fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let end = Instant::now() + END_TIME;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(LOOK_INTERVAL);
        }
        // The call fails if the shell has ended.
        let _ = self.child.kill();
        match self.child.wait() {
            // So a shell says that it has not found the command.
            Ok(status) if status.code() == Some(127) => error.context(format!(
                "{} ended with {status}: is weft there? --remote-weft names it",
                self.program
            )),
            Ok(status) => error.context(format!("{} ended with {status}", self.program)),
            Err(_) => error,
        }
    }

    /// Ends the shell. Its exit status is ignored, because the result of the copy says more.
    pub(super) fn end<T>(mut self, result: Result<T>) -> Result<T> {
        match result {
            Ok(result) => {
                // The remote `weft` has seen the end of the stream and ends, and the shell ends
                // with it.
                let _ = self.child.wait();
                Ok(result)
            }
            Err(error) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_into_words_as_a_shell_splits_them() {
        let split = |command: &str| words(command).map(|words| words.join("|")).ok();
        assert_eq!(split("ssh"), Some("ssh".into()));
        assert_eq!(split("  ssh -p  22 "), Some("ssh|-p|22".into()));
        assert_eq!(split("ssh -i 'a b' \"it's\" x''y ''"), Some("ssh|-i|a b|it's|xy|".into()));
        assert_eq!(split("ssh 'a"), None);
        assert_eq!(split(""), Some(String::new()));
    }

    #[test]
    fn shell_that_cannot_start_weft_is_an_error_that_says_why() {
        let failed = |command: &str| {
            let failed = Shell::start(command, "host", "weft").expect_err("no weft");
            format!("{failed:#}")
        };
        assert!(failed("/none/such").contains("/none/such: No such file"));
        let text = failed("sh -c 'exit 7'");
        assert!(text.contains("sh ended with exit status: 7"), "{text}");
        let text = failed("sh -c 'echo Welcome to this host, and have a very nice day'");
        assert!(text.contains("the remote shell does not start weft"), "{text}");
        assert!(failed("").contains("no remote shell"));
    }
}
