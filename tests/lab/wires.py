"""Small conversations between hosts, by sockets opened on them."""

from __future__ import annotations

import socket
import threading
import time

from r2ccl.lab import Lab

PATIENCE_S = 3.0


def datagram_socket(lab: Lab, host: int, nic: int) -> socket.socket:
    """A datagram socket on a NIC's address."""

    def open_socket() -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind((lab.address(host, nic), 0))
        opened.settimeout(PATIENCE_S)
        return opened

    return lab.call(host, open_socket)


def carries(lab: Lab, source: int, target: int, nic: int, patience_s: float = PATIENCE_S) -> bool:
    """Whether a datagram gets from one host to another on a rail."""
    with datagram_socket(lab, source, nic) as sender, datagram_socket(lab, target, nic) as receiver:
        receiver.settimeout(patience_s)
        try:
            sender.sendto(b"hello", receiver.getsockname())
            return receiver.recv(100) == b"hello"
        except TimeoutError:
            return False


def stream(lab: Lab, source: int, target: int, nic: int) -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection between two hosts on a rail."""

    def listen() -> socket.socket:
        return socket.create_server((lab.address(target, nic), 0))

    with lab.call(target, listen) as listener:
        here = (lab.address(source, nic), 0)
        sender = lab.call(source, socket.create_connection, listener.getsockname(), PATIENCE_S, here)
        receiver, _ = listener.accept()
    receiver.settimeout(PATIENCE_S)
    return sender, receiver


def rate_mbit_s(sender: socket.socket, receiver: socket.socket, seconds: float = 1.0) -> float:
    """What a sender that never pauses gets through, after a start of 0.2 s."""
    stop = threading.Event()

    def send() -> None:
        block = bytes(1 << 18)
        try:
            while not stop.is_set():
                sender.sendall(block)
        except (BrokenPipeError, ConnectionResetError):  # the receiver has seen enough
            assert stop.is_set()

    thread = threading.Thread(target=send)
    thread.start()
    room = bytearray(1 << 18)
    try:
        _receive_until(receiver, room, time.monotonic() + 0.2)
        started = time.monotonic()
        received = _receive_until(receiver, room, started + seconds)
        elapsed_s = time.monotonic() - started
    finally:
        stop.set()
        receiver.close()
        thread.join()
        sender.close()
    return received * 8 / 1e6 / elapsed_s


def _receive_until(receiver: socket.socket, room: bytearray, deadline: float) -> int:
    received = 0
    while time.monotonic() < deadline:
        received += receiver.recv_into(room)
    return received
