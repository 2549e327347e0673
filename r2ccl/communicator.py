"""What a user holds: a communicator.

    async with r2ccl.connect() as comm:
        await comm.all_reduce(x)

Calls number their operation at once and return a :class:`~r2ccl.actors.work.Work`; several may be in flight, and all
ranks must call them in the same order. Everything runs on the event loop that ``connect`` was awaited on, or, with
``progress="thread"``, on one of its own, and then calls may come from any thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from r2ccl import calls
from r2ccl.actors.runtime import Runtime
from r2ccl.actors.work import Work
from r2ccl.batch import Batch
from r2ccl.calls import Asked
from r2ccl.errors import R2cclError, UsageError
from r2ccl.handle import Handle
from r2ccl.ids import WORLD, communicator_id, objects_id, successor_id
from r2ccl.objects import ObjectBroadcasts, pack_object
from r2ccl.planner.requests import CollectiveKind
from r2ccl.progress import ProgressThread
from r2ccl.protocol.membership import Decide
from r2ccl.protocol.wire import Abort
from r2ccl.reduction import Op, refuse_unsupported
from r2ccl.vocabulary import ANY


class Communicator(Handle):
    """A group of ranks that call collectives together. Made by :func:`connect`, :meth:`split` and :meth:`new_group`.

    Attributes: ``rank`` (this process, 0 <= rank < size), ``size``, ``members`` (each rank's rank in the job).

    Arrays are numpy arrays, torch tensors on the CPU, or anything with the buffer protocol or DLPack, contiguous: any
    integer type, bool, float16, float32, float64, bfloat16 and complex. They are used where they are, without a copy.
    From the call until its ``Work`` is done they are on loan: neither read nor write them.

    All ranks call the same collectives in the same order with the same counts, dtypes, ops and roots; a difference
    raises :class:`~r2ccl.errors.CollectiveMismatch` on all. Calls that need others take ``timeout=`` in seconds
    (default: R2CCL_TIMEOUT_SEC, 0 for none). Calls raise :class:`~r2ccl.errors.UsageError` at once, before anything is
    numbered; awaiting their Work raises PeerLost, CollectiveMismatch, CollectiveTimeout or CommunicatorAborted. After
    any of these the contents of unfinished operations' arrays are undefined, they belong to the caller again, and the
    communicator refuses work. Errors name ranks of the job.
    """

    def __init__(
        self,
        runtime: Runtime,
        number: int,
        members: tuple[int, ...],
        thread: ProgressThread | None = None,
        local_rank: int | None = None,
    ) -> None:
        super().__init__(runtime, number, members, thread, local_rank)
        self._objects: ObjectBroadcasts | None = None
        #: What it was made from; whoever holds a group holds the job's communicator, which is told of forks.
        self._parent: Communicator | None = None
        self._groups_made: dict[tuple[int, ...], int] = {}
        #: Of one that :meth:`shrink` made: who goes on, and how far the old one had come.
        self.recovery: Decide | None = None
        #: What :meth:`shrink` made of this one.
        self._shrunk: Communicator | None = None
        #: A member failed to make it.
        self._lacks_members = False

    # Collectives.

    def all_reduce(self, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> Work:
        """Combine ``x`` of all ranks element by element; the result replaces ``x`` on every rank, the same bits on all.

        ``op``: see :class:`~r2ccl.Op`; of complex numbers SUM and PRODUCT. Returns a Work whose result is ``x``.
        """
        return self._submit(self._all_reduce(x, op), timeout)

    def broadcast(self, x: Any, root: int, *, timeout: float | None = None) -> Work:
        """Copy ``x`` of rank ``root`` into ``x`` of all others. Returns a Work whose result is ``x``.

        On ``root`` itself ``x`` is only read, and may be read-only. There the Work ends when those it sends to have
        called too and hold ``x``; up to R2CCL_EAGER_BYTES it ends at once, for ``x`` goes out from a copy, and a
        difference of calls is then raised by the root's next call.
        """
        return self._submit(self._broadcast(x, root), timeout)

    def reduce(self, x: Any, root: int, op: Op = Op.SUM, *, timeout: float | None = None) -> Work:
        """Combine ``x`` of all ranks; the result replaces ``x`` on rank ``root``. Elsewhere ``x`` is only read.

        The Work's result is ``x`` at the root, None elsewhere.
        """
        self._check_op("reduce", op)
        self._check_root("reduce", root)
        return self._submit(calls.reduce(self._who, x, root, op), timeout)

    def all_gather(self, x: Any, *, timeout: float | None = None) -> Work:
        """``x`` of all ranks, equal in shape and dtype. The Work's result is a list of arrays like ``x`` in order of
        rank, which lie next to one another in new memory (torch tensors if ``x`` is one, else numpy arrays)."""
        self._refuse_if_closed()
        return self._submit(calls.gather_all(self._who, x), timeout)

    def all_gather_into(self, out: Any, x: Any, *, timeout: float | None = None) -> Work:
        """``x`` of all ranks in order of rank into ``out``: an array, cut into parts whose lengths differ by at most
        one element, the longer ones first, or a list with an array for each rank, of any lengths. ``x`` may be this
        rank's part of ``out`` itself; then nothing is copied. The Work's result is ``out``."""
        self._refuse_if_closed()
        return self._submit(calls.all_gather(self._who, out, x), timeout)

    def reduce_scatter(self, out: Any, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> Work:
        """Combine ``x`` of all ranks, and leave each rank its part in ``out``. ``x`` is an array, cut into parts whose
        lengths differ by at most one element, the longer ones first, or a list with an array for each rank, of any
        lengths. It is only read; ``out`` may be this rank's part of it. The Work's result is ``out``."""
        self._check_op("reduce_scatter", op)
        return self._submit(calls.reduce_scatter(self._who, out, x, op), timeout)

    def gather(self, x: Any, root: int, out: Any = None, *, timeout: float | None = None) -> Work:
        """``x`` of all ranks, equal in shape and dtype, to rank ``root``. There the Work's result is ``out``, a list
        with an array for each rank or one array of all, or without it a list as of :meth:`all_gather`; elsewhere
        None."""
        self._check_root("gather", root)
        return self._submit(calls.gather(self._who, x, root, out), timeout)

    def scatter(self, out: Any, xs: Any, root: int, *, timeout: float | None = None) -> Work:
        """``xs[rank]`` of rank ``root`` into ``out`` of each rank. ``xs``: a list with an array for each rank, all as
        long as ``out``, or one array of all of them; None elsewhere. The Work's result is ``out``."""
        self._check_root("scatter", root)
        return self._submit(calls.scatter(self._who, out, xs, root), timeout)

    def all_to_all(
        self,
        out: Any,
        x: Any,
        out_counts: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> Work:
        """Block j of ``x`` to rank j; block i of ``out`` from rank i. Blocks are equal, or have ``counts`` elements of
        ``x`` and ``out_counts`` of ``out``, which all ranks then must pass. What one sends and another expects must
        agree. ``x`` is only read. The Work's result is ``out``."""
        self._refuse_if_closed()
        return self._submit(calls.all_to_all(self._who, out, x, out_counts, counts), timeout)

    def barrier(self, *, timeout: float | None = None) -> Work:
        """Done when every rank has called it."""
        self._refuse_if_closed()
        return self._submit(calls.barrier(), timeout)

    def broadcast_object(self, obj: Any, root: int, *, timeout: float | None = None) -> Work:
        """A small object of rank ``root`` to all: what msgpack can carry (None, bools, numbers, str, bytes, lists,
        dicts), at most 16 MiB packed. Never pickled. The Work's result is the object; tuples arrive as lists. Elsewhere
        ``obj`` is ignored."""
        self._check_root("broadcast_object", root)
        limit_s = self._limit_s("broadcast_object", timeout)
        packed = pack_object(obj) if root == self.rank else None
        work = Work(f"broadcast_object(root={root})", None, self._runtime.shared.thread)
        self._cross(work, self._broadcast_object, packed, root, work, limit_s)
        return work

    def batch(self) -> Batch:
        """Calls to be sent together: many small arrays in few operations. ``with comm.batch() as batch:`` and then
        ``batch.all_reduce(x)``, ``batch.broadcast(x, root)``; see :class:`~r2ccl.batch.Batch`."""
        self._refuse_if_closed()
        return Batch(self._all_reduce, self._broadcast, self._to_batch, self._submit)

    # Messages.

    def send(self, x: Any, target: int, tag: int = 0, *, timeout: float | None = None) -> Work:
        """Send ``x`` to rank ``target``, for the receive there whose turn it is among those with this ``tag``.

        ``0 <= tag < 2**31``. Up to R2CCL_EAGER_BYTES the Work ends at once, for ``x`` goes out from a copy; else when
        the receiver has it. A receive of another count or dtype raises CollectiveMismatch on both ranks.
        """
        peer = self._peer("send", target, tag)
        asked = calls.message(x, False, "send", f"target={target}", tag)
        planned = self._epochs.first.message(asked.call, peer, tag, True)
        work = Work(planned.call, x, self._runtime.shared.thread)
        limit_s = self._limit_s("send", timeout)
        self._cross(work, self._channels.send, peer, tag, planned, asked.arrays[0], work, limit_s)
        return work

    def recv(self, x: Any, source: int = ANY, tag: int = 0, *, timeout: float | None = None) -> Work:
        """Receive into ``x`` what rank ``source``, or whoever is first with ``source=r2ccl.ANY``, sends with ``tag``.

        The Work's result is ``x``; its ``source`` attribute says who sent it.
        """
        peer = None if source == ANY else self._peer("recv", source, tag)
        if peer is None and self.size == 1:
            raise UsageError("recv: there is no other rank")
        self._check_tag("recv", tag)
        asked = calls.message(x, True, "recv", f"source={'any' if peer is None else source}", tag)
        work = Work(asked.call.words.partition("|")[2], x, self._runtime.shared.thread)

        def plan_from(sender: int) -> Any:
            work.source = self.members.index(sender)
            return self._epochs.first.message(asked.call, sender, tag, False)

        limit_s = self._limit_s("recv", timeout)
        self._cross(work, self._channels.receive, peer, tag, plan_from, asked.arrays[0], work, limit_s)
        return work

    # Groups.

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Work:
        """Make communicators: one for each ``color`` (>= 0), of the ranks that gave it, in order of ``key`` and then of
        rank. All ranks call it. The Work's result is this rank's new communicator, or None if its color is None."""
        for name, value in (("color", 0 if color is None else color), ("key", key)):
            if type(value) is not int or not -(1 << 62) < value < 1 << 62 or (name == "color" and value < 0):
                raise UsageError(
                    f"split: {name}={value!r} must be an int" + (", 0 or more, or None" * (name == "color"))
                )
        self._refuse_if_closed()
        mine = np.array([-1 if color is None else color, key], np.int64)
        every = np.empty(2 * self.size, np.int64)

        def make(work: Work) -> None:
            if work.error is not None:
                return
            chosen = sorted((int(every[2 * r + 1]), r) for r in range(self.size) if every[2 * r] == color)
            members = tuple(self.members[rank] for _, rank in chosen)
            work.returns(self._group(members, work.operation, color) if color is not None else None)

        return self._submit(calls.all_gather(self._who, every, mine, "split"), timeout, make)

    def new_group(self, ranks: Sequence[int]) -> Work:
        """A communicator of these ranks of ours, in this order. Only they need call it, and no message is sent. The
        Work's result is the communicator, or None on a rank that is not in it."""
        self._refuse_if_closed()
        try:
            chosen = tuple(ranks)
        except TypeError:
            chosen = ()
        if not chosen or any(type(one) is not int or not 0 <= one < self.size for one in chosen):
            raise UsageError(f"new_group: ranks={ranks!r} must be some of 0 to {self.size - 1}")
        if len(set(chosen)) != len(chosen):
            raise UsageError(f"new_group: ranks={ranks!r} names a rank twice")
        work = Work(f"new_group({list(chosen)})", None, self._runtime.shared.thread)
        # Also where this communicator has failed: some may have called it just before they heard of that.
        self._cross(work, self._new_group, chosen, work, even_if_failed=True)
        return work

    def _new_group(self, chosen: tuple[int, ...], work: Work) -> None:
        if self.rank in chosen:
            turn = self._groups_made[chosen] = self._groups_made.get(chosen, 0) + 1
            members = tuple(self.members[rank] for rank in chosen)
            # Below zero: no operation has such a number.
            work.returns(self._group(members, -turn, zlib.crc32(str(chosen).encode())))
        work.finish(None)

    def _group(self, members: tuple[int, ...], operation: int, color: int) -> Communicator:
        number = communicator_id(self._coordinator.communicator, operation, color)
        made = Communicator(self._runtime, number, members, self._thread)
        made._parent = self

        def failed(error: R2cclError, abort: Abort | None) -> None:
            # A member failed the split that made it, so it never makes it; nor what would have been made from it.
            if abort is not None and (abort.operation <= operation or self._lacks_members):
                made._lacks_members = True
                made._coordinator.failing.fail_with(abort)

        on_failed = self._coordinator.failing.on_failed
        on_failed.append(failed)
        made.when_closed(lambda: on_failed.remove(failed))
        return made

    def shrink(self, *, timeout: float | None = None) -> Work:
        """Go on without the ranks that are lost. All that are left call it, after this communicator has failed.

        The Work's result is a new communicator of the members that reach one another, in the order of their ranks; its
        ``recovery`` says who they are and how far the old one had come: operations below ``completed_by_all`` ended
        well on every member, and ``completed_by_any`` is how far the first of them had got. Closing it ends the job as
        closing this one would. Raises :class:`~r2ccl.errors.NoQuorum` where too few are left to be sure that the others
        do not go on by themselves: it takes more than half of the members, the proven dead not counted, or exactly
        half with the lowest rank. So of two ranks that lose each other the lower goes on alone, and the other raises;
        if one of them died, the other goes on. Raises :class:`~r2ccl.errors.Evicted` on a rank that the others lost.
        With ``timeout`` a member that does not call it is a :class:`~r2ccl.errors.CollectiveTimeout` that names it.
        """
        self._refuse_if_closed()
        work = Work("shrink()", None, self._runtime.shared.thread)
        limit_s = self._limit_s("shrink", timeout)
        self._cross(work, self._shrink, work, limit_s, even_if_failed=True)
        return work

    def _shrink(self, work: Work, limit_s: float) -> None:
        desk = self._runtime.communicators.shrink_desk(self._coordinator.communicator)
        assert desk is not None, "a communicator has a coordinator until all have closed it"

        def done(outcome: Decide | None, error: R2cclError | None) -> None:
            if outcome is not None:
                work.returns(self._shrunk_to(outcome))
            work.finish(error)

        desk.begin(done, limit_s)

    def _shrunk_to(self, outcome: Decide) -> Communicator:
        number = successor_id(self._coordinator.communicator, outcome.members)
        if self._shrunk is None:
            self._shrunk = Communicator(self._runtime, number, outcome.members, self._thread)
            self._shrunk.recovery = outcome
            self._shrunk._ends_job = self._ends_job
            self._shrunk._parent = self
        return self._shrunk

    # The way of a call.

    def _all_reduce(self, x: Any, op: Op) -> Asked:
        self._check_op("all_reduce", op)
        return calls.in_place(CollectiveKind.ALL_REDUCE, x, op, 0, True)

    def _broadcast(self, x: Any, root: int) -> Asked:
        self._check_root("broadcast", root)
        return calls.in_place(CollectiveKind.BROADCAST, x, None, root, root != self.rank)

    def _to_batch(self, asked: Asked, timeout: float | None) -> tuple[Work, float]:
        """A call's Work and limit. What can be wrong with it is found now, not when the batch is sent in part."""
        call = asked.call
        if call.op is not None:
            refuse_unsupported(call.dtype, call.op)
        limit_s = self._limit_s(call.kind.value, timeout)
        return Work(call.kind.value, asked.result, self._runtime.shared.thread), limit_s

    def _broadcast_object(self, packed: bytes | None, root: int, work: Work, limit_s: float) -> None:
        if self._objects is None:
            number = objects_id(self._coordinator.communicator)
            hidden = Communicator(self._runtime, number, self.members, self._thread)
            self._hidden.append(number)
            self._coordinator.failing.share_fate(hidden._coordinator.failing)
            shared = self._runtime.shared
            self._objects = ObjectBroadcasts(
                hidden.rank, hidden._submit_here, shared.clock.now, shared.settings.waiting_max
            )
        self._objects.start(packed, root, work, limit_s)


def world(runtime: Runtime, thread: ProgressThread | None = None, local_rank: int | None = None) -> Communicator:
    """The communicator of all ranks of a runtime."""
    members = tuple(range(runtime.shared.size))
    return Communicator(runtime, WORLD, members, thread, local_rank)
