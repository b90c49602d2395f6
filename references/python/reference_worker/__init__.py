"""A worker in Python: docs/reference/protocol.md for frameworks that are driven from there.

Each module is the counterpart of one of the crate `worker`, rule for rule: the phases, the timed loop, the warm-up
and the readings mean the same for a reference as for an engine. Nothing but the standard library is needed here;
frameworks are imported by their adapters alone.
"""

import sys

# `import openvino` sends a message to Intel from a process that it forks, beside what is measured, and that may outlive
# the worker. Where this package cannot be imported, it sends none.
sys.modules["openvino_telemetry"] = None
