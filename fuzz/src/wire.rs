//! Bodies of the targets for `weft-wire`. Each takes any bytes; a panic is a finding.

use weft_wire::datagram;
use weft_wire::ddp::{Header, Segments, UntaggedQueue};
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu::{self, Decoded};
use weft_wire::mpa::frame::{Frame, Kind, Parsed};
use weft_wire::mpa::marker::{self, Inserter, Remover};
use weft_wire::mpa::negotiate::{
    Initiator, InitiatorOutcome, Limits, NegotiateError, Params, Request, Responder, RtrKinds,
};
use weft_wire::rd;
use weft_wire::rdmap::{
    AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest, Terminate, queue,
};

/// Parsing a frame must give the same result wherever the input is cut, and a frame that parses
/// must be emitted to bytes that parse to it again.
pub fn frame(data: &[u8]) {
    for kind in [Kind::Request, Kind::Reply] {
        let whole = Frame::parse(kind, data);
        if let Ok(Parsed::Complete { frame, consumed }) = &whole {
            assert!(*consumed <= data.len());
            let mut bytes = Vec::new();
            frame.emit(&mut bytes);
            let again = Frame::parse(kind, &bytes);
            assert_eq!(
                again.as_ref(),
                Ok(&Parsed::Complete { frame: frame.clone(), consumed: bytes.len() })
            );
        }
        for len in 0..data.len().min(600) {
            match Frame::parse(kind, &data[..len]) {
                Ok(Parsed::Incomplete { needed }) => assert!(needed > len),
                // More input must change neither a parsed frame nor an error.
                settled => {
                    assert_eq!(settled, whole);
                    break;
                }
            }
        }
    }
}

/// A datagram that parses must be emitted to one that parses to the same value.
pub fn datagram(data: &[u8]) {
    let Ok((header, payload)) = datagram::Header::parse(data) else { return };
    for has_crc in [false, true] {
        let mut bytes = vec![0; datagram::HEADER_LEN];
        header.emit(has_crc, &mut bytes);
        bytes.extend_from_slice(payload);
        if has_crc {
            let crc = datagram::check_value(&bytes);
            bytes.extend_from_slice(&crc);
        }
        assert_eq!(datagram::Header::parse(&bytes), Ok((header, payload)));
    }
}

/// Decoding a stream of FPDUs must give the same result wherever it is cut, and sealing a decoded
/// ULPDU must give a valid FPDU.
pub fn fpdu(data: &[u8]) {
    let Some((&flags, mut stream)) = data.split_first() else { return };
    let crc = flags & 1 != 0;
    loop {
        let result = fpdu::decode(stream, crc);
        let Ok(Decoded::Fpdu { ulpdu, consumed }) = result else {
            if let Ok(Decoded::Incomplete { needed }) = result {
                assert!(needed > stream.len());
            }
            return;
        };
        assert_eq!(consumed, fpdu::total_len(ulpdu.len()));
        for len in [0, 1, 2, consumed - 1] {
            let Ok(Decoded::Incomplete { needed }) = fpdu::decode(&stream[..len], crc) else {
                panic!("decoded from {len} bytes of {consumed}");
            };
            assert!(needed > len && needed <= consumed);
        }
        let mut sealed = vec![0xaa; consumed];
        sealed[2..2 + ulpdu.len()].copy_from_slice(ulpdu);
        fpdu::seal(&mut sealed, ulpdu.len(), true);
        assert_eq!(fpdu::decode(&sealed, true), Ok(Decoded::Fpdu { ulpdu, consumed }));
        stream = &stream[consumed..];
    }
}

