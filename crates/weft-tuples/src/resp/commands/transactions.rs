//! Commands that are done one after the other, with no other one between them.

use std::rc::Rc;

use super::problem::Problem;
use super::{Call, Step, subcommands};
use crate::limits::ANSWER_LEN_MAX;
use crate::model::Refusal;
use crate::resp::parse::Words;
use crate::resp::transaction::Fate;

impl Call<'_> {
    /// Keeps a command for later.
    pub(super) fn keep(&mut self, name: &'static str, words: &Words) -> Result<Step, Problem> {
        subcommands::check(name, words).map_err(|problem| self.rejected(name, problem))?;
        if !self.session.transaction.keep(words) {
            return Err(Problem::Text("ERR too long a transaction"));
        }
        self.replies.simple("QUEUED");
        Ok(Step::Replied)
    }

    /// Breaks off a transaction because of a command that is not done, and returns the problem.
    /// That of `EXEC` itself ends the transaction.
    pub(super) fn rejected(&mut self, name: &'static str, problem: Problem) -> Problem {
        if name != "exec" {
            self.session.transaction.break_off();
            return problem;
        }
        self.session.transaction.end(self.space);
        let text = problem.text(name);
        let text = text.strip_prefix("ERR ").unwrap_or(&text);
        Problem::Quoting(format!("EXECABORT Transaction discarded because of: {text}"))
    }

    pub(super) fn multi(&mut self) -> Result<Step, Problem> {
        if !self.session.transaction.begin() {
            return Err(Problem::Text("ERR MULTI calls can not be nested"));
        }
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    pub(super) fn discard(&mut self) -> Result<Step, Problem> {
        if !self.session.transaction.has_begun() {
            return Err(Problem::Text("ERR DISCARD without MULTI"));
        }
        self.session.transaction.end(self.space);
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    pub(super) fn watch(&mut self, words: &[Vec<u8>]) -> Result<Step, Problem> {
        if self.session.transaction.has_begun() {
            return Err(Problem::Text("ERR WATCH inside MULTI is not allowed"));
        }
        for word in words {
            let watched = self.session.transaction.watch(Rc::from(&word[..]), self.space);
            watched.map_err(Problem::Refused)?;
        }
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    pub(super) fn unwatch(&mut self) -> Result<Step, Problem> {
        self.session.transaction.unwatch(self.space);
        self.replies.simple("OK");
        Ok(Step::Replied)
    }

    pub(super) fn exec(&mut self) -> Result<Step, Problem> {
        match self.session.transaction.finish(self.space) {
            Fate::None => return Err(Problem::Text("ERR EXEC without MULTI")),
            Fate::Broken => {
                return Err(Problem::Text(
                    "EXECABORT Transaction discarded because of previous errors.",
                ));
            }
            Fate::Changed => self.replies.null_array(),
            Fate::Done(commands) => self.do_all(&commands),
        }
        Ok(Step::Replied)
    }

    /// Does the commands of a transaction. What waits is served after the last one.
    fn do_all(&mut self, commands: &[Words]) {
        self.replies.array(commands.len());
        let start = self.replies.bytes.len();
        self.space.hold();
        for words in commands {
            let before = self.replies.bytes.len();
            let call = Call {
                now: self.now,
                space: &mut *self.space,
                replies: &mut *self.replies,
                session: &mut *self.session,
                may_wait: false,
            };
            // Nothing waits now, and a command that ends a connection is not one of them.
            let _ = call.run(words);
            if self.replies.bytes.len() - start > ANSWER_LEN_MAX {
                self.replies.bytes.truncate(before);
                self.replies.error(&Problem::Refused(Refusal::Answer).text(""));
            }
        }
        self.space.release(self.now);
    }
}
