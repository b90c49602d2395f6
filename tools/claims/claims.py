#!/usr/bin/env python3
"""Puts published claims to the test: runs their studies, keeps the results, makes docs/evidence/claims.md from them.

Each claim is a file of configs/claims (README.md beside this file has the fields). What its studies write is kept in
results/published/claims, one small archive a claim. Every figure and verdict on the page comes from these reports, by
the code below; no figure of ours is in a claim's file. Python 3.11 or later, without packages."""

import argparse
import gzip
import io
import json
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import tomllib
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLAIMS, RESULTS, PAGE = "configs/claims", "results/published/claims", "docs/evidence/claims.md"
# How far from a published figure ours may be where that is read as "about", unless the claim's file says so.
ABOUT = 0.2
# Fewest rounds with an interval, as `statistics` has it.
MIN_ROUNDS = 6
# Most bytes to store of one run. The page lists the parts left out.
MOST_BYTES = 6_000_000
# Exit code of a comparison on a noisy machine.
NOISY = 3

# By unit: the factor from the report's value, the suffix, and the value at which there is no effect.
UNITS = {
    "times": (1, "x", 1.0),
    "percent": (100, " %", 0.0),
    "plain": (1, "", None),
    "seconds": (1, " s", None),
    "milliseconds": (1, " ms", None),
    "megabytes": (1e-6, " MB", None),
    "gigabytes": (1, " GB", None),
    "tokens_per_second": (1, " tok/s", None),
    "tokens": (1, " tokens", None),
}
# By kind of claim: the claim in words, and how its figure is read.
KINDS = {
    "gain": ("one thing is so many times better than another", "at least"),
    "saving": ("it needs so much less", "at least"),
    "equality": ("something is so large", "about"),
    "bound": ("something is no larger", "at most"),
    "more": ("something is larger or better, without a figure", "above no difference"),
    "less": ("something is smaller, without a figure", "below no difference"),
}
FIELDS = {
    "claim": "title source says conditions here explains open incomparable run figure",
    "run": "name command revision changed",
    "figure": "what run read unit published incomparable",
    "published": "text kind low high within derived",
}
# By reader of a figure: the fields that it needs, and those that it can have.
READERS = {
    "absent": ("", ""),
    "product": ("factors", ""),
    "advantage": ("a b metric", "at"),
    "less": ("a b metric", "at"),
    "growth": ("a b metric from at", ""),
    "figure": ("framework metric", "at"),
    "ratio": ("framework metric over", "at"),
    "saving": ("framework metric over", "at"),
    "scaling": ("framework axis of", "at"),
    "memory": ("framework part", "at over"),
    "perplexity": ("framework", "at"),
    "short_warmup": ("framework of", "at over"),
    "iteration": ("framework iteration", "at"),
    "new_prompt": ("framework tokens of", "at"),
}
# Axes in the order of a place's words, those with a name of their own; and metrics of which more is better.
AXES = "framework model precision threads batch context prompt_tokens new_tokens prefill_chunk steps callers rate".split()
AXIS_NAMES = {"prompt_tokens": "prompt", "prefill_chunk": "chunk", "rate": "requests a second"}
MORE_IS_BETTER = {"throughput", "prefill_throughput", "encoding_throughput", "peak_throughput", "efficiency"}
WITHOUT_SPEED = {"peak_memory", "memory_per_sequence"}


class Missing(Exception):
    """There is no figure, for this reason."""


@dataclass
class Found:
    """A figure, and how far it may be off: a 95 % interval, or the least and largest of the processes."""

    value: float
    bounds: tuple | None = None
    is_confidence: bool = False

    def map(self, function):
        bounds = self.bounds and tuple(sorted(map(function, self.bounds)))
        return Found(function(self.value), bounds, self.is_confidence)


# Claims as they are written.


def read_claims(root=ROOT):
    claims = []
    for path in sorted((root / CLAIMS).glob("*.toml")):
        try:
            claims.append(read_claim(path.name, path.read_text(encoding="utf-8")))
        except (ValueError, KeyError) as error:
            sys.exit(f"error: {CLAIMS}/{path.name}: {error}")
    return claims


