"""Members of an IRC channel, each with a thread and a connection of its own. Each sends lines and
hears every line of the others, in order.

chat.py PORT MEMBERS LINES
"""

import socket
import sys
import threading


class Member:
    def __init__(self, port, number):
        self.number, self.got = number, {}
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")
        self.send(f"NICK n{number}")
        self.send("USER lab 0 * :lab")
        self.wait_for("376")  # The end of the greeting.
        self.send("JOIN #lab")
        self.wait_for("366")  # The end of the list of members.

    def send(self, line):
        self.socket.sendall(line.encode() + b"\r\n")

    def words(self):
        """Returns the words of the next line that is not a question whether the member is there."""
        while (words := self.file.readline().decode().split())[:1] == ["PING"]:
            self.send(f"PONG {words[1]}")
        if not words:
            sys.exit(f"member {self.number}: the server has closed the connection")
        return words

    def wait_for(self, number):
        while self.words()[1] != number:
            pass

    def hear(self, total):
        while sum(self.got.values()) < total:
            words = self.words()
            if words[1] == "PRIVMSG":
                member, line = int(words[4]), int(words[5])
                if line != self.got.get(member, 0):
                    return  # A line is missing, or came twice.
                self.got[member] = line + 1


def talk(member):
    everybody.wait()
    for line in range(lines):
        member.send(f"PRIVMSG #lab :x {member.number} {line}")


port, count, lines = map(int, sys.argv[1:])
everybody = threading.Barrier(count)
members = [Member(port, number) for number in range(count)]
talking = [threading.Thread(target=talk, args=(member,)) for member in members]
hearing = [threading.Thread(target=member.hear, args=((count - 1) * lines,)) for member in members]
for thread in talking + hearing:
    thread.start()
for thread in talking + hearing:
    thread.join()
print("got", sum(sum(member.got.values()) for member in members))
