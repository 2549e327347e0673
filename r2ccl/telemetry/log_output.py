"""Where the log goes: to the file that was asked for, to standard error, or wherever the program sends it.

Everything is told to the logger ``r2ccl`` of Python's ``logging``. A program that has handlers of its own gets it all
there, and nothing is added. Otherwise lines go to standard error, if more than warnings are wanted: those Python writes
there by itself. A file is written in any case, because somebody asked for it by name.

One process has one logger, and may connect several times. So an output is opened once and has users: the first brings
it, the last takes it away, and no line is written twice.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from io import TextIOWrapper
from typing import TextIO

from r2ccl.errors import ConfigurationError

_LOGGER = logging.getLogger("r2ccl")
_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"


class _File(logging.FileHandler):
    """Appends, so that ranks may share a file; flushed with every line; read by its owner only."""

    users = 0

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace", opener=_open_private)


class _StandardError(logging.StreamHandler[TextIO]):
    users = 0


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def log_path(pattern: str, host: str, process: int) -> str:
    """A path with ``%h`` and ``%p`` filled in. Any other ``%`` is itself."""
    words = {"%h": host, "%p": str(process)}
    return re.sub("%[hp]", lambda found: words[found[0]], pattern)


def open_log(level: int, file: str) -> Callable[[], None]:
    """Send the log from ``level`` on to ``file``, or to standard error where it is empty. Returns what ends that.

    Raises :class:`ConfigurationError` if the file cannot be opened.
    """
    if level < logging.WARNING:
        _LOGGER.setLevel(level)  # else what the program chose stays
    output: _File | _StandardError
    if file:
        output = _file_output(log_path(file, socket.gethostname(), os.getpid()))
    elif level >= logging.WARNING:
        return _nothing
    else:
        ours = [handler for handler in _LOGGER.handlers if isinstance(handler, _StandardError)]
        if not ours and _LOGGER.hasHandlers():
            return _nothing
        output = ours[0] if ours else _StandardError()
    if not output.users:
        output.setFormatter(logging.Formatter(_FORMAT))
        _LOGGER.addHandler(output)
    output.users += 1
    return _Closing(output)


def _nothing() -> None:
    """Nothing was opened, so nothing is to be ended."""


class _Closing:
    """Takes one user from an output, once, and the output away with the last."""

    def __init__(self, output: _File | _StandardError) -> None:
        self._output: _File | _StandardError | None = output

    def __call__(self) -> None:
        output, self._output = self._output, None
        if output is None:
            return
        output.users -= 1
        if not output.users:
            _LOGGER.removeHandler(output)
            output.close()


def _file_output(path: str) -> _File:
    path = os.path.abspath(path)
    for handler in _LOGGER.handlers:
        if isinstance(handler, _File) and handler.baseFilename == path:
            return handler
    try:
        return _File(path)
    except OSError as refused:
        raise ConfigurationError(f"R2CCL_DEBUG_FILE: {path} cannot be opened: {refused.strerror}") from refused