def read_claim(name, text):
    claim = tomllib.loads(text)
    if not re.match(r"\d+-", name):
        raise ValueError("its name must begin with a number and a -")
    known(claim, "claim")
    for needed in "title source says conditions here explains".split():
        claim[needed]
    for run in claim["run"]:
        known(run, "run")
        if run["command"].split()[0] != "photofinish" or not re.fullmatch(r"[a-z0-9-]+", run["name"]):
            raise ValueError(f"the run {run['name']!r}: small letters, digits and -; its command begins with photofinish")
        if ("changed" in run) != (run.setdefault("revision", 1) > 1):
            raise ValueError(f"the run {run['name']!r} needs a revision above 1 and what changed, or neither")
    names = [run["name"] for run in claim["run"]]
    for figure in claim["figure"]:
        known(figure, "figure")
        kind = figure["read"]["kind"]
        needed, possible = (fields.split() for fields in READERS[kind])
        if not set(needed) <= set(figure["read"]) - {"kind"} <= set(needed + possible):
            raise ValueError(f"the figure {figure['what']!r}: {kind} needs {needed} and can have {possible}")
        if kind == "absent" and "incomparable" not in figure:
            raise ValueError(f"the figure {figure['what']!r} is absent: say why in incomparable")
        if kind not in ("product", "absent") and figure.get("run") not in names:
            raise ValueError(f"the figure {figure['what']!r} names a run that is not there")
        if figure["unit"] not in UNITS or unit_of(figure["read"]) not in (None, figure["unit"]):
            raise ValueError(f"the figure {figure['what']!r} has a unit that its reader does not give")
        if "published" in figure:
            check_published(figure["published"], figure["unit"], claim["says"])
    if len(set(names)) < len(names) or not any("published" in figure for figure in claim["figure"]):
        raise ValueError("runs need names of their own, and a figure that is compared with a published one")
    return claim | {"number": int(name.split("-")[0])}


def known(table, kind):
    if unknown := set(table) - set(FIELDS[kind].split()):
        raise ValueError(f"unknown field {', '.join(sorted(unknown))} of a {kind}")


def unit_of(read):
    if read["kind"] in ("advantage", "growth", "ratio", "iteration") or (
        read["kind"] in ("short_warmup", "memory") and "over" in read
    ):
        return "times"
    return "percent" if read["kind"] in ("less", "saving") else None


def check_published(published, unit, says):
    """Refuses figures that do not fit their kind, and figures that the source does not have."""
    known(published, "published")
    kind, low, high = published["kind"], low_of(published), published.get("high")
    within, derived = published.get("within"), published.get("derived")
    fits = {
        "gain": unit == "times" and low is not None and low > 1 and high is None,
        "saving": unit == "percent" and low is not None and 0 < low <= 1 and high is None,
        "equality": low is not None and (high is None or low <= high),
        "bound": high is not None and low is None,
        "more": low is None and high is None and UNITS[unit][2] is not None,
        "less": low is None and high is None and UNITS[unit][2] is not None,
    }
    if not fits[kind] or (within is not None and kind != "equality"):
        raise ValueError(f"published {published['text']!r}: low, high, within or the unit do not fit a {kind}")
    text, said = numbers(published["text"]), numbers(says)
    needed = text + (derived if isinstance(derived, list) else [])
    if derived is None:
        ends = [UNITS[unit][0] * end for end in (low, high) if end is not None]
        if not all(has(text, end) for end in ends):
            raise ValueError(f"published {published['text']!r}: {ends} is not in its text: say how it is derived")
    if isinstance(derived, list) and "low" in published:
        raise ValueError(f"published {published['text']!r}: low follows from derived: leave it out")
    if not all(has(said, number) for number in needed):
        raise ValueError(f"published {published['text']!r}: the source does not say {needed}: name it in `says`")


def numbers(text):
    return [float(word.replace(",", "").strip(".")) for word in re.findall(r"\d[\d.,]*", text)]


def has(all_numbers, number):
    return any(abs(found - number) <= 1e-9 * abs(number) for found in all_numbers)


def low_of(published):
    """The figure, or the lower end of a range. A derived one is the first ÷ the second, or what the first is less."""
    derived = published.get("derived")
    if isinstance(derived, list):
        ratio = derived[0] / derived[1]
        return 1 - ratio if published["kind"] == "saving" else ratio
    return published.get("low")


# Figures of a study's report.


