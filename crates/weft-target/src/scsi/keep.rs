//! Persistent reservations that outlive the target (SPC-5, section 5.14.5): what is kept of them.

use std::fmt;
use std::io;

use super::nexus::Initiator;
use super::reservations::{Registration, Reservations, Type};
use crate::limits::REGISTRATIONS_MAX;

/// A place outside of the process where the reservations of one unit are kept.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Replaces what is kept. Whatever happens meanwhile, the old or the new is there afterwards,
    /// and the new one once this has succeeded.
    ///
    /// # Errors
    ///
    /// If the medium reports one. Either may be there then.
    fn keep(&self, kept: &Kept) -> io::Result<()>;
}

/// Registrations and the reservation of a unit, as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The registered initiators, with their keys.
    pub registrations: Vec<(Initiator, u64)>,
    /// The number of the reservation's type, and the holder unless all registered ones are holders.
    pub reservation: Option<(u8, Option<Initiator>)>,
}

impl Kept {
    /// Nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    /// The part of these that has to be kept.
    pub(super) fn of(reservations: &Reservations) -> Self {
        if !reservations.is_kept {
            return Self::default();
        }
        let registrations = &reservations.registrations;
        let reservation = reservations.reservation.as_ref();
        Self {
            registrations: registrations
                .iter()
                .map(|each| (each.initiator.clone(), each.key))
                .collect(),
            reservation: reservation.map(|(kind, holder)| (kind.number(), holder.clone())),
        }
    }

    /// The reservations that were kept. `None` if no unit can have had them.
    pub(super) fn restored(self) -> Option<Reservations> {
        let mut reservations =
            Reservations { is_kept: !self.is_empty(), ..Reservations::default() };
        if self.registrations.len() > REGISTRATIONS_MAX {
            return None;
        }
        for (initiator, key) in self.registrations {
            if key == 0 || reservations.key(&initiator).is_some() {
                return None;
            }
            reservations.registrations.push(Registration { initiator, key });
        }
        if let Some((number, holder)) = self.reservation {
            let kind = Type::of(number)?;
            let is_held = match &holder {
                Some(holder) => reservations.key(holder).is_some(),
                None => !reservations.is_unused(),
            };
            if holder.is_none() != kind.has_all_as_holders() || !is_held {
                return None;
            }
            reservations.reservation = Some((kind, holder));
        }
        Some(reservations)
    }
}
