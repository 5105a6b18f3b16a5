//! A disk in memory. What is not synced does not outlive a crash.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use weft_tuples::log::{Files, LogFile};

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

/// A directory with the file of a log.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    file: Rc<RefCell<Option<File>>>,
    next: Option<File>,
    salts: Rc<Cell<u8>>,
}

#[derive(Clone, Debug, Default)]
struct File(Rc<RefCell<Content>>);

impl Disk {
    /// Loses what is not synced.
    pub(super) fn crash(&self) {
        if let Some(file) = &*self.file.borrow() {
            let mut content = file.0.borrow_mut();
            content.bytes = content.synced.clone();
        }
    }
}

impl Files for Disk {
    fn name(&self) -> String {
        "log".into()
    }

    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>> {
        let file = self.file.borrow().clone();
        Ok(file.map(|file| Box::new(file) as Box<dyn LogFile>))
    }

    fn create(&mut self) -> io::Result<Box<dyn LogFile>> {
        let file = File::default();
        self.next = Some(file.clone());
        Ok(Box::new(file))
    }

    fn install(&mut self) -> io::Result<()> {
        *self.file.borrow_mut() = self.next.take();
        Ok(())
    }

    fn random(&mut self) -> io::Result<[u8; 8]> {
        self.salts.set(self.salts.get().wrapping_add(1));
        Ok([self.salts.get(); 8])
    }
}

impl LogFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.borrow().bytes.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.0.borrow();
        let found = content.bytes.get(offset as usize..).and_then(|it| it.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.0.borrow_mut();
        let end = offset as usize + bytes.len();
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
        }
        content.bytes[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.borrow_mut().bytes.truncate(len as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut content = self.0.borrow_mut();
        content.synced = content.bytes.clone();
        Ok(())
    }
}
