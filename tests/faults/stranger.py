"""Strangers at the ports of a job: who knows nothing, who knows the protocol (docs/communication.md)
and not the secret, and who repeats what a rank once said. Written from the protocol's description;
nothing of the library is used."""
import hashlib
import hmac
import os
import pathlib
import random
import selectors
import socket
import struct
import threading
import time

STORE_MAGIC, MESH_MAGIC = 0x6532726F74732D64, 0x6873656D327364
FINE, OTHER_SECRET, PUT = 0, 6, 1


def quiet_port():
    """A free port that the system gives to nobody: whoever connects to one of those, while nobody
    listens, may meet itself and hold the port."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def code(key, *parts):
    message = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return hmac.new(key, message, hashlib.sha256).digest()


def job_hash(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def hello(name, rank, world):
    return struct.pack("<QQii", STORE_MAGIC, job_hash(name), rank, world) + os.urandom(32)


def mesh_hello(rank, channel):
    return struct.pack("<QII", MESH_MAGIC, rank, channel) + os.urandom(32)


def receive(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError(f"closed after {len(data)} of {size} bytes")
        data += more
    return data


def session(port, secret, name, rank, world):
    """Meets the store as a rank; gives the connection, the key of the session, what was said, and the
    status of the answer."""
    connection = socket.create_connection(("127.0.0.1", port), 20)
    first = hello(name, rank, world)
    connection.sendall(first)
    challenge = receive(connection, 48)
    key = code(secret, b"ds store", name.encode(), first, challenge)
    proof = code(key, b"client")
    connection.sendall(proof)
    welcome = receive(connection, 48)
    status, = struct.unpack_from("<I", welcome, 8)
    if status == FINE:
        assert welcome[16:] == code(key, b"server", welcome[8:12], welcome[12:16])
    return connection, key, first + proof, status


def put(connection, key, number, name, value):
    """Writes a key; gives the status, or None where the connection ends. Also what was sent."""
    message = struct.pack("<IIII", PUT, len(name), len(value), 0) + name + value
    message += code(key, b"request", struct.pack("<Q", number), message)
    connection.sendall(message)
    try:
        return struct.unpack_from("<I", receive(connection, 40))[0], message
    except (EOFError, ConnectionError):
        return None, message


class Crowd:
    """Strangers who keep coming to `port`, and to every other port at which the processes of
    `processes()` listen, until stop()."""

    def __init__(self, size, port, world, replays=(), processes=lambda: ()):
        self.size, self.port, self.world = size, port, world
        self.replays, self.processes = list(replays), processes
        self.ports, self.came = [port], 0
        self.random = random.Random(size)
        self.going = True
        self.threads = [threading.Thread(target=self.visit), threading.Thread(target=self.look)]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.going = False
        for thread in self.threads:
            thread.join()

    def look(self):
        while self.going:
            sockets = set()
            for process in self.processes():
                try:
                    for entry in os.scandir(f"/proc/{process}/fd"):
                        sockets.add(os.readlink(entry.path))
                except OSError:
                    continue
            ports = {self.port}
            for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    ports.add(int(fields[1].split(":")[1], 16))
            self.ports = sorted(ports)
            time.sleep(0.01)

    def says(self, kind):
        """What a stranger of this kind sends: all at once, or nothing, or slowly (True)."""
        noise = self.random.randbytes(300)
        rank = self.random.randrange(-1, self.world + 1)
        greeting = hello("", rank, self.world)
        if kind == 0:
            return noise, False
        if kind == 1:
            return b"", False
        if kind == 2:  # huge headers behind a greeting without proof
            return greeting + struct.pack("<IIII", PUT, 2**32 - 1, 2**31, 2**32 - 1) * 30, False
        if kind == 3:
            return greeting + noise[:32], True
        if kind == 4 and self.replays:
            return self.random.choice(self.replays), False
        if kind == 5:
            return hello("another job", rank, self.world), False
        if kind == 6:
            return mesh_hello(max(rank, 0), self.random.randrange(3)) + noise[:32], False
        return greeting[:self.random.randrange(1, 56)], False

    def visit(self):
        """One thread for all of them, each with a connection of its own."""
        poll = selectors.DefaultSelector()
        alive = {}  # connection: (what is left to say, slowly, until when)

        def leave(connection):
            del alive[connection]
            poll.unregister(connection)
            connection.close()

        while self.going:
            for _ in range(min(self.size - len(alive), 10)):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", self.random.choice(self.ports)))
                words, slowly = self.says(self.came % 8)
                patience = self.random.choice((0.2, 2, 30))
                alive[connection] = (words, slowly, time.monotonic() + patience)
                poll.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
                self.came += 1
            for key, events in poll.select(0.02):
                connection = key.fileobj
                words, slowly, until = alive[connection]
                try:
                    if events & selectors.EVENT_READ and not connection.recv(4096):
                        leave(connection)
                        continue
                    if events & selectors.EVENT_WRITE and words:
                        sent = connection.send(words[:1] if slowly else words)
                        alive[connection] = (words[sent:], slowly, until)
                    if not words:
                        poll.modify(connection, selectors.EVENT_READ)
                except BlockingIOError:
                    pass
                except OSError:
                    leave(connection)
            for connection in [c for c, state in alive.items() if time.monotonic() > state[2]]:
                leave(connection)
            time.sleep(0.008)  # at most a thousand a second come
        for connection in list(alive):
            leave(connection)