def read_figure(read, report):
    """The figure that `read` names, or the exception why there is none."""
    kind, at = read["kind"], read.get("at", {})
    if kind == "product":
        return Found(math.prod(read["factors"]))
    if report is None or kind == "absent":
        raise Missing("no study here has it")
    if kind in ("advantage", "less"):
        found = advantage(cell_at(report, at), read["a"], read["b"], read["metric"])
        return found if kind == "advantage" else found.map(lambda times: 1 - 1 / times)
    if kind == "growth":
        small, large = (advantage(cell_at(report, read[at]), read["a"], read["b"], read["metric"]) for at in ("from", "at"))
        # The errors of other rounds are independent on the logarithmic scale, so their squares add up.
        half = [math.log(found.bounds[1] / found.bounds[0]) / 2 for found in (large, small)]
        value, factor = large.value / small.value, math.exp(math.hypot(*half))
        return Found(value, (value / factor, value * factor), True)
    if kind == "figure":
        found = metric_of(cell_at(report, at), read["framework"], read["metric"])
        return found.map(lambda value: 0.01 * value) if read["metric"].endswith("_share") else found
    if kind in ("ratio", "saving"):
        over = read["over"]
        first = metric_of(cell_at(report, at), read["framework"], read["metric"])
        other = cell_at(report, over.get("at", at))
        found = quotient(
            first, metric_of(other, over.get("framework", read["framework"]), over.get("metric", read["metric"]))
        )
        return found if kind == "ratio" else found.map(lambda ratio: 1 - ratio)
    if kind == "scaling":
        return scaling(report, read, at)
    if kind == "memory":
        found = memory(report, read, at)
        return Found(found / memory(report, read, read["over"])) if "over" in read else Found(found)
    row = row_of(cell_at(report, at), read["framework"])
    if kind == "perplexity":
        if not row.get("text"):
            raise Missing(f"{read['framework']} was not scored on the text")
        return Found(row["text"]["perplexity"])
    quiet(cell_at(report, at))
    if kind == "short_warmup":
        found = short_warmup(row, read["of"])
        other = read.get("over") and short_warmup(row_of(cell_at(report, at), read["over"]), read["of"])
        return Found(found / other if other else found)
    if kind == "iteration":
        points = [point for point in row["steadiness"]["curve"] if point["iteration"] == read["iteration"]]
        return Found(need(points and points[0]["ratio"], f"{row['framework']} has no iteration {read['iteration']}"))
    if kind == "new_prompt":
        prompts = (row["steadiness"]["first_runs"] or {}).get("prompts", [])
        prompts = [prompt for prompt in prompts if prompt["tokens"] == read["tokens"]]
        prompt = need(prompts, f"{row['framework']} has no prompt of {read['tokens']} tokens")[0]
        first, later = prompt["first_ms"], prompt["steady_ms"]
        return Found({"first": first, "later": later, "cost": (first - later) / 1e3, "ratio": first / later}[read["of"]])
    raise ValueError(f"unknown reader {kind}")


def need(value, reason):
    # Zero is a figure.
    if value is None or value is False or value in ([], {}):
        raise Missing(reason)
    return value


def cell_at(report, at):
    """The cell at a place, if it was measured."""
    place = place_words(at) or "the study"
    cells = [cell for cell in report["cells"] if at.items() <= cell["settings"].items()]
    if len(cells) > 1:
        raise Missing(f"{place} has several cells: the claim must say which")
    cell = need(cells, f"{place} was not measured")[0]
    if cell["refused"]:
        raise Missing(f"{place}: {cell['refused']}")
    return cell


def row_of(cell, framework):
    """A contender that takes part in verdicts."""
    rows = [row for row in cell["rows"] if row["framework"] == framework]
    row = need(rows, f"{framework} was not measured")[0]
    if row["state"] not in ("measured", "labelled"):
        reason = f": {row['reasons'][0]}" if row["reasons"] else ""
        raise Missing(f"{framework} is {row['state']}{reason}")
    return row


def quiet(cell):
    if cell["exit_code"] == NOISY:
        raise Missing("the machine was too noisy for a verdict on speed")


def place_words(at):
    """new tokens 15, int8"""
    words = [(axis, at[axis]) for axis in AXES if axis in at]
    name = lambda axis: AXIS_NAMES.get(axis, axis.replace("_", " "))
    return ", ".join(value if isinstance(value, str) else f"{name(axis)} {value}" for axis, value in words)


