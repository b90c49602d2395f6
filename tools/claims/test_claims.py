"""Tests of claims.py, and of the claims and results of this repository: `python3 -m unittest discover -s tools/claims`."""

import math
import pathlib
import tempfile
import unittest

import claims
from claims import DOES_NOT, HOLDS, NOT_MEASURABLE, NOT_RUN, TO_RUN, Found, Kept, Missing

WHOLE = """
title = "A | B"
source = "*G*"
says = \"\"\"16.32x
times\"\"\"
conditions = "c"
here = "h"
explains = "e"
[[run]]
name = "both"
command = "photofinish ab jax jax-neither --rounds 6"
[[figure]]
what = "a | b"
run = "both"
unit = "times"
read = { kind = "advantage", a = "fast", b = "slow", metric = "throughput", at = { batch = 2 } }
published = { text = "16.32x", low = 16.32, kind = "gain" }
"""


def row(framework, **more):
    figure = {"typical": 10.0, "median": 10.0, "min": 8.0, "max": 12.0}
    metrics = {"throughput": figure, "peak_memory": figure}
    return {"framework": framework, "state": "measured", "reasons": [], "metrics": metrics} | more


def report(*rows, **more):
    pair = {"metric": "throughput", "a": "fast", "b": "slow", "verdict": "faster", "advantage": 4.0, "interval": [2.0, 8.0]}
    cell = {"settings": {"batch": 2}, "refused": None, "exit_code": 0, "rounds": 6, "rows": list(rows), "verdicts": [pair]}
    origin = {"git_modified": False, "libraries": []}
    return {"cells": [cell | {"origin": origin} | more], "scaling": []}


def published(kind, low=None, high=None, **more):
    return {"text": "", "kind": kind, **more} | {
        name: value for name, value in [("low", low), ("high", high)] if value is not None
    }


class Repository(unittest.TestCase):
    def test_the_page_is_what_the_results_say(self):
        self.assertEqual(claims.page(), (claims.ROOT / claims.PAGE).read_text())

    def test_every_result_is_that_of_a_run_and_small(self):
        every = claims.read_claims()
        self.assertEqual([claim["number"] for claim in every], list(range(1, len(every) + 1)))
        by_archive = {claims.archive_of(claim): claim for claim in every}
        for archive in (claims.ROOT / claims.RESULTS).iterdir():
            claim = by_archive[str(archive.relative_to(claims.ROOT))]
            self.assertLessEqual(set(claims.read_kept(archive)), {run["name"] for run in claim["run"]})
            self.assertLessEqual(archive.stat().st_size, 400_000)


class Files(unittest.TestCase):
    def test_a_mistake_is_refused(self):
        self.assertEqual(claims.read_claim("07-x.toml", WHOLE)["number"], 7)
        for name, before, after in [
            ("x.toml", "", ""),
            ("01-x.toml", "title", "titel"),
            ("01-x.toml", 'command = "photofinish ', 'command = "cargo '),
            ("01-x.toml", 'run = "both"', 'run = "other"'),
            ("01-x.toml", 'run = "both"', ""),
            ("01-x.toml", "published =", "#"),
            ("01-x.toml", "low = 16.32, ", ""),
            ("01-x.toml", "metric =", "metrics ="),
            ("01-x.toml", "at = {", "place = {"),
            ("01-x.toml", 'kind = "advantage"', 'kind = "advantages"'),
            ("01-x.toml", 'here = "h"', ""),
            ("01-x.toml", 'kind = "gain"', 'reading = "about"'),
            ("01-x.toml", "says = \"\"\"16.32x", 'says = """fast'),
            ("01-x.toml", 'unit = "times"', 'unit = "seconds"'),
            ("01-x.toml", "[[figure]]", "revision = 2\n[[figure]]"),
        ]:
            with self.assertRaises((ValueError, KeyError), msg=(name, before)):
                claims.read_claim(name, WHOLE.replace(before, after, 1))

    def test_a_figure_must_fit_its_kind(self):
        for fits, kind, low, high, unit in [
            (True, "gain", 2.0, None, "times"),
            (False, "gain", 0.5, None, "times"),
            (False, "gain", None, None, "times"),
            (False, "gain", 2.0, 3.0, "times"),
            (False, "gain", 2.0, None, "seconds"),
            (True, "saving", 0.5, None, "percent"),
            (False, "saving", 50.0, None, "percent"),
            (False, "saving", 0.5, None, "times"),
            (True, "equality", 0.5, 2.0, "seconds"),
            (False, "equality", 2.0, 0.5, "seconds"),
            (False, "equality", None, 2.0, "seconds"),
            (True, "bound", None, 2.0, "seconds"),
            (False, "bound", 2.0, 2.0, "seconds"),
            (True, "more", None, None, "times"),
            (False, "more", 1.0, None, "times"),
            (False, "less", None, None, "seconds"),
        ]:
            figure = published(kind, low, high, derived="in words")
            with self.subTest(figure=figure, unit=unit):
                self.check(figure, unit, "", fits)
        self.check(published("gain", 2.0, within=1.0, derived="w"), "times", "", False)

    def check(self, figure, unit, says, fits):
        if fits:
            claims.check_published(figure, unit, says)
        else:
            self.assertRaises(ValueError, claims.check_published, figure, unit, says)

    def test_the_source_has_every_figure_or_those_that_it_is_derived_from(self):
        says = "81.4 and 40.9 tok/s, 1.86 times as fast, 201 MB, 1,024"
        self.assertEqual(claims.numbers(says), [81.4, 40.9, 1.86, 201, 1024])
        for fits, text, low, derived in [
            (True, "1.86x", 1.86, None),
            (False, "1.87x", 1.87, None),
            (False, "1.86x", 1.9, None),
            (True, "81.4 and 40.9 tok/s", None, [81.4, 40.9]),
            (False, "", None, [81.4, 40.8]),
            (False, "", 2.0, [81.4, 40.9]),
            (True, "fast", 2.0, "twice"),
        ]:
            figure = published("gain", low) | {"text": text} | ({"derived": derived} if derived else {})
            with self.subTest(figure=figure):
                self.check(figure, "times", says, fits)
        self.check(published("equality", 201e6) | {"text": "201 MB"}, "megabytes", says, True)


