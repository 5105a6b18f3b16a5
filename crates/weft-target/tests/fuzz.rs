//! Runs the fuzz targets for connections on their corpora and on random mutations.

#[path = "../../../fuzz/src/target_connection.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod target_connection;

use weft_testing::inputs;

#[test]
fn bytes_of_an_initiator() {
    inputs::run("target_connection", 2_000, |input, _| target_connection::connection_bytes(input));
}

#[test]
fn logins_of_an_initiator() {
    inputs::run("target_login", 5_000, |input, _| target_connection::login(input));
}

#[test]
fn commands_of_an_initiator() {
    inputs::run("target_commands", 5_000, |input, _| target_connection::commands(input));
}
