//! Names of users and groups, from `/etc/passwd` and `/etc/group`.

use std::collections::HashMap;
use std::fs;

/// The names and numbers of users and groups on one host.
#[derive(Clone, Debug, Default)]
pub struct Names {
    users: Vec<(u32, Box<[u8]>)>,
    groups: Vec<(u32, Box<[u8]>)>,
}

impl Names {
    /// Reads the files of this host. An unreadable file counts as empty.
    #[must_use]
    pub fn of_host() -> Self {
        let read = |path| fs::read(path).map(|text| entries(&text)).unwrap_or_default();
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }

    fn list(&self, is_group: bool) -> &[(u32, Box<[u8]>)] {
        if is_group { &self.groups } else { &self.users }
    }

    /// Returns the names by number.
    #[must_use]
    pub fn by_id(&self, is_group: bool) -> HashMap<u32, Box<[u8]>> {
        self.list(is_group).iter().rev().cloned().collect()
    }

    /// Returns the number of a name.
    #[must_use]
    pub fn id_of(&self, is_group: bool, name: &[u8]) -> Option<u32> {
        self.list(is_group).iter().find(|(_, known)| **known == *name).map(|(id, _)| *id)
    }
}

/// Parses lines of the form `name:password:number:…`.
fn entries(text: &[u8]) -> Vec<(u32, Box<[u8]>)> {
    let entry = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        let id = str::from_utf8(id).ok()?.parse().ok()?;
        let is_plain =
            !name.is_empty() && name.len() <= 255 && name.iter().all(u8::is_ascii_graphic);
        is_plain.then(|| (id, name.into()))
    };
    text.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::{Names, entries};

    #[test]
    fn invalid_lines_are_skipped() {
        let text = b"root:x:0:0:root:/root:/bin/sh\n\n# no\nx:y\n+::\nweb:x:33:\ntoor:x:0:";
        let users = entries(text);
        assert_eq!(
            users,
            [(0, b"root"[..].into()), (33, b"web"[..].into()), (0, b"toor"[..].into())]
        );
        let names = Names { users, groups: Vec::new() };
        assert_eq!(names.by_id(false)[&0], b"root"[..].into());
        assert_eq!(names.id_of(false, b"web"), Some(33));
        assert_eq!(names.id_of(true, b"web"), None);
    }
}