def advantage(cell, a, b, metric):
    """How many times better `a` is than `b`, with its 95 % interval, from the verdict on the pair."""
    row_of(cell, a), row_of(cell, b)
    words = metric.replace("_", " ")
    pairs = [found for found in cell["verdicts"] if found["metric"] == metric and {found["a"], found["b"]} == {a, b}]
    pair = need(pairs, f"there is no verdict on {words} of {a} and {b}")[0]
    if pair["verdict"] == "not_measurable":
        raise Missing(f"the machine was too noisy for a verdict on {words}")
    if pair["advantage"] is None or pair["interval"] is None:
        few = f"too few rounds: {cell['rounds']}, and an interval takes {MIN_ROUNDS}"
        raise Missing(few if cell["rounds"] < MIN_ROUNDS else f"there is no interval of {words}")
    better = Found(pair["advantage"], tuple(pair["interval"]), True)
    return better if pair["a"] == a else better.map(lambda times: 1 / times)


def metric_of(cell, framework, metric):
    """A metric with the range over processes. The figure is a mean over blocks, the range one of medians."""
    row = row_of(cell, framework)
    if metric not in WITHOUT_SPEED:
        quiet(cell)
    figure = row["metrics"].get(metric)
    value = need(figure and figure["typical"] is not None, f"{framework} has no {metric.replace('_', ' ')}") and figure["typical"]
    return Found(value, (min(figure["min"], value), max(figure["max"], value)))


def quotient(first, second):
    """One figure ÷ another, with everything that the ranges of both allow."""
    bounds = None
    if first.bounds and second.bounds:
        bounds = (first.bounds[0] / second.bounds[1], first.bounds[1] / second.bounds[0])
    return Found(first.value / second.value, bounds)


def scaling(report, read, at):
    for cell in report["cells"]:
        if at.items() <= cell["settings"].items() and not cell["refused"]:
            quiet(cell)
            row_of(cell, read["framework"])
    is_meant = lambda found: (found["framework"], found["axis"]) == (read["framework"], read["axis"]) and at.items() <= found["at"].items()
    found = list(filter(is_meant, report["scaling"]))
    along = f"along {AXIS_NAMES.get(read['axis'], read['axis'].replace('_', ' '))}"
    if len(found) > 1:
        raise Missing(f"{read['framework']} has several growths {along}: the claim must say which")
    absent = f"{read['framework']} has no growth {along}"
    growth, of = need(found, absent)[0], read["of"]
    if of == "exponent":
        return Found(need(growth["exponent"], absent))
    [(name, value)] = of.items()
    points = [point for point in growth["points"] if point["value"] == value]
    return Found(need(points and points[0][name], absent))


def short_warmup(row, of):
    short = need(row["steadiness"]["short_warmup"], f"{row['framework']} generated too few tokens for it")
    return {
        "reported": short["tokens_per_second"],
        "steady": short["steady_tokens_per_second"],
        "share": 1 + short["error"],
        "understated": 1 / (1 + short["error"]),
    }[of]


def memory(report, read, at):
    row = row_of(cell_at(report, at), read["framework"])
    parts = need(row["memory"], f"{row['framework']} has no memory by part")
    caches = {"kv_cache": parts["kv_caches"]["observed"], "kv_cache_predicted": parts["kv_caches"]["predicted"]}
    value = (parts | caches)[read["part"]]
    if value is None:
        raise Missing(f"{row['framework']} does not report the size of its KV cache")
    return value


# Verdicts. There is one rule for all claims: the kind of claim decides how its figure is read.

HOLDS, DOES_NOT, NOT_MEASURABLE, NOT_RUN, TO_RUN = "holds here", "does not", "not measurable here", "not run yet", "to be run again"


def wanted_range(published, unit):
    """The range that ours must meet."""
    none = UNITS[unit][2] or 0.0
    low, high = low_of(published), published.get("high")
    if published["kind"] in ("gain", "saving", "more"):
        return (none if low is None else low, math.inf)
    if published["kind"] in ("bound", "less"):
        return (-math.inf, none if high is None else high)
    within = 1 + published.get("within", ABOUT)
    # The farther end of a negative figure is below it.
    outward = lambda value, out: value * within if out == (value > 0) else value / within
    return (outward(low, False), outward(low if high is None else high, True))


def verdict_on(published, found, unit):
    (least, most), none = wanted_range(published, unit), UNITS[unit][2]
    low, high = found.bounds or (found.value, found.value)
    # A direction is open at the value of no difference, which is neither more nor less.
    is_open = published["kind"] in ("more", "less")
    if high < least or low > most or (is_open and (high == least or low == most)):
        return DOES_NOT, None
    # An interval that wide would agree with the contrary, too.
    if none is not None and low < high and low <= none <= high and (is_open or not least <= none <= most):
        return NOT_MEASURABLE, (
            f"the interval ({bounds_text((low, high), unit)}) holds both what is published and no difference at all: more "
            "rounds, or a quieter machine"
        )
    return HOLDS, None


