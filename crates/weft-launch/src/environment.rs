//! The variables that a program gets.

use crate::kernel::{List, Strings};
use crate::place::{PRELOAD, SOCKETS};
use crate::text::Text;

const LIBRARY_PATH_VARIABLE: &[u8] = b"LD_LIBRARY_PATH";
const PRELOAD_VARIABLE: &[u8] = b"LD_PRELOAD";

/// Returns the value of a variable.
pub(crate) fn value<'a>(environment: Strings<'a>, name: &[u8]) -> Option<&'a [u8]> {
    environment.iter().find_map(|entry| value_in(entry.to_bytes(), name))
}

/// The variables by which the dynamic loader finds the libraries.
#[derive(Debug)]
pub(crate) struct Loader([Text; 2]);

impl Loader {
    /// `None` if they are too long.
    pub(crate) fn new(environment: Strings<'_>, libraries: &Text) -> Option<Self> {
        let old = |name| value(environment, name).unwrap_or_default();
        let directory = libraries.as_bytes();
        let sockets = Text::of(&[directory, SOCKETS])?;
        let preload = Text::of(&[directory, PRELOAD])?;
        let name = LIBRARY_PATH_VARIABLE;
        let path = prepended(name, &[directory], old(name))?;
        let name = PRELOAD_VARIABLE;
        let preloads = prepended(name, &[sockets.as_bytes(), preload.as_bytes()], old(name))?;
        Some(Self([path, preloads]))
    }

    /// Returns the environment with these variables. `None` if it has too many.
    pub(crate) fn within<'a>(&'a self, environment: Strings<'a>) -> Option<List<'a>> {
        let mut list = List::new();
        let is_ours = |entry: &[u8]| {
            let mut names = [LIBRARY_PATH_VARIABLE, PRELOAD_VARIABLE].into_iter();
            names.any(|name| value_in(entry, name).is_some())
        };
        let mut others = environment.iter().filter(|entry| !is_ours(entry.to_bytes()));
        others.try_for_each(|entry| list.push(entry))?;
        self.0.iter().try_for_each(|text| list.push(text.as_c_str()))?;
        Some(list)
    }
}

fn value_in<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    entry.strip_prefix(name)?.strip_prefix(b"=")
}

/// Returns the variable `name` with `entries` at the front of the list `old`, and nowhere else. An
/// empty entry would mean the current directory.
fn prepended(name: &[u8], entries: &[&[u8]], old: &[u8]) -> Option<Text> {
    let mut text = Text::of(&[name, b"="])?;
    let kept = old.split(|&byte| byte == b':');
    let kept = kept.filter(|entry| !entry.is_empty() && !entries.contains(entry));
    for (index, entry) in entries.iter().copied().chain(kept).enumerate() {
        text.push(if index == 0 { b"" } else { b":" })?;
        text.push(entry)?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::vec::Vec;

    use super::*;
    use crate::limits::TEXT_LEN_MAX;

    fn entries<'a>(list: &mut List<'a>, entries: &[&'a CStr]) {
        entries.iter().for_each(|entry| list.push(entry).unwrap());
    }

    #[test]
    fn values_are_those_of_whole_names() {
        let mut list = List::new();
        entries(&mut list, &[c"AB=1", c"A=2=3", c"A=4", c"B"]);
        let value = |name| value(list.strings(), name);
        assert_eq!(value(b"A"), Some(&b"2=3"[..]));
        assert_eq!((value(b"B"), value(b"")), (None, None));
    }

    #[test]
    fn entries_come_first_and_once() {
        let lists = |old: &[u8]| prepended(b"L", &[b"/s", b"/p"], old).unwrap();
        for (old, new) in
            [(&b""[..], c"L=/s:/p"), (b"/a:/b", c"L=/s:/p:/a:/b"), (b":/p:/a::/s:", c"L=/s:/p:/a")]
        {
            assert_eq!(lists(old).as_c_str(), new);
        }
        assert!(prepended(b"L", &[b"/s"], &[b'a'; TEXT_LEN_MAX]).is_none());
    }

    #[test]
    fn other_variables_stay_as_they_are() {
        let mut list = List::new();
        let old = [c"A=1", c"LD_PRELOAD=/x.so", c"LD_PRELOADED=2", c"LD_LIBRARY_PATH=/l", c"odd"];
        entries(&mut list, &old);
        let libraries = Text::of(&[b"/w"]).unwrap();
        let loader = Loader::new(list.strings(), &libraries).unwrap();
        let new = loader.within(list.strings()).unwrap();
        let expected = [
            c"A=1",
            c"LD_PRELOADED=2",
            c"odd",
            c"LD_LIBRARY_PATH=/w:/l",
            c"LD_PRELOAD=/w/libweft-sockets.so:/w/libweft-preload.so:/x.so",
        ];
        assert_eq!(new.strings().iter().collect::<Vec<_>>(), expected);
    }
}
