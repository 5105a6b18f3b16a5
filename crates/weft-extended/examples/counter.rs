//! A shared counter: `weft run -- counter serve ADDRESS` owns it, and each `weft run -- counter add
//! ADDRESS TIMES` adds to it without involving the server's process.
//!
//! The server prints the sum when its first client has ended, and ends.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use weft_extended::{Extended, Key, Rights};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address] => serve(address),
        ["add", address, times] => add(address, times.parse()?),
        _ => Err("counter serve ADDRESS | counter add ADDRESS TIMES".into()),
    }
}

fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let (mut stream, _) = TcpListener::bind(address)?.accept()?;
    let connection = stream.try_clone()?;
    let extended = Extended::new(&connection)?;
    let memory = extended.allocate(4096)?;
    let key = extended.register(&memory, 0, 8, Rights { atomic: true, ..Rights::default() })?;
    stream.write_all(&key.to_bytes())?;
    stream.read_to_end(&mut Vec::new())?;
    println!("{}", memory.words()[0].load(Ordering::SeqCst));
    Ok(())
}

fn add(address: &str, times: u64) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    let connection = stream.try_clone()?;
    let extended = Extended::new(&connection)?;
    let mut key = [0; Key::LEN];
    stream.read_exact(&mut key)?;
    let key = Key::from_bytes(key);
    for _ in 0..times {
        extended.fetch_add(&key, 0, 1)?;
    }
    Ok(())
}