class Readers(unittest.TestCase):
    def read(self, report, **read):
        return claims.read_figure({"at": {}} | read, report)

    def missing(self, report, **read):
        with self.assertRaises(Missing) as missing:
            self.read(report, **read)
        return str(missing.exception)

    def test_a_figure_comes_with_the_range_over_processes(self):
        whole = report(row("x"))
        found = self.read(whole, kind="figure", framework="x", metric="throughput")
        self.assertEqual(found, Found(10.0, (8.0, 12.0)))
        ratio = self.read(whole, kind="ratio", framework="x", metric="throughput", over={"metric": "peak_memory"})
        self.assertEqual(ratio, Found(1.0, (8 / 12, 12 / 8)))
        outside = report(row("x", metrics={"throughput": {"typical": 10.0, "min": 11.0, "max": 12.0}}))
        found = self.read(outside, kind="figure", framework="x", metric="throughput")
        self.assertEqual(found.bounds, (10.0, 12.0))

    def test_noise_hides_speed_and_not_memory_and_a_struck_contender_gives_its_reason(self):
        noisy = report(row("x"), exit_code=claims.NOISY)
        self.assertIn("noisy", self.missing(noisy, kind="figure", framework="x", metric="throughput"))
        self.read(noisy, kind="figure", framework="x", metric="peak_memory")
        struck = report(row("x", state="struck", reasons=["R5: too many threads"]))
        reason = self.missing(struck, kind="figure", framework="x", metric="throughput")
        self.assertEqual(reason, "x is struck: R5: too many threads")

    def test_an_advantage_is_turned_to_the_contender_that_is_asked_for(self):
        pair = report(row("fast"), row("slow"))
        of = lambda a, b: self.read(pair, kind="advantage", a=a, b=b, metric="throughput")
        self.assertEqual(of("fast", "slow"), Found(4.0, (2.0, 8.0), True))
        self.assertEqual(of("slow", "fast"), Found(0.25, (0.125, 0.5), True))
        pair["cells"][0]["verdicts"][0]["interval"] = None
        pair["cells"][0]["rounds"] = 2
        asked = {"kind": "advantage", "a": "fast", "metric": "throughput"}
        self.assertIn("too few rounds: 2", self.missing(pair, b="slow", **asked))
        pair["cells"][0]["verdicts"][0]["verdict"] = "not_measurable"
        self.assertIn("too noisy", self.missing(pair, b="slow", **asked))
        self.assertIn("other was not", self.missing(pair, b="other", **asked))

    def test_a_growth_is_less_certain_than_either_advantage(self):
        both = report(row("fast"), row("slow"))
        large = report(row("fast"), row("slow"), settings={"batch": 8})["cells"][0]
        for cell, value, width in [(both["cells"][0], 10.0, 4), (large, 20.0, 3)]:
            factor = math.exp(width)
            cell["verdicts"] = [cell["verdicts"][0] | {"advantage": value, "interval": [value / factor, value * factor]}]
        both["cells"].append(large)
        read = {"kind": "growth", "a": "fast", "b": "slow", "metric": "throughput"}
        found = claims.read_figure(read | {"from": {"batch": 2}, "at": {"batch": 8}}, both)
        self.assertEqual(found.value, 2.0)
        self.assertAlmostEqual(math.log(found.bounds[0]), math.log(2) - 5)
        self.assertAlmostEqual(math.log(found.bounds[1]), math.log(2) + 5)


