//! The directory in which a target keeps persistent reservations: a file for each unit that has
//! some.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weft_target::scsi::{Initiator, Keeper, Kept, Unit, serial};

use crate::limits::KEPT_LEN_MAX;

/// The directory, which no other target uses while this one lives.
#[derive(Debug)]
pub(super) struct StateDirectory {
    path: PathBuf,
    /// It is locked. Entries are made safe by it.
    directory: File,
}

/// The content of a file. It names its unit, so that the file of another unit is not used for it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    target: String,
    lun: u8,
    registrations: Vec<Registration>,
    reservation: Option<Reservation>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Registration {
    initiator: Port,
    key: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reservation {
    #[serde(rename = "type")]
    kind: u8,
    /// `None` if all registered initiators are holders.
    holder: Option<Port>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Port {
    name: String,
    isid: [u8; 6],
}

impl From<&Initiator> for Port {
    fn from(initiator: &Initiator) -> Self {
        Self { name: initiator.name.clone(), isid: initiator.isid }
    }
}

impl From<Port> for Initiator {
    fn from(port: Port) -> Self {
        Self { name: port.name, isid: port.isid }
    }
}

impl StateDirectory {
    /// Opens the directory, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// If that fails, or if another target uses it.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>> {
        Self::lock(path).with_context(|| format!("state directory {}", path.display()))
    }

    fn lock(path: &Path) -> Result<Arc<Self>> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                File::open(parent.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        let directory = File::open(path)?;
        ensure!(directory.metadata()?.is_dir(), "it is no directory");
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => bail!("another target uses it"),
            locked => locked?,
        }
        Ok(Arc::new(Self { path: path.to_owned(), directory }))
    }

    /// Gives a unit the reservations that were kept for it, and lets it keep others.
    ///
    /// # Errors
    ///
    /// If the file of the unit cannot be read, or says what cannot be. To serve the unit without
    /// its reservations would let initiators write that were kept out.
    pub(super) fn restore(self: &Arc<Self>, unit: Unit, target: &str, lun: u8) -> Result<Unit> {
        let file = KeptFile {
            directory: Arc::clone(self),
            path: self.path.join(format!("{}.json", serial(target, lun))),
            target: target.to_owned(),
            lun,
        };
        let context = || format!("kept reservations {}", file.path.display());
        let kept = file.read().with_context(context)?;
        let path = file.path.clone();
        let restored = unit.with_keeper(Box::new(file), kept);
        restored.with_context(|| format!("{}: no unit can have had these", path.display()))
    }
}

/// The file of one unit.
#[derive(Debug)]
struct KeptFile {
    directory: Arc<StateDirectory>,
    path: PathBuf,
    target: String,
    lun: u8,
}

impl KeptFile {
    fn read(&self) -> Result<Kept> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
            file => file?,
        };
        let mut text = Vec::new();
        file.take(KEPT_LEN_MAX).read_to_end(&mut text)?;
        ensure!((text.len() as u64) < KEPT_LEN_MAX, "longer than {KEPT_LEN_MAX} bytes");
        let content: Content = serde_json::from_slice(&text)?;
        let is_own = content.target.eq_ignore_ascii_case(&self.target) && content.lun == self.lun;
        ensure!(is_own, "it is of unit {} of {}", content.lun, content.target);
        let registrations = content.registrations.into_iter();
        Ok(Kept {
            registrations: registrations.map(|each| (each.initiator.into(), each.key)).collect(),
            reservation: content
                .reservation
                .map(|reservation| (reservation.kind, reservation.holder.map(Initiator::from))),
        })
    }

    fn text(&self, kept: &Kept) -> io::Result<Vec<u8>> {
        let registration = |(initiator, key): &(Initiator, u64)| Registration {
            initiator: initiator.into(),
            key: *key,
        };
        let reservation = kept.reservation.as_ref();
        let content = Content {
            target: self.target.clone(),
            lun: self.lun,
            registrations: kept.registrations.iter().map(registration).collect(),
            reservation: reservation.map(|(kind, holder)| Reservation {
                kind: *kind,
                holder: holder.as_ref().map(Port::from),
            }),
        };
        Ok(serde_json::to_vec(&content)?)
    }
}

impl Keeper for KeptFile {
    fn keep(&self, kept: &Kept) -> io::Result<()> {
        if kept.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        } else {
            // The file has its name only when all of it is safe.
            let new = self.path.with_extension("new");
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&self.text(kept)?)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
        }
        self.directory.directory.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use weft_target::scsi::Options;
    use weft_target::store::Null;

    use super::*;

    const TARGET: &str = "iqn.2026-01.org.example:a";

    fn file(directory: &Arc<StateDirectory>, lun: u8) -> KeptFile {
        let path = directory.path.join(format!("{}.json", serial(TARGET, lun)));
        KeptFile { directory: Arc::clone(directory), path, target: TARGET.into(), lun }
    }

    fn kept() -> Kept {
        let initiator = Initiator { name: "iqn.a\"\\\u{e9}".into(), isid: [0x80, 0, 0, 0, 0, 9] };
        let registrations = vec![(initiator.clone(), u64::MAX)];
        Kept { registrations, reservation: Some((1, Some(initiator))) }
    }

    fn unit() -> Unit {
        Unit::new("serial".into(), Options::default(), Box::new(Null::new(512)))
    }

    #[test]
    fn kept_reservations_are_there_until_none_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let directory = StateDirectory::open(&path).unwrap();
        let error = format!("{:#}", StateDirectory::open(&path).unwrap_err());
        assert!(error.contains("another target uses it"), "{error}");
        assert_eq!(file(&directory, 0).read().unwrap(), Kept::default());
        file(&directory, 0).keep(&kept()).unwrap();
        drop(directory);
        let directory = StateDirectory::open(&path).unwrap();
        assert_eq!(file(&directory, 0).read().unwrap(), kept());
        assert_eq!(file(&directory, 1).read().unwrap(), Kept::default());
        assert!(directory.restore(unit(), TARGET, 0).is_ok());
        for _ in 0..2 {
            file(&directory, 0).keep(&Kept::default()).unwrap();
            assert_eq!(file(&directory, 0).read().unwrap(), Kept::default());
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_cut_off_or_of_another_unit_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(folder.path()).unwrap();
        let this = file(&directory, 0);
        this.keep(&kept()).unwrap();
        let text = fs::read(&this.path).unwrap();
        for len in 0..text.len() {
            fs::write(&this.path, &text[..len]).unwrap();
            assert!(directory.restore(unit(), TARGET, 0).is_err(), "{len} bytes");
        }
        fs::write(file(&directory, 1).path, &text).unwrap();
        let error = format!("{:#}", directory.restore(unit(), TARGET, 1).unwrap_err());
        assert!(error.contains("it is of unit 0"), "{error}");
        // A holder that is not registered.
        let nobody = Kept { reservation: Some((3, None)), ..kept() };
        this.keep(&nobody).unwrap();
        let error = format!("{:#}", directory.restore(unit(), TARGET, 0).unwrap_err());
        assert!(error.contains("no unit can have had these"), "{error}");
    }
}
