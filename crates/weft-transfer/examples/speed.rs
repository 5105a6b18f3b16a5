//! Measures the cost of the parts of a transfer, without sessions.
//!
//! ```text
//! speed seal                                  seals and opens blocks in one thread
//! speed copy                                  copies blocks in one thread
//! speed tcp-sink ADDRESS [NAME=VALUE...]      receives blocks
//! speed tcp-source ADDRESS [NAME=VALUE...]    sends blocks of memory to it
//! speed local-sink NAME [NAME=VALUE...]       gives blocks of shared memory
//! speed local-source NAME [NAME=VALUE...]     copies blocks into them
//! ```
//!
//! Values: `block` (bytes), `count` (blocks of each channel's pool), `channels`, `total` (bytes),
//! `congestion`, `buffer` (bytes of socket buffers), `file` (what to send by extents).

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weft_transfer::pipeline::{Block, Pool};
use weft_transfer::secure::{
    Cipher, Direction, Identity, Opener, SEAL_LEN, Sealer, TlsClient, TlsServer,
};
use weft_transfer::transport::local::{self, LocalAccepted, LocalSource};
use weft_transfer::transport::tcp::{self, Accepted, Congestion, TcpSettings, TcpSink, TcpSource};
use weft_transfer::transport::{
    Claim, Control, ControlEvent, DataSink, DataSource, Grants, Head, Payload, Place, Received,
    Refused, Token, Write,
};
use weft_transfer::wire::ControlHeader;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Longer than any measurement.
const TIME: Duration = Duration::from_secs(100);
const HEAD_LEN: usize = 40;

/// The values of the command line.
struct Values(BTreeMap<String, String>);

impl Values {
    fn number(&self, name: &str, otherwise: usize) -> usize {
        self.0.get(name).map_or(otherwise, |text| text.parse().expect("a number"))
    }

    fn settings(&self) -> TcpSettings {
        TcpSettings {
            congestion: match self.0.get("congestion") {
                Some(name) => Congestion::named(name).expect("a name"),
                None => Congestion::default(),
            },
            buffer: self.0.get("buffer").map(|text| text.parse().expect("a number")),
            ..TcpSettings::default()
        }
    }

    fn block(&self) -> usize {
        self.number("block", 1 << 20)
    }

    fn channels(&self) -> usize {
        self.number("channels", 1)
    }

    fn total(&self) -> usize {
        self.number("total", 2 << 30)
    }
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let mut place = String::new();
    let mut values = Values(BTreeMap::new());
    for argument in arguments {
        match argument.split_once('=') {
            Some((name, value)) => drop(values.0.insert(name.into(), value.into())),
            None => place = argument,
        }
    }
    match what.as_str() {
        "seal" => seal(&values),
        "copy" => copy(&values),
        "tcp-sink" => tcp_sink(place.parse()?, &values),
        "tcp-source" => tcp_source(place.parse()?, &values),
        "local-sink" => local_sink(&place, &values),
        "local-source" => local_source(&place, &values),
        _ => Err("speed seal|copy|tcp-sink|tcp-source|local-sink|local-source".into()),
    }
}

/// Measures from the first byte on.
struct Timing(Instant, Duration);

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Timing {
    fn start() -> Self {
        Self(Instant::now(), processor_time())
    }

    fn print(&self, what: &str, bytes: usize) {
        let (took, busy) = (self.0.elapsed().as_secs_f64(), processor_time() - self.1);
        let gib = bytes as f64 / f64::from(1 << 30);
        println!(
            "{what}: {:.2} GB/s, {:.3} s of processor for each GiB",
            bytes as f64 / took / 1e9,
            busy.as_secs_f64() / gib
        );
    }
}

fn seal(values: &Values) -> Outcome {
    let (len, total) = (values.block(), values.total());
    let [ours, theirs] = [Identity::generate()?, Identity::generate()?];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = TlsServer::new(&theirs, Arc::new(|_| true))?;
    let accepting = thread::spawn(move || server.accept(&listener.accept()?.0, TIME));
    let client = TlsClient::new(&ours, Arc::new(|_| true))?;
    let mut client = client.connect(&std::net::TcpStream::connect(address)?, TIME)?;
    let mut server = accepting.join().expect("no panic")?;
    for (session, cipher) in [(1, Cipher::Aes128Gcm), (2, Cipher::ChaCha20Poly1305)] {
        let sealer = Sealer::new(client.block_secret(session, cipher, Direction::ToServer)?);
        let opener = Opener::new(server.block_secret(session, cipher, Direction::ToServer)?);
        let mut block = vec![0; len + SEAL_LEN];
        let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
        let blocks = total / len;
        for _ in 0..blocks {
            let start = Instant::now();
            let ticket = sealer.begin()?;
            let counter = ticket.counter();
            ticket.seal_in_place(&[0; 32], &mut block, len)?;
            let middle = Instant::now();
            opener.open_in_place(counter, &[0; 32], &mut block, len + SEAL_LEN)?;
            sealing += middle - start;
            opening += middle.elapsed();
        }
        let rate = |time: Duration| (blocks * len) as f64 / time.as_secs_f64() / 1e9;
        println!("{cipher:?}: seal {:.2} GB/s, open {:.2} GB/s", rate(sealing), rate(opening));
    }
    Ok(())
}

