//! HTTP/2: many streams on one connection, directly and through a proxy.

use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets};
use weft_lab::{Finished, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

/// nghttpx takes HTTP/2 and HTTP/1.1, and asks nghttpd by HTTP/2. Both have threads. Where one end
/// is on Weft, nghttpx is a client: its own clients are then in the server's place.
#[test]
fn h2load_of_nghttpd_and_nghttpx() -> Result<()> {
    const SHORT: usize = 1_000;
    const LONG: usize = 2_000_000;
    for ends in Ends::ALL {
        let (sockets, back, front) = (Sockets::new(ends)?, ports::next(), ports::next());
        sockets.make_file("short", SHORT)?;
        let long = sockets.make_file("long", LONG)?;
        let server = sockets.server("nghttpd").line("--no-tls --workers=2 --htdocs=.");
        let mut server = server
            .line("--address=127.0.0.1")
            .arg(back.to_string())
            .start()?
            .listening(Port::Tcp(back))?;
        let proxy = sockets.client("nghttpx").line("--conf=/dev/null --workers=2");
        let proxy = proxy.arg(format!("--frontend=127.0.0.1,{front};no-tls"));
        let proxy = proxy.arg(format!("--backend=127.0.0.1,{back};;proto=h2"));
        let mut proxy = proxy.start()?.listening(Port::Tcp(front))?;
        for (port, name, line, requests) in [
            (back, "short", "-c8 -m20 -t2", 2_000),
            (back, "long", "-c4 -m5", 40),
            (front, "short", "-c8 -m20 -t2", 2_000),
            (front, "long", "-c4 -m5", 40),
            (front, "long", "--h1 -c4 -t2", 40),
        ] {
            let load =
                if port == back { sockets.client("h2load") } else { sockets.server("h2load") };
            let load = load.line(line).arg(format!("-n{requests}"));
            let ended = load.arg(format!("http://127.0.0.1:{port}/{name}")).run(TIMEOUT);
            let ended = ended
                .and_then(Finished::success)
                .map_err(|error| error.context(server.account()).context(proxy.account()));
            let ended = ended.with_context(|| format!("weft: {ends:?}: {line} {name}"))?;
            ended.expect_output(&format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx"))?;
        }
        let curl = sockets.server("curl").line("--silent --show-error --fail --output copy");
        curl.arg(format!("http://127.0.0.1:{front}/long")).run(TIMEOUT)?.success()?;
        sockets.expect_file("copy", &long)?;
        sockets.check(100 * LONG as u64)?;
    }
    Ok(())
}
