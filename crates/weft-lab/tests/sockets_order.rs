//! epoll reports connections in the order in which bytes arrived for them, as the kernel's does.

use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::endpoint::Port;
use weft_lab::sockets::{Ends, Sockets, first_core};
use weft_lab::{Finished, compile_plain, ports};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn what_came_first_is_reported_first() -> Result<()> {
    for ends in Ends::ALL {
        let (sockets, port) = (Sockets::new(ends)?, ports::next().to_string());
        let program = compile_plain("epoll_order")?;
        let server = sockets.server(&program).args(["serve", &port]);
        let mut server = server.start()?.listening(Port::Tcp(port.parse()?))?;
        // The kernel delivers what two cores send in any order.
        let client = sockets.client(&program).on_core(first_core()?).args(["connect", &port]);
        let client = client.run(TIMEOUT);
        let ended = client.and_then(Finished::success);
        let ended = ended.map_err(|error| error.context(server.account()));
        ended.with_context(|| format!("weft: {ends:?}"))?.expect_output("in order 200")?;
        server.wait(TIMEOUT)?.success()?;
        sockets.check(200)?;
    }
    Ok(())
}
