//! A dataflow of the `timely` crate over two processes: the first one sends buffers to the second
//! one by TCP.
//!
//! `timely-stream PROCESS PORT OTHER_PORT COUNT SIZE WINDOW`: process 0 listens at PORT, process 1
//! at OTHER_PORT. At most WINDOW buffers are on their way. Process 0 prints the seconds from the
//! first buffer until all have been processed, process 1 the bytes that have come.

use std::cell::Cell;
use std::env;
use std::rc::Rc;
use std::time::Instant;

use serde_bytes::ByteBuf;
use timely::communication::Config;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::{Exchange, Input, Inspect, Probe};
use timely::{Config as Whole, WorkerConfig};

fn main() {
    let numbers: Vec<usize> =
        env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let &[process, port, other, count, size, window] = &numbers[..] else {
        panic!("timely-stream PROCESS PORT OTHER_PORT COUNT SIZE WINDOW");
    };
    let addresses = [port, other].map(|port| format!("127.0.0.1:{port}")).to_vec();
    let communication =
        Config::Cluster { threads: 1, process, addresses, report: false, zerocopy: false };
    let whole = Whole { communication, worker: WorkerConfig::default() };
    let ended = timely::execute(whole, move |worker| {
        let (mut input, came) = (InputHandle::new(), Rc::new(Cell::new(0)));
        let counter = Rc::clone(&came);
        let probe = worker.dataflow(|scope| {
            scope
                .input_from(&mut input)
                .container::<Vec<ByteBuf>>()
                .exchange(|_| 1)
                .inspect(move |buffer| counter.set(counter.get() + buffer.len()))
                .probe()
                .0
        });
        let start = Instant::now();
        if worker.index() == 0 {
            for number in 0..count {
                input.send(ByteBuf::from(vec![b'x'; size]));
                // A step for each buffer would cost more than the buffer.
                if number % (window / 2).max(1) == 0 {
                    input.advance_to(number + 1);
                    let oldest = (number + 1).saturating_sub(window / 2);
                    worker.step_while(|| probe.less_than(&oldest));
                }
            }
        }
        input.close();
        worker.step_while(|| !probe.done());
        (start.elapsed().as_secs_f64(), came.get())
    });
    for ended in ended.expect("two processes").join() {
        let (seconds, came) = ended.expect("no panic");
        if process == 0 { println!("{seconds}") } else { println!("{came}") }
    }
}
