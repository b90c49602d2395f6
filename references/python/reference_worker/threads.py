"""Threads of this process: how many there are, what each has computed, where they may run."""

import os

TASKS = "/proc/self/task"


def count():
    """Threads of this process, idle ones included; None where the system does not tell."""
    try:
        return len(os.listdir(TASKS))
    except OSError:
        return None


def cpu_times():
    """(CPU time, time on a run queue) in nanoseconds by thread id; None where the system does not tell."""
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


def since(before, after):
    """What each thread that is alive has computed since, the busiest first, and how long all have waited.

    Threads that came since count from 0; those that did nothing are left out.
    """
    if before is None or after is None:
        return None, None
    spent = [ran - before.get(thread, (0, 0))[0] for thread, (ran, _) in after.items()]
    waited = [waited - before.get(thread, (0, 0))[1] for thread, (_, waited) in after.items()]
    return sorted((ns for ns in spent if ns > 0), reverse=True), sum(max(ns, 0) for ns in waited)


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