fn copy(values: &Values) -> Outcome {
    let (len, total, count) = (values.block(), values.total(), values.number("count", 32));
    let [from, to] = [Pool::private(count, len)?, Pool::shared(count, len)?];
    let take = |pool: &Pool| -> Vec<Block> { std::iter::from_fn(|| pool.try_take()).collect() };
    let (mut from, mut to) = (take(&from), take(&to));
    from.iter_mut().for_each(|block| block.copy_in(0, &vec![1; len]));
    to.iter_mut().for_each(|block| block.copy_in(0, &vec![1; len]));
    let timing = Timing::start();
    for at in 0..total / len {
        from[at % count].copy_to(&mut to[at % count], len);
    }
    timing.print("copy", total / len * len);
    Ok(())
}

/// Grants any free block.
struct Any(Pool);

impl Grants for Any {
    fn head_len(&self) -> usize {
        HEAD_LEN
    }

    fn claim(&self, head: &[u8]) -> Result<Claim, Refused> {
        let len = u32::from_be_bytes(head[..4].try_into().expect("four")) as usize;
        let block = self.0.take().ok_or(Refused("no block"))?;
        if len <= block.len() { Ok(Claim::Into { block, len }) } else { Err(Refused("too long")) }
    }

    fn give_back(&self, _head: &[u8], _block: Block) {}
}

fn tcp_sink(address: SocketAddr, values: &Values) -> Outcome {
    let listener = TcpListener::bind(address)?;
    let settings = values.settings();
    let pool = Pool::private(values.number("count", 4) * values.channels(), values.block())?;
    let channels = (0..values.channels())
        .map(|_| match tcp::accept(listener.accept()?.0, None, &settings)? {
            Accepted::Data { stream, .. } => Ok(TcpSink::new(stream, &settings)),
            Accepted::Control(_) => Err("a control channel".into()),
        })
        .collect::<Result<Vec<_>, Box<dyn Error + Send + Sync>>>()?;
    let bytes = AtomicU64::new(0);
    let timing = Timing::start();
    thread::scope(|scope| {
        for mut sink in channels {
            let (grants, bytes) = (Any(pool.clone()), &bytes);
            scope.spawn(move || -> Outcome {
                while let Received::Block(arrival) = sink.receive(&grants, None)? {
                    bytes.fetch_add(arrival.len as u64, Ordering::Relaxed);
                }
                Ok(())
            });
        }
    });
    timing.print("tcp sink", usize::try_from(bytes.into_inner())?);
    Ok(())
}

fn head(len: usize) -> Head {
    let mut head = [0; HEAD_LEN];
    head[..4].copy_from_slice(&u32::try_from(len).expect("short").to_be_bytes());
    Head::new(&head)
}

fn tcp_source(address: SocketAddr, values: &Values) -> Outcome {
    let settings = values.settings();
    let (len, each) = (values.block(), values.total() / values.channels());
    let count = values.number("count", 4);
    let pool = Pool::private(count * values.channels(), len)?;
    let file = values.0.get("file").map(File::open).transpose()?.map(|file| Arc::new(file.into()));
    let timing = Timing::start();
    thread::scope(|scope| {
        for channel in 0..values.channels() {
            let (pool, settings, file) = (&pool, &settings, file.clone());
            scope.spawn(move || -> Outcome {
                let channel = u16::try_from(channel)?;
                let stream = tcp::connect_data(address, Token([0; 16]), channel, settings)?;
                let mut source = TcpSource::new(stream, settings, false).expect("a connection");
                let mut blocks = std::collections::VecDeque::new();
                for _ in 0..count {
                    let mut block = pool.take().ok_or("no block")?;
                    block.copy_in(0, &vec![1; len]);
                    blocks.push_back(block);
                }
                for number in 0..each / len {
                    let block = blocks.pop_front().ok_or("no block")?;
                    let payload = match &file {
                        None => Payload::Block { block, len },
                        Some(file) => Payload::Extent {
                            block,
                            prefix: 0,
                            file: Arc::clone(file),
                            offset: (number * len) as u64,
                            len,
                        },
                    };
                    let place = Place::default();
                    let write = Write { id: 0, place, head: head(len), payload };
                    source.post(write).map_err(|(_, error)| error)?;
                    let done = source.completion(TIME)?.ok_or("no completion")?;
                    blocks.push_back(done.write.payload.into_block());
                }
                Ok(source.finish()?)
            });
        }
    });
    timing.print("tcp source", each / len * len * values.channels());
    Ok(())
}

