//! Reads the memory of another process. `remote_read TEXT` shares a text, `remote_read` with
//! `--from ADDRESS` prints it, while the owner does nothing.

use weft_fabric::{Error, Fabric, Options, RemoteKey, Rights};

fn main() -> Result<(), Error> {
    let fabric = Fabric::open(Options::default())?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, address] = &arguments[..]
        && option == "--from"
    {
        let address = address.parse().expect("--from takes an address and a port");
        let connected = fabric.connect(address, b"")?.wait()?;
        let key = RemoteKey::from_bytes(&connected.private_data).expect("a key");
        let buffer = fabric.alloc(key.len() as usize)?;
        let text = connected.endpoint.read(buffer, .., &key, 0)?.wait()?;
        println!("{}", String::from_utf8_lossy(&text));
        return connected.endpoint.close().wait();
    }
    let text = arguments.join(" ");
    let mut buffer = fabric.alloc(text.len())?;
    buffer.copy_from_slice(text.as_bytes());
    let shared = buffer.share(Rights::READ, ..)?;
    let listener = fabric.listen(([0; 4], 0).into())?;
    println!("listening at port {}", listener.address().port());
    let reader = listener.accept().wait()?.accept(&shared.key().to_bytes())?;
    let _end = reader.receive().wait();
    Ok(())
}
