"""Tests of the client of tuple spaces. $WEFT names the program."""

import asyncio
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

from weft import tuples
from weft.tuples import AsyncClient, Client, Order, Refusal, Stamp

WEFT = os.environ["WEFT"]


class Server:
    """``weft tuples serve`` on a free port, or on the given one."""

    def __init__(self, *options, port=0):
        command = [WEFT, "tuples", "serve", "--listen", f"127.0.0.1:{port}", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.search(r":(\d+)$", line).group(1))
        self.address = f"127.0.0.1:{self.port}"

    def end(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait()
        self.process.stdout.close()


class Proxy:
    """Passes connections on, and can break them all."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.port, self.pairs = port, []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            self.pairs.append((client, server))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(one, other), daemon=True).start()

    @staticmethod
    def copy(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def break_all(self):
        for pair in self.pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()
        self.pairs.clear()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.break_all()


def values(items):
    return [item.value for item in items]


class Blocking(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.end)
        self.client = Client(self.server.address)
        self.addCleanup(self.client.close)

    def test_operations_do_what_they_say(self):
        client = self.client
        self.assertEqual(client.put("a", "1", b"2", ("x", b"y")).tuples, 3)
        self.assertEqual(client.put("a", "0", front=True).tuples, 4)
        self.assertEqual(client.read("a", 0, 1)[0].value, b"0")
        item = client.take("none", "a")
        self.assertEqual((item.element, item.value), (b"a", b"0"))
        self.assertEqual(client.take("a", back=True).fields, (b"x", b"y"))
        self.assertEqual(values(client.take_many("a", count=2, exactly=True)), [b"1", b"2"])
        client.put("a", "é")
        self.assertEqual(client.transfer("a", "b").value, "é".encode())
        self.assertEqual(client.observe(["a", "b"])[b"b"][0].value, "é".encode())
        self.assertIsNone(client.describe("a"))
        self.assertEqual([it.name for it in client.elements()], [b"b"])
        self.assertEqual((client.delete("b"), client.delete("b")), (True, False))
        with self.assertRaises(TimeoutError):
            client.take("a", timeout=0)
        with self.assertRaises(TimeoutError):
            client.take("a", timeout=0.01)

    def test_orders_and_bounds(self):
        client = self.client
        self.assertTrue(client.create("k", order=Order.KEY))
        self.assertFalse(client.create("k", order=Order.KEY))
        for key in ("b", "a"):
            client.put("k", key.upper(), key=key)
        self.assertEqual(values(client.read("k")), [b"A", b"B"])
        self.assertEqual(values(client.read_key("k", "b")), [b"B"])
        client.create("t", order=Order.TIME)
        client.put("t", "late", stamp=Stamp(7))
        client.put("t", "early", stamp=Stamp(5, 1))
        self.assertEqual(values(client.read_stamps("t", Stamp(5), Stamp(6))), [b"early"])
        with self.assertRaises(tuples.RefusedError) as caught:
            client.put("t", "x", stamp=Stamp(6), append=True)
        self.assertEqual(caught.exception.refusal, Refusal.STAMP)
        client.create("n", bound=1)
        client.put("n", "1")
        with self.assertRaises(tuples.RefusedError) as caught:
            client.put("n", "2", timeout=0)
        self.assertEqual(caught.exception.refusal, Refusal.FULL)
        with self.assertRaises(TimeoutError):
            client.put("n", "2", timeout=0.01)
        element = client.describe("n")
        self.assertEqual((element.bound, element.unread, element.tuples), (1, None, 1))
        with self.assertRaises(ValueError):
            client.create("m", bound=1, exactly=2)

    def test_clients_wait_for_one_another(self):
        taken = []

        def work():
            with Client(self.server.address) as other:
                for _ in range(100):
                    taken.append(other.take("there").value)
                    other.put("back", taken[-1])

        worker = threading.Thread(target=work)
        worker.start()
        for number in range(100):
            self.client.put("there", str(number))
            self.assertEqual(self.client.take("back").value, str(number).encode())
        worker.join()
        self.assertEqual(len(taken), 100)

    def test_watching_leaves_tuples(self):
        self.client.put("w", "before")
        seen, started = [], threading.Event()

        def watch():
            with Client(self.server.address) as other:
                watched = other.watch("w")
                started.set()
                for item in watched:
                    seen.append(item.value)
                    if item.value == b"9":
                        return

        watcher = threading.Thread(target=watch)
        watcher.start()
        started.wait()
        while not self.client.describe("w").waiting:
            pass
        for number in range(10):
            self.client.put("w", str(number))
        watcher.join()
        self.assertEqual(seen, [str(number).encode() for number in range(10)])
        self.assertEqual(self.client.describe("w").tuples, 11)

    def test_lost_connections_neither_lose_nor_repeat(self):
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        with Client(proxy.address, retry=240) as client:
            for number in range(30):
                breaker = threading.Timer(0.0005 * (number % 7), proxy.break_all)
                breaker.start()
                client.put("l", str(number))
                breaker.join()
        expected = [str(number).encode() for number in range(30)]
        self.assertEqual(values(self.client.read("l")), expected)

    def test_server_that_is_gone_is_an_error(self):
        client = Client(self.server.address, retry=0)
        self.server.end()
        with self.assertRaises(tuples.LostError):
            client.put("a", "1")
        with self.assertRaises(ConnectionError):
            Client(self.server.address)
        client.close()
        with self.assertRaises(ValueError):
            client.put("a", "1")

    def test_another_server_is_an_error(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def answer():
            peer = listener.accept()[0]
            peer.recv(24)
            peer.sendall(b"-ERR no\r\n")
            peer.close()

        stranger = threading.Thread(target=answer)
        stranger.start()
        with self.assertRaises(tuples.ProtocolError):
            Client("127.0.0.1:%d" % listener.getsockname()[1])
        stranger.join()

    def test_unix_sockets(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = str(pathlib.Path(folder.name) / "socket")
        server = Server("--unix", path)
        self.addCleanup(server.end)
        with Client(path) as client:
            client.put("a", "1")
        with Client(server.address) as client:
            self.assertEqual(client.take("a").value, b"1")


class Access(unittest.IsolatedAsyncioTestCase):
    """Of a server that asks for a token, and of one by TLS."""

    TOKEN = "the token of the server"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "token"
        path.touch(mode=0o600)
        path.write_text(self.TOKEN + "\n")
        self.server = Server("--token-file", str(path))
        self.addCleanup(self.server.end)

    async def test_only_clients_with_the_token_are_let_in(self):
        for wrong in ({}, {"token": "the token of another one"}):
            with self.assertRaises(tuples.RefusedError) as raised:
                Client(self.server.address, **wrong)
            self.assertEqual(raised.exception.refusal, Refusal.TOKEN)
            with self.assertRaises(tuples.RefusedError):
                await AsyncClient(self.server.address, **wrong).connect()
        with Client(self.server.address, token=self.TOKEN) as client:
            client.put("a", "1")
        async with AsyncClient(self.server.address, token=self.TOKEN.encode()) as client:
            self.assertEqual((await client.take("a")).value, b"1")

    async def test_clients_come_by_tls(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        key, certificate = (pathlib.Path(folder.name) / name for name in ("key", "certificate"))
        command = "openssl req -x509 -newkey ed25519 -nodes -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
        command = command.split() + ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        key.chmod(0o600)
        server = Server("--tls-cert", str(certificate), "--tls-key", str(key))
        self.addCleanup(server.end)
        trust = ssl.create_default_context(cafile=certificate)
        long = b"x" * 1_000_000
        with Client(server.address, ssl=trust) as client:
            client.put("a", long)
        async with AsyncClient(server.address, ssl=trust) as client:
            self.assertEqual((await client.take("a")).value, long)
        with self.assertRaises(ssl.SSLCertVerificationError):
            Client(server.address, ssl=ssl.create_default_context())
        with self.assertRaises(OSError):
            Client(server.address)


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.server = Server()
        self.addCleanup(self.server.end)

    async def test_operations_are_under_way_together(self):
        async with AsyncClient(self.server.address) as client:
            takes = [asyncio.create_task(client.take("q")) for _ in range(150)]
            await asyncio.gather(*(client.put("p", str(number)) for number in range(300)))
            self.assertEqual(len(await client.read("p")), 300)
            for number in range(150):
                await client.put("q", str(number))
            taken = await asyncio.gather(*takes)
            self.assertEqual(values(taken), [str(number).encode() for number in range(150)])
            with self.assertRaises(TimeoutError):
                await client.take("q", timeout=0.01)
            with self.assertRaises(tuples.RefusedError):
                await client.create("p", bound=1)

    async def test_operations_go_on_behind_those_that_wait_for_long(self):
        async with AsyncClient(self.server.address) as client:
            quiet = []
            for turn in range(4):
                quiet.append(asyncio.create_task(client.take("quiet")))
                puts = (client.put("p", f"{turn} {number}") for number in range(300))
                await asyncio.gather(*puts)
            expected = [f"{turn} {number}".encode() for turn in range(4) for number in range(300)]
            self.assertEqual(values(await client.read("p")), expected)
            for number in range(4):
                await client.put("quiet", str(number))
            taken = values(await asyncio.gather(*quiet))
            self.assertEqual(taken, [b"0", b"1", b"2", b"3"])

    async def test_cancelled_take_takes_nothing(self):
        async with AsyncClient(self.server.address) as client:
            task = asyncio.create_task(client.take("c"))
            await client.put("other", "1")
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await client.put("c", "1")
            self.assertEqual((await client.take("c", timeout=0)).value, b"1")
            # The server may be faster than the cancellation.
            for number in range(200):
                task = asyncio.create_task(client.take("c"))
                await asyncio.sleep(0)
                put = asyncio.create_task(client.put("c", str(number)))
                await asyncio.sleep(0)
                task.cancel()
                await put
                try:
                    found = await task
                except asyncio.CancelledError:
                    found = await client.take("c", timeout=0)
                self.assertEqual(found.value, str(number).encode())

    async def test_lost_connections_neither_lose_nor_repeat(self):
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        async with AsyncClient(proxy.address, retry=240) as client:
            for number in range(20):
                puts = [client.put("l", f"{number} {at}") for at in range(20)]
                puts = [asyncio.create_task(put) for put in puts]
                await asyncio.sleep(0.0005 * (number % 5))
                proxy.break_all()
                await asyncio.gather(*puts)
        with Client(self.server.address) as client:
            found = values(client.read("l"))
        self.assertEqual(found, [f"{n} {at}".encode() for n in range(20) for at in range(20)])

    async def test_watching(self):
        async with AsyncClient(self.server.address) as client:

            async def watch():
                return [item.value async for item in until(client.watch("w"), b"9")]

            async def until(items, last):
                async for item in items:
                    yield item
                    if item.value == last:
                        return

            watcher = asyncio.create_task(watch())
            await client.create("w")
            while not (await client.describe("w")).waiting:
                pass
            for number in range(10):
                await client.put("w", str(number))
            self.assertEqual(await watcher, [str(number).encode() for number in range(10)])

    async def test_durable_server_goes_on(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server("--state", folder.name)
        async with AsyncClient(server.address, retry=240) as client:
            take = asyncio.create_task(client.take("d"))
            await client.put("e", "1")
            server.end()
            puts = [asyncio.create_task(client.put("e", str(number))) for number in range(2, 9)]
            server = Server("--state", folder.name, port=server.port)
            self.addCleanup(server.end)
            await asyncio.gather(*puts)
            self.assertEqual(len(await client.read("e")), 8)
            await client.put("d", "1")
            self.assertEqual((await take).value, b"1")


if __name__ == "__main__":
    unittest.main()
