//! A table of operations, whose keys go through the engine as the identifiers of work requests.

/// Where an operation is in the table. A key of an operation that has left it finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// Set in the identifiers of receives, and in no key.
const NOT_A_KEY: u64 = 1 << 63;

impl Key {
    /// The identifier of a work request.
    pub(crate) fn to_id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key of an identifier; `None` for that of a receive.
    pub(crate) fn from_id(id: u64) -> Option<Self> {
        let [index, generation] = [id & u64::from(u32::MAX), id >> 32].map(|half| half as u32);
        (id & NOT_A_KEY == 0).then_some(Self { index, generation })
    }
}

/// The identifier of the receive with this number.
pub(crate) fn receive_id(number: usize) -> u64 {
    NOT_A_KEY | number as u64
}

/// The number of the receive with this identifier.
pub(crate) fn receive_number(id: u64) -> usize {
    (id & !NOT_A_KEY) as usize
}

#[derive(Debug)]
struct Row<T> {
    /// Of 31 bits, see [`NOT_A_KEY`].
    generation: u32,
    value: Option<T>,
}

/// The table. It grows to the number of operations that were in it at a time.
#[derive(Debug)]
pub(crate) struct Table<T> {
    rows: Vec<Row<T>>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row { generation: 0, value: None });
            // Less than 2^32 rows: `WAITING_MAX` and `DEPTH_MAX` bound them.
            (self.rows.len() - 1) as u32
        });
        let row = &mut self.rows[index as usize];
        row.value = Some(value);
        Key { index, generation: row.generation }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let row = self.rows.get_mut(key.index as usize)?;
        row.value.as_mut().filter(|_| row.generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let row = self.rows.get_mut(key.index as usize)?;
        if row.generation != key.generation {
            return None;
        }
        let value = row.value.take()?;
        row.generation = (row.generation + 1) & (u32::MAX >> 1);
        self.free.push(key.index);
        Some(value)
    }

    /// The keys of all operations.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.value.is_some());
        rows.map(|(index, row)| Key { index: index as u32, generation: row.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_keys_find_nothing() {
        let mut table = Table::new();
        let old = table.insert('a');
        assert_eq!(table.remove(old), Some('a'));
        let new = table.insert('b');
        assert_eq!(table.get_mut(old), None);
        assert_eq!(table.remove(old), None);
        assert_eq!(table.keys(), [new]);
        assert_eq!(table.get_mut(new), Some(&mut 'b'));
    }

    #[test]
    fn identifiers_of_operations_and_receives_differ() {
        let mut table = Table::new();
        for _ in 0..3 {
            let key = table.insert(());
            assert_eq!(Key::from_id(key.to_id()), Some(key));
            table.remove(key);
        }
        assert_eq!(Key::from_id(receive_id(5)), None);
        assert_eq!(receive_number(receive_id(5)), 5);
    }
}
