//! Merges the streams of several producers by units of work. No input or output.

use std::collections::VecDeque;

/// The next event at a consumer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<T> {
    /// An item of the current unit, from this producer.
    Item(usize, T),
    /// All producers have ended the current unit, and all of its items are taken.
    UnitEnded,
    /// All units have ended.
    Finished,
}

/// The items of all producers that a consumer has not taken. A producer may be ahead by units; its
/// items then wait until all others have ended the current unit.
#[derive(Debug)]
pub(crate) struct Merge<T> {
    /// For each producer its items in order; `None` ends a unit.
    queues: Vec<VecDeque<Option<T>>>,
    /// For each producer the number of units of which all items are taken.
    ended: Vec<u32>,
    unit: u32,
    units: u32,
    /// The producer that is looked at first.
    next: usize,
    len: usize,
}

impl<T> Merge<T> {
    /// `capacity`: the most items of a producer for which no memory is allocated later.
    pub(crate) fn new(producers: usize, units: u32, capacity: usize) -> Self {
        let queues = (0..producers).map(|_| VecDeque::with_capacity(capacity + 1)).collect();
        Self { queues, ended: vec![0; producers], unit: 0, units, next: 0, len: 0 }
    }

    pub(crate) fn push(&mut self, producer: usize, item: T) {
        self.queues[producer].push_back(Some(item));
        self.len += 1;
    }

    pub(crate) fn push_end(&mut self, producer: usize) {
        self.queues[producer].push_back(None);
    }

    /// The number of items that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the next item of the current unit. The producers take turns. Returns `None` if no
    /// producer has one now.
    pub(crate) fn take(&mut self) -> Option<Taken<T>> {
        if self.unit == self.units {
            return Some(Taken::Finished);
        }
        let count = self.queues.len();
        for producer in (self.next..count).chain(0..self.next) {
            if self.ended[producer] > self.unit {
                continue;
            }
            match self.queues[producer].pop_front() {
                Some(Some(item)) => {
                    self.next = (producer + 1) % count;
                    self.len -= 1;
                    return Some(Taken::Item(producer, item));
                }
                Some(None) => self.ended[producer] += 1,
                None => {}
            }
        }
        self.ended.iter().all(|&ended| ended > self.unit).then(|| {
            self.unit += 1;
            Taken::UnitEnded
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// Producers that run ahead of one another at random; items name their producer, unit and
    /// number.
    #[test]
    fn units_never_mix_and_each_producer_keeps_its_order() {
        for seed in 0..500 {
            let mut rng = Rng::with_seed(seed);
            let (producers, units) = (rng.usize(1..5), rng.u32(1..5));
            let mut merge = Merge::new(producers, units, 4);
            let mut left: Vec<VecDeque<Option<(u32, u32)>>> = Vec::new();
            for _ in 0..producers {
                let of_unit = |unit| {
                    let items: Vec<_> = (0..rng.u32(..4)).map(|n| Some((unit, n))).collect();
                    items.into_iter().chain([None])
                };
                left.push((0..units).flat_map(of_unit).collect());
            }
            let total = left.iter().flatten().filter(|item| item.is_some()).count();
            let (mut unit, mut taken) = (0, vec![Vec::new(); producers]);
            loop {
                let producer = rng.usize(..producers);
                match left[producer].pop_front() {
                    Some(Some(item)) => merge.push(producer, item),
                    Some(None) => merge.push_end(producer),
                    None => {}
                }
                if rng.bool() && left.iter().any(|queue| !queue.is_empty()) {
                    continue;
                }
                match merge.take() {
                    Some(Taken::Item(producer, item)) => {
                        assert_eq!(item.0, unit, "seed {seed}");
                        taken[producer].push(item);
                    }
                    Some(Taken::UnitEnded) => unit += 1,
                    Some(Taken::Finished) => break,
                    None => {}
                }
            }
            assert_eq!((unit, merge.len()), (units, 0), "seed {seed}");
            assert_eq!(taken.iter().flatten().count(), total, "seed {seed}");
            for items in taken {
                assert!(items.is_sorted(), "seed {seed}");
            }
        }
    }

    #[test]
    fn producers_take_turns() {
        let mut merge = Merge::new(2, 1, 4);
        for item in 0..3 {
            merge.push(0, item);
        }
        merge.push(1, 10);
        let mut order = Vec::new();
        while let Some(Taken::Item(_, item)) = merge.take() {
            order.push(item);
        }
        assert_eq!(order, [0, 10, 1, 2]);
        merge.push_end(0);
        assert_eq!(merge.take(), None, "the other producer has not ended");
        merge.push_end(1);
        assert_eq!(merge.take(), Some(Taken::UnitEnded));
        assert_eq!(merge.take(), Some(Taken::Finished));
    }
}
