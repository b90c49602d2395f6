"""The worker's rules of masked diffusion: python3 -m unittest discover -s references/python/tests. Those of the choices
need numpy, and are left out without."""

import importlib.util
import io
import json
import math
import struct
import sys
import tempfile
import unittest
from array import array
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

from reference_worker import bundle, clock, serve
from reference_worker.work import denoise
from reference_worker.adapters import Base, fake
from test_worker import FINISH, REQUEST, write_bundle

MASK = 9
LIMITS = {"min_iterations": 1, "max_iterations": 1, "max_ns": 10**9, "settled_within": 0.05}


def plain_choices(rows, positions, algorithm="maskgit_plus", top_p=None, top_k=None):
    """What `choice.py` says, without numpy and without a filter."""
    found = []
    for row in (list(rows[position]) for position in positions):
        weights = [math.exp(logit - max(row)) for logit in row]
        chances = sorted((weight / sum(weights) for weight in weights), reverse=True)
        confidence = {
            "maskgit_plus": chances[0], "topk_margin": chances[0] - chances[1],
            "entropy": sum(p * math.log(p + 1e-10) for p in chances),
        }
        found.append((row.index(max(row)), confidence[algorithm]))
    return found


class Scripted:
    """Of ten tokens, the logits at position p prefer p modulo 8, the later the surer, or all alike."""

    def __init__(self, slope=1.0):
        self.slope, self.states = slope, []

    def begin(self, batch, capacity):
        pass

    def append(self, tokens, every):
        self.states.append([list(row) for row in tokens])
        at = lambda position: array("f", (1 + self.slope * position if id == position % 8 else 0 for id in range(10)))
        return [[at(position) for position in range(len(row))] for row in tokens]

    def array(self, logits):
        return logits


def task(steps, algorithm="maskgit_plus", **changes):
    return {"steps": steps, "algorithm": algorithm, **changes}


