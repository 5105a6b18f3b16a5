//! Names the library as programs are linked to it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweft_tuples.so.1");
    // Unloading the library would unmap the code of threads of the fabric.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
