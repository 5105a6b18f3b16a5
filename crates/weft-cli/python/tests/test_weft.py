"""Tests of the Python module. $WEFT names the program."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import weft

LEN = 5_000_000


class Copies(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        os.environ["XDG_CONFIG_HOME"] = self.folder.name
        for name in ("from", "share"):
            (self.root / name).mkdir()
        (self.root / "from" / "large").write_bytes(os.urandom(LEN))
        (self.root / "from" / "small").write_text("text")

    def serve(self, **options):
        server = weft.Server(
            ("data", self.root / "share"), bind="127.0.0.1", allow=[weft.public_key()], **options
        )
        self.addCleanup(server.close)
        return server

    def assert_same(self, one, other):
        for name in ("large", "small"):
            self.assertEqual((one / name).read_bytes(), (other / name).read_bytes())

    def test_trees_go_to_a_server_and_back(self):
        server, events = self.serve(), []
        to = server.place("data/to")
        options = {"accept_new": True, "verify": True, "limit": "40M"}
        source = str(self.root / "from") + "/"
        summary = weft.copy(source, to, on_event=events.append, **options)
        self.assertEqual((summary.copied, summary.failed), (2, 0))
        self.assertEqual(summary.bytes, LEN + 4)
        self.assertIsInstance(events[-1], weft.Summary)
        self.assert_same(self.root / "from", self.root / "share" / "to")
        weft.copy(to + "/", self.root / "back")
        self.assert_same(self.root / "from", self.root / "back")
        # A second copy skips what is unchanged.
        summary = weft.copy(to + "/", self.root / "back", skip_unchanged=True)
        self.assertEqual((summary.copied, summary.unchanged), (0, 2))

    def test_paths_of_this_host_may_look_like_other_places(self):
        os.chdir(self.root)
        for name in ("host:share", "-", "--json", "a b\n"):
            path = pathlib.Path(name)
            path.write_text(name)
            weft.copy(path, self.root / "copies", patterns=[("exclude", "*.o")])
            self.assertEqual((self.root / "copies").read_text(), name)
        with self.assertRaises(ValueError):
            weft.copy("-", self.root / "copies")

    def test_plan_says_what_a_copy_would_do(self):
        options = {"delete": True, "patterns": [("exclude", "*.o")]}
        (self.root / "to").mkdir()
        (self.root / "to" / "old").touch()
        source = str(self.root / "from") + "/"
        plan = weft.plan(source, self.root / "to", **options)
        actions = {(it.action, it.path): it.size for it in plan if it.kind == "file"}
        expected = {("copy", "large"): LEN, ("copy", "small"): 4, ("delete", "old"): None}
        self.assertEqual(actions, expected)
        self.assertEqual(os.listdir(self.root / "to"), ["old"])

    def test_failures_are_exceptions(self):
        with self.assertRaises(weft.CopyError) as caught:
            weft.copy(self.root / "none", self.root / "to")
        self.assertEqual(caught.exception.status, 1)
        self.assertIn("No such file", str(caught.exception))
        with self.assertRaises(weft.CopyError) as caught:
            weft.copy(self.root / "from", self.root / "to", compress="zip")
        self.assertEqual(caught.exception.status, 2)
        with self.assertRaises(TypeError):
            weft.copy(self.root / "from", self.root / "to", loud=True)
        (self.root / "to").mkdir()
        (self.root / "to" / "small").mkdir()
        (self.root / "to" / "small" / "inside").touch()
        with self.assertRaises(weft.IncompleteError) as caught:
            weft.copy(str(self.root / "from") + "/", self.root / "to")
        self.assertEqual(caught.exception.summary.copied, 1)
        self.assertEqual([it.path for it in caught.exception.problems], ["small"])

    def test_copy_that_was_cancelled_goes_on(self):
        server = self.serve()
        source, to = str(self.root / "from") + "/", server.place("data/to")
        with weft.start(source, to, accept_new=True, limit="64K") as copy:
            next(iter(copy))
        with self.assertRaises(weft.CopyError) as caught:
            with weft.start(source, to, accept_new=True, limit="64K") as copy:
                next(iter(copy))
                copy.cancel()
                copy.wait()
        self.assertEqual(caught.exception.status, -signal.SIGTERM)
        self.assertFalse((self.root / "share" / "to" / "large").exists())

        class Stop(Exception):
            pass

        def stop(_):
            raise Stop

        with self.assertRaises(Stop):
            weft.copy(source, to, accept_new=True, limit="64K", on_event=stop)
        weft.copy(source, to, accept_new=True, resume=True)
        self.assert_same(self.root / "from", self.root / "share" / "to")

    def test_streams_read_and_write_one_file(self):
        server = self.serve()
        place = server.place("data/file")
        data = os.urandom(LEN)
        with weft.open_writer(place, accept_new=True) as file:
            self.assertEqual(file.write(data), LEN)
            self.assertFalse((self.root / "share" / "file").exists())
        with weft.open_reader(place) as file:
            self.assertEqual(file.read(1000) + file.read(), data)
        with weft.open_reader(place) as file:
            self.assertEqual(file.read(10), data[:10])
        with self.assertRaises(weft.CopyError):
            with weft.open_reader(server.place("data/none")) as file:
                file.read()

    def test_stream_that_breaks_off_stores_nothing(self):
        server = self.serve()
        place = server.place("data/file")
        with self.assertRaises(ZeroDivisionError):
            with weft.open_writer(place, accept_new=True) as file:
                file.write(b"half")
                1 / 0
        file = weft.open_writer(place, accept_new=True)
        file.write(b"half")
        del file
        with self.assertRaises(weft.CopyError):
            with weft.open_writer(server.place("none/file"), accept_new=True) as file:
                file.write(b"whole")
        self.assertFalse((self.root / "share" / "file").exists())

    def test_end_of_python_stores_nothing(self):
        to = self.root / "to"
        # A thread that goes on holds the file, so it is not collected.
        program = (
            "import sys, threading, weft\nwait = threading.Event().wait\n"
            "def write():\n    file = weft.open_writer(sys.argv[1])\n"
            "    file.write(b'half')\n    print(file._process.pid)\n    written.set()\n    wait()\n"
            "written = threading.Event()\n"
            "threading.Thread(target=write, daemon=True).start()\nwritten.wait()\nint('x')\n"
        )
        words = [sys.executable, "-c", program, str(to)]
        ended = subprocess.run(words, capture_output=True, text=True)
        self.assertIn("ValueError", ended.stderr)
        status = pathlib.Path("/proc", ended.stdout.strip(), "stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while ") Z " not in status.read_text():
                time.sleep(0.01)
        self.assertEqual([it.name for it in self.root.iterdir() if "to" in it.name], [])

    def test_server_refuses_what_it_does_not_share(self):
        server = self.serve(read_only=True)
        with self.assertRaises(weft.CopyError):
            weft.copy(self.root / "from", server.place("data/to"), accept_new=True)
        with self.assertRaises(weft.ServerError) as caught:
            weft.Server(self.root / "none")
        self.assertIn("No such file", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
