//! Measures how much of a path's bandwidth one long transfer uses, for several kinds of paths.

use super::host::{self, Host};
use super::net::Net;
use super::setup::Setup;
use crate::rd::request::{Data, Event, Request, Status};

const LEN: usize = 900_000;
const BASE_PLACE: u64 = host::BASE + host::LIBRARY as u64;

/// Transfers `count` times [`LEN`] bytes by Writes and returns the bytes per second.
fn goodput(seed: u64, count: u64, bandwidth: u64, delay: u64, loss: u32) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let setup = Setup {
        hosts: 2,
        datagram_len: 1452,
        bandwidth,
        delay,
        loss,
        // The queue of a typical router: the larger of 20 ms and one round trip.
        queue: 20_000.max(2 * delay),
        jitter: delay / 50,
        repeats: 0,
        damage: 0,
        receive_bytes: 16 << 20,
        ..Setup::new(&mut rng)
    };
    let mut hosts: Vec<_> = (0..2).map(|host| Host::new(host, &setup, &mut rng)).collect();
    let mut net = Net::default();
    let data: Box<[u8]> = vec![1; LEN].into();
    for id in 0..count {
        let data = Data::Bytes(data.clone());
        let request = Request::Write { data, key: host::OPEN, addr: BASE_PLACE };
        hosts[0].machine.post(1, host::address(1), id, request).expect("room");
    }
    let mut on_way = std::collections::BTreeMap::<(u64, u64), (usize, Vec<u8>)>::new();
    let (mut now, mut serial, mut done) = (1, 0, 0);
    loop {
        for (from, host) in hosts.iter_mut().enumerate() {
            let mut bytes = Vec::new();
            while host.machine.output(now, &mut host.ram, &mut bytes).is_some() {
                let path = (from, 1 - from);
                for at in net.send(&mut rng, &setup, now, path, bytes.len() + 28) {
                    serial += 1;
                    on_way.insert((at, serial), (1 - from, bytes.clone()));
                }
            }
        }
        while let Some(event) = hosts[0].machine.next_event(now) {
            assert!(matches!(event, Event::Completed { status: Status::Success, .. }));
            done += 1;
        }
        if done == count {
            return count * LEN as u64 * 1_000_000 / now;
        }
        let timer = hosts.iter().filter_map(|host| host.machine.next_timeout()).min();
        let arrival = on_way.keys().next().map(|&(at, _)| at);
        now = now.max(timer.into_iter().chain(arrival).min().expect("something goes on"));
        for host in &mut hosts {
            host.machine.expire(now);
        }
        while let Some(entry) = on_way.first_entry()
            && entry.key().0 <= now
        {
            let (to, bytes) = entry.remove();
            let host = &mut hosts[to];
            host.machine.input(now, host::address(1 - to).socket, &bytes, &mut host.ram);
        }
    }
}

#[test]
fn transfer_uses_the_bandwidth_of_its_path() {
    // Bandwidth in bytes per second, one-way delay in microseconds, losses per thousand, number of
    // transfers, and the expected part of the bandwidth in percent.
    let paths = [
        ("local network", 125_000_000, 100, 0, 8, 80),
        ("local network that loses", 125_000_000, 100, 10, 8, 80),
        ("city", 12_500_000, 5_000, 1, 8, 70),
        ("continent", 12_500_000, 40_000, 1, 16, 40),
        ("continent that loses", 12_500_000, 40_000, 20, 16, 35),
        ("ocean", 6_000_000, 100_000, 1, 16, 30),
        ("radio", 1_000_000, 20_000, 50, 3, 60),
        ("satellite", 1_000_000, 300_000, 10, 6, 35),
    ];
    for (name, bandwidth, delay, loss, count, least) in paths {
        let goodput = goodput(1, count, bandwidth, delay, loss);
        let used = goodput * 100 / bandwidth;
        eprintln!("{name}: {used} % of {bandwidth} B/s, {delay} us, {loss} of 1000 lost");
        assert!(used >= least, "{name}: {used} % is used, {least} % are expected");
    }
}
