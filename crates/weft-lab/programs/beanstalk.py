"""A producer and two workers of beanstalkd, each with a connection of its own.

beanstalk.py PORT JOBS
"""

import socket
import sys
import threading

# Prime: no buffer's size is a multiple of it.
PERIOD = 65521
BLOCK = bytes((i ^ i >> 8) & 255 for i in range(PERIOD))
WORKERS = 2


class Queue:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def ask(self, command, body=None):
        command = command.encode() + b"\r\n"
        self.socket.sendall(command if body is None else command + body + b"\r\n")
        return self.file.readline().decode().split()

    def put(self, body):
        answer = self.ask(f"put 1 0 60 {len(body)}", body)
        if answer[0] != "INSERTED":
            sys.exit(f"put: {answer}")

    def reserve(self):
        word, job, length = self.ask("reserve")
        body = self.file.read(int(length) + 2)
        if word != "RESERVED" or self.ask(f"delete {job}") != ["DELETED"]:
            sys.exit(f"reserve: {word}")
        return body[:-2]


def content(number):
    return f"{number} ".encode() + BLOCK[number % 100 : number * 31 % 60000 + 100]


def work(queue, done):
    while (body := queue.reserve()) != b"over":
        number = int(body.split()[0])
        if body != content(number):
            sys.exit(f"job {number} has another body")
        done.append(number)


port, jobs = map(int, sys.argv[1:])
done, producer = [], Queue(port)
workers = [threading.Thread(target=work, args=(Queue(port), done)) for _ in range(WORKERS)]
for worker in workers:
    worker.start()
for number in range(jobs):
    producer.put(content(number))
for _ in workers:
    producer.put(b"over")
for worker in workers:
    worker.join()
if sorted(done) != list(range(jobs)):
    sys.exit(f"{len(done)} jobs done, not each of {jobs} once")
print("done", jobs)
