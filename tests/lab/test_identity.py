"""What makes a host a host: its name, and who it knows."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from r2ccl.lab import Lab, identity


def test_the_hosts_file_names_every_host_and_every_nic():
    assert identity.hosts_file(2, 2).splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        "10.200.0.1 h0 h0-nic0",
        "10.200.1.1 h0 h0-nic1",
        "10.200.0.2 h1 h1-nic0",
        "10.200.1.2 h1 h1-nic1",
    ]


@pytest.mark.namespaces
def test_a_host_has_a_name_and_files_of_its_own_and_the_machine_keeps_its_own(lab: Lab, tmp_path: Path):
    before = (socket.gethostname(), Path("/etc/hosts").read_text(), sorted(os.listdir("/sys/class/net")))
    identity.become_hosts(lab, tmp_path)
    for host in range(2):
        assert lab.call(host, socket.gethostname) == f"h{host}"
        assert lab.call(host, Path("/etc/hosts").read_text) == identity.hosts_file(2, 2)
        assert sorted(lab.call(host, os.listdir, "/sys/class/net")) == ["lo", "nic0", "nic1"]
    assert (socket.gethostname(), Path("/etc/hosts").read_text(), sorted(os.listdir("/sys/class/net"))) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.namespaces
def test_a_hosts_namespaces_are_found_from_outside(lab: Lab):
    for path in identity.namespace_paths(lab, 1):
        own = lab.call(1, os.readlink, f"/proc/thread-self/ns/{os.path.basename(path)}")
        assert os.readlink(path) == own
