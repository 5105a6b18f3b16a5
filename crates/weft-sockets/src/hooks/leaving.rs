//! Functions that end a program without running exit handlers. They close its sockets as `exit`
//! does (see `process`).
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged.
#![allow(unsafe_code)]

use libc::{c_int, c_void};
use weft_sys::NextFunction;

use crate::process;

/// Defines a hook that ends the process by the next library's function.
macro_rules! end {
    ($name:ident, $c_name:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(status: c_int) -> ! {
            process::end_at_once();
            static NEXT: NextFunction = NextFunction::new($c_name);
            type Exit = unsafe extern "C" fn(c_int) -> !;
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Exit>>(NEXT.address()) };
            match next {
                // SAFETY: passes on the program's own argument.
                Some(next) => unsafe { next(status) },
                None => std::process::abort(),
            }
        }
    };
}
end!(_exit, c"_exit");
end!(_Exit, c"_Exit");
end!(quick_exit, c"quick_exit");
