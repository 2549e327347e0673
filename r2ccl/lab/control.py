"""What commands say to a lab's daemon and what it answers: one line of JSON each. Pure.

Lines are bounded before they are read, a request's fields are checked one by one, and an answer is ``{"done": ...}`` or
``{"refused": "why"}``. Whoever may open the socket is the same user already (see registry.py); the checks are there so
that an old or a broken command gets a sentence and not a traceback.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from r2ccl.errors import UsageError

REQUEST_BYTES_MAX: Final = 4096
#: The report on the largest lab takes about half of it.
ANSWER_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Status:
    """How is the lab?"""


@dataclass(frozen=True, slots=True)
class Enter:
    """Programs are about to run. The connection stays open as long as they do: its end is theirs."""

    #: For ``lab status``.
    what: str


@dataclass(frozen=True, slots=True)
class Break:
    """Put a fault on a NIC, instead of one of the same kind that stands there."""

    kind: str
    host: int
    nic: int
    #: Mbit/s of ``rate``, share of ``loss``; nothing else has one.
    amount: float | None = None
    #: None: until it is healed.
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Heal:
    """Undo the faults of one NIC; of all, where none is named."""

    host: int | None = None
    nic: int | None = None


@dataclass(frozen=True, slots=True)
class Down:
    """End the lab."""


Request = Status | Enter | Break | Heal | Down
_REQUESTS: Final = MappingProxyType(
    {"status": Status, "enter": Enter, "break": Break, "heal": Heal, "down": Down},
)
_FIELD_TYPES: Final = MappingProxyType(
    {
        "str": (str,), "int": (int,), "float": (int, float),
        "int | None": (int, type(None)), "float | None": (int, float, type(None)),
    }
)  # fmt: skip


def request_line(request: Request) -> bytes:
    """The inverse of :func:`parse_request`."""
    (name,) = (name for name, kind in _REQUESTS.items() if isinstance(request, kind))
    return json.dumps({"ask": name, **dataclasses.asdict(request)}).encode() + b"\n"


def parse_request(line: bytes) -> Request:
    """What is asked. Raises :class:`UsageError`."""
    said = _object(line)
    kind = _REQUESTS.get(str(said.pop("ask", None)))
    if kind is None:
        raise UsageError("this lab knows no such request")
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    for name, value in said.items():
        # To Python True is a 1; not to us.
        if name not in fields or isinstance(value, bool) or not isinstance(value, _FIELD_TYPES[fields[name]]):
            raise UsageError(f"a request {kind.__name__} cannot have {name} = {value!r}"[:200])
    try:
        request: Request = kind(**said)
        return request
    except TypeError as missing:
        raise UsageError(f"a request {kind.__name__} is not complete") from missing


def answer_line(done: Mapping[str, Any]) -> bytes:
    """What came of a request."""
    return json.dumps({"done": dict(done)}).encode() + b"\n"


def refusal_line(why: str) -> bytes:
    """Nothing came of it."""
    return json.dumps({"refused": why}).encode() + b"\n"


def parse_answer(line: bytes) -> dict[str, Any]:
    """What was done. Raises :class:`UsageError` for what was refused."""
    said = _object(line)
    if "refused" in said:
        raise UsageError(str(said["refused"]))
    if not isinstance(said.get("done"), dict):
        raise UsageError("the lab's answer makes no sense: was it made by another version of r2ccl?")
    return dict(said["done"])


def _object(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as garbage:
        raise UsageError("that is no line of JSON") from garbage
    if not isinstance(said, dict):
        raise UsageError("that is no object of JSON")
    return said


# What a lab tells of itself.


@dataclass(frozen=True, slots=True)
class NicReport:
    """One NIC of a host."""

    name: str
    address: str
    rate_mbit_s: float
    carrier: bool
    #: As the kernel has it: ``up``, ``down``, ``lowerlayerdown``.
    state: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostReport:
    """One emulated host."""

    name: str
    #: Paths of its namespaces, to be entered in this order (see enter_host.py).
    namespaces: tuple[str, ...]
    nics: tuple[NicReport, ...]

    @property
    def network(self) -> str:
        """The one that its NICs are in."""
        return next(path for path in self.namespaces if path.endswith("/net"))


@dataclass(frozen=True, slots=True)
class LabReport:
    """A whole lab."""

    name: str
    pid: int
    layout: str
    rate_mbit_s: float
    hosts: tuple[HostReport, ...]
    #: Path of the network namespace that the other ends of all wires are in.
    switch: str
    #: What was started in it and still runs.
    programs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The inverse of :meth:`parse`."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> LabReport:
        hosts = tuple(
            HostReport(
                host["name"],
                tuple(host["namespaces"]),
                tuple(NicReport(**{**nic, "faults": tuple(nic["faults"])}) for nic in host["nics"]),
            )
            for host in said["hosts"]
        )
        return cls(**{**said, "hosts": hosts, "programs": tuple(said["programs"])})


@dataclass(frozen=True, slots=True)
class Entrance:
    """What whoever runs programs needs to know besides the report."""

    report: LabReport
    #: For the environment of all of them; without it they may outlive the lab.
    mark: str
    #: Free on host 0.
    port: int

    def as_json(self) -> dict[str, Any]:
        """The inverse of :meth:`parse`."""
        return {"report": self.report.as_json(), "mark": self.mark, "port": self.port}

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Entrance:
        return cls(LabReport.parse(said["report"]), said["mark"], said["port"])
