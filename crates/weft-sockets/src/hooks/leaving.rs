//! Ways to end a program that run no handlers, as `exit` does (see `process`): its sockets are
//! closed in the same manner.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are.
#![allow(unsafe_code)]

use libc::{c_int, c_void};
use weft_sys::NextFunction;

use crate::process;

/// Ends the process by the next library's function of a name.
macro_rules! end {
    ($name:ident, $c_name:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(status: c_int) -> ! {
            process::end_at_once();
            static NEXT: NextFunction = NextFunction::new($c_name);
            type End = unsafe extern "C" fn(c_int) -> !;
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<End>>(NEXT.address()) };
            match next {
                // SAFETY: the program's own argument.
                Some(next) => unsafe { next(status) },
                None => std::process::abort(),
            }
        }
    };
}
end!(_exit, c"_exit");
end!(_Exit, c"_Exit");
end!(quick_exit, c"quick_exit");
