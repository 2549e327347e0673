"""What ``connect`` writes into the log: warnings, settings that are no defaults, the table, changes; and its end."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import r2ccl
from r2ccl.rendezvous.free_port import free_port

LOGGER = logging.getLogger("r2ccl")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handlers, level = list(LOGGER.handlers), LOGGER.level
    yield
    assert LOGGER.handlers == handlers, "the file is closed"
    LOGGER.setLevel(level)


def messages(path: Path) -> str:
    return re.sub(r"^[\d-]+ [\d:,]+ \d+ ([A-Z]+) [\w.]+ ", r"\1 ", path.read_text(), flags=re.MULTILINE)


async def two_ranks(path: Path) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"

    async def rank(number: int) -> None:
        nics = f"127.0.1.{number + 1},127.0.2.{number + 1}"
        # Links by NICs between ranks that share memory would follow later.
        connecting = r2ccl.connect(
            rank=number, size=2, rendezvous=url, nics=nics, debug="INFO", debug_file=str(path), secret="swordfish",
            shared_memory="off",
        )  # fmt: skip
        async with connecting as comm:
            await comm.all_reduce(np.ones(4))
            if number == 1:
                comm.report_carrier(1, False)
            await comm.barrier()

    await asyncio.gather(rank(0), rank(1))


def test_a_job_tells_settings_nics_and_changes_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_CHUNK_BYTES", "65536")
    monkeypatch.setenv("R2CCL_CHUNK_BYTE", "65536")
    asyncio.run(two_ranks(tmp_path / "log"))
    text = messages(tmp_path / "log")
    assert "swordfish" not in text
    lines = text.splitlines()
    assert lines.count("WARNING R2CCL_CHUNK_BYTE is not a setting; did you mean 'R2CCL_CHUNK_BYTES'?") == 2
    assert lines.count("INFO setting chunk_bytes=65536 from environment R2CCL_CHUNK_BYTES") == 2
    assert lines.count("INFO setting secret=set from argument") == 2
    assert lines.count("INFO setting nics=127.0.1.2,127.0.2.2 from argument") == 1
    for rank in range(2):
        table = text[text.index(f"INFO NICs of rank {rank} of 2, node ") :].splitlines()[1:4]
        assert table[0].split() == ["NIC", "device", "address", "speed", "MTU", "share", "reaches", "ranks"]
        assert re.search(rf"  nic0  lo +127\.0\.1\.{rank + 1}:\d+ .* carries  {1 - rank}$", table[1])
        assert re.search(rf"  nic1  lo +127\.0\.2\.{rank + 1}:\d+ .* carries  {1 - rank}$", table[2])
        assert ":0 " not in table[1], "where it listens"
    lost = [line for line in lines if "nic=nic1 UP->DOWN cause=carrier epoch=0 op=" in line]
    assert len(lost) == 1
    assert lost[0].startswith("WARNING rank 1 nic=nic1")


def test_what_the_table_leaves_out_it_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with r2ccl.connect(rank=0, size=1, nics="127.0.0.1", debug="INFO", debug_file=str(tmp_path / "log")):
            pass

    asyncio.run(scenario())
    table = messages(tmp_path / "log").partition("INFO NICs of rank 0 of 1")[2]
    assert "carries  none" in table
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    for name in others:
        assert f"left out: {name}: not named by R2CCL_NICS" in table


def test_a_connect_that_fails_closes_its_log(tmp_path: Path) -> None:
    with pytest.raises(r2ccl.ConfigurationError, match="rank 5 of 2 is impossible"):
        r2ccl.connect(rank=5, size=2, debug_file=str(tmp_path / "log"))

    async def scenario() -> None:
        await r2ccl.connect(rank=0, size=1, nics="no-such-nic", debug_file=str(tmp_path / "log"))

    with pytest.raises(r2ccl.ConfigurationError, match="there is no NIC 'no-such-nic'"):
        asyncio.run(scenario())
    assert (tmp_path / "log").exists()


def test_a_log_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(r2ccl.ConfigurationError, match="R2CCL_DEBUG_FILE: .* cannot be opened: No such file"):
        r2ccl.connect(rank=0, size=1, debug_file=str(tmp_path / "missing" / "log"))


def test_a_settings_file_is_what_connect_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r2ccl.toml").write_text(f"debug = 'INFO'\ndebug_file = '{tmp_path}/log'\nchunk_bytes = 1024\n")
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with r2ccl.connect(rank=0, size=1):
            pass

    asyncio.run(scenario())
    assert "INFO setting chunk_bytes=1024 from file r2ccl.toml" in messages(tmp_path / "log")
