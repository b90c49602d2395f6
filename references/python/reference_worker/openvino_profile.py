"""What OpenVINO's counters say of each node and step.

OpenVINO keeps, of each node, the average of all inferences so far in whole microseconds, and no times of day.
"""


class Profile:
    """Counts from when it is made, on a request whose model was compiled with `PERF_COUNT`. `has_parts`: whether names
    of nodes begin with the part of the model."""

    def __init__(self, request, has_parts=True):
        self._request, self._has_parts, self._events, self._steps = request, has_parts, [], 0
        # By node: the sum so far, as it was after the step before.
        self._sums = {}

    def note(self):
        """After each inference."""
        for node in self._request.profiling_info:
            if str(node.status).rpartition(".")[2] != "EXECUTED":
                continue
            average = round(node.real_time.total_seconds() * 1e6)
            total = average * (self._steps + 1)
            before = self._sums.get(node.node_name, 0)
            # The average is cut to whole microseconds, so a sum may seem to stand still or to fall. It was
            # computed nonetheless.
            self._sums[node.node_name] = max(total, before)
            self._events.append(event(node, self._has_parts, self._steps, max(total - before, 0) * 1000))
        self._steps += 1

    def end(self):
        notes = [
            "OpenVINO tells durations alone: its events stand one after another from the beginning of their step, in the "
            "order of execution.",
            "It tells the average of all steps so far in whole microseconds: what a node took in one step is right to "
            f"within a microsecond for each step before it, so to within {self._steps} at the end. What seems to have "
            "taken nothing took less than that.",
        ]
        return {"profiler": "OpenVINO's performance counters", "clock": "none", "events": self._events, "notes": notes}


def event(node, has_parts, step, duration_ns):
    part, slash, name = node.node_name.rpartition("/") if has_parts else ("", "", node.node_name)
    return {
        "name": node.node_type, "part": part if slash else None, "thread": "nodes", "step": step,
        "duration_ns": duration_ns, "details": {"node": name, "kernel": node.exec_type},
    }
