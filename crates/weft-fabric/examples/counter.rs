//! A counter that many processes add to. `counter` owns it, `counter ADDRESS` adds to it a thousand
//! times, as futures on tokio.

use weft_fabric::{Fabric, Options, RemoteKey, Result, Rights};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let fabric = Fabric::open(Options::default())?;
    if let Some(address) = std::env::args().nth(1).and_then(|address| address.parse().ok()) {
        let connected = fabric.connect(address, b"")?.await?;
        let key = RemoteKey::from_bytes(&connected.private_data).expect("a key");
        for _ in 0..1_000 {
            connected.endpoint.fetch_add(&key, 0, 1)?.await?;
        }
        return connected.endpoint.close().await;
    }
    let counter = fabric.alloc(8)?.share(Rights::ALL, ..)?;
    let listener = fabric.listen(([0; 4], 0).into())?;
    println!("listening at port {}", listener.address().port());
    loop {
        let adder = listener.accept().await?.accept(&counter.key().to_bytes())?;
        let _end = adder.receive().await;
        println!("{}", counter.update(0, |value| value)?);
    }
}