/// Parses a credit or notice of this measurement: the offset of a block's header.
fn offset(message: &[u8]) -> u64 {
    u64::from_be_bytes(message[ControlHeader::LEN..].try_into().expect("eight"))
}

fn message(offset: u64) -> Vec<u8> {
    let header = ControlHeader { session: 1, kind: 8, len: 8 };
    [header.emit().as_slice(), &offset.to_be_bytes()].concat()
}

fn local_sink(name: &str, values: &Values) -> Outcome {
    let listener = local::listen(name)?;
    let LocalAccepted::Control(control) = local::accept(listener.accept()?.0, TIME)? else {
        return Err("no control channel".into());
    };
    let pool = Pool::shared(values.number("count", 32), values.block())?;
    for _ in 0..values.channels() {
        let LocalAccepted::Data { stream, .. } = local::accept(listener.accept()?.0, TIME)? else {
            return Err("no data channel".into());
        };
        local::pass_pool(&stream, &pool, 1)?;
    }
    let mut granted = BTreeMap::new();
    let grant = |block: Block, granted: &mut BTreeMap<u64, Block>| -> Outcome {
        let offset = block.head_offset(HEAD_LEN).ok_or("a private block")?;
        granted.insert(offset, block);
        Ok(control.send(&message(offset))?)
    };
    while let Some(block) = pool.try_take() {
        grant(block, &mut granted)?;
    }
    let (mut message, mut bytes) = (Vec::new(), 0);
    let timing = Timing::start();
    while control.receive(&mut message, Some(TIME))? == ControlEvent::Message {
        let block = granted.remove(&offset(&message)).ok_or("not granted")?;
        bytes += block.len();
        grant(block, &mut granted)?;
        if bytes >= values.total() {
            break;
        }
    }
    timing.print("local sink", bytes);
    Ok(())
}

fn local_source(name: &str, values: &Values) -> Outcome {
    let control = local::connect_control(name)?;
    let (len, total) = (values.block(), values.total());
    let credits = (Mutex::new(Vec::new()), Condvar::new());
    let (left, is_over) = (AtomicU64::new((total / len) as u64), AtomicBool::new(false));
    let ours = Pool::private(values.channels(), len)?;
    let file = values.0.get("file").map(File::open).transpose()?.map(|file| Arc::new(file.into()));
    let channels = (0..values.channels())
        .map(|_| {
            let stream = local::connect_data(name, Token([0; 16]), 0)?;
            let pool = local::take_pool(&stream, TIME)?;
            Ok(LocalSource::new(stream, pool))
        })
        .collect::<Result<Vec<_>, Box<dyn Error + Send + Sync>>>()?;
    let timing = Timing::start();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = Vec::new();
            while let Ok(ControlEvent::Message) = control.receive(&mut message, Some(TIME)) {
                credits.0.lock().expect("no panic").push(offset(&message));
                credits.1.notify_one();
            }
            is_over.store(true, Ordering::SeqCst);
            credits.1.notify_all();
        });
        for mut source in channels {
            let (credits, left, ours, control) = (&credits, &left, &ours, &control);
            let (is_over, file) = (&is_over, file.clone());
            scope.spawn(move || -> Outcome {
                let mut block = ours.take();
                if let Some(block) = &mut block {
                    block.copy_in(0, &vec![1; len]);
                }
                while let Ok(number) =
                    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                        left.checked_sub(1)
                    })
                {
                    let mut list = credits.0.lock().expect("no panic");
                    while list.is_empty() && !is_over.load(Ordering::SeqCst) {
                        list = credits.1.wait(list).expect("no panic");
                    }
                    let Some(address) = list.pop() else { return Ok(()) };
                    drop(list);
                    let place = Place { address, key: 1, len: 0 };
                    let filled = block.take().ok_or("no block")?;
                    let payload = match &file {
                        None => Payload::Block { block: filled, len },
                        Some(file) => Payload::Extent {
                            block: filled,
                            prefix: 0,
                            file: Arc::clone(file),
                            offset: (number - 1) * len as u64,
                            len,
                        },
                    };
                    let write = Write { id: 0, place, head: head(len), payload };
                    source.post(write).map_err(|(_, error)| error)?;
                    let done = source.completion(TIME)?.ok_or("no completion")?;
                    block = Some(done.write.payload.into_block());
                    control.send(&message(address))?;
                }
                Ok(())
            });
        }
    });
    timing.print("local source", total / len * len);
    Ok(())
}
