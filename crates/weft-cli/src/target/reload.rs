//! The changes when the file of a running target is read again.
//!
//! A reload has two steps. The first reads the file and opens whatever is new; it may fail, and has
//! changed nothing then. The second one replaces what is served.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use weft_target::scsi::{Device, Unit};
use weft_target::security::Access;
use weft_target::session::{Announcement, Portal, Target};

use super::config;
use super::plan::{Fixed, Plan, TargetPlan};
use super::unit::{Parsed, Place, UnitResources};

/// Where the units of targets are, by target and number.
pub(super) type Stores = BTreeMap<(String, u8), Place>;

/// The file that a target was started with.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    /// The settings of the command line that replace the file's.
    control: Option<PathBuf>,
    state: Option<PathBuf>,
}

impl Source {
    /// Returns the file at `path`, whose `control` and `state` the command line may replace.
    pub(super) fn new(path: PathBuf, control: Option<PathBuf>, state: Option<PathBuf>) -> Self {
        Self { path, control, state }
    }

    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or has something that is not allowed.
    pub(super) fn read(&self) -> Result<Plan> {
        let mut plan = config::read(&self.path)?;
        let Fixed { control, state, .. } = &mut plan.fixed;
        *control = self.control.clone().or_else(|| control.take());
        *state = self.state.clone().or_else(|| state.take());
        Ok(plan)
    }

    /// Reads the file again.
    ///
    /// # Errors
    ///
    /// As above, and if it is no regular file, or a value differs that stays until the end of the
    /// process.
    pub(super) fn read_again(&self, fixed: &Fixed) -> Result<Plan> {
        let path = self.path.display();
        // Opening a pipe would wait for its writer.
        let file = fs::metadata(&self.path).with_context(|| path.to_string())?;
        ensure!(file.is_file(), "{path}: not a regular file");
        let plan = self.read()?;
        let keys = fixed.differences(&plan.fixed);
        ensure!(keys.is_empty(), "{path}: another value of {} takes a restart", keys.join(", "));
        Ok(plan)
    }
}

/// A unit of a device that is served already.
struct Added {
    device: Arc<Device>,
    number: u8,
    unit: Arc<Unit>,
}

/// The changes of a reload. All new units are open.
pub(super) struct Changes {
    /// All targets that are served afterwards.
    targets: Vec<Target>,
    discovery: Access,
    sessions_max: usize,
    added: Vec<Added>,
    removed: Vec<(Arc<Device>, u8)>,
    /// Where all units are afterwards.
    stores: Stores,
    report: Value,
}

impl Changes {
    /// Compares what a file says with what `portal` serves, and opens what is new.
    ///
    /// # Errors
    ///
    /// If a unit cannot be opened, or if one is to change that initiators know.
    pub(super) fn prepare(
        plan: Plan,
        portal: &Portal,
        before: &Stores,
        shared: &UnitResources,
    ) -> Result<Self> {
        let mut changes = Self {
            targets: Vec::new(),
            discovery: plan.discovery,
            sessions_max: plan.sessions_max,
            added: Vec::new(),
            removed: Vec::new(),
            stores: Stores::new(),
            report: Value::Null,
        };
        for target in plan.targets {
            match portal.target(&target.name) {
                Some(served) => changes.compare(target, served.device(), before, shared)?,
                None => changes.targets.push(open(target, shared, &mut changes.stores)?),
            }
        }
        for target in portal.targets() {
            let device = target.device();
            let is_same = |target: &Target| Arc::ptr_eq(target.device(), device);
            if !changes.targets.iter().any(is_same) {
                let units = device.numbers().into_iter().map(|number| (Arc::clone(device), number));
                changes.removed.extend(units);
            }
        }
        changes.report = changes.describe(before);
        Ok(changes)
    }

    /// Compares a target of the file with the device that is served under its name.
    fn compare(
        &mut self,
        plan: TargetPlan,
        device: &Arc<Device>,
        before: &Stores,
        shared: &UnitResources,
    ) -> Result<()> {
        let name = device.name();
        let mut units: BTreeMap<u8, Arc<Unit>> = device.units().into_iter().collect();
        for (number, parsed) in plan.units {
            let key = (name.to_owned(), number);
            let store = parsed.store.clone();
            match units.remove(&number) {
                Some(unit) => {
                    let store = before.get(&key);
                    check_same(&parsed, &unit, store)
                        .with_context(|| format!("unit {number} of {name}"))?;
                }
                None => {
                    let unit = parsed.open(name, number, shared);
                    let unit = Arc::new(unit.with_context(|| store.to_string())?);
                    self.added.push(Added { device: Arc::clone(device), number, unit });
                }
            }
            self.stores.insert(key, store);
        }
        self.removed.extend(units.into_keys().map(|number| (Arc::clone(device), number)));
        let target = Target::new(Arc::clone(device), plan.access);
        self.targets.push(target.announcing(plan.announces));
        Ok(())
    }

