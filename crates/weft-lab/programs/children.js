// An echo's client with many connections, which starts children beside them, and then writes
// files: their descriptors have the numbers that the sockets had.
//
// children.js PORT CONNECTIONS DIRECTORY
"use strict";

const { execFileSync, execSync, spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");

const ROUNDS = 5;
const FILES = 50;

async function ask(socket, text) {
  socket.write(text);
  let answer = "";
  while (answer.length < text.length) {
    const [data] = await once(socket, "data");
    answer += data;
  }
  if (answer !== text) {
    throw new Error(`${text} was answered with ${answer}`);
  }
}

async function child(round) {
  if (round % 3 === 0) {
    execSync("true");
  } else if (round % 3 === 1) {
    const said = execFileSync("cat", { input: "some text" }).toString();
    if (said !== "some text") {
      throw new Error(`the child said ${said}`);
    }
  } else {
    const [code] = await once(spawn("true"), "exit");
    if (code !== 0) {
      throw new Error(`the child ended with ${code}`);
    }
  }
}

async function main(port, connections, directory) {
  const sockets = Array.from({ length: connections }, () => net.connect(port, "127.0.0.1"));
  for (let round = 0; round < ROUNDS; round++) {
    for (const [number, socket] of sockets.entries()) {
      await ask(socket, `${number} before, round ${round}`);
    }
    await child(round);
    for (const [number, socket] of sockets.entries()) {
      await ask(socket, `${number} after, round ${round}`);
    }
  }
  for (const socket of sockets) {
    socket.end();
    socket.resume();
    await once(socket, "close");
  }
  for (let number = 0; number < FILES; number++) {
    const file = path.join(directory, `file-${number}`);
    const text = `content of ${number} `.repeat(1000);
    fs.writeFileSync(file, text);
    if (fs.readFileSync(file, "utf8") !== text) {
      throw new Error(`${file} has ${fs.statSync(file).size} bytes`);
    }
  }
  console.log("wrote", FILES);
}

const [port, connections, directory] = process.argv.slice(2);
main(Number(port), Number(connections), directory);