def sides_of(read):
    """The two sides of a comparison of which one can be better, and whether a larger figure favours the first."""
    if read["kind"] in ("advantage", "less"):
        return read["a"], read["b"], True
    if read["kind"] == "short_warmup" and "over" in read:
        return read["framework"], read["over"], True
    if read["kind"] in ("ratio", "saving"):
        larger = (read["metric"] in MORE_IS_BETTER) == (read["kind"] == "ratio")
        over = read["over"]
        if "metric" not in over and "framework" in over:
            return read["framework"], over["framework"], larger
        if "metric" not in over and "at" in over:
            return place_words(read.get("at", {})), place_words(over["at"]), larger
    return None


def favours(figure, found):
    """Which side a figure favours that does not agree: "in favour of jax, less than published"."""
    published, unit, value = figure["published"], figure["unit"], found.value
    (least, most), none = wanted_range(published, unit), UNITS[unit][2]
    if none is not None and found.bounds and found.bounds[0] <= none <= found.bounds[1]:
        return "in favour of neither side"
    middle = least if math.isfinite(least) else most
    is_contrary = none is not None and (
        published["kind"] in ("more", "less") or (value < none) != (middle < none)
    )
    sides = sides_of(figure["read"])
    if sides is None or none is None:
        return "the contrary of what is published" if is_contrary else f"{'smaller' if value < least else 'larger'} than published"
    side = sides[0] if (value > none) == sides[2] else sides[1]
    how = "the contrary of what is" if is_contrary else "less than" if value < least else "more than"
    return f"in favour of {side}, {how} published"


@dataclass
class Kept:
    """A stored run."""

    record: dict
    report: dict | None
    environment: dict | None

    def checkout(self):
        """The commit that it was run on, and whether tracked files differed from it, in any cell."""
        if self.environment is None:
            return None, None
        cells = self.report["cells"] if self.report else []
        modified = [cell["origin"]["git_modified"] for cell in cells] + [self.environment.get("git_modified")]
        modified = [found for found in modified if found is not None]
        return self.environment.get("git_commit"), any(modified) if modified else None

    def described(self):
        commit, is_modified = self.checkout()
        states = {False: "clean", True: "with local changes", None: "unknown whether clean"}
        return f"commit {commit[:9]}, {states[is_modified]}" if commit else "an unknown commit"

    def changed(self, run):
        """Why its figures are of another study than `run` as it is in the claim now."""
        if self.record["command"] != run["command"]:
            return f"its study has changed since: its command was `{self.record['command']}`"
        if self.record.get("revision", 1) != run["revision"]:
            return f"its study has changed since: {run.get('changed', 'its revision')}"
        return None

    def due(self, run):
        """Why it must be measured again: also because no commit has the checkout that it ran in."""
        commit, is_modified = self.checkout()
        is_clean = self.record["refused"] is not None or (commit is not None and is_modified is False)
        return self.changed(run) or (None if is_clean else f"its figures are of {self.described()}")


def read_kept(archive):
    """The runs of an archive, by name; none if there is no archive."""
    if not archive.is_file():
        return {}
    files = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name, _, file = member.name.partition("/")
            if file in ("run.json", "report.json", "environment.json"):
                files.setdefault(name, {})[file] = json.load(tar.extractfile(member))
    return {
        name: Kept(of_run["run.json"], of_run.get("report.json"), of_run.get("environment.json"))
        for name, of_run in files.items()
    }


def judge(claim, kept):
    """The claim with the verdict on it and on each figure, as (verdict, reason)."""
    figures = []
    for figure in claim["figure"]:
        run = next((run for run in claim["run"] if run["name"] == figure.get("run")), None)
        stored = run and kept.get(run["name"])
        # Figures of an unclean checkout are of this study: they are shown, and the claim has no verdict.
        due = None
        if run is not None:
            due = (NOT_RUN, None) if stored is None else (TO_RUN, stored.changed(run)) if stored.changed(run) else None
        found, reason = None, due[0] if due else stored and stored.record["refused"]
        if not reason:
            try:
                found = read_figure(figure["read"], stored and stored.report)
            except Missing as missing:
                reason = str(missing)
        verdict = favoured = None
        if "published" in figure:
            verdict = verdict_on(figure["published"], found, figure["unit"]) if found else (NOT_MEASURABLE, reason)
            if found and verdict[0] == DOES_NOT:
                favoured = favours(figure, found)
            if why := figure.get("incomparable") or claim.get("incomparable"):
                verdict = (NOT_MEASURABLE, why)
            elif due:
                verdict = due
        figures.append((figure, found, reason, verdict, favoured))
    dues = [
        (NOT_RUN, None) if stored is None else (TO_RUN, stored.due(run))
        for run in claim["run"]
        if (stored := kept.get(run["name"])) is None or stored.due(run)
    ]
    verdicts = [verdict for _, _, _, verdict, _ in figures if verdict]
    if "incomparable" in claim:
        return figures, (NOT_MEASURABLE, claim["incomparable"])
    if dues:
        return figures, dues[0]
    # It holds if all do, and does not if one does not.
    if any(verdict[0] == DOES_NOT for verdict in verdicts):
        return figures, (DOES_NOT, None)
    return figures, next((verdict for verdict in verdicts if verdict[0] != HOLDS), (HOLDS, None))