/// DDP and RDMAP headers: a header that parses must be emitted unchanged, except for reserved bits.
/// The error of a header that does not parse must have a Terminate message that can be sent and
/// parsed.
pub fn headers(data: &[u8]) {
    let mut buf = [0; 64];
    let (header, at) = match Header::parse(data) {
        Ok(found) => found,
        Err(error) => return terminate(&error.into(), None),
    };
    let len = header.emit(&mut buf);
    assert_eq!((len, Header::parse(&buf)), (at, Ok((header, at))));
    assert_eq!(buf[1..len], data[1..len]);
    let payload = &data[at..];
    let segment = Some((data.len().min(fpdu::ULPDU_MAX) as u16, header));
    let opcode = match Opcode::of(&header) {
        Ok(opcode) => opcode,
        Err(error) => return terminate(&error, segment),
    };
    assert_eq!(Opcode::parse(opcode.control()), Ok(opcode));
    if let Header::Untagged { last, qn, msn, mo, .. } = header {
        assert!((qn as usize) < queue::COUNT);
        let mut queue = UntaggedQueue::new();
        if let Err(error) = queue.check(msn, mo, payload.len(), last, 1 << 16) {
            assert_eq!(queue, UntaggedQueue::new());
            terminate(&error.into(), segment);
        }
    }
    let emitted = match opcode {
        Opcode::ReadRequest => ReadRequest::parse(payload).map(|it| it.emit(&mut buf)),
        Opcode::AtomicResponse => AtomicResponse::parse(payload).map(|it| it.emit(&mut buf)),
        Opcode::Immediate | Opcode::ImmediateSe => {
            Immediate::parse(payload).map(|it| it.emit(&mut buf))
        }
        Opcode::AtomicRequest => AtomicRequest::parse(payload).map(|request| {
            // Reserved bits are not kept, and neither is the comparison value of an operation that
            // has none.
            let len = request.emit(&mut buf);
            assert_eq!(AtomicRequest::parse(&buf[..len]), Ok(request));
            buf[..len].copy_from_slice(payload);
            len
        }),
        Opcode::Terminate => Terminate::parse(payload).map(|terminate| {
            let len = terminate.emit(&mut buf);
            let again = Terminate::parse(&buf[..len]);
            let layer_and_code = |t: &Terminate| (t.layer, t.etype, t.code, t.ddp_header);
            assert_eq!(again.map(|t| layer_and_code(&t)), Ok(layer_and_code(&terminate)));
            0
        }),
        _ => Ok(0),
    };
    match emitted {
        Ok(len) => assert_eq!(buf[..len], payload[..len]),
        Err(error) => terminate(&error.into(), segment),
    }
    let (mulpdu, mut next) = (usize::from(data[0]) + 19, 0);
    for segment in Segments::new(payload.len(), mulpdu, 18) {
        assert_eq!(segment.offset, next);
        next += segment.len;
        assert_eq!(segment.last, next == payload.len());
    }
    assert_eq!(next, payload.len());
}

fn terminate(error: &ProtocolError, segment: Option<(u16, Header)>) {
    let terminate = error.terminate(segment, None);
    let mut buf = [0; Terminate::LEN_MAX];
    let len = terminate.emit(&mut buf);
    assert_eq!(Terminate::parse(&buf[..len]), Ok(terminate));
}

/// Both sides of the MPA exchange must give the same result wherever the bytes are cut, and our
/// initiator must understand our responder's reply.
pub fn negotiate(data: &[u8]) {
    let Some((setup, bytes)) = data.split_first_chunk::<8>() else { return };
    let params = params(setup);
    let cut = usize::from(setup[6]) + 1;
    if let Ok(initiator) = Initiator::new(params, &bytes[..bytes.len().min(16)]) {
        let at_once = run_initiator(initiator.clone(), bytes, usize::MAX);
        assert_eq!(at_once, run_initiator(initiator, bytes, cut));
        if let Ok((_, Some(InitiatorOutcome::Accepted(negotiated)))) = at_once {
            assert_eq!(negotiated.crc | params.crc, negotiated.crc);
            assert!(negotiated.ord <= params.ord.max(1));
        }
    }
    let limits = Limits { private_data_max: usize::from(setup[7]) };
    let (at_once, mut responder) = run_responder(limits, bytes, usize::MAX);
    assert_eq!(at_once, run_responder(limits, bytes, cut).0);
    let Ok((_, Some(request))) = at_once else {
        assert_eq!(responder.accept(params, &[]).err(), Some(NegotiateError::NoRequest));
        return;
    };
    assert!(request.private_data.len() <= limits.private_data_max);
    let answer = match responder.accept(params, &request.private_data) {
        Ok((reply, negotiated)) => {
            assert_eq!(negotiated.tx_markers, request.markers);
            reply
        }
        Err(error) => {
            assert_eq!(error, NegotiateError::NoMatchingRtr);
            responder.reject(&request.private_data).expect("a request to reject")
        }
    };
    let Ok(Parsed::Complete { frame, .. }) = Frame::parse(Kind::Reply, &answer) else {
        panic!("an invalid reply");
    };
    assert_eq!(frame.private_data, request.private_data);
    assert_eq!(responder.reject(&[]).err(), Some(NegotiateError::NoRequest));
}

fn params(setup: &[u8; 8]) -> Params {
    let bit = |n: u8| setup[0] & (1 << n) != 0;
    Params {
        crc: bit(0),
        markers_wanted: bit(1),
        ird: u16::from_be_bytes([setup[1], setup[2]]),
        ord: u16::from_be_bytes([setup[3], setup[4]]),
        enhanced: bit(2),
        peer_to_peer: bit(3),
        rtr: RtrKinds { send: bit(4), write: bit(5), read: bit(6) },
    }
}

type Ran<T> = Result<(usize, Option<T>), NegotiateError>;

