"""A process that imports what every rank needs once, and then forks the ranks of a launch.

64 ranks on two cores spend as long on importing numpy and r2ccl, each for itself, as on all else until they have met.
So where there are more ranks than cores, and they run a Python script by this interpreter, ``r2ccl run`` starts one
process that has imported, and has it fork them. What a rank finds is what it would find otherwise: a session of its
own, its environment and arguments, ``__main__``, the script's directory first on the path, the exit codes and traces of
Python. Nothing but imports has happened before: no thread of ours, no loop, no connection.

    launcher -> nursery   {"argv", "environ"} in msgpack, with the descriptors of stdout and stderr
    nursery -> launcher   [process id, None], and when it has ended [process id, its wait status]

The socket between them is the launcher's; when it ends, so does the nursery, and with it, by the kernel's hand (see
rank_process), every rank that is left.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import warnings
from types import ModuleType
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from r2ccl.cli.rank_process import die_with
from r2ccl.config import environment, replace_environment

#: What ranks are about to import. All of it is the same for each of them.
_NEEDED = ("asyncio", "numpy", "r2ccl", "r2ccl.bootstrap", "uvloop")
#: Of one request: an environment may be as large as the system lets a command's be.
REQUEST_BYTES_MAX = 4 << 20


def serve(sock: socket.socket) -> None:
    """Fork what is asked for until nobody can ask any more. Returns in the ranks only, whose script is over."""
    for name in _NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the ranks go on sharing this memory
    children: dict[int, int] = {}
    ours = os.getpid()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != sock.fileno():
                pid = children.pop(descriptor)
                _, status = os.waitpid(pid, 0)
                poll.unregister(descriptor)
                os.close(descriptor)
                _tell(sock, [pid, status])
                continue
            request = _received(sock)
            if request is None:
                os._exit(0)
            asked, (out, err) = request
            pid = _fork()
            if pid == 0:
                sock.close()
                for pidfd in children:
                    os.close(pidfd)
                _become(ours, asked["argv"], asked["environ"], out, err)
                return
            for given in (out, err):
                os.close(given)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            _tell(sock, [pid, None])


def _tell(sock: socket.socket, message: list[int | None]) -> None:
    try:
        sock.sendall(_framed(message))
    except OSError:
        os._exit(0)  # the launcher is gone


def _fork() -> int:
    with warnings.catch_warnings():
        # Of numpy's own threads, which it ends before a fork and starts again after it.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(nursery: int, argv: list[str], environ: dict[str, str], out: int, err: int) -> None:
    """In the child: be the rank, from its birth to the end of its script."""
    os.setsid()
    for given, name in ((out, 1), (err, 2)):
        os.dup2(given, name)
        os.close(given)
    if not die_with(nursery):
        os._exit(1)
    own = environment().get("LC_CTYPE")  # which Python sets itself in a shell without a language
    replace_environment({**({} if own is None else {"LC_CTYPE": own}), **environ})
    sys.argv = argv
    if not environ.get("PYTHONSAFEPATH"):  # our own flag is for the imports that ranks share
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
    main = ModuleType("__main__")
    main.__dict__.update(__file__=argv[0], __spec__=None, __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    try:
        with io.open_code(os.path.abspath(argv[0])) as script:
            source = script.read()
    except OSError as failure:
        print(f"{sys.executable}: can't open file {os.path.abspath(argv[0])!r}: {failure}", file=sys.stderr)
        sys.exit(2)
    try:
        code = compile(source, argv[0], "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the script
        # As Python would tell of it: from the script's first line on.
        trace = None if error.__traceback__ is None else error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


# Both ends.


def _framed(message: Any) -> bytes:
    packed: bytes = msgpack.packb(message)
    return len(packed).to_bytes(4, "little") + packed


def ask(sock: socket.socket, argv: list[str], environ: dict[str, str], out: int, err: int) -> None:
    """Have a rank forked. Blocks until the nursery has taken the request, which it does between two forks."""
    request = _framed({"argv": argv, "environ": environ})
    sent = socket.send_fds(sock, [request], [out, err])
    sock.sendall(request[sent:])


def _received(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request, with its descriptors. None: the launcher is gone."""
    data, descriptors, _, _ = socket.recv_fds(sock, 4, 2, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC)
    if len(data) < 4:
        return None
    left = int.from_bytes(data, "little")
    assert left <= REQUEST_BYTES_MAX
    packed = bytearray()
    while left > len(packed):
        piece = sock.recv(left - len(packed))
        if not piece:
            return None
        packed += piece
    return msgpack.unpackb(bytes(packed)), list(descriptors)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
