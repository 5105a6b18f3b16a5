"""An initiator that sends PDUs itself (RFC 7143): for what libiscsi does not do, such as requests that abort its commands."""

import socket
import struct

BLOCK = 512
GOOD, CHECK_CONDITION = 0, 2
# Task management: functions, and the response to one that has been carried out.
ABORT_TASK_SET, RESET_UNIT, COMPLETE = 2, 5, 0
# Seconds after which a response counts as lost.
TIMEOUT = 240


class Lost(Exception):
    """The target has ended the connection, or does not answer as it should."""


class Raw:
    """A session with unit 0 of a target."""

    def __init__(self, name, portal, target, number=1):
        host, port = portal.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.command_number, self.status_number, self.tag = 1, 0, 0
        keys = f"InitiatorName={name}\0SessionType=Normal\0TargetName={target}\0HeaderDigest=None\0DataDigest=None\0"
        # From operational negotiation to the full feature phase, at once. The ISID has a random qualifier.
        isid = struct.pack(">BBHH", 0x80, 0, number >> 16, number & 0xffff)
        header = struct.pack(">BBBBI", 0x43, 0x87, 0, 0, len(keys)) + isid + bytes(2)
        header += struct.pack(">IHHII", 0, 0, 0, self.command_number, 0) + bytes(16)
        self._send(header, keys.encode())
        answer, _ = self.receive()
        if answer[0] != 0x23 or answer[36:38] != bytes(2):
            raise Lost(f"login: {answer.hex()}")

    def _send(self, header, data=b""):
        self.socket.sendall(header + data + bytes(-len(data) % 4))

    def _exactly(self, length):
        data = bytearray()
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise Lost("the connection has ended")
            data += part
        return bytes(data)

    def receive(self):
        """The next PDU: its header and its data."""
        header = self._exactly(48)
        length = int.from_bytes(header[5:8], "big")
        data = self._exactly(length + -length % 4)[:length]
        # A PDU that counts: all but R2T and data without a status.
        if header[0] != 0x31 and (header[0] != 0x25 or header[1] & 1):
            self.status_number = int.from_bytes(header[24:28], "big") + 1
        return header, data

    def _next_tag(self):
        self.tag += 1
        return self.tag

    def command(self, cdb, data=b"", length=0):
        """Sends a command with immediate data, or one that reads. Returns its tag."""
        tag = self._next_tag()
        flags = 0x80 | (0x20 if data else 0) | (0x40 if length else 0)
        header = struct.pack(">BBBBI8sIIII16s", 0x01, flags, 0, 0, len(data), bytes(8), tag, len(data) or length,
                             self.command_number, self.status_number, cdb)
        self.command_number += 1
        self._send(header, data)
        return tag

    def write(self, block, data):
        return self.command(struct.pack(">BBIBHB6x", 0x2a, 0, block, 0, len(data) // BLOCK, 0), data)

    def read(self, block, length):
        return self.command(struct.pack(">BBIBHB6x", 0x28, 0, block, 0, length // BLOCK, 0), length=length)

    def manage(self, function):
        """Sends a task management request, ahead of all commands. Returns its tag."""
        tag = self._next_tag()
        header = struct.pack(">BBBBI8sIIIIII8x", 0x42, 0x80 | function, 0, 0, 0, bytes(8), tag, 0xffffffff,
                             self.command_number, self.status_number, 0, 0)
        self._send(header)
        return tag

    def log_out(self):
        tag = self._next_tag()
        header = struct.pack(">BBBBI8sIHHII16x", 0x46, 0x80, 0, 0, 0, bytes(8), tag, 0, 0, self.command_number,
                             self.status_number)
        self._send(header)
        answer, _ = self.receive()
        if answer[0] != 0x26 or answer[2] != 0:
            raise Lost(f"logout: {answer.hex()}")
        self.close()

    def close(self):
        self.socket.close()


def tag_of(header):
    return int.from_bytes(header[16:20], "big")
