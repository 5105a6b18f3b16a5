//! Two ends send a message back and forth. `ping_pong` listens, `ping_pong ADDRESS` connects.

use weft_fabric::{Fabric, Options, Result};

fn main() -> Result<()> {
    let fabric = Fabric::open(Options::default())?;
    match std::env::args().nth(1).and_then(|address| address.parse().ok()) {
        None => {
            let listener = fabric.listen(([0; 4], 0).into())?;
            println!("listening at port {}", listener.address().port());
            let endpoint = listener.accept().wait()?.accept(b"")?;
            while let Ok(ping) = endpoint.receive().wait() {
                endpoint.send(&ping)?.wait()?;
            }
        }
        Some(address) => {
            let endpoint = fabric.connect(address, b"")?.wait()?.endpoint;
            let start = std::time::Instant::now();
            for number in 0..10_000_u64 {
                endpoint.send(&number.to_be_bytes())?.wait()?;
                assert_eq!(*endpoint.receive().wait()?, number.to_be_bytes());
            }
            println!("{:?} for a round trip", start.elapsed() / 10_000);
        }
    }
    Ok(())
}
