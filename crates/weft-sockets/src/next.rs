//! The C library's own functions, behind the hooks.
//!
//! # Safety
//! A function found by name has the signature of the C library's function of that name.
#![allow(unsafe_code)]

/// Calls the next library's function of a name: `next!(read(fd: c_int, ...) -> ssize_t)`. The
/// arguments are the caller's variables of those names. Fails with `ENOSYS` if there is none.
macro_rules! next {
    ($name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {{
        static NEXT: weft_sys::NextFunction =
            weft_sys::NextFunction::new(weft_sys::c_name(concat!(stringify!($name), "\0")));
        // Not "C-unwind": a cancelled thread leaves these frames as it leaves frames of C.
        type Hooked = unsafe extern "C" fn($($type),*) -> $result;
        // SAFETY: NULL becomes `None`, and the C library's function of this name has this
        // signature.
        let next = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, Option<Hooked>>(NEXT.address())
        };
        match next {
            // SAFETY: passes on arguments that the program guarantees for this function.
            Some(next) => unsafe { next($($arg),*) },
            None => {
                $crate::errno::set(weft_sys::calls::io::Errno::NOSYS);
                -1
            }
        }
    }};
}
pub(crate) use next;
