//! An echo server and its client on smol, whose reactor makes its system calls (epoll, and the
//! modes of sockets) by instructions of its own; so does this program, by rustix, for every other
//! message, beside the standard library.
//!
//! smol-echo serve PORT CONNECTIONS
//! smol-echo connect PORT BYTES

use std::io::{Read as _, Result, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::net::{RecvFlags, SendFlags};
use smol::Async;

/// The byte at a place of the stream. 65,521 is prime: no buffer's size is a multiple of it.
fn pattern(place: usize) -> u8 {
    let place = place % 65_521;
    (place ^ place >> 8) as u8
}

async fn read(stream: &Async<TcpStream>, buffer: &mut [u8], by_hand: bool) -> Result<usize> {
    if by_hand {
        let recv =
            |stream: &TcpStream| Ok(rustix::net::recv(stream, &mut *buffer, RecvFlags::empty())?.0);
        stream.read_with(recv).await
    } else {
        stream.read_with(|mut stream| stream.read(buffer)).await
    }
}

async fn write(stream: &Async<TcpStream>, mut bytes: &[u8], mut by_hand: bool) -> Result<()> {
    while !bytes.is_empty() {
        let written = if by_hand {
            let send =
                |stream: &TcpStream| Ok(rustix::net::send(stream, bytes, SendFlags::NOSIGNAL)?);
            stream.write_with(send).await?
        } else {
            stream.write_with(|mut stream| stream.write(bytes)).await?
        };
        bytes = &bytes[written..];
        by_hand = !by_hand;
    }
    Ok(())
}

async fn serve(port: u16, connections: usize) -> Result<()> {
    let listener = Async::<TcpListener>::bind(([127, 0, 0, 1], port))?;
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, _) = listener.accept().await?;
        clients.push(smol::spawn(async move {
            let (mut buffer, mut by_hand) = (vec![0; 50_000], false);
            loop {
                let count = read(&client, &mut buffer, by_hand).await?;
                if count == 0 {
                    return Result::Ok(());
                }
                by_hand = !by_hand;
                write(&client, &buffer[..count], by_hand).await?;
            }
        }));
    }
    for client in clients {
        client.await?;
    }
    Ok(())
}

async fn connect(port: u16, length: usize) -> Result<()> {
    let content: Arc<[u8]> = (0..length).map(pattern).collect();
    let server = Arc::new(Async::new(TcpStream::connect(("127.0.0.1", port))?)?);
    let (sender, sent) = (server.clone(), content.clone());
    // A byte there and back, after which both ends know what carries the rest.
    write(&server, &content[..1], false).await?;
    let mut echoed = vec![0; length + 1];
    let mut received = read(&server, &mut echoed[..1], true).await?;
    let sender = smol::spawn(async move {
        let (mut done, mut chunk, mut by_hand) = (1, 1, false);
        while done < sent.len() {
            let end = sent.len().min(done + chunk);
            write(&sender, &sent[done..end], by_hand).await?;
            (done, chunk, by_hand) = (end, chunk * 3 % 70_001 + 1, !by_hand);
        }
        sender.get_ref().shutdown(Shutdown::Write)
    });
    let mut by_hand = false;
    loop {
        let count = read(&server, &mut echoed[received..], by_hand).await?;
        if count == 0 {
            break;
        }
        received += count;
        by_hand = !by_hand;
    }
    sender.await?;
    assert!(
        echoed[..received] == content[..],
        "{received} bytes are not the {length} that were sent"
    );
    println!("echoed {length}");
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, role, port, number] = &words[..] else { panic!("serve or connect, and two numbers") };
    let port = port.parse().expect("a port");
    let number = number.parse().expect("a number");
    match role.as_str() {
        "serve" => smol::block_on(serve(port, number)),
        _ => smol::block_on(connect(port, number)),
    }
}
