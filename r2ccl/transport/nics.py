"""Which interfaces of this host a rank uses, and why it leaves the others out.

:func:`select` decides, over plain data. :func:`discover` asks the system. By default a rank uses what carries traffic
between hosts: interfaces that are up and have an IPv4 address of their own. Bridges, their ports, tunnels and dummies
share a wire with something else, so a lane on one would be a second lane on the same NIC. A veth with an address is
what a container calls eth0, and stays.

What a person names is taken at its word: also a tunnel, also one that is down now (its index, which is its identity on
the wire, must not depend on the weather). Loopback is used when the rendezvous is on loopback, or nothing else exists.
Loopback and link-local addresses are never announced to a rank that may be on another host, where they would mean
that host itself.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from r2ccl.errors import ConfigurationError
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.link_events import LinkEvent, link_events_available, read_links

#: Kinds of links, as the kernel calls them, that share a wire with something else.
_BRIDGES = frozenset({"bridge", "openvswitch"})
_TUNNELS = frozenset({
    "tun", "ipip", "sit", "gre", "gretap", "ip6gre", "ip6gretap", "ip6tnl", "erspan", "ip6erspan", "wireguard", "vxlan",
    "geneve", "vti", "vti6", "xfrm", "gtp", "bareudp", "amt", "ipsec", "ppp",
})  # fmt: skip
_DUMMIES = frozenset({"dummy", "ifb", "nlmon", "netdevsim"})
#: Masters whose ports have no life of their own. A port of a vrf keeps its address and its traffic.
_MASTERS = frozenset({"bridge", "openvswitch", "bond", "team"})
#: Where the system does not tell kinds: how such interfaces are usually called.
_KINDS_BY_PREFIX = (
    ("docker", "bridge"), ("br-", "bridge"), ("virbr", "bridge"), ("bridge", "bridge"), ("tun", "tun"), ("tap", "tun"),
    ("utun", "tun"), ("wg", "wireguard"), ("sit", "sit"), ("gre", "gre"), ("gif", "ipip"), ("stf", "sit"),
    ("ipsec", "ipsec"), ("dummy", "dummy"), ("awdl", "dummy"), ("llw", "dummy"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interface:
    """What the system says about one interface."""

    name: str
    #: IPv4 only, in the system's order.
    addresses: tuple[str, ...]
    up: bool = True
    loopback: bool = False
    #: As the kernel calls it, such as ``veth`` or ``bridge``; empty for hardware or where it does not say.
    kind: str = ""
    #: Name and kind of the bridge or bond that this is a port of.
    master: str = ""
    master_kind: str = ""
    speed_mbit_s: int = 0
    mtu_bytes: int = 1500
    #: Answers for every address of 127.0.0.0/8, as Linux's lo does.
    whole_loopback_network: bool = False


class Match(enum.Enum):
    """How the items of a selector are compared."""

    NAME_OR_ADDRESS = "name or address"
    PREFIX = "prefix of a name"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Selector:
    """What a person asked for: these in this order, or all usable ones but these. Both empty: all usable ones."""

    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    match: Match = Match.NAME_OR_ADDRESS
    #: Where it was read, for messages.
    variable: str = "R2CCL_NICS"

    def hits(self, item: str, interface: Interface) -> bool:
        """Whether an item means that interface."""
        if self.match is Match.PREFIX:
            return interface.name.startswith(item)
        return interface.name == item or (self.match is Match.NAME_OR_ADDRESS and item in interface.addresses)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An interface that is not used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The NICs of a rank in the order of their indices, and what was left out."""

    nics: tuple[Nic, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(slots=True)
class _Choice:
    interface: Interface
    host: str
    spare: bool = False

    def is_at(self, other: _Choice) -> bool:
        return (self.interface.name, self.host) == (other.interface.name, other.host)


def parse_selector(text: str, variable: str = "R2CCL_NICS") -> Selector:
    """``eth0,10.0.0.3`` takes those; ``^eth2,^docker0`` leaves those out. Raises :class:`ConfigurationError`."""
    items = _items(text)
    excluded = tuple(item[1:].strip() for item in items if item.startswith("^"))
    included = tuple(item for item in items if not item.startswith("^"))
    if (included and excluded) or "" in excluded:
        raise ConfigurationError(
            f"{variable}={text!r}: give either the NICs to use (eth0,eth1) or those to leave out, "
            "each with its own ^ (^eth2,^eth3)"
        )
    return Selector(included, excluded, Match.NAME_OR_ADDRESS, variable)


def parse_nccl_selector(text: str, variable: str = "NCCL_SOCKET_IFNAME") -> Selector:
    """NCCL's grammar: a list of prefixes; ``=`` in front makes them whole names, ``^`` excludes (``^=`` both)."""
    rest = text.strip()
    excluding = rest.startswith("^")
    rest = rest.removeprefix("^")
    match = Match.NAME if rest.startswith("=") else Match.PREFIX
    items = _items(rest.removeprefix("="))
    return Selector((), items, match, variable) if excluding else Selector(items, (), match, variable)


def choose_selector(nics: str, environ: Mapping[str, str]) -> Selector:
    """Our own setting if it is there, else what the user has already told NCCL or gloo."""
    if nics.strip():
        return parse_selector(nics)
    if environ.get("NCCL_SOCKET_IFNAME", "").strip():
        return parse_nccl_selector(environ["NCCL_SOCKET_IFNAME"])
    if environ.get("GLOO_SOCKET_IFNAME", "").strip():
        return Selector(_items(environ["GLOO_SOCKET_IFNAME"]), (), Match.NAME, "GLOO_SOCKET_IFNAME")
    return Selector()


def select(
    interfaces: Sequence[Interface],
    selector: Selector,
    spares: str = "",
    *,
    rendezvous_is_loopback: bool = False,
) -> Selection:
    """The NICs to use. Raises :class:`ConfigurationError` that lists what exists.

    Spares that the selector does not name are used in addition to what it names.
    """
    if selector.included:
        choices = _included(interfaces, selector)
    else:
        choices = _usable(interfaces, selector, rendezvous_is_loopback)
    _mark_spares(choices, interfaces, selector, spares)
    if not any(not choice.spare for choice in choices):
        what = "all NICs are spares" if choices else f"no NIC is usable with {selector.variable or 'these settings'}"
        raise ConfigurationError(f"{what}; at least one must carry traffic. {_listing(interfaces)}")
    # Where loopback is all there is, it is right for a job on this host, and the rendezvous refuses any other.
    elsewhere = not rendezvous_is_loopback and any(_reason(interface) is None for interface in interfaces)
    _refuse_unreachable(choices, selector, elsewhere, rendezvous_is_loopback)
    used = {choice.interface.name for choice in choices}
    left_out = [
        LeftOut(interface.name, _why_not(interface, selector, rendezvous_is_loopback))
        for interface in interfaces
        if interface.name not in used
    ]
    return Selection(tuple(_nic(index, choice) for index, choice in enumerate(choices)), tuple(left_out))


def _included(interfaces: Sequence[Interface], selector: Selector) -> list[_Choice]:
    choices: list[_Choice] = []
    for item in selector.included:
        found = _find(interfaces, selector, item)
        if selector.match is not Match.PREFIX and not found:
            raise ConfigurationError(f"{selector.variable}: there is no NIC {item!r}. {_listing(interfaces)}")
        for choice in found:
            # One loopback address may come twice: systems that have no other tell such NICs apart by their ports.
            if not choice.interface.loopback and any(choice.is_at(earlier) for earlier in choices):
                if selector.match is Match.PREFIX:
                    continue
                raise ConfigurationError(f"{selector.variable} names {choice.interface.name} ({choice.host}) twice")
            choices.append(choice)
    if not choices:
        wanted = ",".join(selector.included)
        raise ConfigurationError(f"{selector.variable}={wanted} matches no NIC. {_listing(interfaces)}")
    return choices


def _find(interfaces: Sequence[Interface], selector: Selector, item: str) -> list[_Choice]:
    choices = []
    for interface in interfaces:
        if selector.hits(item, interface):
            if not interface.addresses:
                if selector.match is Match.PREFIX:
                    continue
                raise ConfigurationError(f"{selector.variable}: {interface.name} has no IPv4 address")
            choices.append(_Choice(interface, item if item in interface.addresses else _best_address(interface)))
        elif interface.whole_loopback_network and selector.match is Match.NAME_OR_ADDRESS and _is_loopback(item):
            choices.append(_Choice(interface, item))
    return choices


def _usable(interfaces: Sequence[Interface], selector: Selector, rendezvous_is_loopback: bool) -> list[_Choice]:
    for item in selector.excluded:
        # NCCL ignores exclusions that match nothing, and users list there what only some hosts have.
        known = any(selector.hits(item, interface) for interface in interfaces)
        if selector.match is Match.NAME_OR_ADDRESS and not known:
            raise ConfigurationError(f"{selector.variable}: there is no NIC {item!r}. {_listing(interfaces)}")
    allowed = [
        interface for interface in interfaces if not any(selector.hits(item, interface) for item in selector.excluded)
    ]
    loopbacks = [interface for interface in allowed if interface.loopback and interface.up and interface.addresses]
    others = [interface for interface in allowed if _reason(interface) is None]
    chosen = loopbacks if rendezvous_is_loopback or not others else others
    return [_Choice(interface, _best_address(interface)) for interface in chosen]


def _mark_spares(choices: list[_Choice], interfaces: Sequence[Interface], selector: Selector, spares: str) -> None:
    wanted = parse_selector(spares, "R2CCL_SPARE_NICS")
    if wanted.excluded:
        raise ConfigurationError("R2CCL_SPARE_NICS takes names and addresses; ^ means nothing there")
    for spare in _included(interfaces, wanted) if wanted.included else []:
        if any(selector.hits(item, spare.interface) for item in selector.excluded):
            raise ConfigurationError(f"{selector.variable} leaves out {spare.interface.name}, a spare NIC")
        already = [choice for choice in choices if choice.is_at(spare)]
        if not already:
            choices.append(spare)
        for choice in already or [spare]:
            choice.spare = True


def _refuse_unreachable(
    choices: Sequence[_Choice], selector: Selector, elsewhere: bool, rendezvous_is_loopback: bool
) -> None:
    for choice in choices:
        where = f"{selector.variable}: {choice.interface.name} ({choice.host})"
        if _is_link_local(choice.host):
            raise ConfigurationError(f"{where} is a link-local address, which other hosts cannot reach")
        if _is_loopback(choice.host) and elsewhere and not rendezvous_is_loopback:
            raise ConfigurationError(
                f"{where} is a loopback address, but the rendezvous is not: ranks on other hosts could not reach it. "
                "Name another NIC, or use tcp://127.0.0.1:PORT (MASTER_ADDR=127.0.0.1) for a job on this host alone"
            )


def _reason(interface: Interface) -> str | None:
    """Why an interface is not usable by default."""
    kind = interface.kind or _kind_by_name(interface.name)
    if interface.loopback:
        return "loopback"
    if interface.master_kind in _MASTERS:
        return f"a port of {interface.master}"
    for kinds, word in ((_BRIDGES, "a bridge"), (_TUNNELS, f"a tunnel ({kind})"), (_DUMMIES, "a dummy")):
        if kind in kinds:
            return word
    if not interface.up:
        return "down"
    if not interface.addresses:
        return "no IPv4 address"
    if all(_is_link_local(address) for address in interface.addresses):
        return "only a link-local address"
    return None


def _why_not(interface: Interface, selector: Selector, rendezvous_is_loopback: bool) -> str:
    if any(selector.hits(item, interface) for item in selector.excluded):
        return f"excluded by {selector.variable}"
    if selector.included:
        return f"not named by {selector.variable}"
    return _reason(interface) or ("the rendezvous is on loopback" if rendezvous_is_loopback else "not usable")


def _kind_by_name(name: str) -> str:
    return next((kind for prefix, kind in _KINDS_BY_PREFIX if name.startswith(prefix)), "")


def _best_address(interface: Interface) -> str:
    return min(interface.addresses, key=_is_link_local)


def _nic(index: int, choice: _Choice) -> Nic:
    interface = choice.interface
    endpoint = Endpoint("inet", choice.host, 0)
    return Nic(index, interface.name, endpoint, interface.speed_mbit_s, interface.mtu_bytes, choice.spare)


def _listing(interfaces: Sequence[Interface]) -> str:
    if not interfaces:
        return "The system knows no interface at all"
    words = []
    for interface in interfaces:
        reason = _reason(interface)
        addresses = " ".join(interface.addresses) or "no IPv4 address"
        words.append(f"{interface.name} ({addresses}{'; ' + reason if reason else ''})")
    return "There are: " + ", ".join(words)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.IPv4Address(host).is_link_local
    except ValueError:
        return False


def find_nics(nics: str, spare_nics: str, *, rendezvous_is_loopback: bool, environ: Mapping[str, str]) -> Selection:
    """This rank's NICs, by the settings ``nics`` and ``spare_nics`` and what the system has, and why not the others.

    ``environ`` is asked for NCCL's and gloo's settings. Raises :class:`ConfigurationError`.
    """
    log = logging.getLogger(__name__)
    selector = choose_selector(nics, environ)
    if selector.variable != "R2CCL_NICS":
        log.warning("R2CCL_NICS is not set; going by %s=%s", selector.variable, environ[selector.variable])
    selection = select(discover(), selector, spare_nics, rendezvous_is_loopback=rendezvous_is_loopback)
    for nic in selection.nics:
        log.info("nic=%d name=%s address=%s spare=%s", nic.index, nic.name, nic.endpoint.host, nic.spare)
    for left_out in selection.left_out:
        log.debug("nic left out: %s: %s", left_out.name, left_out.reason)
    return selection


def discover() -> list[Interface]:
    """The interfaces of this process's network namespace, in the kernel's order."""
    links = _links()
    names_by_index = {link.interface_index: link.interface_name for link in links.values()}
    addresses = _addresses()
    stats = psutil.net_if_stats()
    names = [*links, *sorted(addresses.keys() - links.keys())]
    interfaces = []
    for name in names:
        link, state, own = links.get(name), stats.get(name), tuple(addresses.get(name, ()))
        master = names_by_index.get(link.master_index, "") if link else ""
        loopback = name in ("lo", "lo0") or any(map(_is_loopback, own))
        interfaces.append(
            Interface(
                name=name,
                addresses=own,
                up=bool(state and state.isup),
                loopback=loopback,
                kind=link.kind if link else "",
                master=master,
                master_kind=links[master].kind if master else "",
                speed_mbit_s=state.speed if state else 0,
                mtu_bytes=state.mtu if state else 1500,
                whole_loopback_network=loopback and sys.platform == "linux",
            )
        )
    return interfaces


def _links() -> dict[str, LinkEvent]:
    """What the kernel says of kinds and masters, in the order of its indices; empty where it does not say."""
    if not link_events_available():
        return {}
    try:
        links = read_links()
    except OSError as refused:
        # Some sandboxes have no netlink. Then names have to do, which is no reason not to run.
        logging.getLogger(__name__).info("no kinds of interfaces: netlink says %s", refused)
        return {}
    return {link.interface_name: link for link in sorted(links, key=lambda link: link.interface_index)}


def _addresses() -> dict[str, list[str]]:
    addresses: dict[str, list[str]] = {}
    for label, entries in psutil.net_if_addrs().items():
        # A second address may carry a label of its own, such as eth0:1; the interface is eth0.
        own = addresses.setdefault(label.partition(":")[0], [])
        own += [entry.address for entry in entries if entry.family == socket.AF_INET]
    return addresses
