"""torch's collectives by c10d's names, on a communicator, and how a group ends.

c10d has several names for one thing, old and new, and each of them is asked for by somebody: the public functions, the
C++ of DDP and of functional collectives, DTensor, FSDP. All are here, once, for both of torch's ways to plug in a
backend. Every call is checked and numbered before it returns, on the caller's thread, so the order of calls is that in
which the program makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from r2ccl.actors.work import Work as CoreWork
from r2ccl.communicator import Communicator
from r2ccl.errors import CommunicatorClosed, R2cclError, UsageError
from r2ccl.torch_backend.dynamo import not_compiled
from r2ccl.torch_backend.group import Failure, Group
from r2ccl.torch_backend.job import Job
from r2ccl.torch_backend.ops import op_of
from r2ccl.torch_backend.own_messages import OwnMessages
from r2ccl.torch_backend.profiling import Span, profiled
from r2ccl.torch_backend.tensors import Loan, in_list, only
from r2ccl.torch_backend.works import Work
from r2ccl.vocabulary import ANY

Arguments = ParamSpec("Arguments")


def told(call: Callable[Concatenate[Calls, Arguments], Work]) -> Callable[Concatenate[Calls, Arguments], Work]:
    """What a call raises, and that the group cannot be used any more, if so; and the call in a profile."""

    @functools.wraps(call)
    def called(calls: Calls, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Work:
        try:
            if not profiled():
                return call(calls, *arguments, **options)
            with Span(call.__name__, (*arguments, *options.values())) as span:
                work = call(calls, *arguments, **options)
                span.until(work)
                return work
        except R2cclError as error:
            raise calls._group.refused(error, call.__name__) from error.__cause__

    return called


@not_compiled
class Calls:
    """Every call of a process group, and its end. Who inherits it sets the attributes."""

    _group: Group
    _own: OwnMessages
    job: Job
    #: Another group goes on with its ranks, in the same job: its end is no longer the job's.
    _has_successor: bool = False

    @property
    def failure(self) -> Failure | None:
        """Why the group refuses work; None while it works."""
        return self._group.failure

    @property
    def communicator(self) -> Communicator:
        """What it runs on, for its ``stats()``, ``events`` and ``counters``."""
        return self._group.communicator

    # All ranks have the result, or one has it.

    @told
    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        tensor = only(tensors, "all_reduce")
        loan = Loan("all_reduce", reduces=True)
        limit_s = self._limit_s(opts)
        part = self._group.communicator.all_reduce(loan.update(tensor), op_of(opts, "all_reduce"), timeout=limit_s)
        return self._group.work([part], loan, [tensor])

    @told
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        found = in_list(tensors, "all_reduce_coalesced")
        loan = Loan("all_reduce_coalesced", reduces=True)
        op, limit_s = op_of(opts, "all_reduce_coalesced"), self._limit_s(opts)
        with self._group.communicator.batch() as batch:
            parts = [batch.all_reduce(loan.update(tensor), op, timeout=limit_s) for tensor in found]
        return self._group.work(parts, loan, found)

    @told
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        tensor = only(tensors, "broadcast")
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        loan = Loan("broadcast")
        lent = loan.read(tensor) if root == self._group.rank else loan.write(tensor)
        limit_s = self._limit_s(opts if timeout is None else timeout)
        part = self._group.communicator.broadcast(lent, root, timeout=limit_s)
        return self._group.work([part], loan, [tensor])

    @told
    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        tensor = only(tensors, "reduce")
        root = getattr(opts, "rootRank", 0)
        loan = Loan("reduce", reduces=True)
        lent = loan.update(tensor) if root == self._group.rank else loan.read(tensor)
        part = self._group.communicator.reduce(lent, root, op_of(opts, "reduce"), timeout=self._limit_s(opts))
        return self._group.work([part], loan, [tensor])

    # Parts of all ranks, one behind the other.

    @told
    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        mine = only(input_tensors, "all_gather")
        outs = self._parts(output_tensors, "all_gather")
        loan = Loan("all_gather")
        part = self._all_gather(loan, outs, mine, opts)
        return self._group.work([part], loan, outs)

    @told
    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        mine = in_list(input_list, "all_gather_coalesced")
        loan = Loan("all_gather_coalesced")
        # One list for each rank, with a tensor for each input.
        lists = [in_list(outs, "all_gather_coalesced") for outs in output_lists]
        if len(lists) != self._group.size or any(len(outs) != len(mine) for outs in lists):
            raise UsageError(
                f"all_gather_coalesced: {self._group.size} ranks with {len(mine)} inputs each need as many lists of as "
                f"many tensors, not {[len(outs) for outs in lists]!r:.80}"
            )
        parts = [self._all_gather(loan, list(outs), one, opts) for *outs, one in zip(*lists, mine, strict=True)]
        return self._group.work(parts, loan, [tensor for outs in lists for tensor in outs])

    @told
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        loan = Loan("all_gather_single")
        part = self._all_gather_single(loan, output, input, opts)
        return self._group.work([part], loan, [output])

    @told
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        outs, mine = in_list(outputs, "all_gather_single_coalesced"), in_list(inputs, "all_gather_single_coalesced")
        loan = Loan("all_gather_single_coalesced")
        parts = [self._all_gather_single(loan, out, one, opts) for out, one in zip(outs, mine, strict=True)]
        return self._group.work(parts, loan, outs)

    @told
    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        mine = only(input_tensors, "gather")
        root = getattr(opts, "rootRank", 0)
        loan = Loan("gather")
        outs: list[Tensor] = []
        room = None
        if root == self._group.rank:
            outs = self._parts(output_tensors, "gather")
            room = [loan.write(one) for one in outs]
        part = self._group.communicator.gather(loan.read(mine), root, room, timeout=self._limit_s(opts))
        return self._group.work([part], loan, outs)

    @told
    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        out = only(output_tensors, "scatter")
        root = getattr(opts, "rootRank", 0)
        loan = Loan("scatter")
        given = None
        if root == self._group.rank:
            given = [loan.read(one) for one in self._parts(input_tensors, "scatter")]
        part = self._group.communicator.scatter(loan.write(out), given, root, timeout=self._limit_s(opts))
        return self._group.work([part], loan, [out])

    @told
    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        out = only(output_tensors, "reduce_scatter")
        loan = Loan("reduce_scatter", reduces=True)
        given = [loan.read(one) for one in self._parts(input_tensors, "reduce_scatter")]
        part = self._group.communicator.reduce_scatter(
            loan.write(out), given, op_of(opts, "reduce_scatter"), timeout=self._limit_s(opts)
        )
        return self._group.work([part], loan, [out])

    @told
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        loan = Loan("reduce_scatter_single", reduces=True)
        part = self._reduce_scatter_single(loan, output, input, opts)
        return self._group.work([part], loan, [output])

    @told
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        name = "reduce_scatter_single_coalesced"
        outs, given = in_list(outputs, name), in_list(inputs, name)
        loan = Loan(name, reduces=True)
        parts = [self._reduce_scatter_single(loan, out, one, opts) for out, one in zip(outs, given, strict=True)]
        return self._group.work(parts, loan, outs)

    # Blocks from all to all.

    @told
    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        outs, given = in_list(output_tensors, "all_to_all"), in_list(input_tensors, "all_to_all")
        if len(outs) != self._group.size or len(given) != self._group.size:
            raise UsageError(f"all_to_all: lists of {len(outs)} and {len(given)} for {self._group.size} ranks")
        loan = Loan("all_to_all")
        dtype = given[0].dtype
        x, out = loan.joined(given, dtype), loan.room(outs, dtype)
        width = x.element_size()
        counts = [one.numel() * one.element_size() // width for one in given]
        out_counts = [one.numel() * one.element_size() // width for one in outs]
        part = self._group.communicator.all_to_all(out, x, out_counts, counts, timeout=self._limit_s(opts))
        return self._group.work([part], loan, outs)

    @told
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        out, x = only(output, "all_to_all_single"), only(input, "all_to_all_single")
        loan = Loan("all_to_all_single")
        lent_out, lent_x = loan.write(out), loan.read(x)
        # Always by counts: some ranks may leave to torch what others say.
        out_counts = self._counts(out, output_split_sizes, lent_out, "output")
        counts = self._counts(x, input_split_sizes, lent_x, "input")
        part = self._group.communicator.all_to_all(lent_out, lent_x, out_counts, counts, timeout=self._limit_s(opts))
        return self._group.work([part], loan, [out])

    @told
    def barrier(self, opts: Any = None) -> Work:
        part = self._group.communicator.barrier(timeout=self._limit_s(opts))
        return self._group.work([part], Loan("barrier"), [torch.empty(0)])

    # Messages.

    @told
    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Work:
        tensor = only(tensors, "send")
        loan = Loan("send")
        lent = loan.read(tensor)
        if dst_rank == self._group.rank:
            part = self._own.send(lent, tag)
        else:
            part = self._group.communicator.send(lent, dst_rank, tag, timeout=self._limit_s(None))
        return self._group.message(part, loan, [tensor], dst_rank, tag)

    @told
    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Work:
        tensor = only(tensors, "recv")
        loan = Loan("recv")
        lent = loan.write(tensor)
        if src_rank == self._group.rank:
            part = self._own.receive(lent, tag)
        else:
            part = self._group.communicator.recv(lent, src_rank, tag, timeout=self._limit_s(None))
        return self._group.message(part, loan, [tensor], src_rank, tag)

    @told
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        tensor = only(tensors, "recv")
        loan = Loan("recv")
        part = self._group.communicator.recv(loan.write(tensor), ANY, tag, timeout=self._limit_s(None))
        return self._group.message(part, loan, [tensor], ANY, tag)

    # The same by their other names.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource

    # Limits, and its end.

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose :class:`~r2ccl.errors.CollectiveTimeout` names all who did not come, on every rank."""
        self.barrier(opts).wait()

    def _set_sequence_number_for_group(self) -> None:
        """The core numbers its operations, from 0."""

    def _get_sequence_number_for_group(self) -> int:
        """How many were called, for torch's checks while debugging."""
        called: int = self._group.communicator.stats()["operations"]["called"]
        return called

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Say goodbye and end, within R2CCL_CLOSE_TIMEOUT. Ending the default group ends all groups of the job."""
        self._own.end(CommunicatorClosed("the process group was destroyed"))
        if self._has_successor:
            return
        if self._is_whole:
            self.job.close()
        else:
            self._group.close()

    def abort(self) -> None:
        """End at once what is under way. Of the default group, and with it all of the job: the others see this rank
        die. Another group fails on all its members, and on no other rank."""
        self._own.end(CommunicatorClosed("the process group was aborted"))
        group = self._group
        if self._has_successor:
            return
        if self._is_whole:
            self.job.abort()
        else:
            who = group.ranks[group.rank]
            group.communicator.abort_alone(f"rank {who} called abort() of the process group {group.name!r}")

    def give_way(self) -> None:
        """Another group goes on with its ranks; to end this one ends nothing any more."""
        self._has_successor = True

    @property
    def _is_whole(self) -> bool:
        """Is it the group of all ranks of its job?"""
        return self._group.communicator is self.job.communicator

    # Parts of a call.

    def _all_gather(self, loan: Loan, outs: list[Tensor], mine: Tensor, opts: Any) -> CoreWork:
        if len(outs) != self._group.size:
            raise UsageError(f"all_gather: a list of {len(outs)} tensors for {self._group.size} ranks")
        lent = [loan.write(out) for out in outs]
        return self._group.communicator.all_gather_into(lent, loan.read(mine), timeout=self._limit_s(opts))

    def _all_gather_single(self, loan: Loan, out: Tensor, mine: Tensor, opts: Any) -> CoreWork:
        out, mine = only(out, "all_gather_single"), only(mine, "all_gather_single")
        if out.numel() != mine.numel() * self._group.size:
            raise UsageError(
                f"all_gather_single: the output has {out.numel()} elements, and {self._group.size} ranks give "
                f"{mine.numel()} each"
            )
        return self._group.communicator.all_gather_into(loan.write(out), loan.read(mine), timeout=self._limit_s(opts))

    def _reduce_scatter_single(self, loan: Loan, out: Tensor, given: Tensor, opts: Any) -> CoreWork:
        out, given = only(out, "reduce_scatter_single"), only(given, "reduce_scatter_single")
        if given.numel() != out.numel() * self._group.size:
            raise UsageError(
                f"reduce_scatter_single: the input has {given.numel()} elements, and {self._group.size} ranks get "
                f"{out.numel()} each"
            )
        op = op_of(opts, "reduce_scatter_single")
        return self._group.communicator.reduce_scatter(
            loan.write(out), loan.read(given), op, timeout=self._limit_s(opts)
        )

    def _parts(self, lists: Any, name: str) -> list[Tensor]:
        """The one list of c10d's lists, with a tensor for each rank."""
        if len(lists) != 1:
            raise UsageError(f"{name}: {len(lists)} lists; they are for several devices, and there is one: pass one")
        found = in_list(lists[0], name)
        if len(found) != self._group.size:
            raise UsageError(f"{name}: a list of {len(found)} tensors for {self._group.size} ranks")
        return found

    def _counts(self, tensor: Tensor, splits: Sequence[int], lent: Tensor, which: str) -> list[int]:
        """Elements of ``lent`` for each rank. Splits are rows of the tensor."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            each, left = divmod(rows, self._group.size)
            if left:
                raise UsageError(
                    f"all_to_all_single: the {which} has {rows} rows, which {self._group.size} ranks do not divide: "
                    f"pass {which}_split_sizes"
                )
            splits = [each] * self._group.size
        if len(splits) != self._group.size or sum(splits) != rows or min(splits) < 0:
            raise UsageError(
                f"all_to_all_single: {which}_split_sizes={list(splits)!r:.80} must be {self._group.size} numbers, "
                f"none negative, that sum up to the {rows} rows"
            )
        return [split * (lent.numel() // rows if rows else 0) for split in splits]

    def _limit_s(self, opts: Any) -> float | None:
        timeout = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        return self._group.limit_s(timeout)
