//! INQUIRY: what a unit is (SPC-5, section 6.7), and its pages of vital product data (section 7.7;
//! SBC-4, section 6.6).

use super::call::{Call, Failure, Plan, finished};
use super::sense::Sense;
use crate::limits::{
    COMPARE_BLOCKS_MAX, TRANSFER_LEN_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_LEN_MAX,
};

const VENDOR: &[u8; 8] = b"WEFT    ";
const PRODUCT: &[u8; 16] = b"BLOCK STORE     ";

/// The peripheral device type of a disk (SPC-5, table 148).
const DIRECT_ACCESS: u8 = 0x00;

const PAGES: &[u8] = &[0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2];

pub(super) fn plan(call: &Call<'_>) -> Result<Plan, Failure> {
    let (wants_page, page) = (call.byte(1) & 1 != 0, call.byte(2));
    let data = match (wants_page, page) {
        (false, 0) => standard(call),
        (false, _) => return Err(Sense::INVALID_FIELD.in_cdb(2, 7).into()),
        (true, page) => {
            let content = match page {
                0x00 => PAGES.to_vec(),
                0x80 => call.unit.serial().as_bytes().to_vec(),
                0x83 => designators(call),
                0x86 => extended(),
                0xb0 => limits(call),
                0xb1 => characteristics(),
                0xb2 => provisioning(call),
                _ => return Err(Sense::INVALID_FIELD.in_cdb(2, 7).into()),
            };
            let mut data = vec![DIRECT_ACCESS, page];
            data.extend((content.len() as u16).to_be_bytes());
            data.extend(content);
            data
        }
    };
    finished(data, usize::from(call.u16(3)))
}

/// The standard data of a LUN without a unit: "not capable of supporting a device" (SPC-5, table
/// 147).
pub(super) fn of_no_unit() -> Vec<u8> {
    let mut data = common();
    data[0] = 0x7f;
    data
}

fn standard(call: &Call<'_>) -> Vec<u8> {
    let mut data = common();
    data[0] = DIRECT_ACCESS;
    data[1] = u8::from(call.unit.options().is_removable) << 7;
    data
}

fn common() -> Vec<u8> {
    let mut data = vec![0; 96];
    // SPC-4.
    data[2] = 0x06;
    // The format of this data, and HISUP: LUNs have a hierarchy.
    data[3] = 0x12;
    data[4] = (data.len() - 5) as u8;
    // TPGS: implicit changes of access only; 3PC: EXTENDED COPY.
    data[5] = 0x18;
    // MULTIP: several ports.
    data[6] = 0x10;
    // CMDQUE: many tasks.
    data[7] = 0x02;
    data[8..16].copy_from_slice(VENDOR);
    data[16..32].copy_from_slice(PRODUCT);
    let version = env!("CARGO_PKG_VERSION").bytes().filter(|&byte| byte != b'.');
    data[32..36].fill(b' ');
    data[32..36].iter_mut().zip(version).for_each(|(at, byte)| *at = byte);
    // SAM-5, SPC-4, SBC-3, iSCSI: without a version of each.
    for (index, standard) in [0x00a0_u16, 0x0460, 0x04c0, 0x0960].into_iter().enumerate() {
        data[58 + 2 * index..60 + 2 * index].copy_from_slice(&standard.to_be_bytes());
    }
    data
}

/// Page 83: names of the unit, and of the port and device that it was reached by.
fn designators(call: &Call<'_>) -> Vec<u8> {
    let mut page = Vec::new();
    let mut push = |code_set: u8, kind: u8, designator: &[u8]| {
        page.extend([code_set, kind, 0, designator.len() as u8]);
        page.extend_from_slice(designator);
    };
    push(0x01, 0x03, &call.unit.designator());
    let mut vendor = VENDOR.to_vec();
    vendor.extend(call.unit.serial().bytes());
    push(0x02, 0x01, &vendor);
    // Designators of the port that was used: iSCSI; relative port 1, port group 1.
    push(0x51, 0x94, &[0, 0, 0, 1]);
    push(0x51, 0x95, &[0, 0, 0, 1]);
    // A designator of the device: its name.
    let mut name = call.device.name().as_bytes().to_vec();
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    push(0x53, 0xa8, &name);
    page
}

/// Page 86.
fn extended() -> Vec<u8> {
    let mut page = vec![0; 60];
    // SIMPSUP, ORDSUP and HEADSUP: all task attributes.
    page[1] = 0x07;
    // LUICLR: a unit attention is cleared for one session by its report.
    page[3] = 0x01;
    page
}

/// Page B0.
fn limits(call: &Call<'_>) -> Vec<u8> {
    let block_len = u64::from(call.unit.options().block_len);
    let mut page = vec![0; 60];
    // WSNZ: WRITE SAME does not take zero blocks as all blocks.
    page[0] = 0x01;
    page[1] = COMPARE_BLOCKS_MAX as u8;
    let mut put = |at: usize, value: u64| {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        page[at - 4..at].copy_from_slice(&value.to_be_bytes());
    };
    put(8, TRANSFER_LEN_MAX / block_len);
    put(12, TRANSFER_LEN_MAX / block_len);
    if call.unit.store().is_thin() {
        // No limit.
        put(20, u64::from(u32::MAX));
        put(24, UNMAP_DESCRIPTORS_MAX as u64);
        put(28, 4_096_u64.div_ceil(block_len));
    }
    // WRITE ATOMIC, with boundaries too.
    let atomic_len = call.unit.atomic_len() / block_len;
    [44, 56, 60].into_iter().for_each(|at| put(at, atomic_len));
    page[32..40].copy_from_slice(&(WRITE_SAME_LEN_MAX / block_len).to_be_bytes());
    page
}

/// Page B1.
fn characteristics() -> Vec<u8> {
    let mut page = vec![0; 60];
    // It does not rotate.
    page[1] = 0x01;
    // WABEREQ: blocks that SANITIZE has erased can be read.
    page[3] = 0x40;
    page
}

/// Page B2.
fn provisioning(call: &Call<'_>) -> Vec<u8> {
    let is_thin = call.unit.store().is_thin();
    // LBPU, LBPWS and LBPWS10: UNMAP and both WRITE SAME free blocks; LBPRZ: they read as zeros.
    let flags = if is_thin { 0x80 | 0x40 | 0x20 | 0x04 } else { 0 };
    vec![0, flags, if is_thin { 0x02 } else { 0x00 }, 0]
}