    /// The added and removed units, for users.
    fn describe(&self, before: &Stores) -> Value {
        let row = |(target, lun): &(String, u8), stores: &Stores| {
            let store = stores.get(&(target.clone(), *lun)).map(Place::to_string);
            json!({ "target": target, "lun": lun, "store": store })
        };
        let removed: Vec<_> = self.removed.iter().map(|(device, lun)| key(device, *lun)).collect();
        let is_new = |key: &&(String, u8)| !before.contains_key(key);
        let added = self.stores.keys().filter(is_new).map(|key| row(key, &self.stores));
        let removed = removed.iter().map(|key| row(key, before));
        json!({ "added": added.collect::<Vec<_>>(), "removed": removed.collect::<Vec<_>>() })
    }

    /// The changes: `added` and `removed`, each with `target`, `lun` and `store`.
    pub(super) fn report(&self) -> &Value {
        &self.report
    }

    /// Replaces what `portal` serves, and returns where all units are now.
    ///
    /// # Errors
    ///
    /// The second value, with all that has failed: the rest is done. The reservations of a removed
    /// unit could not be removed, or what was written to it could not be made safe.
    pub(super) fn apply(self, portal: &Portal) -> (Stores, Result<()>) {
        let mut failed = Vec::new();
        let mut changed: Vec<Arc<Device>> = Vec::new();
        let removed = self.removed.iter().map(|(device, _)| device);
        for device in self.added.iter().map(|added| &added.device).chain(removed) {
            if !changed.iter().any(|other| Arc::ptr_eq(other, device)) {
                changed.push(Arc::clone(device));
            }
        }
        for Added { device, number, unit } in self.added {
            if !device.insert(number, unit) {
                failed.push(format!("{}/{number} is there already", device.name()));
            }
        }
        // Nobody logs in to a target whose units are about to go.
        portal.replace(self.targets, self.discovery, self.sessions_max);
        for (device, number) in self.removed {
            let Some(unit) = device.remove(number) else { continue };
            let name = device.name();
            if let Err(error) = forget(&unit) {
                failed.push(format!("{name}/{number} is removed, but {error:#}"));
            }
        }
        changed.iter().for_each(|device| portal.announce(device, Announcement::UnitsChanged));
        let failed = if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) };
        (self.stores, failed.map_err(anyhow::Error::msg))
    }
}

/// Ends the service of a unit that no initiator reaches any more.
///
/// # Errors
///
/// If its reservations cannot be removed, or if what was written cannot be made safe.
pub(super) fn forget(unit: &Unit) -> Result<()> {
    unit.forget_kept().context("its reservations are kept")?;
    if unit.flush().is_err() {
        bail!("it could not be flushed");
    }
    Ok(())
}

/// Opens the units of a target, and notes where they are.
pub(super) fn open(
    plan: TargetPlan,
    shared: &UnitResources,
    stores: &mut Stores,
) -> Result<Target> {
    let mut units = BTreeMap::new();
    for (number, parsed) in plan.units {
        let place = parsed.store.clone();
        let unit = parsed.open(&plan.name, number, shared).with_context(|| place.to_string())?;
        units.insert(number, Arc::new(unit));
        stores.insert((plan.name.clone(), number), place);
    }
    let target = Target::new(Arc::new(Device::new(plan.name, units)), plan.access);
    Ok(target.announcing(plan.announces))
}

/// A unit keeps its store and its behaviour: initiators have seen them, and hold data of it.
fn check_same(new: &Parsed, unit: &Unit, store: Option<&Place>) -> Result<()> {
    let advice = "give the other one another number, or remove this one first";
    if let Some(store) = store.filter(|store| !new.store.is_same(store)) {
        match (store, &new.store) {
            (Place::Ram(_), Place::Ram(_)) | (Place::Null(_), Place::Null(_)) => {
                bail!("it is {store} now, and not {}: `weft target resize` resizes it", new.store)
            }
            _ => bail!("it is {store} now, and not {}: {advice}", new.store),
        }
    }
    let options = unit.options();
    let is_direct = |place: &Place| matches!(place, Place::Direct(_));
    let rows = [
        ("block", options.block_len == new.options.block_len),
        ("read-only", options.is_read_only == new.options.is_read_only),
        ("removable", options.is_removable == new.options.is_removable),
        ("write-back", options.write_back == new.options.write_back),
        ("direct", store.is_none_or(|store| is_direct(store) == is_direct(&new.store))),
    ];
    for (key, is_same) in rows {
        ensure!(is_same, "it has another value of `{key}` now: {advice}");
    }
    Ok(())
}

fn key(device: &Device, number: u8) -> (String, u8) {
    (device.name().to_owned(), number)
}
