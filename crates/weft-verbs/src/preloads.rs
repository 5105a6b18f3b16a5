//! Functions of Weft's other libraries, if the process has them: those for `LD_PRELOAD`.
//!
//! # Safety
//! The caller of [`function`] names a function that only one of these libraries defines, with the
//! type that it asks for.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;

/// Returns the function with this name; `None` if the library that defines it is not loaded.
///
/// # Safety
/// `F` is the type of a pointer to the function.
pub(crate) unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "`F` is a function pointer") };
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: both are pointers, and the caller guarantees that `F` is the type of this one, which
    // is not NULL.
    (!found.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&found) })
}

#[cfg(test)]
mod tests {
    use super::function;

    #[test]
    fn only_functions_of_loaded_libraries_are_found() {
        type GetPid = unsafe extern "C" fn() -> libc::pid_t;
        // SAFETY: the C library's function has this type.
        let found = unsafe { function::<GetPid>(c"getpid") }.expect("the C library is loaded");
        // SAFETY: `getpid` has no preconditions.
        assert_eq!(unsafe { found() }.cast_unsigned(), std::process::id());
        // SAFETY: nothing defines this name.
        assert!(unsafe { function::<GetPid>(c"weft_nothing_defines_this") }.is_none());
    }
}
