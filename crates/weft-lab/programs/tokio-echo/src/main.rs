//! An echo server and its client on tokio, with its threads and its one epoll instance.
//!
//! tokio-echo serve PORT CONNECTIONS
//! tokio-echo connect PORT BYTES

use std::io::Result;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// The byte at a place of the stream. 65,521 is prime: no buffer's size is a multiple of it.
fn pattern(place: usize) -> u8 {
    let place = place % 65_521;
    (place ^ place >> 8) as u8
}

async fn serve(port: u16, connections: usize) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (mut client, _) = listener.accept().await?;
        clients.push(tokio::spawn(async move {
            let mut buffer = vec![0; 50_000];
            loop {
                let count = client.read(&mut buffer).await?;
                if count == 0 {
                    return Result::Ok(());
                }
                client.write_all(&buffer[..count]).await?;
            }
        }));
    }
    for client in clients {
        client.await??;
    }
    Ok(())
}

async fn send(mut server: OwnedWriteHalf, content: Vec<u8>) -> Result<()> {
    let (mut sent, mut chunk) = (0, 1);
    while sent < content.len() {
        let end = content.len().min(sent + chunk);
        server.write_all(&content[sent..end]).await?;
        sent = end;
        chunk = chunk * 3 % 70_001 + 1;
    }
    server.shutdown().await
}

async fn connect(port: u16, length: usize) -> Result<()> {
    let content: Vec<u8> = (0..length).map(pattern).collect();
    let (mut reader, mut writer) = TcpStream::connect(("127.0.0.1", port)).await?.into_split();
    // A byte there and back, after which both ends know what carries the rest.
    writer.write_all(&content[..1]).await?;
    let mut echoed = vec![reader.read_u8().await?];
    let sender = tokio::spawn(send(writer, content[1..].to_vec()));
    reader.read_to_end(&mut echoed).await?;
    sender.await??;
    assert!(echoed == content, "{} bytes are not the {length} that were sent", echoed.len());
    println!("echoed {length}");
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, role, port, number] = &words[..] else { panic!("serve or connect, and two numbers") };
    let port = port.parse().expect("a port");
    let number = number.parse().expect("a number");
    // As many threads on every machine: each may be the one that waits in epoll.
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    match role.as_str() {
        "serve" => runtime.block_on(serve(port, number)),
        _ => runtime.block_on(connect(port, number)),
    }
}
