//! What a log on disk may say.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use crate::log::{Files, Log, LogFile, Unfit, encode, replay};
use crate::model::{Effect, Service};

fn apply(bytes: &[u8]) -> Result<Service, Unfit> {
    let mut service = Service::default();
    replay(bytes, &mut service)?;
    Ok(service)
}

fn snapshot(service: &Service) -> Vec<u8> {
    let mut bytes = Vec::new();
    let all: Result<(), ()> = service.snapshot(|effect: Effect| {
        encode(&mut bytes, &effect);
        Ok(())
    });
    // The closure never fails.
    all.unwrap_or_default();
    bytes
}

/// Effects that a record holds. They are refused, or lead to a state whose snapshot leads to it
/// again. Returns whether they are accepted.
///
/// # Panics
/// If a snapshot is refused or leads to another state.
pub fn effects(input: &[u8]) -> bool {
    let Ok(service) = apply(input) else { return false };
    let first = snapshot(&service);
    match apply(&first) {
        Ok(again) => assert!(snapshot(&again) == first, "a snapshot leads to another state"),
        Err(Unfit) => panic!("a snapshot is refused"),
    }
    true
}

/// A file in memory.
#[derive(Clone, Debug)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl LogFile for Memory {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.0.borrow();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = content.get(start..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.0.borrow_mut();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if content.len() < start + bytes.len() {
            content.resize(start + bytes.len(), 0);
        }
        content[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.borrow_mut().truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Files for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>> {
        Ok(Some(Box::new(self.clone())))
    }

    fn create(&mut self) -> io::Result<Box<dyn LogFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn install(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn random(&mut self) -> io::Result<[u8; 8]> {
        Ok([0; 8])
    }
}

/// The file of a log. It is refused and left as it is, or opened; then it is opened once more with
/// the same state, and nothing is cut off.
///
/// # Panics
/// If a log that was opened is another one afterwards.
pub fn log(input: &[u8]) {
    let file = Memory(Rc::new(RefCell::new(input.to_vec())));
    let mut service = Service::default();
    let Ok(log) = Log::open(Box::new(file.clone()), &mut service) else {
        assert!(*file.0.borrow() == input, "a log that is refused was changed");
        return;
    };
    let end = log.cut().map_or(input.len() as u64, |cut| cut.offset);
    let end = usize::try_from(end).unwrap_or(usize::MAX);
    assert!(file.0.borrow()[..] == input[..end], "more was cut off than is reported");
    let mut again = Service::default();
    match Log::open(Box::new(file), &mut again) {
        Ok(log) => assert_eq!(log.cut(), None, "nothing is left to cut off"),
        Err(error) => panic!("a log that was opened is refused: {error}"),
    }
    assert!(snapshot(&again) == snapshot(&service), "the state is another one");
}
