//! The table of all commands: how each is coded, what it does with the unit, and who plans it.
//! REPORT SUPPORTED OPERATION CODES is made from it.

use super::access::Access::{self, Always, Free, Manage, Probe, Read, Write};
use super::call::{Call, Command, Failure, Plan};
use super::{blocks, copy, inquiry, medium, mode, persistent, provisioning, report, reserve};

/// A command without service actions.
const fn one(
    access: Access,
    usage: &'static [u8],
    plan: fn(&Call<'_>) -> Result<Plan, Failure>,
) -> Command {
    Command { opcode: usage[0], action: None, access, usage, plan }
}

/// A command with a service action in the second byte.
const fn action(
    action: u16,
    access: Access,
    usage: &'static [u8],
    plan: fn(&Call<'_>) -> Result<Plan, Failure>,
) -> Command {
    Command { opcode: usage[0], action: Some(action), access, usage, plan }
}

const F: u8 = 0xff;
/// The control byte: NACA is refused.
const CTL: u8 = 0x00;
/// The group number.
const GRP: u8 = 0x3f;

/// All commands.
#[rustfmt::skip]
pub(super) static COMMANDS: [Command; 61] = [
    one(Probe, &[0x00, 0, 0, 0, 0, CTL], medium::test_unit_ready),
    one(Always, &[0x03, 0x01, 0, 0, F, CTL], report::sense),
    one(Read, &[0x08, 0x1f, F, F, F, CTL], blocks::read6),
    one(Write, &[0x0a, 0x1f, F, F, F, CTL], blocks::write6),
    one(Always, &[0x12, 0x01, F, F, F, CTL], inquiry::plan),
    one(Manage, &[0x15, 0x11, 0, 0, F, CTL], mode::select6),
    one(Free, &[0x16, 0x00, 0, 0, 0, CTL], reserve::reserve6),
    one(Free, &[0x17, 0x00, 0, 0, 0, CTL], reserve::release6),
    one(Manage, &[0x1a, 0x08, F, F, F, CTL], mode::sense6),
    one(Manage, &[0x1b, 0x01, 0, 0x0f, 0xf7, CTL], medium::start_stop),
    one(Manage, &[0x1e, 0x00, 0, 0, 0x03, CTL], medium::prevent_allow),
    one(Probe, &[0x25, 0x00, F, F, F, F, 0, 0, 0x01, CTL], provisioning::capacity10),
    one(Read, &[0x28, 0xf8, F, F, F, F, GRP, F, F, CTL], blocks::read10),
    one(Write, &[0x2a, 0xf8, F, F, F, F, GRP, F, F, CTL], blocks::write10),
    one(Write, &[0x2e, 0xf6, F, F, F, F, GRP, F, F, CTL], blocks::write_verify10),
    one(Read, &[0x2f, 0xf6, F, F, F, F, GRP, F, F, CTL], blocks::verify10),
    one(Read, &[0x34, 0x02, F, F, F, F, GRP, F, F, CTL], blocks::prefetch10),
    one(Write, &[0x35, 0x02, F, F, F, F, GRP, F, F, CTL], blocks::synchronize10),
    one(Read, &[0x37, 0x00, 0x1f, 0, 0, 0, 0, F, F, CTL], report::defects10),
    one(Write, &[0x41, 0xf8, F, F, F, F, GRP, F, F, CTL], provisioning::write_same),
    one(Write, &[0x42, 0x01, 0, 0, 0, 0, GRP, F, F, CTL], provisioning::unmap),
    action(0x02, Write, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, CTL], medium::block_erase),
    action(0x1f, Manage, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, CTL], medium::exit_failure_mode),
    one(Manage, &[0x55, 0x11, 0, 0, 0, 0, 0, F, F, CTL], mode::select10),
    one(Manage, &[0x5a, 0x18, F, F, 0, 0, 0, F, F, CTL], mode::sense10),
    action(0x00, Free, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, CTL], persistent::read_keys),
    action(0x01, Free, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, CTL], persistent::read_reservation),
    action(0x02, Free, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, CTL], persistent::capabilities),
    action(0x03, Free, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, CTL], persistent::full_status),
    action(0x00, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x01, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x02, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x03, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x04, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x05, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x06, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::out),
    action(0x07, Free, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, CTL], persistent::move_registration),
    action(0x00, Write, &[0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, CTL], copy::extended),
    action(0x00, Free, &[0x84, 0x1f, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, CTL], copy::status),
    action(0x03, Free, &[0x84, 0x1f, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, CTL], copy::parameters),
    one(Read, &[0x88, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::read16),
    one(Write, &[0x89, 0xf8, F, F, F, F, F, F, F, F, 0, 0, 0, F, GRP, CTL], blocks::compare_write),
    one(Write, &[0x8a, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::write16),
    one(Write, &[0x8b, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::or_write),
    one(Write, &[0x8e, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::write_verify16),
    one(Read, &[0x8f, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::verify16),
    one(Read, &[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::prefetch16),
    one(Write, &[0x91, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::synchronize16),
    one(Write, &[0x93, 0xf9, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL],
        provisioning::write_same),
    one(Write, &[0x9c, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, GRP, CTL], blocks::write_atomic),
    action(0x10, Probe, &[0x9e, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, 0x01, CTL],
        provisioning::capacity16),
    action(0x12, Read, &[0x9e, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, 0, CTL],
        provisioning::block_status),
    one(Always, &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, CTL], report::luns),
    action(0x0a, Free, &[0xa3, 0xff, 0, 0, 0, 0, F, F, F, F, 0, CTL], report::port_groups),
    action(0x0c, Free, &[0xa3, 0x1f, 0x87, F, F, F, F, F, F, F, 0, CTL], report::opcodes),
    action(0x0d, Free, &[0xa3, 0x1f, 0x80, 0, 0, 0, F, F, F, F, 0, CTL], report::task_management),
    one(Read, &[0xa8, 0xf8, F, F, F, F, F, F, F, F, GRP, CTL], blocks::read12),
    one(Write, &[0xaa, 0xf8, F, F, F, F, F, F, F, F, GRP, CTL], blocks::write12),
    one(Write, &[0xae, 0xf6, F, F, F, F, F, F, F, F, GRP, CTL], blocks::write_verify12),
    one(Read, &[0xaf, 0xf6, F, F, F, F, F, F, F, F, GRP, CTL], blocks::verify12),
    one(Read, &[0xb7, 0x1f, 0, 0, 0, 0, F, F, F, F, 0, CTL], report::defects12),
];
