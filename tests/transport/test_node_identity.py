"""Which processes count as being on one node."""

from __future__ import annotations

import re
from pathlib import Path

from r2ccl.transport.node_identity import node_id


def test_a_node_is_the_same_for_all_who_ask():
    assert node_id() == node_id()
    assert re.fullmatch("[0-9a-f]{16}", node_id())


def test_what_the_user_says_is_taken_as_it_is():
    assert node_id("host-a") == "host-a"


def make_root(root: Path, boot_id: str = "boot", namespace: str = "ns") -> Path:
    (root / "proc/sys/kernel/random").mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/net").write_text(namespace)
    (root / "dev/shm").mkdir(parents=True)
    return root


def test_another_boot_is_another_node(tmp_path):
    root = make_root(tmp_path)
    before = node_id(root=root)
    (root / "proc/sys/kernel/random/boot_id").write_text("another boot\n")
    assert node_id(root=root) != before


def test_another_network_namespace_is_another_node(tmp_path):
    root = make_root(tmp_path)
    before = node_id(root=root)
    (root / "other").write_text("")  # an inode of its own
    (root / "proc/self/ns/net").unlink()
    (root / "other").rename(root / "proc/self/ns/net")
    assert node_id(root=root) != before


def test_another_shared_memory_is_another_node(tmp_path):
    root = make_root(tmp_path)
    before = node_id(root=root)
    (root / "dev/shm").rmdir()
    (root / "dev/shm").symlink_to("/proc")  # another file system
    assert node_id(root=root) != before


def test_a_system_without_any_of_these_still_has_an_identity(tmp_path):
    assert node_id(root=tmp_path) == node_id(root=tmp_path) != node_id()
