//! The grants of a destination's server: which data channels of other servers it takes, and until
//! when. It does no input or output and reads no clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{CHANNELS_EACH_MAX, GRANT_TIME};
use crate::secure::{GrantKeys, SecureError};
use crate::wire::Token;

/// A grant, with what its user keeps of it.
#[derive(Debug)]
pub(super) struct Grant<T> {
    /// Its keys.
    pub(super) keys: GrantKeys,
    /// Where its data channels go.
    pub(super) to: T,
    until: Duration,
}

/// All grants that can be used. Each data channel of a grant is taken once.
#[derive(Debug)]
pub(super) struct Grants<T> {
    channels: HashMap<Token, (u16, Arc<Grant<T>>)>,
}

impl<T> Default for Grants<T> {
    fn default() -> Self {
        Self { channels: HashMap::new() }
    }
}

impl<T> Grants<T> {
    /// Adds a grant, which can be used from now on.
    ///
    /// # Errors
    /// A failure of the cryptographic library.
    pub(super) fn add(
        &mut self,
        keys: GrantKeys,
        to: T,
        now: Duration,
    ) -> Result<Arc<Grant<T>>, SecureError> {
        let tokens = (0..CHANNELS_EACH_MAX).map(|channel| keys.token(channel));
        let tokens = tokens.collect::<Result<Vec<Token>, SecureError>>()?;
        let grant = Arc::new(Grant { keys, to, until: now + GRANT_TIME });
        let grants = (0..).zip(tokens);
        self.channels.extend(grants.map(|(channel, token)| (token, (channel, Arc::clone(&grant)))));
        Ok(grant)
    }

    /// Returns the grant of a data channel that can be used. Its initiator has proven nothing yet.
    pub(super) fn find(&self, token: &Token, channel: u16, now: Duration) -> Option<Arc<Grant<T>>> {
        let (number, grant) = self.channels.get(token)?;
        (*number == channel && now < grant.until).then(|| Arc::clone(grant))
    }

    /// Takes a data channel whose initiator has proven itself. Returns false if it was taken
    /// before, or the grant has ended meanwhile.
    pub(super) fn take(&mut self, token: &Token, channel: u16, now: Duration) -> bool {
        self.find(token, channel, now).is_some() && self.channels.remove(token).is_some()
    }

    /// Ends a grant: no further data channel is taken.
    pub(super) fn end(&mut self, grant: &Arc<Grant<T>>) {
        self.channels.retain(|_, (_, other)| !Arc::ptr_eq(other, grant));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secure::Identity;
    use crate::wire::PipeSecret;

    const NOW: Duration = Duration::from_secs(1_000);

    fn keys(secret: u8) -> GrantKeys {
        let key = |()| Identity::generate().expect("a key").public();
        let [from, to] = [(); 2].map(key);
        GrantKeys::new(&PipeSecret([secret; 32]), from, to)
    }

    fn token(grant: &Grant<u8>, channel: u16) -> Token {
        grant.keys.token(channel).expect("a token")
    }

    #[test]
    fn each_channel_is_taken_once() {
        let mut grants = Grants::default();
        let grant = grants.add(keys(1), 7, NOW).expect("tokens");
        for channel in [3, 0, CHANNELS_EACH_MAX - 1] {
            let token = token(&grant, channel);
            assert_eq!(grants.find(&token, channel, NOW).map(|it| it.to), Some(7));
            // Looking for it has not used it up.
            assert!(grants.take(&token, channel, NOW));
            assert!(grants.find(&token, channel, NOW).is_none());
            assert!(!grants.take(&token, channel, NOW));
        }
        assert!(!grants.take(&token(&grant, CHANNELS_EACH_MAX), CHANNELS_EACH_MAX, NOW));
        assert!(!grants.take(&token(&grant, 1), 2, NOW), "another channel");
        assert!(!grants.take(&Token([0; 16]), 0, NOW), "no token");
    }

    #[test]
    fn grant_ends_with_its_time_and_its_copy() {
        let mut grants = Grants::default();
        let first = grants.add(keys(1), 1, NOW).expect("tokens");
        let second = grants.add(keys(2), 2, NOW + GRANT_TIME).expect("tokens");
        let [one, other] = [&first, &second].map(|grant| token(grant, 0));
        let before = NOW + GRANT_TIME - Duration::from_nanos(1);
        assert!(grants.find(&one, 0, before).is_some());
        for later in [NOW + GRANT_TIME, NOW + 5 * GRANT_TIME, Duration::MAX] {
            assert!(grants.find(&one, 0, later).is_none() && !grants.take(&one, 0, later));
        }
        assert!(grants.find(&other, 0, NOW + GRANT_TIME).is_some());
        grants.end(&first);
        assert!(grants.find(&one, 0, before).is_none());
        // The other copy's grant stays.
        assert_eq!(grants.find(&other, 0, before).map(|it| it.to), Some(2));
        grants.end(&second);
        assert!(grants.channels.is_empty());
    }
}