fn run_initiator(mut initiator: Initiator, bytes: &[u8], cut: usize) -> Ran<InitiatorOutcome> {
    run(bytes, cut, |piece| initiator.input(piece))
}

fn run_responder(limits: Limits, bytes: &[u8], cut: usize) -> (Ran<Request>, Responder) {
    let mut responder = Responder::new(limits);
    (run(bytes, cut, |piece| responder.input(piece)), responder)
}

fn run<T>(bytes: &[u8], cut: usize, mut input: impl FnMut(&[u8]) -> Ran<T>) -> Ran<T> {
    let mut taken = 0;
    while taken < bytes.len() {
        let piece = &bytes[taken..bytes.len().min(taken.saturating_add(cut))];
        let (now, outcome) = input(piece)?;
        assert!(now <= piece.len());
        taken += now;
        if outcome.is_some() {
            return Ok((taken, outcome));
        }
        assert_eq!(now, piece.len(), "the exchange is not finished, but bytes are left over");
    }
    Ok((taken, None))
}

/// Reading a stream with markers must give the same result wherever it is cut, and inserted markers
/// can be removed again.
pub fn marker(data: &[u8]) {
    let Some((&[flags, cut], stream)) = data.split_first_chunk::<2>() else { return };
    let (crc, cut) = (flags & 1 != 0, usize::from(cut) + 1);
    assert_eq!(remove(crc, stream, usize::MAX), remove(crc, stream, cut));

    let mut inserter = Inserter::new(crc);
    let (mut plain, mut marked) = (Vec::new(), Vec::new());
    for ulpdu in stream.chunks(usize::from(flags) * 7 + 1) {
        let mut sealed = vec![0; fpdu::total_len(ulpdu.len())];
        sealed[2..2 + ulpdu.len()].copy_from_slice(ulpdu);
        fpdu::seal(&mut sealed, ulpdu.len(), crc);
        inserter.insert(&sealed, &mut marked);
        plain.extend_from_slice(&sealed);
    }
    let markers = marked.len().div_ceil(marker::INTERVAL);
    assert_eq!(marked.len(), plain.len() + markers * marker::LEN);
    let (removed, result) = remove(crc, &marked, cut);
    assert_eq!(result, Ok(()));
    assert_eq!(removed.len(), plain.len());
    let (mut removed, mut plain) = (&removed[..], &plain[..]);
    while let Ok(Decoded::Fpdu { ulpdu, consumed }) = fpdu::decode(removed, false) {
        assert_eq!(fpdu::decode(plain, crc), Ok(Decoded::Fpdu { ulpdu, consumed }));
        (removed, plain) = (&removed[consumed..], &plain[consumed..]);
    }
    assert!(removed.is_empty() && plain.is_empty());
}

fn remove(crc: bool, stream: &[u8], cut: usize) -> (Vec<u8>, Result<(), marker::MarkerError>) {
    let mut remover = Remover::new(crc);
    let mut out = Vec::new();
    let mut result = Ok(());
    for piece in stream.chunks(cut.min(stream.len()).max(1)) {
        result = remover.push(piece, &mut out);
        if result.is_err() {
            break;
        }
    }
    (out, result)
}

/// A reliable datagram that parses must be emitted unchanged, except for fields that its kind
/// leaves unused. The CRC is corrected first, because a fuzzer cannot guess it.
pub fn rd(data: &[u8]) {
    let mut datagram = data.to_vec();
    rd::seal(&mut datagram);
    let quoted = rd::quoted(data);
    let Ok((header, body)) = rd::parse(&datagram) else { return };
    assert_eq!(quoted, Ok(header));
    let mut emitted = vec![0; rd::HEADER_LEN];
    header.emit(&mut emitted);
    emitted.extend_from_slice(body);
    if header.ack.is_some() {
        assert_eq!(emitted, data);
    }
    rd::seal(&mut emitted);
    assert_eq!(rd::parse(&emitted), Ok((header, body)));
    assert!(rd::words(body).count() <= body.len() / 8);
    if let Ok(failure) = rd::ReadFailure::parse(body) {
        let mut bytes = [0; rd::ReadFailure::LEN];
        failure.emit(&mut bytes);
        assert_eq!(bytes, body);
    }
}

/// A message between connected endpoints that parses must be emitted unchanged.
pub fn rd_frame(data: &[u8]) {
    let Some(frame) = rd::Frame::parse(data) else { return };
    assert_eq!(*frame.encode(), *data);
    if let rd::Frame::Call(private) | rd::Frame::Answer(private) = frame {
        assert!(private.len() <= rd::FRAME_DATA_MAX);
    }
    if let rd::Frame::Message(bytes) = frame {
        assert_eq!([&rd::Frame::message(bytes.len())[..], bytes].concat(), data);
    }
}
