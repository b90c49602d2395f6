"""The clock: `CLOCK_MONOTONIC`, which the driver reads too, so that spawning can be compared with readings here."""

from time import monotonic_ns as now_ns
from time import process_time_ns as cpu_ns

__all__ = ["now_ns", "cpu_ns"]
