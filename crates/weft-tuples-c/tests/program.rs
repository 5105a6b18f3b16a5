//! A C program uses the library as it is installed: with its header and its name.

#![allow(clippy::unwrap_used)] // All of it is a test.

use std::env;
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use weft_tuples::access::{Guard, TlsServer, Token};
use weft_tuples::limits::{CONNECTIONS_MAX, MEMORY_MAX};
use weft_tuples::model::Space;
use weft_tuples::server::{Listener, Server};

/// Serves as long as this process runs.
fn serve(
    listener: impl FnOnce(TcpListener) -> Listener + Send + 'static,
    token: Option<Token>,
) -> SocketAddr {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let address = tcp.local_addr().unwrap();
    thread::spawn(move || {
        let listeners = vec![listener(tcp)];
        let server = Server::new(Space::new(MEMORY_MAX), listeners, CONNECTIONS_MAX).unwrap();
        server.with_guard(Guard::new(token)).run().unwrap();
    });
    address
}

#[test]
fn c_program_uses_each_function() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "the token of the server\n").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let pem = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft-tuples/src/access/tests");
    let key = folder.path().join("key");
    fs::write(&key, fs::read(pem.join("server.key")).unwrap()).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let tls = TlsServer::read(&pem.join("server.pem"), &key).unwrap();
    let open = serve(Listener::of_tcp, None);
    let closed = serve(Listener::of_tcp, Some(Token::read(&token).unwrap()));
    let secure = serve(|tcp| Listener::of_tls(tcp, tls), None);
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The library is beside this test.
    let test = env::current_exe().unwrap();
    let library = test.with_file_name("libweft_tuples_c.so");
    for name in ["libweft_tuples.so", "libweft_tuples.so.1"] {
        symlink(&library, folder.path().join(name)).unwrap();
    }
    let program = folder.path().join("client");
    let cc = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(cc)
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"])
        .args([program.as_path(), &crate_folder.join("tests/programs/client.c")])
        .arg("-I")
        .arg(crate_folder.join("include"))
        .arg("-L")
        .arg(folder.path())
        .arg("-lweft_tuples")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program)
        .args([open, closed].map(|address| address.to_string()))
        .arg(&token)
        .arg(format!("tls://{secure}"))
        .arg(pem.join("ca.pem"))
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert_eq!(output.stdout, b"done\n");
}

/// A constant that differs from the header's would be another one to programs.
#[test]
fn header_declares_the_functions_of_the_library() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(folder.join("include/weft_tuples.h")).unwrap();
    let calls = fs::read_to_string(folder.join("src/calls.rs")).unwrap();
    let exported: Vec<&str> =
        calls.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    assert_eq!(exported.len(), 16);
    for function in exported {
        assert!(header.contains(&format!("{function}(")), "{function} is not declared");
    }
}