class Loop(unittest.TestCase):
    """As in the crate `worker`, case for case."""

    def setUp(self):
        patch = mock.patch.object(denoise, "choices", lambda rows, positions, rule: plain_choices(rows, positions, **rule))
        patch.start()
        self.addCleanup(patch.stop)

    def denoising(self, task, new_tokens, case, adapter=None, is_fed=False):
        work = {"cases": [case], "new_tokens": new_tokens, "forced": is_fed, "how": task}
        context = {"vocabulary": 10, "context": 64, "mask_token": MASK}
        return denoise.Denoising(adapter or Scripted(), work, context, is_fed)

    def run_it(self, task, new_tokens, prompts=([1, 2],), adapter=None, **trace):
        case = {"prompts": [list(prompt) for prompt in prompts], **trace}
        workload = self.denoising(task, new_tokens, case, adapter, bool(trace))
        sample = workload.sample(workload.request(0))
        return {"marks_ns": sample["marks_ns"], **sample["output"]["steps"]}

    def test_the_surest_positions_are_unmasked_first_by_logits_of_the_position_before(self):
        sample = self.run_it(task(4), 4)
        self.assertEqual(sample["tokens"], [[1, 2, 3, 4]], "position p has the token that the row at p - 1 prefers")
        # The shares of steps are 0.24975, 0.333, 0.499 and all: of 4 masks no whole one, of 4 one, of 3 one, both of 2.
        self.assertEqual(sample["unmasked"], [[3, 3, 2, 1]])
        self.assertEqual((len(sample["marks_ns"]), len(sample["passes_ns"])), (4, 4))

    def test_a_request_in_slices_is_the_request(self):
        workload = self.denoising(task(4), 4, {"prompts": [[1, 2]]})
        request = workload.begin(0)
        for marks in (1, 2):
            self.assertEqual(len(request.marks), marks)
            workload.advance(request, 1)
        workload.advance(request, 9)
        self.assertEqual(len(request.marks), 4)
        self.assertEqual(workload.output(request)["steps"]["unmasked"], [[3, 3, 2, 1]])

    def test_a_step_s_time_is_its_pass_s_and_what_choosing_took(self):
        """By a clock that a pass puts on by 100, and choosing by 7."""
        adapter, chosen = Scripted(), []

        def choices(rows, positions, rule):
            chosen.append(7)
            return plain_choices(rows, positions, **rule)

        now = lambda: 100 * len(adapter.states) + sum(chosen)
        with mock.patch.object(denoise, "choices", choices), mock.patch.object(clock, "now_ns", now):
            sample = self.run_it(task(3), 4, adapter=adapter)
        self.assertEqual(sample["marks_ns"], [107, 214, 321])
        self.assertEqual(sample["passes_ns"], [100, 207, 314])

    def test_a_forced_step_is_fed_the_trace_and_says_where_it_would_have_gone_another_way(self):
        adapter = Scripted()
        sample = self.run_it(task(4), 4, adapter=adapter, trace=[[5, 5, 5, 5]], unmasked=[[0, 1, 2, 3]])
        fed = [[1, 2] + [5] * step + [MASK] * (4 - step) for step in range(4)]
        self.assertEqual([state for state, in adapter.states], fed)
        self.assertEqual(sample["tokens"], [[1, 2, 3, 4]], "the worker's own choices, in the states of the trace")
        self.assertEqual(sample["unmasked"], [[4, 4, 4, 3]], "4 steps: not in the step in which the trace unmasks it")

    def test_every_mask_is_filled_in_by_the_last_step(self):
        for algorithm in ("maskgit_plus", "topk_margin", "entropy"):
            for steps, new_tokens in ((1, 5), (3, 7), (8, 8)):
                sample = self.run_it(task(steps, algorithm), new_tokens)
                self.assertTrue(all(step in range(steps) for step in sample["unmasked"][0]), algorithm)
                self.assertNotIn(MASK, sample["tokens"][0])

    def test_equally_sure_positions_are_unmasked_by_position(self):
        sample = self.run_it(task(4), 4, adapter=Scripted(slope=0.0))
        self.assertEqual(sample["unmasked"], [[1, 2, 3, 3]])

    def test_sequences_of_a_batch_are_denoised_each_by_itself(self):
        together = self.run_it(task(5), 6, [[1, 2], [3, MASK - 1]])
        alone = [self.run_it(task(5), 6, [prompt]) for prompt in ([1, 2], [3, MASK - 1])]
        for field in ("tokens", "unmasked"):
            self.assertEqual(together[field], [one[field][0] for one in alone])

    def test_times_are_those_of_torch_in_single_precision(self):
        # torch.linspace(1, 1e-3, steps + 1)
        expected = [1.0, 0.857285737991333, 0.7145714163780212, 0.5718570947647095, 0.42914286255836487, 0.2864285707473755,
                    0.1437142938375473, 0.0010000000474974513]
        self.assertEqual(denoise.times(7, 1e-3), expected)

    def test_how_many_are_unmasked_is_computed_in_single_precision(self):
        steps, step, masks = 37, 35, 55
        choices = {place: (0, 0.0) for place in range(masks)}
        times = [1 + (1e-3 - 1) * index / steps for index in range(steps + 1)]
        self.assertEqual(int(masks * (1 - times[step + 1] / times[step])), 26)
        self.assertEqual(len(self.denoising(task(steps), 4, {"prompts": [[1, 2]]})._selected(step, choices)), 27)

    def test_parity_has_the_logits_that_tokens_were_unmasked_by(self):
        kept = {}
        adapter, case = Scripted(), {"prompts": [[1, 2]], "trace": [[5, 6, 7]], "unmasked": [[3, 0, 3]]}
        keep = lambda sequence, row, values: kept.__setitem__((sequence, row), struct.unpack("10f", values))
        self.denoising(task(4), 3, case, adapter, is_fed=True)._along_trace(case, keep)
        self.assertEqual(sorted(kept), [(0, row) for row in range(4)])
        states = [[1, 2, MASK, MASK, MASK], [1, 2, MASK, 6, MASK]]
        self.assertEqual([state for state, in adapter.states], states, "steps that unmask nothing are left out")
        self.assertEqual([row.index(max(row)) for _, row in sorted(kept.items())], [1, 2, 3, 4])

    def test_what_makes_no_sense_is_refused_in_a_sentence(self):
        def checked(task, mask=MASK, **case):
            work = {"cases": [{"prompts": [[1, 2]], **case}], "new_tokens": 4, "how": task}
            denoise.check(work, {"vocabulary": 10, "context": 64, "mask_token": mask}, False)

        def refused(task, mask=MASK, **case):
            with self.assertRaises(bundle.WorkerError) as caught:
                checked(task, mask, **case)
            return caught.exception.kind, str(caught.exception)

        checked(task(4, "entropy"))
        refusals = [
            (refused(task(4), None), "token by token"), (refused(task(4), 2), "the prompt holds the mask, token 2"),
            (refused(task(0)), "0 steps"), (refused(task(4, eps=1.0)), "eps is 1"), (refused(task(4, top_p=0.0)), "top_p"),
            (refused(task(4, top_k=0)), "top_k"), (refused(task(4, temperature=-1.0)), "temperature is -1"),
            (refused(task(4, "best")), "unknown algorithm 'best'"),
        ]
        for (kind, reason), said in refusals:
            self.assertEqual(kind, "input", reason)
            self.assertIn(said, reason)
        for drawn in (task(4, temperature=0.7), task(4, alg_temp=0.1), task(4, "origin")):
            kind, reason = refused(drawn)
            self.assertEqual(kind, "unsupported")
            self.assertIn("workers in Rust", reason)