# The page: an overview, and a section for each claim.


def plain(text):
    return " ".join(text.split())


def table_cell(text):
    return plain(text).replace("|", "\\|")


def sentence(reason):
    return reason.strip().rstrip(".")


def number(value):
    """Three significant digits, but never fewer than the unit; as tables of reports have it."""
    size = abs(value)
    return f"{value:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3}f}"


def bare(value, unit):
    return f"{value:.0f}" if unit == "tokens" else number(value / 1e6 if unit == "megabytes" else UNITS[unit][0] * value)


def bounds_text(bounds, unit):
    return f"{bare(bounds[0], unit)} to {bare(bounds[1], unit)}"


def figure_text(value, unit):
    return bare(value, unit) + UNITS[unit][1]


def written(found, unit):
    """12.1x (11.2 to 13.0) with a 95 % interval, 12.1x [11.0 to 13.4] with the range over processes."""
    text = f"**{figure_text(found.value, unit)}**"
    if found.bounds is None:
        return text
    left, right = "()" if found.is_confidence else "[]"
    return f"{text} {left}{bounds_text(found.bounds, unit)}{right}"


def render(claims, root=ROOT):
    judged = []
    for claim in claims:
        kept = read_kept(root / archive_of(claim))
        judged.append((claim, kept, *judge(claim, kept)))
    rules = "| a source claims that | its figure is read as |\n|---|---|\n"
    for kind, (claimed, reading) in KINDS.items():
        factor = f": within a factor of {1 + ABOUT:g} either way, unless another is given" if kind == "equality" else ""
        rules += f"| {claimed} | *{reading}*{factor} |\n"
    overview = "| | claim | | run on |\n|---:|---|---|---|\n"
    for claim, kept, _, verdict in judged:
        commits = []
        for run in claim["run"]:
            stored = kept.get(run["name"])
            commit = checkout(run, stored) if stored else NOT_RUN
            if commit not in commits:
                commits.append(commit)
        heading = f"{claim['number']}. {claim['title']}".lower()
        anchor = "".join(c for c in heading if c.isalnum() or c in " -_").replace(" ", "-")
        title = f"[{table_cell(claim['title'])}](#{anchor})"
        overview += f"| {claim['number']} | {title} | *{verdict[0]}* | {'; '.join(commits)} |\n"
    return "\n".join([rules, overview, "\n".join(section(*of_claim) for of_claim in judged)])


def archive_of(claim):
    return f"{RESULTS}/{claim['number']:02}.tar.gz"


def checkout(run, kept):
    return kept.described() + (f": {TO_RUN}" if kept.due(run) else "")


def section(claim, kept, figures, verdict):
    facts = [f"- **Source.** {plain(claim['source'])}: {plain(claim['says'])}"]
    facts += [f"- **{name}.** {plain(claim[name.lower()])}" for name in ("Conditions", "Here")]
    facts += machine(claim, kept)
    parts = [f"## {claim['number']}. {claim['title']}", answer(claim, figures, verdict), "\n".join(facts)]
    parts += [table(figures), f"**Explanation.** {plain(claim['explains'])}"]
    if "open" in claim:
        parts.append(f"**Remains open.** {plain(claim['open'])}")
    parts.append("```sh\n" + "\n".join(run["command"] for run in claim["run"]) + "\n```")
    parts.append("\n".join(told(claim, run, kept.get(run["name"])) for run in claim["run"]))
    return "\n\n".join(parts) + "\n"


