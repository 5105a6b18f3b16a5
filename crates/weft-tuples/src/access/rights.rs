//! What a user may do with which elements.

/// What an operation does with an element. Redis has the same kinds for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It tells something about the element, and nothing of its tuples.
    Know,
    /// It returns tuples.
    Read,
    /// It changes the element.
    Write,
    /// It returns tuples, and changes the element.
    Both,
}

/// What a user may do: elements whose names begin with one of these texts. The empty one is for
/// all elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The beginnings of elements that the user may read.
    pub read: Vec<Vec<u8>>,
    /// The beginnings of elements that the user may change.
    pub write: Vec<Vec<u8>>,
}

impl Rights {
    /// Those of a user that may do everything.
    #[must_use]
    pub fn all() -> Self {
        Self { read: vec![Vec::new()], write: vec![Vec::new()] }
    }

    /// Whether the user may do this with an element.
    #[must_use]
    pub fn allow(&self, need: Need, element: &[u8]) -> bool {
        self.are_for(need, |beginning| element.starts_with(beginning))
    }

    /// Whether the user may do this with all elements.
    #[must_use]
    pub fn allow_all(&self, need: Need) -> bool {
        self.are_for(need, <[u8]>::is_empty)
    }

    fn are_for(&self, need: Need, fits: impl Fn(&[u8]) -> bool) -> bool {
        let one_of = |beginnings: &[Vec<u8>]| beginnings.iter().any(|it| fits(it));
        match need {
            Need::Know => one_of(&self.read) || one_of(&self.write),
            Need::Read => one_of(&self.read),
            Need::Write => one_of(&self.write),
            Need::Both => one_of(&self.read) && one_of(&self.write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_for_elements_that_begin_so() {
        let rights = Rights { read: vec![b"jobs:".into()], write: vec![b"results:".into()] };
        for (element, read, write) in [
            ("jobs:", true, false),
            ("jobs:1", true, false),
            ("results:1", false, true),
            ("jobs", false, false),
            ("JOBS:1", false, false),
            ("", false, false),
        ] {
            let allows = |need| rights.allow(need, element.as_bytes());
            assert_eq!((allows(Need::Read), allows(Need::Write)), (read, write), "{element}");
            assert_eq!(allows(Need::Know), read || write, "{element}");
            assert!(!allows(Need::Both), "{element}");
        }
        assert!(!rights.allow_all(Need::Know) && !Rights::default().allow(Need::Know, b""));
        assert!(Rights::all().allow_all(Need::Both) && Rights::all().allow(Need::Both, b"any"));
    }
}
