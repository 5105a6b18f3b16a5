use std::net::SocketAddr;
use std::sync::Mutex;

use super::*;
use crate::endpoint::Endpoint;
use crate::listen::Listener;
use crate::share::{RemoteKey, Rights, SharedBuffer};
use crate::stop::Stop;

/// Random simulations of each kind; more of them with `WEFT_SIM_SEEDS`.
const SEEDS: u64 = 60;

fn seeds() -> u64 {
    std::env::var("WEFT_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// What the ends have to say.
type Said = Arc<Mutex<Vec<String>>>;

fn say(said: &Said, what: impl Into<String>) {
    said.lock().expect("no panic").push(what.into());
}

fn options(simulation: &Simulation) -> Options {
    // The tasks keep one message at most.
    let (window, depth) = (2 + simulation.draw(4), 1 + simulation.draw(6));
    Options { window, message_max: 200, depth, ..Options::default() }
}

/// The bytes of a message.
fn message(number: usize) -> Vec<u8> {
    (0..number * 13 % 90).map(|at| (at + number) as u8).collect()
}

/// Messages that each end sends.
const COUNT: usize = 25;

/// Whether this message is the notice of a Write.
fn is_notice(number: usize) -> bool {
    number % 4 == 3
}

/// Messages of both ends, some of which the server keeps for a while, from values and buffers, and
/// Writes of the client with notices. Both ends say at last how it went.
fn scene(simulation: &Simulation, said: &Said) -> Result<[Host; 2]> {
    let [server, client] = [simulation.host(), simulation.host()];
    let its = server.open(options(simulation))?;
    let listener = its.listen(([0, 0, 0, 0], 0).into())?;
    let address = listener.address();
    let shared = its.alloc(COUNT)?.share(Rights::WRITE, ..)?;
    let draws = simulation.clone();
    server.spawn(serve(listener, shared, draws, Arc::clone(said)));
    let (fabric, draws, said) = (client.open(options(simulation))?, simulation.clone(), said);
    let said = Arc::clone(said);
    client.spawn(async move {
        let result = call(&fabric, address, &draws).await;
        say(&said, format!("client {result:?}"));
    });
    Ok([server, client])
}

async fn serve(listener: Listener, shared: SharedBuffer, draws: Simulation, said: Said) {
    let talk = async {
        let endpoint = listener.accept().await?.accept(&shared.key().to_bytes())?;
        drop(listener);
        let mut kept = None;
        let mut under_way = Vec::new();
        for number in 0..COUNT {
            under_way.push(endpoint.send(&message(number + 7))?);
            let got = endpoint.receive().await?;
            if is_notice(number) {
                let mut byte = [0];
                shared.read(number, &mut byte)?;
                assert_eq!((got.immediate(), byte), (Some(number as u32), [number as u8]));
            } else {
                assert_eq!(*got, *message(number), "message {number} at the server");
            }
            kept = (kept.is_none() && draws.draw(2) == 0).then_some(got);
        }
        drop(kept);
        for operation in under_way {
            operation.await?;
        }
        match endpoint.receive().await {
            Err(Error::Closed { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(message) => panic!("{message:?} after the last message"),
        }
    };
    let result: Result<()> = talk.await;
    say(&said, format!("server {result:?}"));
}

async fn call(fabric: &Fabric, address: SocketAddr, draws: &Simulation) -> Result<()> {
    let connected = fabric.connect(address, b"hello")?.await?;
    let key = RemoteKey::from_bytes(&connected.private_data).expect("a key");
    let endpoint = connected.endpoint;
    let (mut values, mut buffers) = (Vec::new(), Vec::new());
    for number in 0..COUNT {
        if is_notice(number) {
            let mut buffer = fabric.alloc(1)?;
            buffer[0] = number as u8;
            let at = number as u64;
            buffers.push(endpoint.write_with_immediate(buffer, .., &key, at, number as u32)?);
        } else if draws.draw(2) == 0 {
            let bytes = message(number);
            let mut buffer = fabric.alloc(100)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            buffers.push(endpoint.send_buffer(buffer, ..bytes.len())?);
        } else {
            values.push(endpoint.send(&message(number))?);
        }
    }
    if draws.draw(2) == 0 {
        // They take place nevertheless.
        drop((values, buffers));
        receive_all(&endpoint).await?;
        return endpoint.close().await;
    }
    receive_all(&endpoint).await?;
    for operation in values {
        operation.await?;
    }
    for operation in buffers {
        operation.await?;
    }
    endpoint.close().await
}

async fn receive_all(endpoint: &Endpoint) -> Result<()> {
    for number in 0..COUNT {
        let got = endpoint.receive().await?;
        assert_eq!(*got, *message(number + 7), "message {number} at the client");
    }
    Ok(())
}

/// Runs a scene, and returns what was said and the steps it took.
fn run(seed: u64, prepare: impl Fn(&Simulation, &[Host; 2])) -> (Vec<String>, u64, usize) {
    let simulation = Simulation::new(seed).expect("a descriptor");
    let said = Said::default();
    let hosts = scene(&simulation, &said).expect("a scene");
    prepare(&simulation, &hosts);
    let left = simulation.run();
    let said = said.lock().expect("no panic").clone();
    (said, simulation.steps(), left)
}

#[test]
fn all_orders_bring_all_messages() {
    for seed in 0..seeds() {
        let (mut said, _, left) = run(seed, |_, _| ());
        said.sort();
        assert_eq!(said, ["client Ok(())", "server Ok(())"], "seed {seed}");
        assert_eq!(left, 0, "seed {seed}: a task waits for ever");
    }
}

#[test]
fn the_same_seed_does_the_same() {
    for seed in 0..5 {
        let once = run(seed, |_, _| ());
        assert_eq!(once, run(seed, |_, _| ()), "seed {seed}");
    }
    assert_ne!(run(0, |_, _| ()).1, run(1, |_, _| ()).1);
}

#[test]
fn a_connection_that_is_lost_at_any_step_ends_both_tasks() {
    for seed in 0..seeds() / 20 {
        let (_, steps, _) = run(seed, |_, _| ());
        for step in 0..steps {
            let (said, _, left) = run(seed, |simulation, _| simulation.cut_at(step));
            // The server waits for ever if the connection was lost before it was there.
            let waits = left == 1 && said.len() == 1 && said[0].starts_with("client Err");
            assert!(waits || left == 0 && said.len() == 2, "seed {seed}, step {step}: {said:?}");
        }
    }
}

#[test]
fn a_killed_host_ends_the_other_ones_task() {
    for seed in 0..seeds() {
        let simulation = Simulation::new(seed).expect("a descriptor");
        let said = Said::default();
        let [server, _client] = scene(&simulation, &said).expect("a scene");
        for _ in 0..simulation.draw(400) {
            simulation.turn();
        }
        server.kill();
        assert_eq!(simulation.run(), 0, "seed {seed}: the client waits for ever");
        let said = said.lock().expect("no panic");
        assert!(said.iter().any(|said| said.starts_with("client ")), "seed {seed}: {said:?}");
    }
}

#[test]
fn blocking_calls_have_the_network_go_on() {
    for seed in 0..seeds() {
        let one_sided = || -> Result<()> {
            let simulation = Simulation::new(seed)?;
            let [a, b] = [simulation.host(), simulation.host()];
            let (a, b) = (a.open(options(&simulation))?, b.open(options(&simulation))?);
            let listener = b.listen(([0, 0, 0, 0], 0).into())?;
            let connecting = a.connect(listener.address(), b"")?;
            let incoming = listener.accept().wait()?;
            let shared = b.alloc(100)?.share(Rights::ALL, 10..90)?;
            let server = incoming.accept(&shared.key().to_bytes())?;
            let connected = connecting.wait()?;
            let key = RemoteKey::from_bytes(&connected.private_data).expect("a key");
            let client = connected.endpoint;
            let mut source = a.alloc(20)?;
            source.fill(3);
            let writing = client.write_with_immediate(source, 5.., &key, 6, 9)?;
            assert_eq!(server.receive().wait()?.immediate(), Some(9));
            let read = client.read(writing.wait()?, .., &key, 0)?.wait()?;
            let expected: Vec<u8> = (0..20).map(|at| if at < 6 { 0 } else { 3 }).collect();
            assert_eq!(*read, *expected);
            let word = key.len() / 8 * 8 - 8;
            let word =
                RemoteKey::target(&key, word, 8).map_or(word, |target| word - target.address % 8);
            assert_eq!(client.fetch_add(&key, word, 5)?.wait()?, 0);
            assert_eq!(client.compare_swap(&key, word, 5, 6)?.wait()?, 5);
            assert_eq!(client.fetch_add(&key, word, 0)?.wait()?, 6);
            drop(shared.end());
            let denied = client.read(read, .., &key, 0)?.wait();
            assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
            assert!(server.receive().wait().is_err());
            let nobody = a.connect((listener.address().ip(), 9).into(), b"")?.wait();
            assert!(matches!(nobody, Err(Error::NotListening { .. })), "{nobody:?}");
            let refused = a.connect(listener.address(), b"")?;
            listener.accept().wait()?.refuse(b"not today")?;
            let reason = b"not today".to_vec();
            let peer = listener.address();
            assert_eq!(refused.wait().map(drop), Err(Error::Refused { peer, reason }));
            let stop = Stop::new();
            assert!(b.wait_until(listener.accept(), &stop).is_none(), "nothing can happen");
            let connecting = a.connect(listener.address(), b"")?;
            stop.stop();
            assert!(b.wait_until(listener.accept(), &stop).is_none());
            drop(b.wait_until(listener.accept(), &Stop::new()).expect("a peer")?);
            let refused = a.wait_until(connecting, &Stop::new()).expect("an answer");
            assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
            Ok(())
        };
        assert_eq!(one_sided(), Ok(()), "seed {seed}");
    }
}
