"""Decision rules of the field, each from its own source, for `cargo xtask calibrate --rules`.

Every line of stdin is a comparison in JSON: `a` and `b`, the two arms, are lists of processes in the order in which they
ran, and a process is a list of its requests in microseconds a token. The first line on stdout describes the rules; each
further one has a decision per rule, in that order: 1 if b is slower, -1 if b is faster, 0 if it finds no difference.

To add a rule, write a function of the two arms below. What you need: `requests(arm)`, all requests one after another, or
`means(arm)`, the mean of each process. Times are higher where an arm is slower.
"""

import itertools
import json
import sys

import numpy
from otava.series import AnalysisOptions, Metric, Series
from scipy import stats

RULES = []
SEED = 1


def rule(name, source, text):
    """Registers a rule. `text`: what it decides by, for the page."""

    def register(decide):
        RULES.append((name, source, text, decide))
        return decide

    return register


def requests(arm):
    return numpy.array(list(itertools.chain.from_iterable(arm)))


def means(arm):
    return numpy.array([numpy.mean(process) for process in arm])


def slower(a, b):
    """Which arm is slower, by two figures."""
    return int(numpy.sign(b - a))


@rule("two means, 2 %", "what a gate of CI does (codspeed.io/blog/benchmarks-in-ci-without-noise, 2025)",
      "the means of all requests differ by more than 2 %")
def two_means(a, b):
    ratio = requests(b).mean() / requests(a).mean()
    return slower(1, ratio) if max(ratio, 1 / ratio) > 1.02 else 0


@rule("criterion 0.5", "bheisler/criterion.rs `src/analysis/compare.rs`, `src/report.rs`",
      "a bootstrapped Welch t of requests has p < 0.05, and the 95 % interval of the change of means is beyond its noise "
      "threshold of 1 %; 10,000 resamples in place of 100,000")
def criterion(a, b):
    a, b = requests(a), requests(b)
    random = numpy.random.default_rng(SEED)

    def t(x, y):
        # A resample of one value has no variance; its t is not finite and counts for nothing.
        with numpy.errstate(divide="ignore", invalid="ignore"):
            spread = x.var(axis=-1, ddof=1) / x.shape[-1] + y.var(axis=-1, ddof=1) / y.shape[-1]
            return (x.mean(axis=-1) - y.mean(axis=-1)) / numpy.sqrt(spread)

    both = random.choice(numpy.concatenate([a, b]), (10_000, len(a) + len(b)))
    drawn = t(both[:, :len(a)], both[:, len(a):])
    beyond = numpy.mean(drawn < t(a, b))
    if 2 * min(beyond, 1 - beyond) >= 0.05:
        return 0
    change = random.choice(b, (10_000, len(b))).mean(axis=1) / random.choice(a, (10_000, len(a))).mean(axis=1) - 1
    low, high = numpy.percentile(change, [2.5, 97.5])
    return 1 if low > 0.01 else -1 if high < -0.01 else 0


@rule("hyperfine 1", "sharkdp/hyperfine `src/benchmark/relative_speed.rs`",
      "“ran 1.05 ± 0.03 times faster”: the ratio of the means of processes less its ± is above 1")
def hyperfine(a, b):
    a, b = means(a), means(b)
    first, second = sorted([a, b], key=numpy.mean)
    ratio = second.mean() / first.mean()
    error = ratio * numpy.hypot(first.std(ddof=1) / first.mean(), second.std(ddof=1) / second.mean())
    return slower(a.mean(), b.mean()) if ratio - error > 1 else 0


@rule("AIPerf", "ai-dynamo/aiperf `docs/tutorials/multi-run-confidence.md`",
      "the 95 % t intervals of the means of processes do not overlap")
def aiperf(a, b):
    (low_a, high_a), (low_b, high_b) = (
        stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x)) for x in (means(a), means(b)))
    return 1 if low_b > high_a else -1 if high_b < low_a else 0


@rule("Mann–Whitney", "mozilla/neqo pull request 3787, `.github/scripts/perfcompare.py`",
      "scipy's two-sided U test of the means of processes has p < 0.05")
def mann_whitney(a, b):
    a, b = means(a), means(b)
    return slower(numpy.median(a), numpy.median(b)) if stats.mannwhitneyu(a, b).pvalue < 0.05 else 0


@rule("least of N, 5 %", "delta-io/delta-kernel-rs pull request 2725",
      "the fastest requests differ by more than 5 %; its second condition, on error bars, is left out")
def least(a, b):
    ratio = requests(b).min() / requests(a).min()
    return slower(1, ratio) if max(ratio, 1 / ratio) > 1.05 else 0


@rule("llama-bench", "ggml-org/llama.cpp `tools/llama-bench`",
      "mean ± s of all requests do not overlap")
def llama_bench(a, b):
    a, b = requests(a), requests(b)
    return slower(a.mean(), b.mean()) if abs(a.mean() - b.mean()) > a.std(ddof=1) + b.std(ddof=1) else 0


@rule("Bencher, t test", "bencherdev/bencher `lib/bencher_boundary`",
      "a new process is above the 95 % quantile of Student's t with mean and deviation of the processes before; it takes "
      "one process of the new build")
def bencher(a, b):
    history = means(a)
    return int(means(b)[0] > stats.t.ppf(0.95, len(history) - 1, loc=history.mean(), scale=history.std()))


@rule("Otava 0.8", "apache/otava, the wheel with its defaults",
      "it finds a change point (p < 0.001) in the means of processes, those of b after those of a")
def otava(a, b):
    values = numpy.concatenate([means(a), means(b)])
    series = Series("rule", None, list(range(len(values))), {"time": Metric()}, {"time": values}, {})
    found = series.analyze(AnalysisOptions()).change_points["time"]
    return slower(found[0].mean_before(), found[-1].mean_after()) if found else 0


def main():
    print(json.dumps([{"name": name, "source": source, "text": text} for name, source, text, _ in RULES]))
    for line in sys.stdin:
        comparison = json.loads(line)
        print(json.dumps([decide(comparison["a"], comparison["b"]) for *_, decide in RULES]))


if __name__ == "__main__":
    main()
