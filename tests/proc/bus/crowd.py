"""A crowd of strangers at a tcp port, in a process of its own.

    python -P crowd.py HOST PORT SERVER_KEY

Each line on standard input is a command, each is answered with a line of JSON:
`come KIND NUMBER` opens so many connections that stay open; KIND is `silent`, `half` (of a
greeting), `junk` or `key` (a ZeroMQ socket with a key that the run does not know). `go` closes all.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
import sys

import zmq

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
WORDS = {"silent": b"", "half": GREETING[:20], "junk": b"GET / HTTP/1.1\r\n\r\n" * 50}


class Crowd:
    def __init__(self, host: str, port: int, server_key: bytes) -> None:
        self.where = (host, port)
        self.server_key = server_key
        self.quiet: list[socket.socket] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4096)
        self.liars: list[zmq.Socket[bytes]] = []

    def come(self, kind: str, number: int) -> int:
        """How many of them are connected now; the kernel has not let the others in."""
        if kind == "key":
            self.liars += [self.lie() for _ in range(number)]
            return number
        came = [self.knock() for _ in range(number)]
        self.quiet += came
        poll = select.poll()
        for each in came:
            poll.register(each, select.POLLOUT)
        connected = {number for number, event in poll.poll(0) if event == select.POLLOUT}
        for each in came:
            if each.fileno() in connected:
                with contextlib.suppress(OSError):
                    each.send(WORDS[kind])
        return len(connected)

    def knock(self) -> socket.socket:
        stranger = socket.socket()
        stranger.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            stranger.connect(self.where)
        return stranger

    def lie(self) -> zmq.Socket[bytes]:
        stranger = self.context.socket(zmq.DEALER)
        stranger.linger = 0
        stranger.set_hwm(10)
        public, secret = zmq.curve_keypair()
        stranger.curve_serverkey = self.server_key
        stranger.curve_publickey = public
        stranger.curve_secretkey = secret
        stranger.connect("tcp://{}:{}".format(*self.where))
        stranger.send(b"let me in")
        return stranger

    def go(self) -> int:
        number = len(self.quiet) + len(self.liars)
        for each in self.quiet:
            each.close()
        for liar in self.liars:
            liar.close(0)
        self.context.term()
        return number


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(sys.argv[1], int(sys.argv[2]), sys.argv[3].encode())
    for line in sys.stdin:
        match line.split():
            case ["come", kind, number]:
                answer = crowd.come(kind, int(number))
            case ["go"]:
                answer = crowd.go()
            case words:
                raise AssertionError(f"no such command: {words}")
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
