//! Registrations and persistent reservations of a unit (SPC-5, section 5.14).

use super::access::Access;
use super::nexus::{Initiator, Nexus};
use super::sense::Sense;
use crate::limits::REGISTRATIONS_MAX;

/// The types of a reservation (SPC-5, table 85).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    WriteExclusive,
    ExclusiveAccess,
    WriteExclusiveRegistrants,
    ExclusiveAccessRegistrants,
    WriteExclusiveAll,
    ExclusiveAccessAll,
}

impl Type {
    /// All types.
    pub(super) const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];

    /// The number that commands have for it.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::WriteExclusive => 0x1,
            Self::ExclusiveAccess => 0x3,
            Self::WriteExclusiveRegistrants => 0x5,
            Self::ExclusiveAccessRegistrants => 0x6,
            Self::WriteExclusiveAll => 0x7,
            Self::ExclusiveAccessAll => 0x8,
        }
    }

    /// The type with a number.
    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.number() == number)
    }

    /// Others may not even read.
    pub(super) fn is_exclusive_access(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }

    /// All registered initiators may do as the holder.
    pub(super) fn is_for_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// All registered initiators are holders.
    pub(super) fn has_all_as_holders(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }
}

/// A registered initiator.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    /// The initiator.
    pub(super) initiator: Initiator,
    /// Its key.
    pub(super) key: u64,
}

/// The registrations of a unit, and its reservation.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    /// Counts changes of registrations.
    pub(super) generation: u32,
    /// The registered initiators.
    pub(super) registrations: Vec<Registration>,
    /// They outlive the target (APTPL).
    pub(super) is_kept: bool,
    /// The type, and the holder unless all registered ones are holders.
    pub(super) reservation: Option<(Type, Option<Initiator>)>,
}

impl Reservations {
    /// Nobody is registered.
    pub(super) fn is_unused(&self) -> bool {
        self.registrations.is_empty()
    }

    /// Whether a reservation refuses a command.
    pub(super) fn conflicts(&self, access: Access, nexus: &Nexus) -> bool {
        let Some((kind, _)) = self.reservation else { return false };
        let may = self.is_holder(&nexus.initiator)
            || kind.is_for_registrants() && self.key(&nexus.initiator).is_some();
        !may && access.conflicts_with_persistent(kind.is_exclusive_access())
    }

    /// The key of a registered initiator.
    pub(super) fn key(&self, initiator: &Initiator) -> Option<u64> {
        let found = self.registrations.iter().find(|each| each.initiator == *initiator);
        found.map(|registration| registration.key)
    }

    /// Whether an initiator holds the reservation.
    pub(super) fn is_holder(&self, initiator: &Initiator) -> bool {
        match &self.reservation {
            None => false,
            Some((_, Some(holder))) => holder == initiator,
            Some((_, None)) => self.key(initiator).is_some(),
        }
    }

    /// Registers an initiator, or gives it another key.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub(super) fn register(&mut self, initiator: &Initiator, key: u64) -> Result<(), Sense> {
        if let Some(this) = self.registrations.iter_mut().find(|each| each.initiator == *initiator)
        {
            this.key = key;
        } else if self.registrations.len() == REGISTRATIONS_MAX {
            return Err(Sense::NO_REGISTRATION_RESOURCES);
        } else {
            self.registrations.push(Registration { initiator: initiator.clone(), key });
        }
        Ok(())
    }

    /// Removes a registration, and the reservation if nobody holds it any more. Returns the type of
    /// a reservation that is released so.
    pub(super) fn unregister(&mut self, initiator: &Initiator) -> Option<Type> {
        let was_holder = self.is_holder(initiator);
        self.registrations.retain(|each| each.initiator != *initiator);
        let (kind, _) = self.reservation.as_ref().filter(|_| was_holder)?;
        let kind = *kind;
        if kind.has_all_as_holders() && !self.registrations.is_empty() {
            return None;
        }
        self.reservation = None;
        Some(kind)
    }
}
