"""`python -m reference_worker ADAPTER [--hello]`."""

from . import clock

START_NS = clock.now_ns()

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from pathlib import Path

from . import huge_pages, serve


def main(arguments):
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--hello"]):
        return fail("usage: python -m reference_worker ADAPTER [--hello], a Job on stdin")
    huge_pages.insist()
    _die_with_the_driver()
    output = _claim_stdout()
    load = lambda: importlib.import_module(f".adapters.{arguments[0]}", __package__).Adapter
    try:
        if arguments[1:]:
            output.write(serve.line(serve.hello(load().runtime(), load().FRAMEWORK)))
            output.flush()
        elif sys.stdin.isatty():
            page = "docs/reference/protocol.md"
            return fail(f"a worker is started by the driver: give one Job as JSON on stdin ({page}), or --hello")
        else:
            serve.serve(load, sys.stdin.buffer, START_NS, output)
    except serve.WorkerError as error:
        return fail(str(error))
    except Exception as error:  # a framework's own: one line, for the driver shows the last one of stderr
        return fail(f"{type(error).__name__}: {error}")
    return 0


def fail(reason):
    print(" ".join(reason.split()), file=sys.stderr)
    return 1


def _claim_stdout():
    """Takes file descriptor 1 for the protocol and points everyone else's stdout at stderr."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    return output


def _die_with_the_driver():
    """A killed driver must leave no process behind."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG, SIGKILL = 1, 9
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


def _end_helpers():
    """Ends what the framework started: tinygrad's pool of compilers would outlive this process by a moment."""
    if "multiprocessing.util" in sys.modules:
        # What it has registered for the end of a program: pools end, and their processes are waited for.
        sys.modules["multiprocessing.util"]._exit_function()
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # The job is done and flushed; what frameworks do at exit is skipped, but for their processes.
    _end_helpers()
    os._exit(status)
