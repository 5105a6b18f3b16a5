//! Binds this library's calls to its own functions. Otherwise a program that defines a function of
//! the C library's name, and calls the original by another name (Erlang: `sigaction` and
//! `__sigaction`), would be called by itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
