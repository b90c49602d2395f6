"""Threads of this process: how many there are, what each has computed, where they may run."""

import os

TASKS = "/proc/self/task"


def count():
    """Threads of this process, idle ones included; None where the system does not report."""
    try:
        return len(os.listdir(TASKS))
    except OSError:
        return None


def named(part):
    """Threads of this process that have `part` in their name; None where the system does not report."""
    found = 0
    try:
        for thread in os.listdir(TASKS):
            try:
                with open(f"{TASKS}/{thread}/comm") as file:
                    found += part in file.read()
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has just ended
    except OSError:
        return None
    return found


def cpu_times():
    """(CPU time, time on a run queue) in nanoseconds by thread id; None where the system does not report."""
    times = {}
    try:
        for thread in os.listdir(TASKS):
            try:
                with open(f"{TASKS}/{thread}/schedstat") as file:
                    ran, waited = file.read().split()[:2]
                times[thread] = (int(ran), int(waited))
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has just ended
    except OSError:
        return None
    return times or None


class Used:
    """What threads have used, summed over stretches of time; None once the system did not tell."""

    def __init__(self):
        self._cpu_ns, self.run_queue_ns = {}, 0

    def add(self, before, after):
        """Threads that came in this stretch count from 0; of those that ended in it nothing is known."""
        if before is None or after is None or self._cpu_ns is None:
            self._cpu_ns = self.run_queue_ns = None
            return
        for thread, (ran, waited) in after.items():
            ran_before, waited_before = before.get(thread, (0, 0))
            self._cpu_ns[thread] = self._cpu_ns.get(thread, 0) + max(ran - ran_before, 0)
            self.run_queue_ns += max(waited - waited_before, 0)

    def busiest_first(self):
        """CPU time of each thread that did anything."""
        if self._cpu_ns is None:
            return None
        return sorted((ns for ns in self._cpu_ns.values() if ns > 0), reverse=True)


def cpus():
    """CPUs that any thread of this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = set()
    for thread in os.listdir(TASKS):
        try:
            allowed |= os.sched_getaffinity(int(thread))
        except ProcessLookupError:
            pass
    return sorted(allowed)
