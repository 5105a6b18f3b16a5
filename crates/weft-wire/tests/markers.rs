//! Tests of markers against a model that builds and reads the stream byte by byte.

#![allow(clippy::unwrap_used)] // Also in the helpers of the tests.

use proptest::prelude::*;
use weft_wire::crc::crc32c;
use weft_wire::mpa::fpdu::ULPDU_MAX;
use weft_wire::mpa::fpdu::{self, Decoded, FpduError};
use weft_wire::mpa::marker::{Inserter, MarkerError, Remover};

fn seal(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut fpdu = vec![0; fpdu::total_len(ulpdu.len())];
    fpdu[2..2 + ulpdu.len()].copy_from_slice(ulpdu);
    fpdu::seal(&mut fpdu, ulpdu.len(), crc);
    fpdu
}

fn insert(ulpdus: &[Vec<u8>], crc: bool) -> Vec<u8> {
    let mut inserter = Inserter::new(crc);
    let mut stream = vec![];
    for ulpdu in ulpdus {
        inserter.insert(&seal(ulpdu, crc), &mut stream);
    }
    stream
}

/// Builds the stream byte by byte.
fn model(ulpdus: &[Vec<u8>], crc: bool) -> Vec<u8> {
    let mut stream: Vec<u8> = vec![];
    for ulpdu in ulpdus {
        let fpdu = seal(ulpdu, false);
        let (covered, _) = fpdu.split_at(fpdu.len() - 4);
        let start = stream.len();
        let mut header = None;
        let mut next = 0;
        while next <= covered.len() {
            if stream.len().is_multiple_of(512) {
                let distance = header.map_or(0, |at| stream.len() - at) as u16;
                stream.extend_from_slice(&[0, 0]);
                stream.extend_from_slice(&distance.to_be_bytes());
            }
            header.get_or_insert(stream.len());
            stream.extend(covered.get(next));
            next += 1;
        }
        let crc = if crc { crc32c(&stream[start..]) } else { 0 };
        stream.extend_from_slice(&crc.to_le_bytes());
    }
    stream
}

fn remove(pieces: &[&[u8]], crc: bool) -> Result<Vec<Vec<u8>>, MarkerError> {
    let mut remover = Remover::new(crc);
    let mut out = vec![];
    for piece in pieces {
        remover.push(piece, &mut out)?;
    }
    let (mut rest, mut ulpdus) = (&out[..], vec![]);
    while let Decoded::Fpdu { ulpdu, consumed } = fpdu::decode(rest, false).unwrap() {
        ulpdus.push(ulpdu.to_vec());
        rest = &rest[consumed..];
    }
    assert_eq!(rest, [0; 0]);
    Ok(ulpdus)
}

fn cut(stream: &[u8], mut at: Vec<usize>) -> Vec<&[u8]> {
    at.iter_mut().for_each(|at| *at %= stream.len() + 1);
    at.sort_unstable();
    let starts = std::iter::once(0).chain(at.iter().copied());
    let ends = at.iter().copied().chain([stream.len()]);
    starts.zip(ends).map(|(start, end)| &stream[start..end]).collect()
}

fn ulpdus() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Lengths around which markers fall on the boundaries of FPDUs and of CRC fields.
    let len = prop_oneof![0..40_usize, 480..530_usize, 990..1040_usize, 0..5000_usize];
    let ulpdu = (len, any::<u8>()).prop_map(|(len, seed)| {
        (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    });
    prop::collection::vec(ulpdu, 0..8)
}

proptest! {
    //= type=test
    //= rfc5044#section-4.3
    //# When Markers are enabled, MPA senders MUST insert a Marker into the data stream at a
    //# 512-octet periodic interval in the TCP Sequence Number Space.
    //= rfc5044#section-4.3
    //# All MPA Markers are included in the containing FPDU CRC calculation (when both CRCs and
    //# Markers are in use).
    #[test]
    fn inserted_markers_match_the_model(ulpdus in ulpdus(), crc: bool) {
        prop_assert_eq!(insert(&ulpdus, crc), model(&ulpdus, crc));
    }

    #[test]
    fn markers_are_removed_from_a_stream_split_anywhere(
        ulpdus in ulpdus(),
        crc: bool,
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let stream = model(&ulpdus, crc);
        prop_assert_eq!(remove(&cut(&stream, cuts), crc), Ok(ulpdus));
    }

    #[test]
    fn one_wrong_bit_is_detected(ulpdus in ulpdus(), bit: usize) {
        let mut stream = model(&ulpdus, true);
        prop_assume!(!stream.is_empty());
        let bit = bit % (stream.len() * 8);
        stream[bit / 8] ^= 1 << (bit % 8);
        let mut remover = Remover::new(true);
        let mut out = vec![];
        let result = remover.push(&stream, &mut out);
        // A length that has grown may make the last FPDU end beyond the stream.
        let (mut rest, mut found) = (&out[..], vec![]);
        while let Ok(Decoded::Fpdu { ulpdu, consumed }) = fpdu::decode(rest, false) {
            found.push(ulpdu.to_vec());
            rest = &rest[consumed..];
        }
        prop_assert!(found.len() < ulpdus.len());
        prop_assert_eq!(&found[..], &ulpdus[..found.len()]);
        if let Err(error) = result {
            prop_assert!(matches!(error, MarkerError::Fpdu(FpduError::Crc { .. })), "{error}");
        }
    }
}