def answer(claim, figures, verdict):
    """The verdict, and its basis."""

    def listed(title, wanted):
        names = [figure["what"] for figure, _, _, of_figure, _ in figures if of_figure and of_figure[0] == wanted]
        return f" {title}: {'; '.join(names)}." if names else ""

    word, reason = verdict
    if word == HOLDS:
        return "**Holds here.**"
    if word == DOES_NOT:
        return "**Does not hold here.**" + "".join(
            listed(title, wanted)
            for title, wanted in [("Does not hold", DOES_NOT), ("Holds", HOLDS), ("Not measurable", NOT_MEASURABLE)]
        )
    if word == NOT_MEASURABLE:
        return f"**Not measurable here**: {sentence(plain(reason))}.{listed('Holds', HOLDS)}"
    again = f"`cargo xtask claims --only {claim['number']}`"
    if word == NOT_RUN:
        return f"**No verdict: {word}**: {again}."
    return f"**No verdict: {word}.** {reason[0].upper()}{reason[1:]}: {again}."


def machine(claim, kept):
    of_runs = [kept[run["name"]] for run in claim["run"] if run["name"] in kept]
    environment = next((of_run.environment for of_run in of_runs if of_run.environment), None)
    if environment is None:
        return []
    cells = [cell for of_run in of_runs if of_run.report for cell in of_run.report["cells"]]
    libraries = dict.fromkeys(library for cell in cells for library in cell["origin"]["libraries"])
    libraries = f" {', '.join(libraries)}." if libraries else ""
    system = environment.get("os") or "an unnamed operating system"
    day = environment["started"].split("T")[0]
    memory_gb = environment["memory_bytes"] / 1e9
    cores = environment["available_cores"]
    return [f"- **Machine.** {environment['cpu']}, {cores} cores, {memory_gb:.0f} GB, {system}.{libraries} Run on {day}."]


def table(figures):
    lines = ["| figure | published | read as | here | |", "|---|---|---|---|---|"]
    for figure, found, reason, verdict, favoured in figures:
        published, reading = "–", "–"
        if "published" in figure:
            published, reading = shown(figure["published"], figure["unit"])
        here = written(found, figure["unit"]) if found else f"– ({sentence(reason)})"
        last = f"*{verdict[0]}*{': ' + favoured if favoured else ''}" if verdict else ""
        lines.append(f"| {' | '.join(map(table_cell, [figure['what'], published, reading, here, last]))} |")
    return "\n".join(lines)


def shown(published, unit):
    """The source's text, with derived figures marked: "38.43 and 15.66 s; *derived*: 2.45x"; and how it is read."""
    text, derived = published["text"], published.get("derived")
    if derived is not None:
        text += f"; *derived*: {derived if isinstance(derived, str) else figure_text(low_of(published), unit)}"
    reading = KINDS[published["kind"]][1]
    if published["kind"] == "equality":
        reading += f" (factor {1 + published.get('within', ABOUT):g})"
    return text, reading


def told(claim, run, kept):
    """The outcome of a run, its commit, and a link to what is stored."""
    if kept is None:
        return f"- {run['name']}: {NOT_RUN}"
    record = kept.record
    seconds = record["seconds"]
    took = f"it took {seconds:.0f} s" if seconds < 90 else f"it took {seconds / 60:.1f} minutes"
    if record["refused"] is not None or kept.report is None:
        reason = record["refused"] or "nothing was kept"
        return f"- {run['name']}: {took} and gave no report: {sentence(reason)}"
    rounds = [cell["rounds"] for cell in kept.report["cells"] if cell["rounds"] > 0]
    words = ""
    if rounds:
        least, most = min(rounds), max(rounds)
        words = f", {least}" if least == most else f", {least} to {most}"
        words += " round" if most == 1 else " rounds"
    left_out = f"; left out for their size: {', '.join(record['left_out'])}" if record["left_out"] else ""
    if "the samples" in left_out:
        left_out += ". Without samples it cannot be judged again: by the rules of that commit"
    return f"- {run['name']}: [report and samples](../../{archive_of(claim)}); {checkout(run, kept)}; {took}{words}{left_out}"


def page(root=ROOT):
    text = (root / PAGE).read_text(encoding="utf-8")
    before, rest = text.split("<!-- claims: begin -->")
    _, after = rest.split("<!-- claims: end -->")
    claims = "\n".join(map(wrapped, render(read_claims(root), root).strip().split("\n")))
    return f"{before}<!-- claims: begin -->\n{claims}\n<!-- claims: end -->{after}"


def wrapped(line):
    """Prose in at most 120 columns; headings, commands and rows of tables stay as they are."""
    if line.startswith(("|", "#", "photofinish ")):
        return line
    below = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)