class Verdicts(unittest.TestCase):
    def verdict(self, of, value, bounds=None, unit="times"):
        return claims.verdict_on(of, Found(value, bounds, True), unit)[0]

    def test_a_figure_is_read_as_its_kind_says(self):
        range_ = published("equality", 10.0, 15.0)
        for of, value, bounds, expected in [
            (range_, 12.0, (11.0, 13.0), HOLDS),
            (range_, 17.0, (16.0, 18.5), HOLDS),
            (range_, 21.0, (19.0, 23.0), DOES_NOT),
            (range_, 8.4, None, HOLDS),
            (range_, 8.3, None, DOES_NOT),
            (published("gain", 2.0), 50.0, (40.0, 60.0), HOLDS),
            (published("gain", 2.0), 1.5, (1.4, 1.9), DOES_NOT),
            (published("bound", None, 2.0), 1.5, (1.4, 1.9), HOLDS),
            (published("bound", None, 2.0), 3.0, (2.5, 3.5), DOES_NOT),
            (published("more"), 1.2, (1.1, 1.3), HOLDS),
            (published("less"), 1.2, (1.1, 1.3), DOES_NOT),
            (published("more"), 0.8, (0.7, 0.9), DOES_NOT),
            (published("less"), 0.8, (0.7, 0.9), HOLDS),
            (published("more"), 1.1, (0.9, 1.3), NOT_MEASURABLE),
            (published("more"), 1.0, None, DOES_NOT),
            (published("equality", 10.0), 4.0, (0.5, 30.0), NOT_MEASURABLE),
            (published("equality", 1.0), 1.0, (0.9, 1.1), HOLDS),
        ]:
            with self.subTest(of=of, value=value):
                self.assertEqual(self.verdict(of, value, bounds), expected)
        for value, expected in [(-0.45, HOLDS), (-0.55, HOLDS), (-0.3, DOES_NOT), (-0.7, DOES_NOT)]:
            self.assertEqual(self.verdict(published("equality", -0.5), value, None, "percent"), expected)

    def test_a_figure_that_does_not_agree_says_whom_it_favours(self):
        read = {"kind": "advantage", "a": "x", "b": "y"}
        for kind, low, value, bounds, expected in [
            ("gain", 2.0, 1.5, None, "in favour of x, less than published"),
            ("gain", 2.0, 0.5, None, "in favour of y, the contrary of what is published"),
            ("equality", 2.0, 3.0, None, "in favour of x, more than published"),
            ("gain", 2.0, 1.1, (0.9, 1.3), "in favour of neither side"),
        ]:
            figure = {"published": published(kind, low), "unit": "times", "read": read}
            self.assertEqual(claims.favours(figure, Found(value, bounds)), expected)
        figure = {"published": published("equality", 2.0), "unit": "plain", "read": {"kind": "perplexity"}}
        self.assertEqual(claims.favours(figure, Found(0.5)), "smaller than published")

    def test_a_derived_figure_is_computed_and_labelled(self):
        saving = published("saving", derived=[3.0, 6.0], text="3 and 6 GB")
        self.assertEqual(claims.shown(saving, "percent")[0], "3 and 6 GB; *derived*: 50.0 %")
        self.assertEqual(self.verdict(saving, 0.51, None, "percent"), HOLDS)
        self.assertEqual(self.verdict(saving, 0.49, None, "percent"), DOES_NOT)

    def kept(self, command="photofinish ab jax jax-neither --rounds 6", modified=False):
        record = {"command": command, "seconds": 1.0, "refused": None, "left_out": []}
        environment = {"git_commit": "0123456789abcdef", "git_modified": modified}
        origin = {"git_modified": modified, "libraries": []}
        return {"both": Kept(record, report(row("fast"), row("slow"), origin=origin), environment)}

    def test_only_the_same_study_on_a_clean_commit_decides(self):
        claim = claims.read_claim("01-x.toml", WHOLE)
        judged = lambda kept: claims.judge(claim, kept)[1]
        self.assertEqual(judged(self.kept()), (DOES_NOT, None))
        self.assertEqual(judged({}), (NOT_RUN, None))
        changed = "its study has changed since: its command was `photofinish x`"
        self.assertEqual(judged(self.kept("photofinish x")), (TO_RUN, changed))
        unclean = "its figures are of commit 012345678, with local changes"
        self.assertEqual(judged(self.kept(modified=True)), (TO_RUN, unclean))
        self.assertEqual(judged(self.kept(modified=None))[0], TO_RUN, "unknown is not clean")
        claim["run"][0] |= {"revision": 2, "changed": "why"}
        self.assertEqual(judged(self.kept()), (TO_RUN, "its study has changed since: why"))
        self.assertEqual(claims.judge(claim | {"incomparable": "c"}, {})[1], (NOT_MEASURABLE, "c"))


