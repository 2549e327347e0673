"""Link events: the kernel's messages byte by byte, which of them are news, and the kernel itself."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.transport import link_events
from r2ccl.transport.link_events import (
    AddressEvent,
    DumpEnd,
    LinkEvent,
    LinkStates,
    LinkWatcher,
    link_events_available,
    parse,
    read_links,
)
from r2ccl.transport.nics import discover

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")
UP, LOWER_UP = 0x1, 0x10000
NEWLINK, DELLINK, NEWADDR, DELADDR, DONE = 16, 17, 20, 21, 3


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def link(kind: int, index: int, flags: int, *attributes: bytes, family: int = 0) -> bytes:
    return message(kind, struct.pack("=BBHiII", family, 0, 1, index, flags, 0) + b"".join(attributes))


def address(kind: int, index: int, *attributes: bytes, family: int = socket.AF_INET) -> bytes:
    return message(kind, struct.pack("=BBBBI", family, 24, 0, 0, index) + b"".join(attributes))


ETH0 = attribute(3, b"eth0\0")


@pytest.mark.parametrize(
    ("flags", "carrier", "up"),
    [
        (UP | LOWER_UP, b"\1", True),
        (UP | LOWER_UP, b"", True),
        (UP, b"", False),
        (UP | LOWER_UP, b"\0", False),
        (LOWER_UP, b"\1", False),
    ],
)
def test_a_link_is_up_when_switched_on_and_with_a_carrier(flags, carrier, up):
    data = link(NEWLINK, 7, flags, ETH0, *([attribute(33, carrier)] if carrier else []))
    assert parse(data) == [LinkEvent("eth0", 7, up)]


def test_a_removed_link_is_down():
    assert parse(link(DELLINK, 7, UP | LOWER_UP, ETH0)) == [LinkEvent("eth0", 7, up=False, removed=True)]


def test_kind_and_master_are_read():
    information = attribute(18 | 0x8000, attribute(1, b"veth\0"))
    data = link(NEWLINK, 7, UP | LOWER_UP, ETH0, attribute(10, struct.pack("=I", 3)), information)
    assert parse(data) == [LinkEvent("eth0", 7, True, kind="veth", master_index=3)]


def test_a_port_that_leaves_a_bridge_is_no_link_that_vanishes():
    assert parse(link(DELLINK, 7, UP | LOWER_UP, ETH0, family=7)) == []


def test_addresses_come_and_go():
    local, remote = attribute(2, socket.inet_aton("10.0.0.1")), attribute(1, socket.inet_aton("10.0.0.9"))
    assert parse(address(NEWADDR, 7, remote, local)) == [AddressEvent(7, "10.0.0.1")]
    assert parse(address(DELADDR, 7, remote)) == [AddressEvent(7, "10.0.0.9", removed=True)]
    assert parse(address(NEWADDR, 7, attribute(1, b"\0" * 16), family=socket.AF_INET6)) == []
    assert parse(address(NEWADDR, 7)) == []


def test_several_messages_in_one_read_are_all_heard():
    data = link(NEWLINK, 7, UP | LOWER_UP, ETH0) + message(99, b"unknown!") + message(DONE, b"\0\0\0\0")
    assert parse(data) == [LinkEvent("eth0", 7, True), DumpEnd.DUMP_END]


def test_a_message_that_is_cut_short_is_left_out():
    whole = link(NEWLINK, 7, UP | LOWER_UP, ETH0)
    for end in range(len(whole)):
        assert parse(whole + whole[:end]) == [LinkEvent("eth0", 7, True)]
    assert parse(message(NEWLINK, b"short")) == parse(message(NEWADDR, b"shor")) == []


@given(st.binary(max_size=120) | st.builds(message, st.sampled_from([2, 3, 16, 17, 20, 21]), st.binary(max_size=100)))
def test_no_bytes_make_the_parser_fail(data):
    assert isinstance(parse(data), list)


# What is news.

UP_EVENT = LinkEvent("eth0", 7, True)
DOWN_EVENT = LinkEvent("eth0", 7, False)
GONE_EVENT = LinkEvent("eth0", 7, False, removed=True)


def test_only_changes_are_news():
    states = LinkStates()
    told = [states.handle(event) for event in (UP_EVENT, UP_EVENT, DOWN_EVENT, DOWN_EVENT, UP_EVENT)]
    assert told == [[UP_EVENT], [], [DOWN_EVENT], [], [UP_EVENT]]
    assert states.link("eth0") == UP_EVENT


def test_a_removed_link_is_told_once_and_forgotten():
    states = LinkStates()
    assert states.handle(GONE_EVENT) == []
    states.handle(UP_EVENT)
    assert [states.handle(GONE_EVENT), states.handle(GONE_EVENT)] == [[GONE_EVENT], []]
    assert states.link("eth0") is None


def test_a_link_that_a_dump_does_not_tell_is_gone():
    states = LinkStates()
    states.handle(UP_EVENT)
    states.begin_dump()
    other = LinkEvent("eth1", 8, True)
    assert states.handle(other) == [other]
    assert states.handle(DumpEnd.DUMP_END) == [GONE_EVENT]
    assert states.handle(DumpEnd.DUMP_END) == []


def test_every_address_event_is_news():
    states = LinkStates()
    event = AddressEvent(7, "10.0.0.1")
    assert [states.handle(event), states.handle(event)] == [[event], [event]]


# The watcher over a socket pair, with a fake kernel at the other end.


class FakeKernel:
    """Answers on a socket pair; a read can be made to overrun first."""

    def __init__(self) -> None:
        self.socket, self._end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.overruns = 0
        self.failure = 0

    def recv(self, size: int) -> bytes:
        if self.failure:
            raise OSError(self.failure, "failed")
        if self.overruns:
            self.overruns -= 1
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return self._end.recv(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def say(self, *messages: bytes) -> None:
        self.socket.send(b"".join(messages))

    def requests(self) -> int:
        """How many dumps were asked for since the last call."""
        self.socket.setblocking(False)
        count = 0
        try:
            while self.socket.recv(100):
                count += 1
        except BlockingIOError:
            return count
        return count

    def close_both(self) -> None:
        self.socket.close()
        self._end.close()


@pytest.fixture
def kernel(monkeypatch):
    fake = FakeKernel()
    monkeypatch.setattr(link_events, "_open", lambda groups: fake)
    monkeypatch.setattr(link_events, "link_events_available", lambda: True)
    yield fake
    fake.close_both()


def eth0(flags: int) -> bytes:
    return link(NEWLINK, 7, flags, ETH0)


END = message(DONE, b"\0\0\0\0")


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_watcher_asks_for_all_links_first_and_then_tells_changes(kernel):
    heard: list[LinkEvent] = []
    watcher = LinkWatcher(asyncio.get_running_loop(), heard.append)
    watcher.open()
    assert kernel.requests() == 1
    kernel.say(eth0(UP | LOWER_UP), END)
    await turns()
    kernel.say(eth0(UP | LOWER_UP))
    kernel.say(eth0(UP))
    await turns()
    assert heard == [UP_EVENT, DOWN_EVENT]
    assert watcher.link("eth0") == DOWN_EVENT
    assert watcher.fileno() >= 0
    watcher.close()
    watcher.close()
    assert watcher.fileno() == -1


async def test_after_an_overrun_all_links_are_read_anew(kernel):
    heard: list[LinkEvent] = []
    watcher = LinkWatcher(asyncio.get_running_loop(), heard.append)
    watcher.open()
    kernel.say(eth0(UP | LOWER_UP), END)
    await turns()
    kernel.requests()
    kernel.overruns = 1
    kernel.say(eth0(UP), END)
    await turns()
    assert kernel.requests() == 1
    assert heard == [UP_EVENT, DOWN_EVENT]
    watcher.close()


async def test_an_overrun_during_a_dump_asks_again_only_when_that_is_over(kernel):
    watcher = LinkWatcher(asyncio.get_running_loop(), lambda event: None)
    watcher.open()
    kernel.requests()
    kernel.overruns = 2
    kernel.say(eth0(UP))
    await turns()
    assert kernel.requests() == 0
    kernel.say(END)
    await turns()
    assert kernel.requests() == 1
    watcher.close()


async def test_addresses_are_told_to_who_asks_for_them(kernel):
    heard: list[AddressEvent] = []
    watcher = LinkWatcher(asyncio.get_running_loop(), lambda event: None, heard.append)
    watcher.open()
    kernel.say(address(DELADDR, 7, attribute(2, socket.inet_aton("10.0.0.1"))))
    await turns()
    assert heard == [AddressEvent(7, "10.0.0.1", removed=True)]
    watcher.close()


async def test_a_watcher_that_is_closed_by_its_own_callback_tells_nothing_more(kernel):
    heard: list[LinkEvent] = []

    def hear(event: LinkEvent) -> None:
        heard.append(event)
        watcher.close()

    watcher = LinkWatcher(asyncio.get_running_loop(), hear)
    watcher.open()
    kernel.say(eth0(UP | LOWER_UP), eth0(UP), END)
    await turns()
    assert heard == [UP_EVENT]


async def test_a_kernel_that_stops_answering_closes_the_watcher_and_is_logged(kernel, caplog):
    watcher = LinkWatcher(asyncio.get_running_loop(), lambda event: None)
    watcher.open()
    kernel.failure = errno.ENOMEM
    kernel.say(END)
    await turns()
    assert watcher.fileno() == -1
    assert "link events ended" in caplog.text


async def test_elsewhere_than_on_linux_there_are_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not link_events_available()
    with pytest.raises(OSError, match="darwin does not tell"):
        LinkWatcher(asyncio.get_running_loop(), lambda event: None).open()


# The kernel.


@linux_only
def test_the_kernel_tells_of_loopback():
    (loopback,) = (event for event in read_links() if event.interface_name == "lo")
    assert loopback.up
    assert not loopback.removed


def in_a_fresh_namespace(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story on a thread of its own in a network namespace of its own, which ends with the thread."""

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        clone_newnet = 0x40000000
        if libc.unshare(clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace")
        asyncio.run(story())

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(run).result()


def ip(*arguments: str) -> None:
    """A process that a thread starts is in the thread's namespace."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@linux_only
@pytest.mark.namespaces
def test_a_cut_at_the_far_end_of_a_cable_is_heard_and_so_is_its_return():
    async def story() -> None:
        heard: asyncio.Queue[LinkEvent | AddressEvent] = asyncio.Queue()
        watcher = LinkWatcher(asyncio.get_running_loop(), heard.put_nowait, heard.put_nowait)
        watcher.open()

        async def hear(wanted: Callable[[LinkEvent | AddressEvent], bool]) -> LinkEvent | AddressEvent:
            async with asyncio.timeout(20):
                while True:
                    event = await heard.get()
                    if wanted(event):
                        return event

        def near(up: bool, removed: bool = False) -> Callable[[LinkEvent | AddressEvent], bool]:
            return lambda event: (
                isinstance(event, LinkEvent)
                and (event.interface_name, event.up, event.removed) == ("near", up, removed)
            )

        ip("link", "add", "near", "type", "veth", "peer", "name", "far")
        ip("link", "set", "near", "up")
        ip("link", "set", "far", "up")
        event = await hear(near(up=True))
        assert isinstance(event, LinkEvent)
        assert event.kind == "veth"
        ip("address", "add", "10.98.0.1/24", "dev", "near")
        await hear(lambda event: event == AddressEvent(socket.if_nametoindex("near"), "10.98.0.1"))
        ip("link", "set", "far", "down")
        await hear(near(up=False))
        assert not any(link.up for link in read_links() if link.interface_name == "near")
        ip("link", "set", "far", "up")
        await hear(near(up=True))
        ip("link", "set", "near", "down")
        await hear(near(up=False))
        ip("link", "del", "near")
        await hear(near(up=False, removed=True))
        watcher.close()

    in_a_fresh_namespace(story)


@linux_only
@pytest.mark.namespaces
def test_a_port_of_a_bridge_is_recognised_and_stays_a_link_when_it_leaves():
    async def story() -> None:
        heard: list[LinkEvent] = []
        left = asyncio.Event()

        def hear(event: LinkEvent) -> None:
            was_a_port = any(earlier.master_index for earlier in heard if earlier.interface_name == "port")
            heard.append(event)
            if event.interface_name == "port" and was_a_port and not event.master_index:
                left.set()

        watcher = LinkWatcher(asyncio.get_running_loop(), hear)
        watcher.open()
        with contextlib.closing(watcher):
            ip("link", "add", "odd", "type", "bridge")
            ip("link", "add", "port", "type", "veth", "peer", "name", "own")
            ip("link", "set", "port", "master", "odd")
            ip("address", "add", "10.98.0.1/24", "dev", "own")
            found = {interface.name: interface for interface in discover()}
            assert (found["odd"].kind, found["own"].kind) == ("bridge", "veth")
            assert (found["port"].master, found["port"].master_kind) == ("odd", "bridge")
            assert found["own"].addresses == ("10.98.0.1",)
            ip("link", "set", "port", "nomaster")
            await asyncio.wait_for(left.wait(), 20)
            assert not any(event.removed for event in heard)

    in_a_fresh_namespace(story)
