//! Structures in memory that several processes share: each has one definition, with the offset of
//! each field and the value that it starts with.
//!
//! # Safety
//! A structure that [`shared_layout`](crate::shared_layout) defines consists of atomics without
//! padding, so that any bytes are a valid value and other processes may change them at any time.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What may be referred to in memory that other processes write.
///
/// # Safety
/// It consists of atomics and has no padding.
pub unsafe trait Shared {
    /// What an atomic of it holds.
    type Value: Copy;

    /// Gives all of it this value, in no particular order.
    fn start_with(&self, value: Self::Value);
}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU32 {
    type Value = u32;

    fn start_with(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }
}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {
    type Value = u64;

    fn start_with(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
}

// SAFETY: an array has no padding but that of its elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {
    type Value = T::Value;

    fn start_with(&self, value: T::Value) {
        self.iter().for_each(|element| element.start_with(value));
    }
}

/// Defines a structure in shared memory: its length, and each field with its offset. `reset` gives
/// the fields with a value behind `=` that value, and leaves the others as they are.
///
/// It does not compile if an offset or the length is wrong, if there is padding, or if a field
/// consists of anything but atomics.
///
/// ```
/// use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
///
/// weft_sys::shared_layout! {
///     /// A counter and who has it.
///     struct Counter[16] {
///         /// How far it is.
///         0: count: AtomicU64 = 0,
///         8: owner: AtomicU32,
///         12: _gap: [AtomicU32; 1],
///     }
/// }
///
/// let (memory, _fd) = weft_sys::SharedMemory::create(4096)?;
/// let counter: &Counter = memory.structure(64);
/// counter.owner.store(7, Ordering::Relaxed);
/// counter.count.fetch_add(1, Ordering::Relaxed);
/// counter.reset();
/// assert_eq!(counter.count.load(Ordering::Relaxed), 0);
/// assert_eq!(memory.word32(72).load(Ordering::Relaxed), 7);
/// # Ok::<(), weft_sys::Errno>(())
/// ```
#[macro_export]
macro_rules! shared_layout {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident[$len:expr] {
            $(
                $(#[$field_meta:meta])*
                $at:literal: $field:ident: $type:ty $(= $start:expr)?,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$field_meta])* $visibility $field: $type,)*
        }

        const _: () = {
            const fn is_shared<T: $crate::Shared>() {}
            $(
                is_shared::<$type>();
                assert!(::std::mem::offset_of!($name, $field) == $at);
            )*
            assert!(0 $(+ size_of::<$type>())* == $len, "there is padding");
            assert!(size_of::<$name>() == $len);
        };

        // SAFETY: it consists of its fields, which have been checked above.
        #[allow(unsafe_code)]
        unsafe impl $crate::Shared for $name {
            type Value = ();

            fn start_with(&self, (): ()) {
                $($($crate::Shared::start_with(&self.$field, $start);)?)*
            }
        }

        impl $name {
            /// Gives the fields that have one their first value, in no particular order.
            #[allow(dead_code)] // Not every structure is used again.
            $visibility fn reset(&self) {
                $crate::Shared::start_with(self, ());
            }
        }
    };
}
