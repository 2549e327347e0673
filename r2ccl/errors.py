"""Every error a caller can see, by whose fault it is: ours, the network's, or a bug.

``definite`` says whether the failed call surely had no effect (True: it may simply be called again) or may have had
one (False). Each docstring ends with the state that things are left in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Between a call and what its plan depends on besides, where that is what differs.
UNDER = " under "


class R2cclError(Exception):
    """Base of all errors of this library."""

    definite: bool = False


class UsageError(R2cclError):
    """The call was wrong: a bad argument, a closed communicator, too many operations waiting.

    Raised before anything is numbered or sent: nothing changed, the communicator goes on.
    """

    definite = True


class ConfigurationError(UsageError):
    """A setting is wrong or missing. Nothing was opened."""


class RendezvousError(R2cclError):
    """The ranks did not find or did not admit one another within the deadline.

    Everything that had been opened is closed again; ``connect`` may be called anew.
    """

    definite = True


class AuthenticationError(RendezvousError):
    """A peer could not prove that it knows the job's secret, or belongs to another job or version.

    The connection is closed; nothing that the peer sent reached anything but the handshake.
    """


class NetworkError(R2cclError):
    """Base of what the network or a peer did to us."""


class PeerLost(NetworkError):
    """One or more ranks are gone: proven dead, or unreachable on every path for the grace time.

    ``ranks`` says which, all that are known to be lost when it is raised; ``cause`` is ``"dead"``, if all of them are
    proven dead, or ``"unreachable"``; ``verdict`` says why we think so. The contents
    of in-place buffers of unfinished operations are undefined, their ownership is back with the caller, and the
    communicator refuses further work.
    """

    def __init__(self, ranks: Sequence[int], cause: str, verdict: str = "") -> None:
        self.ranks = tuple(ranks)
        self.cause = cause
        self.verdict = verdict
        super().__init__(
            f"lost rank(s) {', '.join(map(str, self.ranks))}: {cause}" + (f" ({verdict})" if verdict else "")
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.ranks, self.cause, self.verdict)


class NoQuorum(R2cclError):
    """``shrink()``: this rank and those it reaches may not go on without the others.

    More than half of the last membership, less those proven dead, is needed; of exactly two halves the one with the
    lowest rank goes on. ``reached`` lists the ranks that were reached, this one included. The communicator stays
    failed.
    """

    def __init__(self, reached: Sequence[int], needed: int) -> None:
        self.reached = tuple(reached)
        self.needed = needed
        super().__init__(
            f"only rank(s) {', '.join(map(str, self.reached)) or 'none'} left, and {needed} are needed to go on: "
            "the others may be alive and go on without us"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reached, self.needed)


class Evicted(R2cclError):
    """``shrink()``: the other ranks lost this one, and went on without it. The communicator stays failed."""


class CollectiveMismatch(R2cclError):
    """Ranks called different things under the same operation number.

    ``calls`` maps rank to what it called, as far as known, and under which settings and epoch, where these differ.
    No rank got a result; in-place buffers of the operation are
    undefined and the communicator refuses further work.
    """

    def __init__(self, operation: int, calls: Mapping[int, str]) -> None:
        self.operation = operation
        self.calls = dict(calls)
        listing = "; ".join(f"rank {rank} called {call}" for rank, call in sorted(self.calls.items()))
        alike = len(self.calls) > 1 and len({call.partition(UNDER)[0] for call in self.calls.values()}) == 1
        what = "is called alike by all, but under settings or epochs that differ" if alike else "differs between ranks"
        super().__init__(f"operation {operation} {what}: {listing}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.operation, self.calls)


class CollectiveTimeout(R2cclError):
    """An operation did not finish within its ``timeout``.

    ``not_entered`` lists ranks that never called it as far as we heard, ``entered`` those that called it and have not
    finished, ``finished`` those that have. The buffer is back with the caller (no path holds it any more), its
    contents are undefined, and the communicator refuses further work on every rank.
    """

    def __init__(
        self,
        operation: int,
        call: str,
        timeout_s: float,
        not_entered: Sequence[int] = (),
        entered: Sequence[int] = (),
        finished: Sequence[int] = (),
    ) -> None:
        self.operation = operation
        self.call = call
        self.timeout_s = timeout_s
        self.not_entered = tuple(not_entered)
        self.entered = tuple(entered)
        self.finished = tuple(finished)
        super().__init__(
            f"operation {operation} ({call}) did not finish in {timeout_s:g} s: "
            f"not entered: {list(self.not_entered)}, entered without finishing: {list(self.entered)}, "
            f"finished: {list(self.finished)}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        arguments = (self.operation, self.call, self.timeout_s, self.not_entered, self.entered, self.finished)
        return type(self), arguments


class CommunicatorAborted(R2cclError):
    """Another rank failed or aborted the communicator for a reason of its own, which ``str`` of this error gives.

    State as after :class:`PeerLost`.
    """


class CommunicatorClosed(UsageError):
    """The communicator was closed, or this process is a fork of the one that owns it.

    A call that raises it sent nothing. The Work of an operation that was under way when the communicator closed fails
    with it, too: other ranks may have its result, and the contents of its arrays, which are the caller's again, are
    undefined. ``in_child``: this process is a fork, and the owner goes on.
    """

    in_child: bool = False


class InvalidTransition(R2cclError):
    """A state machine met an event that its table does not know: a bug. The story so far is in the message.

    The machine must not be used any further.
    """
