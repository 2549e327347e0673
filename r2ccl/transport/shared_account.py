"""What a ring tells of its path, in the words of a kernel's account of a connection."""

from __future__ import annotations

from r2ccl.transport.interface import PathSample
from r2ccl.transport.shared_ring import RingWriter

#: What is called a segment.
SEGMENT_BYTES = 4096
#: The round trip: what one core needs to see what another stored, about; nobody sleeps in memory.
ROUND_TRIP_S = 1e-6


def sample(writer: RingWriter, unsent_bytes: int) -> PathSample:
    """Of a ring that so many bytes wait for."""
    in_flight = min(writer.capacity, max(0, writer.head - writer.tail_seen()))
    acked = writer.head - in_flight
    return PathSample(
        in_flight_bytes=in_flight,
        unsent_bytes=unsent_bytes,
        silence_s=0.0,
        rtt_s=ROUND_TRIP_S,
        limited=in_flight == 0,
        sent_segments=-(-writer.head // SEGMENT_BYTES),
        answered_segments=-(-acked // SEGMENT_BYTES),
        acked_bytes=acked,
    )