# Running a claim's studies, and storing their results.


def run_all(claims, photofinish):
    """Results are stored after the last study: a stored file changes the checkout, which would mark every later run."""
    status = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT, capture_output=True)
    if status.stdout.strip():
        print("the checkout has local changes: the page will ask for these runs again. Commit them first", file=sys.stderr)
    finished = []
    try:
        for claim in claims:
            for run in claim["run"]:
                finished.append((claim, run, *run_one(claim, run, photofinish)))
    finally:
        for claim, run, place, study, record in finished:
            keep(ROOT / archive_of(claim), run["name"], study, record, machine_paths(photofinish, place))


def run_one(claim, run, photofinish):
    place = ROOT / "target/claims" / f"{claim['number']:02}" / run["name"]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    print(f"claim {claim['number']}, {run['name']}: {run['command']}", file=sys.stderr)
    words = [str(photofinish), *shlex.split(run["command"])[1:], "--results-dir", str(place)]
    begun = time.monotonic()
    with open(place / "stdout.txt", "w") as out, open(place / "stderr.txt", "w") as log:
        code = subprocess.run(words, cwd=ROOT, stdout=out, stderr=log).returncode
    seconds = time.monotonic() - begun
    studies = sorted(path.parent for path in place.glob("*/report.json"))
    lines = [line for line in (place / "stderr.txt").read_text().splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")] or lines or [f"exit code {code}"]
    refused = None if studies else errors[-1]
    print(f"  {seconds:.0f} s: {refused or f'exit code {code}'}", file=sys.stderr)
    record = {"command": run["command"], "revision": run["revision"], "exit_code": code, "seconds": seconds}
    return place, studies[-1] if studies else None, record | {"refused": refused, "left_out": []}


def machine_paths(photofinish, place):
    """Paths of this machine, and their replacements in the stored files."""
    paths = {str(photofinish): "photofinish", f"{place}/": "", str(place): ".", str(ROOT): "."}
    return paths | {f"{tempfile.gettempdir()}/": "{tmp}/", str(pathlib.Path.home()): "~"}


def keep(archive, name, study, record, paths):
    """Replaces a run in an archive. Equal files give equal archives."""
    files = {}
    if archive.is_file():
        with tarfile.open(archive) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar if not member.name.startswith(f"{name}/")}
    if study is not None:
        cells = sorted(path.parent for path in study.glob("*/environment.json"))
        paths = paths | {str(cell): f"cell-{index}" for index, cell in enumerate(cells, 1)}
        sources = {"report.json": study / "report.json", "report.md": study / "report.md"}
        if cells:
            sources["environment.json"] = cells[0] / "environment.json"
        samples = {
            f"cell-{index}/{file}": cell / file
            for index, cell in enumerate(cells, 1)
            for file in ("plan.json", "samples.jsonl")
            if (cell / file).is_file()
        }
        size = lambda of: sum(path.stat().st_size for path in of.values())
        if size(samples) <= MOST_BYTES - size(sources):
            sources |= samples
        else:
            record["left_out"].append(f"the samples ({math.ceil(size(samples) / 1000)} kB)")
        files |= {f"{name}/{file}": path.read_bytes() for file, path in sources.items()}
    files[f"{name}/run.json"] = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in sorted(files):
            data = files[file]
            if file.startswith(f"{name}/"):
                # Longer paths come first: one may be below another.
                for path in sorted(paths, key=len, reverse=True):
                    data = data.replace(path.encode(), paths[path].encode())
            member = tarfile.TarInfo(file)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask claims", description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group()

    def numbers(text):
        return [int(number) for number in text.split(",")]

    which.add_argument("--only", metavar="N,…", type=numbers, help="numbers of the claims to run; all, unless given")
    which.add_argument("--from-results", action="store_true", help="run nothing: make the page from what is kept")
    parser.add_argument("--photofinish", type=pathlib.Path, default="photofinish", help="the program that is run")
    asked = parser.parse_args()
    if not asked.from_results:
        claims = read_claims()
        chosen = asked.only or [claim["number"] for claim in claims]
        if unknown := set(chosen) - {claim["number"] for claim in claims}:
            sys.exit(f"error: --only: there is no claim {', '.join(map(str, sorted(unknown)))}")
        run_all([claim for claim in claims if claim["number"] in chosen], asked.photofinish)
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
    print(f"{PAGE} shows the results in {RESULTS}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