//= type=test
//= rfc5044#section-4.2
//# The FPDU Pointer is a relative pointer, 16 bits long, interpreted as an unsigned integer that
//# indicates the number of octets in the TCP stream from the beginning of the ULPDU Length field to
//# the first octet of the entire Marker.
//= rfc5044#section-4.3
//# An FPDUPTR value of 0x0000 is a special case -- it is used when the Marker falls exactly between
//# FPDUs (between the preceding FPDU CRC field and the next FPDU's ULPDU Length field).
#[test]
fn markers_are_laid_out_as_in_the_rfc() {
    // The first marker is at the start; FPDU 1 takes 4 + 508 bytes, so that the next marker lies
    // between two FPDUs and belongs to the second.
    let stream = insert(&[vec![1; 502], vec![2; 1030]], false);
    assert_eq!(stream[..6], [0, 0, 0, 0, 1, 246]);
    assert_eq!(stream[512..518], [0, 0, 0, 0, 4, 6]);
    assert_eq!(stream[1024..1028], [0, 0, 1, 252], "508 back, to 516");
    assert_eq!(stream[1536..1540], [0, 0, 3, 252], "1020 back, the marker between counts");
    assert_eq!(stream.len(), 512 + 4 + 1036 + 2 * 4);

    // A marker between the pad and the CRC field.
    let stream = insert(&[vec![1; 506]], true);
    assert_eq!(stream[512..516], [0, 0, 1, 252]);
    assert_eq!(stream[516..], crc32c(&stream[..516]).to_le_bytes());
}

/// CRC fields of a stream that tshark, which includes markers in the CRC, accepts.
#[test]
fn crcs_match_those_that_tshark_accepts() {
    let header = [0xc1, 0x40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    let ulpdus = [12, 440, 700, 1200, 460, 16].map(|len: usize| {
        let payload = (0..len).map(|i| (i * 7 % 251) as u8);
        header.into_iter().chain(payload).collect::<Vec<u8>>()
    });
    let mut inserter = Inserter::new(true);
    let crcs = ulpdus.map(|ulpdu| {
        let mut marked = vec![];
        inserter.insert(&seal(&ulpdu, true), &mut marked);
        u32::from_be_bytes(*marked.last_chunk().unwrap())
    });
    let good = [0xe1d7_dc8e, 0x45f7_2e3e, 0xc6d0_be32, 0x5ccb_18a4, 0xa6b8_9172, 0x2503_2340];
    assert_eq!(crcs, good);
}

//= type=test
//= rfc5044#section-8
//# In the event that the CRC is valid, received MPA Marker (if enabled) and ULPDU Length fields do
//# not agree on the start of an FPDU.
//= rfc5044#section-4.2
//# The Reserved field MUST be set to zero on transmit and ignored on receive (except for CRC
//# calculation).
//= rfc5044#section-4.2
//# The least significant two bits MUST always be set to zero at the transmitter, and the receivers
//# MUST always treat these as zero for calculations.
#[test]
fn wrong_pointers_are_errors() {
    let wrong = |crc: bool, seal_again: bool, at: usize, flip: u8| {
        let mut stream = insert(&[vec![7; 600]], crc);
        stream[at] ^= flip;
        if seal_again {
            let crc_at = stream.len() - 4;
            let crc = crc32c(&stream[..crc_at]).to_le_bytes();
            stream[crc_at..].copy_from_slice(&crc);
        }
        remove(&[&stream], crc).map(|ulpdus| ulpdus.len())
    };
    let pointer = Err(MarkerError::Pointer { pointer: 504, distance: 508 });
    assert_eq!(wrong(false, false, 515, 4), pointer);
    assert_eq!(wrong(true, true, 515, 4), pointer);
    assert!(matches!(wrong(true, false, 515, 4), Err(MarkerError::Fpdu(_))));
    for (at, flip) in [(512, 0xff), (513, 0xff), (515, 3), (0, 0xff), (3, 3)] {
        assert_eq!(wrong(false, false, at, flip), Ok(1), "not checked");
        assert_eq!(wrong(true, true, at, flip), Ok(1), "not checked");
        assert!(wrong(true, false, at, flip).is_err(), "but covered by the CRC");
    }
}

//= type=test
//= rfc5044#section-3
//# The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA.
#[test]
fn largest_ulpdu_passes() {
    let ulpdus = [vec![1; 100], vec![3; ULPDU_MAX], vec![4; 3]];
    let stream = insert(&ulpdus, true);
    assert_eq!(stream, model(&ulpdus, true));
    assert_eq!(remove(&[&stream], true), Ok(ulpdus.to_vec()));
}
