// An echo server and its client, by the event loop.
//
// echo.js serve PORT CONNECTIONS
// echo.js connect PORT BYTES
"use strict";

const net = require("node:net");

const HOST = "127.0.0.1";
// Prime: no buffer's size is a multiple of it.
const PERIOD = 65521;

function serve(port, connections) {
  const server = net.createServer((client) => {
    connections -= 1;
    if (connections === 0) {
      server.close();
    }
    client.pipe(client);
  });
  server.listen(port, HOST);
}

function connect(port, length) {
  const content = Buffer.alloc(length, Buffer.from({ length: PERIOD }, (_, i) => i ^ (i >> 8)));
  const echoed = [];
  // A byte there and back, after which both ends know what carries the rest.
  const server = net.connect(port, HOST, () => server.write(content.subarray(0, 1)));
  server.once("data", () => {
    for (let sent = 1, chunk = 1; sent < length; chunk = ((chunk * 3) % 70001) + 1) {
      server.write(content.subarray(sent, sent + chunk));
      sent += chunk;
    }
    server.end();
  });
  server.on("data", (data) => echoed.push(data));
  server.on("end", () => {
    const found = Buffer.concat(echoed);
    if (!found.equals(content)) {
      console.error(`${found.length} bytes are not the ${length} that were sent`);
      process.exit(1);
    }
    console.log("echoed", length);
  });
}

const [role, port, number] = process.argv.slice(2);
({ serve, connect })[role](Number(port), Number(number));
