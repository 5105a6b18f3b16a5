//! A SCSI target device: a name and its units.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use super::nexus::{Nexus, NexusId};
use super::sense::Sense;
use super::unit::Unit;
use crate::wire::unit_number;

/// A target device.
#[derive(Debug)]
pub struct Device {
    /// The iSCSI name.
    name: String,
    inventory: RwLock<Inventory>,
}

/// Units, and the sessions that see them.
#[derive(Debug, Default)]
struct Inventory {
    units: BTreeMap<u8, Arc<Unit>>,
    nexuses: BTreeMap<NexusId, Nexus>,
}

impl Device {
    /// Returns a device with units, by their numbers.
    #[must_use]
    pub fn new(name: String, units: BTreeMap<u8, Arc<Unit>>) -> Self {
        let inventory = Inventory { units, nexuses: BTreeMap::new() };
        Self { name, inventory: RwLock::new(inventory) }
    }

    /// The iSCSI name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of its units.
    #[must_use]
    pub fn numbers(&self) -> Vec<u8> {
        self.read_units(|units| units.keys().copied().collect())
    }

    /// Its units with their numbers.
    #[must_use]
    pub fn units(&self) -> Vec<(u8, Arc<Unit>)> {
        self.read_units(|units| {
            units.iter().map(|(number, unit)| (*number, Arc::clone(unit))).collect()
        })
    }

    /// The unit that a LUN field addresses.
    #[must_use]
    pub fn unit(&self, lun: [u8; 8]) -> Option<Arc<Unit>> {
        let number = u8::try_from(unit_number(lun)?).ok()?;
        self.read_units(|units| units.get(&number).cloned())
    }

    /// The unit with this designator.
    pub(super) fn unit_by_designator(&self, designator: &[u8]) -> Option<Arc<Unit>> {
        self.read_units(|units| {
            units.values().find(|unit| unit.designator() == designator).cloned()
        })
    }

    fn read_units<T>(&self, read: impl FnOnce(&BTreeMap<u8, Arc<Unit>>) -> T) -> T {
        read(&self.inventory.read().unwrap_or_else(PoisonError::into_inner).units)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inventory> {
        self.inventory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session to all units.
    pub fn attach(&self, nexus: &Nexus) {
        let mut inventory = self.write();
        inventory.units.values().for_each(|unit| unit.attach(nexus));
        inventory.nexuses.insert(nexus.id, nexus.clone());
    }

    /// Removes a session from all units.
    pub fn detach(&self, nexus: NexusId) {
        let mut inventory = self.write();
        inventory.units.values().for_each(|unit| unit.detach(nexus));
        inventory.nexuses.remove(&nexus);
    }

    /// How many sessions it has.
    #[cfg(test)]
    pub(crate) fn sessions(&self) -> usize {
        self.write().nexuses.len()
    }

    /// Adds a unit, for open sessions too. Returns `false` if the number is taken.
    ///
    /// All sessions get a unit attention in the other units (SPC-5, section 6.34).
    pub fn insert(&self, number: u8, unit: Arc<Unit>) -> bool {
        let mut inventory = self.write();
        if inventory.units.contains_key(&number) {
            return false;
        }
        inventory.units.values().for_each(|other| other.state().notify_all(Sense::LUNS_CHANGED));
        inventory.nexuses.values().for_each(|nexus| unit.attach(nexus));
        inventory.units.insert(number, unit);
        true
    }

    /// Removes a unit, and returns it. Commands that it has go on.
    ///
    /// All sessions get a unit attention in the other units.
    pub fn remove(&self, number: u8) -> Option<Arc<Unit>> {
        let mut inventory = self.write();
        let removed = inventory.units.remove(&number)?;
        inventory.units.values().for_each(|other| other.state().notify_all(Sense::LUNS_CHANGED));
        Some(removed)
    }

    /// A session knows the units now: what said that they have changed is forgotten.
    pub(super) fn forget_changes(&self, nexus: NexusId) {
        self.read_units(|units| {
            units.values().for_each(|unit| unit.state().forget(nexus, Sense::LUNS_CHANGED));
        });
    }

    /// Whether no command of any unit waits for a medium, or for what outlives the target.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        self.read_units(|units| units.values().all(|unit| unit.is_instant() && !unit.has_keeper()))
    }

    /// Resets a unit: its tasks are aborted, and all sessions get a unit attention (SAM-5, section
    /// 6.3.3). It is complete after [`Unit::wait_for_steps`].
    pub fn reset_unit(&self, unit: &Unit) {
        unit.mark_aborted(|_| true);
        unit.state().reset(Sense::UNIT_RESET);
    }

    /// Aborts the tasks that all sessions have in a unit, whose initiators get a unit attention. It
    /// is complete after [`Unit::wait_for_steps`].
    pub fn clear_tasks(&self, unit: &Unit, by: NexusId) {
        unit.mark_aborted(|_| true);
        unit.state().notify(|nexus| nexus != by, Sense::COMMANDS_CLEARED);
    }

    /// Aborts the tasks that a session has in a unit. It is complete after
    /// [`Unit::wait_for_steps`].
    pub fn abort_tasks(&self, unit: &Unit, nexus: NexusId) {
        unit.mark_aborted(|other| other == nexus);
    }

    /// Resets all units. All sessions get a unit attention. It is complete after
    /// [`Unit::wait_for_steps`] of each.
    pub fn reset(&self) {
        self.read_units(|units| {
            for unit in units.values() {
                unit.mark_aborted(|_| true);
                unit.state().reset(Sense::RESET);
            }
        });
    }

    /// The sense data of a failure, in the format that the unit's control mode page asks for.
    #[must_use]
    pub fn sense_bytes(&self, unit: Option<&Unit>, sense: Sense) -> Vec<u8> {
        let as_descriptors = unit.is_some_and(|unit| unit.state().modes.descriptor_sense);
        sense.bytes(as_descriptors)
    }
}
