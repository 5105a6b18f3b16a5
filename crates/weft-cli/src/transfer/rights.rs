//! The rights of the users that a file describes.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context as _, Result};
use rustix::fs::fstat;
use weft_transfer::job::{Access, Bounds, Caller, Limits, Rights, Share, Shares};
use weft_transfer::secure::PublicKey;
use weft_transfer::tree::apply::{Quota, Usage};

use super::config::{Plan, SharePlan, Users};

/// A quota that nothing exceeds.
const UNLIMITED: Usage = Usage { bytes: u64::MAX, names: u64::MAX };

/// The rights that a file describes, which can be replaced.
pub(super) struct Configured(RwLock<Arc<State>>);

/// The rights of one version of the file.
struct State {
    allows_clear: bool,
    /// What all copies together may do.
    limits: Arc<Limits>,
    users: HashMap<PublicKey, Arc<User>>,
    shares: Vec<Served>,
    kept: Kept,
}

struct User {
    name: String,
    limits: Arc<Limits>,
}

struct Served {
    share: Share,
    readers: Users,
    writers: Users,
}

/// What copies that run have a part in: later versions of the file go on with it.
#[derive(Default)]
struct Kept {
    /// By the device and inode of the directory.
    quotas: HashMap<(u64, u64), Arc<Quota>>,
    /// By what they are those of.
    limits: HashMap<String, Arc<Limits>>,
}

impl Configured {
    /// Returns the rights that a file describes.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(super) fn new(plan: Plan) -> Result<Self> {
        Ok(Self(RwLock::new(Arc::new(State::new(plan, &Kept::default())?))))
    }

    /// Replaces the rights. Copies that run go on with those that they began with.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(super) fn replace(&self, plan: Plan) -> Result<()> {
        let new = State::new(plan, &self.state().kept)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(())
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a client with this key is let in.
    pub(super) fn lets_in(&self, key: &PublicKey) -> bool {
        self.state().users.contains_key(key)
    }
}

impl Rights for Configured {
    fn caller(&self, key: &PublicKey) -> Option<Caller> {
        let state = self.state();
        let user = state.users.get(key)?;
        let shares = state.shares.iter().filter_map(|served| served.of(&user.name)).collect();
        Some(Caller {
            name: Some(user.name.clone()),
            shares: Shares { shares, allows_clear: state.allows_clear },
            limits: vec![Arc::clone(&state.limits), Arc::clone(&user.limits)],
        })
    }
}

impl State {
    fn new(plan: Plan, before: &Kept) -> Result<Self> {
        let mut kept = Kept::default();
        // What is in no version of the file any more may come back while copies run.
        kept.quotas.clone_from(&before.quotas);
        kept.limits.clone_from(&before.limits);
        let mut shares = Vec::new();
        for share in plan.shares {
            let path = share.path.clone();
            shares.push(kept.share(share).with_context(|| path.display().to_string())?);
        }
        let mut users = HashMap::new();
        for (name, user) in plan.users {
            let limits = kept.limits(format!("the user {name}"), user.bounds);
            let shared = Arc::new(User { name, limits });
            users.extend(user.keys.into_iter().map(|key| (key, Arc::clone(&shared))));
        }
        let limits = kept.limits("the server".to_owned(), plan.bounds);
        Ok(Self { allows_clear: plan.allows_clear, limits, users, shares, kept })
    }
}

impl Kept {
    fn limits(&mut self, of: String, bounds: Bounds) -> Arc<Limits> {
        let limits = self.limits.entry(of.clone()).or_insert_with(|| Limits::new(of, bounds));
        limits.change(bounds);
        Arc::clone(limits)
    }

    fn share(&mut self, plan: SharePlan) -> Result<Served> {
        let SharePlan { name, path: _, root, readers, writers, quota, bounds } = plan;
        let stat = fstat(&root)?;
        let directory = (stat.st_dev, stat.st_ino);
        let quota = match (self.quotas.get(&directory), quota) {
            // Sessions that began with the quota count on.
            (Some(kept), most) => {
                kept.limit(most.unwrap_or(UNLIMITED));
                Some(Arc::clone(kept))
            }
            (None, Some(most)) => {
                let quota = Quota::new(root.as_fd().try_clone_to_owned()?, most);
                self.quotas.insert(directory, Arc::clone(&quota));
                Some(quota)
            }
            (None, None) => None,
        };
        let limits = Some(self.limits(format!("the share {name}"), bounds));
        // Each user gets a copy of it with the user's access.
        let access = Access::Read;
        let share = Share { name: name.into_bytes(), root, access, quota, limits };
        Ok(Served { share, readers, writers })
    }
}

impl Served {
    /// Returns the share for a user who may do something in it.
    fn of(&self, user: &str) -> Option<Share> {
        let access = match (self.readers.has(user), self.writers.has(user)) {
            (true, true) => Access::Both,
            (true, false) => Access::Read,
            (false, true) => Access::Write,
            (false, false) => return None,
        };
        Some(Share { access, ..self.share.clone() })
    }
}
