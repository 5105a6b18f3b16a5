//! Finds the entry of the table for a command.

use super::call::Command;

/// The table's entry for an operation code and a service action.
pub(super) enum Found {
    /// The command.
    Command(&'static Command),
    /// Other service actions of the operation code.
    NoAction,
    /// Nothing.
    NoCommand,
}

/// Finds a command by its descriptor block.
pub(super) fn find(commands: &'static [Command], cdb: &[u8; 16]) -> Found {
    find_action(commands, cdb[0], u16::from(cdb[1] & 0x1f))
}

/// Finds a command by operation code and service action.
pub(super) fn find_action(commands: &'static [Command], opcode: u8, action: u16) -> Found {
    let mut found = Found::NoCommand;
    for command in commands.iter().filter(|command| command.opcode == opcode) {
        match command.action {
            Some(other) if other != action => found = Found::NoAction,
            _ => return Found::Command(command),
        }
    }
    found
}
