"""SLURM's short lists of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.rendezvous.hostlist import HOSTS_MAX, expand


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("gpu1", ["gpu1"]),
        ("node[003-005,010],gpu1", ["node003", "node004", "node005", "node010", "gpu1"]),
        ("b,a", ["b", "a"]),
        ("node[7]", ["node7"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("rack[1-2]node[01-02]", ["rack1node01", "rack1node02", "rack2node01", "rack2node02"]),
        ("node[1-2]-ib.cluster", ["node1-ib.cluster", "node2-ib.cluster"]),
        ("[1-2]", ["1", "2"]),
        ("node[1-2],node[1-2]", ["node1", "node2", "node1", "node2"]),
    ],
)
def test_a_list_in_short_is_all_its_hosts_in_order(hostlist, hosts):
    assert list(expand(hostlist)) == hosts


@pytest.mark.parametrize(
    ("hostlist", "sentence"),
    [
        ("", "no list of hosts"),
        (",", "no list of hosts"),
        ("a,", "goes wrong behind 'a,'"),
        ("a,,b", "goes wrong behind 'a,'"),
        ("node[1-2", "no list of hosts"),
        ("node1-2]", "no list of hosts"),
        ("node[]", "no list of hosts"),
        ("node[a-b]", "no list of hosts"),
        ("node[1-]", r"'1-' in \[1-\] is neither a number nor a range"),
        ("node[1,,2]", "'' in"),
        ("node[1-2-3]", "neither a number nor a range"),
        ("node[5-3]", "goes backwards"),
        ("a b", "no list of hosts"),
        ("node[0-99999999999]", "more than 65536 hosts"),
        ("a[0-999]b[0-999]", "more than 65536 hosts"),
        ("a[0-65535],b", "more than 65536 hosts"),
    ],
)
def test_what_is_no_list_of_hosts_is_said_to_be_none(hostlist, sentence):
    with pytest.raises(ValueError, match=sentence):
        expand(hostlist)


def test_as_many_hosts_as_the_bound_are_still_a_list():
    assert len(expand(f"n[1-{HOSTS_MAX}]")) == HOSTS_MAX


@given(st.text(alphabet="ab[]-,0123 ", max_size=24))
def test_no_text_does_anything_else_than_expand_or_be_refused(text):
    try:
        hosts = expand(text)
    except ValueError:
        return
    assert 0 < len(hosts) <= HOSTS_MAX
    assert all(hosts)
    assert not set("[], ") & set("".join(hosts))


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=20), st.integers(1, 5))
def test_numbers_come_back_with_their_width(numbers, width):
    texts = [str(number).zfill(width) for number in numbers]
    assert expand(f"node[{','.join(texts)}]") == tuple(f"node{text}" for text in texts)