class Jobs(unittest.TestCase):
    """Whole jobs, in memory, on the fake framework."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.directory = Path(temporary.name)
        self.addCleanup(temporary.cleanup)
        write_bundle(self.directory)
        patch = mock.patch.object(denoise, "choices", lambda rows, positions, rule: plain_choices(rows, positions, **rule))
        patch.start()
        self.addCleanup(patch.stop)

    def serve(self, task, turns=(), adapter=fake.Adapter, model={"causal": False, "mask_token": 15}):
        settings = {"precision": "f32", "device": "cpu", "threads": 1, "jit": True}
        job = {"protocol": serve.VERSION, "bundle": str(self.directory), "model": model, "settings": settings, "task": task}
        output, error = io.StringIO(), None
        lines = "".join(serve.line(value) for value in [job, *turns])
        try:
            serve.serve(lambda: adapter, io.BytesIO(lines.encode()), 0, output)
        except bundle.WorkerError as failure:
            error = failure
        return {event["event"]: event for event in map(json.loads, output.getvalue().splitlines())}, error

    def measure(self, **changes):
        case = {
            "prompts": [[1, 2, 3], [3, 2, 1]], "trace": [[4, 5, 6, 7], [7, 6, 5, 4]],
            "unmasked": [[0, 1, 2, 2], [2, 2, 1, 0]],
        }
        work = {"kind": "denoise", "cases": [{**case, **changes.pop("case", {})}], "new_tokens": 4, "forced": True}
        work |= {"how": changes.pop("how", task(3, "entropy")), "forced": changes.pop("forced", True)}
        return {"kind": "measure", "work": work, "warmup": LIMITS, **changes}

    def parity(self):
        return [REQUEST, {**FINISH, "parity": {"steps": 2, "file": str(self.directory / "parity")}}]

    def test_a_step_is_a_mark(self):
        events, error = self.serve(self.measure(), self.parity())
        self.assertIsNone(error)
        sample, steps = events["sample"], events["sample"]["output"]["steps"]
        self.assertEqual((len(sample["marks_ns"]), len(steps["passes_ns"])), (3, 3))
        self.assertEqual([len(row) for row in steps["tokens"] + steps["unmasked"]], [4] * 4)
        self.assertTrue(all(set(row) <= set(range(4)) for row in steps["unmasked"]))
        data = (self.directory / "parity").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        self.assertEqual(json.loads(data[8 : 8 + length])["case.0"]["shape"], [2, 1 + 4, 16])

    def test_there_is_no_cache(self):
        events, _ = self.serve(self.measure(), self.parity())
        self.assertEqual(events["loaded"]["in_effect"]["kv_cache"], "none")

    def test_a_lead_in_is_so_many_steps_and_no_more_than_a_request_s(self):
        passes = []

        class Counting(fake.Adapter):
            def append(self, tokens, every):
                passes.append(len(tokens[0]))
                return super().append(tokens, every)

        cold_and_warm = 3 + 3
        for lead_in, before in ((0, 0), (2, 2), (9, 3)):
            passes.clear()
            self.serve(self.measure(lead_in=lead_in), [REQUEST, FINISH], Counting)
            self.assertEqual(passes, [3 + 4] * (cold_and_warm + before + 3), "each over prompt and new tokens")

    def test_an_answer_leaves_the_states_that_it_told(self):
        work = {"kind": "denoise", "cases": [{"prompts": [[1, 2, 3]]}], "new_tokens": 4, "forced": False, "how": task(3)}
        steps = self.serve({"kind": "answer", "work": work})[0]["answered"]["outputs"][0]["steps"]
        case = {"prompts": [[1, 2, 3]], "trace": steps["tokens"], "unmasked": steps["unmasked"]}
        for forced in (True, False):
            events, _ = self.serve(self.measure(case=case, forced=forced, how=task(3)), [REQUEST, FINISH])
            sample = events["sample"]["output"]["steps"]
            self.assertEqual((sample["tokens"], sample["unmasked"]), (case["trace"], case["unmasked"]))

    def test_ways_that_are_not_the_model_s_are_refused(self):
        class Causal(fake.Adapter):
            BOTH_WAYS = False

        causal = {"causal": True}
        generate = {
            "kind": "generate", "cases": [{"prompts": [[1]]}], "new_tokens": 1, "decode": "greedy", "kv_cache": "on",
        }
        refusals = [
            (self.serve({"kind": "answer", "work": generate}), "input", "has to say how it denoises"),
            (self.serve(self.measure(), model=causal), "input", "token by token"),
            (self.serve({"kind": "load"}, adapter=Causal), "unsupported", "causal attention alone"),
            (self.serve(self.measure(case={"unmasked": [[0, 1, 2, 3]] * 2})), "input", "the step that unmasks it"),
            (self.serve(self.measure(case={"unmasked": []})), "input", "the step that unmasks it"),
            (self.serve(self.measure(case={"prompts": [[1, 15, 3]] * 2})), "input", "the prompt holds the mask, token 15"),
            (self.serve(self.measure(how=task(3, "origin"))), "unsupported", "in Rust"),
            (self.serve({"kind": "score", "sequences": [[1, 2]], "piece": 1, "file": "/dev/null"}), "input", "in one piece"),
        ]
        for (events, error), kind, said in refusals:
            self.assertEqual((events["failed"]["kind"], str(error)), (kind, events["failed"]["reason"]))
            self.assertIn(said, str(error))
        self.assertIsNone(self.serve({"kind": "load"}, adapter=Causal, model=causal)[1], "a decoder's loads")

    def test_an_adapter_attends_one_way_unless_it_says_otherwise(self):
        self.assertFalse(Base.BOTH_WAYS)


@unittest.skipUnless(importlib.util.find_spec("numpy"), "there is no numpy here")
class Choices(unittest.TestCase):
    """`choice.py`, by numpy."""

    def choices(self, rows, algorithm="maskgit_plus", **filters):
        import numpy
        from reference_worker.work import choice

        return choice.choices(numpy.array(rows, numpy.float32), list(range(len(rows))), algorithm, **filters)

    def chances(self, *chances):
        return [math.log(chance) for chance in chances]

    def assertNear(self, found, expected):
        self.assertTrue(all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, expected, strict=True)), (found, expected))

    def test_the_most_likely_and_how_sure_it_is(self):
        rows = [array("f", (math.sin(3 * row + 7 * id) * 4 for id in range(50))) for row in range(20)]
        for algorithm in ("maskgit_plus", "topk_margin", "entropy"):
            found, expected = self.choices(rows, algorithm), plain_choices(rows, range(20), algorithm)
            self.assertEqual([token for token, _ in found], [token for token, _ in expected])
            self.assertNear([sure for _, sure in found], [sure for _, sure in expected])

    def test_of_equals_the_lowest_id_is_chosen_and_leads_by_nothing(self):
        self.assertEqual(self.choices([[0, 2, 2, 1]], "topk_margin"), [(1, 0.0)])

    def test_filters_leave_the_fewest_most_likely(self):
        rows = [self.chances(0.1, 0.4, 0.3, 0.2)]
        sure = lambda algorithm, **filters: [self.choices(rows, algorithm, **filters)[0][1]]
        self.assertNear(sure("maskgit_plus", top_p=0.65), [0.4 / 0.7])
        self.assertNear(sure("maskgit_plus", top_p=0.75), [0.4 / 0.9])
        self.assertNear(sure("maskgit_plus", top_k=1), [1.0])
        self.assertNear(sure("topk_margin", top_k=2), [0.1 / 0.7])
        self.assertNear(sure("topk_margin", top_k=1), [1.0])
        self.assertNear(sure("maskgit_plus", top_p=0.95, top_k=2), [0.4 / 0.7])
        two = [0.4 / 0.7, 0.3 / 0.7]
        self.assertNear(sure("entropy", top_k=2), [sum(p * math.log(p + 1e-10) for p in two)])
        self.assertEqual(sure("entropy", top_p=1.0, top_k=4), sure("entropy"))

    def test_logits_without_a_distribution_are_the_least_sure(self):
        rows = [[0, math.inf, math.inf], [math.nan] * 3, [-math.inf] * 3, [math.nan, 1, 1]]
        found = self.choices(rows)
        self.assertEqual([token for token, _ in found], [1, 0, 0, 1])
        self.assertEqual([sure for _, sure in found], [-math.inf] * 3 + [0.5])

    def test_many_rows_are_worked_on_in_pieces(self):
        from reference_worker.work import choice

        rows = [[math.cos(row + id) for id in range(30)] for row in range(11)]
        whole = self.choices(rows, "entropy")
        with mock.patch.object(choice, "PIECE", 70):
            self.assertEqual(self.choices(rows, "entropy"), whole)


if __name__ == "__main__":
    unittest.main()
