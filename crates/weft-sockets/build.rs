//! Links what the library calls to its own functions, where it has them. A program that has a
//! function of the C library's name and calls the C library's by another one (Erlang's `sigaction`
//! and `__sigaction`) would otherwise be called by itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
