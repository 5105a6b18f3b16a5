//! What a server asks of its clients.

use std::rc::Rc;

use super::{Need, Rights, Token};

/// A user of a server.
#[derive(Clone, Debug)]
pub struct Account {
    /// The name, by which the Redis protocol knows the user.
    pub name: String,
    /// What its clients have to show. It is another one for each user.
    pub token: Token,
    /// What it may do.
    pub rights: Rights,
}

/// The name of the user whom the Redis protocol takes when a client gives a password only.
pub(crate) const DEFAULT: &str = "default";

/// Who may use a server. All connections of a server have the same guard.
#[derive(Clone, Debug, Default)]
pub struct Guard(Option<Rc<[Rc<Account>]>>);

/// The user whose client a connection is.
#[derive(Clone, Debug, Default)]
pub struct User(Option<Rc<Account>>);

impl Guard {
    /// Lets in clients that show this token, or all clients.
    #[must_use]
    pub fn new(token: Option<Token>) -> Self {
        token.map_or_else(Self::default, |token| {
            Self::of(vec![Account { name: DEFAULT.to_owned(), token, rights: Rights::all() }])
        })
    }

    /// Lets in clients of these users only.
    #[must_use]
    pub fn of(accounts: Vec<Account>) -> Self {
        Self(Some(accounts.into_iter().map(Rc::new).collect()))
    }

    /// Whether all clients are let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Whether all users may do everything.
    #[must_use]
    pub fn is_for_all(&self) -> bool {
        let accounts = self.0.as_deref().unwrap_or_default();
        accounts.iter().all(|account| account.rights.allow_all(Need::Both))
    }

    /// Returns the user whose client shows this, if there is one. Without a name, the token alone
    /// says which one it is. All tokens are looked at, so that the time does not tell which one is
    /// nearly right.
    #[must_use]
    pub fn admit(&self, name: Option<&[u8]>, shown: &[u8]) -> Option<User> {
        let Some(accounts) = self.0.as_deref() else {
            let is_known = name.is_none_or(|name| name == DEFAULT.as_bytes());
            return is_known.then(User::default);
        };
        let mut found = None;
        for account in accounts {
            let is_meant = name.is_none_or(|name| name == account.name.as_bytes());
            if account.token.is(shown) && is_meant {
                found = Some(User(Some(Rc::clone(account))));
            }
        }
        found
    }
}

impl User {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.as_deref().map_or(DEFAULT, |account| &account.name)
    }

    /// Whether it may do this with an element.
    #[must_use]
    pub fn may(&self, need: Need, element: &[u8]) -> bool {
        self.0.as_deref().is_none_or(|account| account.rights.allow(need, element))
    }

    /// Whether it may do this with all elements.
    #[must_use]
    pub fn may_for_all(&self, need: Need) -> bool {
        self.0.as_deref().is_none_or(|account| account.rights.allow_all(need))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, token: &str) -> Account {
        let token = Token::new(token.as_bytes()).unwrap();
        Account { name: name.to_owned(), token, rights: Rights::all() }
    }

    #[test]
    fn users_are_those_whose_token_is_shown() {
        let guard = Guard::of(vec![
            account("ann", "token of ann ....."),
            account("bob", "token of bob ....."),
        ]);
        let admit = |name: Option<&str>, shown: &str| {
            let user = guard.admit(name.map(str::as_bytes), shown.as_bytes());
            user.map(|user| user.name().to_owned())
        };
        assert_eq!(admit(None, "token of bob .....").as_deref(), Some("bob"));
        assert_eq!(admit(Some("ann"), "token of ann .....").as_deref(), Some("ann"));
        for (name, shown) in [
            (Some("ann"), "token of bob ....."),
            (Some("default"), "token of ann ....."),
            (Some(""), "token of ann ....."),
            (None, ""),
            (Some("ann"), ""),
        ] {
            assert_eq!(admit(name, shown), None, "{name:?} {shown}");
        }
    }
}
