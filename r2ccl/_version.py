"""The version, in the one place that the build, the handshake and ``r2ccl.__version__`` all read."""

from __future__ import annotations

__version__ = "0.1.0"
