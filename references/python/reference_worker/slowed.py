"""A positive control: an adapter made slower by a known share, which a comparison must find."""

from . import clock


class Slowed:
    """Every `listen`, `append`, `encode` and `run_graph` lasts longer by a share of its own time. Answers are the
    adapter's."""

    def __init__(self, adapter, share):
        self._adapter, self._share = adapter, share

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    def in_effect(self):
        observed = self._adapter.in_effect()
        percent = f"{round(self._share * 1e4) / 1e2:g}"
        return {**observed, "kernels": observed["kernels"] + [f"slowed by {percent} % (positive control)"]}

    def listen(self, frames):
        self._kept(lambda: self._adapter.listen(frames))

    def append(self, tokens, every):
        return self._kept(lambda: self._adapter.append(tokens, every))

    def encode(self, *batch):
        return self._kept(lambda: self._adapter.encode(*batch))

    def run_graph(self):
        return self._kept(self._adapter.run_graph)

    def _kept(self, step):
        before = clock.now_ns()
        answer = step()
        own = clock.now_ns() - before
        # Spins rather than sleeps: the kernel wakes sleepers late by more than the share asked for.
        end = before + own + int(own * self._share)
        while clock.now_ns() < end:
            pass
        return answer