class Page(unittest.TestCase):
    def test_figures_are_written_with_unit_and_interval(self):
        self.assertEqual(claims.written(Found(12.14, (11.2, 13.0), True), "times"), "**12.1x** (11.2 to 13.0)")
        self.assertEqual(claims.written(Found(12.14, (11.2, 13.0)), "times"), "**12.1x** [11.2 to 13.0]")
        self.assertEqual(claims.figure_text(-0.521, "percent"), "-52.1 %")
        self.assertEqual(claims.figure_text(37_748_736.0, "megabytes"), "37.7 MB")
        self.assertEqual(claims.bounds_text((9.5, 12.0), "times"), "9.50 to 12.0")

    def test_a_claim_that_was_never_run_says_so_in_every_place(self):
        page = claims.render([claims.read_claim("0-x.toml", WHOLE)], pathlib.Path("nowhere"))
        for expected in [
            "| 0 | [A \\| B](#0-a--b) | *not run yet* | not run yet |",
            "## 0. A | B\n\n**No verdict: not run yet**: `cargo xtask claims --only 0`.",
            "- **Source.** *G*: 16.32x times\n- **Conditions.** c\n- **Here.** h\n",
            "| a \\| b | 16.32x | at least | – (not run yet) | *not run yet* |",
            "```sh\nphotofinish ab jax jax-neither --rounds 6\n```\n\n- both: not run yet",
        ]:
            self.assertIn(expected, page)


class Archives(unittest.TestCase):
    def study(self, samples):
        study = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        cell = study / "2026-cell"
        cell.mkdir()
        texts = {"report.md": "below /some/where/x", "report.json": "{}", "report.html": "page"}
        texts |= {f"2026-cell/{name}": "{}" for name in ("environment.json", "plan.json")}
        for name, text in (texts | {"2026-cell/samples.jsonl": "x" * samples}).items():
            (study / name).write_text(text)
        return study

    def names(self, archive):
        with claims.tarfile.open(archive) as tar:
            return [member.name for member in tar]

    def test_a_small_run_is_kept_whole_without_paths_of_the_machine(self):
        place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        archives = [place / "a.tar.gz", place / "b.tar.gz"]
        for archive in archives:
            record = {"command": "photofinish x", "seconds": 1.0, "refused": None, "left_out": []}
            claims.keep(archive, "both", self.study(100), record, {"/some": "A", "/some/where": "B"})
        self.assertEqual(archives[0].read_bytes(), archives[1].read_bytes())
        with claims.tarfile.open(archives[0]) as tar:
            self.assertEqual(tar.extractfile("both/report.md").read(), b"below B/x")
        self.assertIn("both/cell-1/samples.jsonl", self.names(archives[0]))
        self.assertEqual(claims.read_kept(archives[0])["both"].record["command"], "photofinish x")

    def test_large_samples_are_left_out_and_named_and_a_refused_run_leaves_its_reason_alone(self):
        archive = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "a.tar.gz"
        record = {"seconds": 1.0, "refused": None, "left_out": []}
        claims.keep(archive, "both", self.study(claims.MOST_BYTES), record, {})
        self.assertEqual(record["left_out"], ["the samples (6001 kB)"])
        self.assertNotIn("both/cell-1/samples.jsonl", self.names(archive))
        claims.keep(archive, "both", None, {"refused": "no such model", "left_out": []}, {})
        self.assertEqual(self.names(archive), ["both/run.json"])


if __name__ == "__main__":
    unittest.main()
