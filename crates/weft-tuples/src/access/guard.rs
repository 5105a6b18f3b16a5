//! What a server asks of its clients.

use std::rc::Rc;

use super::Token;

/// Whether a client has to show a token. All connections of a server have the same guard.
#[derive(Clone, Debug, Default)]
pub struct Guard(Option<Rc<Token>>);

impl Guard {
    /// Lets in clients that show this token, or all clients.
    #[must_use]
    pub fn new(token: Option<Token>) -> Self {
        Self(token.map(Rc::new))
    }

    /// Whether all clients are let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a client that shows this is let in.
    #[must_use]
    pub fn admits(&self, shown: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|token| token.is(shown))
    }
}
