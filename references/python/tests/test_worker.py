"""The worker's rules, with the standard library alone: python3 -m unittest discover -s references/python/tests."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from itertools import accumulate
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from reference_worker import bundle, clock, gpus, memory, page_cache, score, serve, slowed, threads, warmup
from reference_worker.adapters.fake import Adapter

FALLING = [150, 140, 130, 120, 100, 100, 100, 100]
RISING = [100, 110, 120, 130, 140, 150, 160, 170]


def settled(*iterations):
    made = [{"cases": [{"marks_ns": list(accumulate(gaps, initial=9))}]} for gaps in iterations]
    return warmup.has_settled(made, 0.05)


class GpuTest(unittest.TestCase):
    def test_a_device_is_the_cpu_or_gpus_by_number(self):
        self.assertEqual([gpus.numbers(device) for device in ("cpu", "cuda:3", "cuda:1,cuda:0")], [[], [3], [1, 0]])
        self.assertEqual(gpus.named([0, 2]), "cuda:0,cuda:2")


class Warmup(unittest.TestCase):
    """As in the crate `worker`, case for case."""

    def test_an_iteration_whose_halves_agree_has_settled(self):
        self.assertTrue(settled([100, 101, 99, 100, 100, 102, 100, 100]))
        self.assertFalse(settled(FALLING))

    def test_an_iteration_like_the_one_before_has_settled_though_its_gaps_grow(self):
        self.assertFalse(settled(RISING))
        self.assertTrue(settled(RISING, [gap + 3 for gap in RISING]))
        self.assertFalse(settled([gap + 30 for gap in RISING], RISING))
        self.assertFalse(settled(RISING, [gap + 30 for gap in RISING]))

    def test_one_odd_gap_unsettles_nothing(self):
        odd = RISING[:3] + [900] + RISING[4:]
        self.assertTrue(settled(odd, RISING))

    def test_few_gaps_are_compared_with_those_before_alone(self):
        self.assertFalse(settled([100, 100]))
        self.assertTrue(settled([100, 100], [101, 99]))

    def test_requests_of_one_mark_are_compared_by_it(self):
        self.assertFalse(settled([]))
        self.assertTrue(settled([], []))

    def test_warm_up_ends_when_settled_or_at_a_limit(self):
        limits = {"min_iterations": 2, "max_iterations": 5, "max_ns": 100}
        goes_on = lambda done, settled, elapsed: warmup.goes_on(limits, done, settled, elapsed)
        self.assertTrue(goes_on(1, True, 0))
        self.assertFalse(goes_on(2, True, 0))
        self.assertTrue(goes_on(4, False, 0))
        self.assertFalse(goes_on(5, False, 0))
        self.assertFalse(goes_on(1, False, 100))
        self.assertTrue(goes_on(0, False, 100))


class Readings(unittest.TestCase):
    def test_threads_that_came_since_count_from_zero_and_idle_ones_not_at_all(self):
        before = {"1": (50, 5), "2": (70, 0), "3": (10, 0)}
        after = {"1": (60, 8), "2": (70, 0), "4": (30, 4)}
        used = threads.Used()
        used.add(before, after)
        self.assertEqual((used.busiest_first(), used.run_queue_ns), ([30, 10], 3 + 4))
        used.add(before, after)
        self.assertEqual((used.busiest_first(), used.run_queue_ns), ([60, 20], 14))
        used.add(None, after)
        used.add(before, after)
        self.assertEqual((used.busiest_first(), used.run_queue_ns), (None, None), "a sum with a gap is too small")

    @unittest.skipUnless(sys.platform == "linux", "Linux alone tells")
    def test_threads_are_counted_by_a_part_of_their_names(self):
        with open("/proc/self/comm") as file:
            own = file.read().strip()
        self.assertGreaterEqual(threads.named(own), 1)
        self.assertEqual(threads.named("no thread's name"), 0)

    def test_fields_of_status_are_told_apart(self):
        text = "VmPeak:\t  90 kB\nVmHWM:\t  12 kB\n"
        self.assertEqual(memory.kibibytes(text, "VmHWM"), 12 * 1024)
        self.assertIsNone(memory.kibibytes(text, "Vm"))

    @unittest.skipUnless(sys.platform == "linux", "Linux alone tells")
    def test_the_peak_of_a_phase_is_its_own(self):
        block = bytearray(64 << 20)
        del block
        before = memory.Phase().end()
        self.assertLess(before["peak_bytes"] - before["resident_bytes"], 32 << 20)
        self.assertTrue(0 < before["pss_bytes"] <= before["resident_bytes"])
        self.assertTrue(0 <= before["huge_bytes"] <= before["anonymous_bytes"])

    @unittest.skipUnless(sys.platform == "linux", "Linux alone tells")
    def test_a_file_just_written_is_in_the_page_cache(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(1 << 20))
            file.flush()
            self.assertEqual(page_cache.prepare(file.name, False), {"evicted": False, "resident_before": 1.0})


class Launcher(unittest.TestCase):
    """The script that starts the worker in the environment that set-up names."""

    def run_it(self, directory, **files):
        for name, text in files.items():
            (directory / name.replace("_", ".")).write_text(text)
        python = directory / "venv-a" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text('#!/bin/sh\necho "$0 $*"\n')
        python.chmod(0o755)
        environment = {"PATH": os.environ["PATH"], "PHOTOFINISH_REFERENCES": str(directory), "PHOTOFINISH_REFERENCE": "a"}
        return subprocess.run([str(ROOT / "worker"), "--hello"], env=environment, capture_output=True, text=True)

    def test_each_reference_runs_in_the_environment_that_it_was_installed_into(self):
        with tempfile.TemporaryDirectory() as directory:
            done = self.run_it(Path(directory), a_txt="a==1\n", a_python="venv-a/bin/python\n")
            self.assertEqual(done.stdout.split(), [f"{directory}/venv-a/bin/python", *"-B -m reference_worker a --hello".split()])

    def test_what_is_not_set_up_is_said_with_the_command(self):
        halves = [{}, {"a_txt": "a==1\n"}, {"a_python": "venv-a/bin/python\n"}, {"a_txt": "", "a_python": "gone/bin/python\n"}]
        for files in halves:
            with tempfile.TemporaryDirectory() as directory:
                done = self.run_it(Path(directory), **files)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn("run `photofinish setup --references=a`", done.stderr)


class Derived(unittest.TestCase):
    def test_a_file_is_derived_once_and_its_hash_recorded(self):
        made = []

        def make(staging):
            made.append(staging)
            (staging / "w").write_bytes(b"weights")
            return {"from": "f32.safetensors"}

        with tempfile.TemporaryDirectory() as directory:
            for _ in range(2):
                file = bundle.derive(Path(directory) / "d", "w", make)
            self.assertEqual(len(made), 1)
            record = json.loads(Path(f"{file}.json").read_text())
            self.assertEqual(record["sha256"], bundle.sha256_of(file))
            self.assertEqual([path.name for path in Path(directory).iterdir()], ["d"], "nothing staged is left")


def write_bundle(directory):
    (directory / "f32.safetensors").write_bytes(b"none")
    config = {"model_type": "llama", "vocab_size": 16, "max_position_embeddings": 64}
    (directory / "config.json").write_text(json.dumps(config))
    record = {"sha256": bundle.sha256_of(directory / "f32.safetensors"), "bytes": 4, "derived": ""}
    manifest = {"format": 1, "name": "n", "files": {"f32.safetensors": record, "config.json": record}}
    (directory / "manifest.json").write_text(json.dumps(manifest))


REQUEST, FINISH = {"turn": "request", "case": 0}, {"turn": "finish"}


class Watched(io.BytesIO):
    """A stdin that notes how many lines had come out whenever it was asked for one more."""

    def __init__(self, data, written):
        super().__init__(data)
        self.written, self.before = written, []

    def readline(self):
        self.before.append(self.written.getvalue().count(b"\n"))
        return super().readline()


class Jobs(unittest.TestCase):
    """Whole jobs, in memory, on the fake framework."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.directory = Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)
        write_bundle(self.directory)

    def job(self, task, turns, **changes):
        settings = {"precision": "f32", "device": "cpu", "threads": 1, "jit": True, **changes.pop("settings", {})}
        job = {"protocol": serve.VERSION, "bundle": str(self.directory), "settings": settings, "task": task, **changes}
        return "".join(serve.line(value) for value in [job, *turns]).encode()

    def serve(self, task, turns=(REQUEST, REQUEST, FINISH), **changes):
        output, error = io.StringIO(), None
        try:
            serve.serve(lambda: Adapter, io.BytesIO(self.job(task, turns, **changes)), 0, output)
        except bundle.WorkerError as failure:
            error = failure
        return [json.loads(line) for line in output.getvalue().splitlines()], error

    def measure(self, **changes):
        case = {"prompts": [[1, 2, 3], [3, 2, 1]], "trace": [[4, 5, 6, 7], [7, 6, 5, 4]]}
        limits = {"min_iterations": 1, "max_iterations": 2, "max_ns": 10**9, "settled_within": 0.05}
        work = {"kind": "generate", "cases": [case], "new_tokens": 4, "decode": "forced", "kv_cache": "on"}
        work |= {name: changes.pop(name) for name in list(changes) if name in work}
        return {"kind": "measure", "work": work, "warmup": limits, **changes}

    def answer(self, prompts, new_tokens, decode="greedy"):
        cases = [{"prompts": rows} for rows in prompts]
        work = {"kind": "generate", "cases": cases, "new_tokens": new_tokens, "decode": decode, "kv_cache": "on"}
        return {"kind": "answer", "work": work}

    def parity(self, **changes):
        """Turns that end with parity."""
        return [REQUEST, {**FINISH, "parity": {"steps": 2, "file": str(self.directory / "parity"), **changes}}]

    def test_a_measurement_sends_every_event_in_order(self):
        events, error = self.serve(self.measure(), [REQUEST, *self.parity()])
        self.assertIsNone(error)
        kinds = [event["event"] for event in events]
        expected = ["hello", "started", "loaded", "cold_start", "warmup", "sample", "sample", "usage", "parity", "done"]
        self.assertEqual(kinds, expected)
        sample = events[5]
        self.assertEqual(sample["case"], 0)
        self.assertEqual((len(sample["marks_ns"]), [len(row) for row in sample["output"]["tokens"]]), (4, [4, 4]))

    def test_a_request_is_answered_before_the_next_turn_is_read(self):
        written = io.BytesIO()
        stream = Watched(self.job(self.measure(), [REQUEST, REQUEST, FINISH]), written)
        # It holds back what is not flushed.
        serve.serve(lambda: Adapter, stream, 0, io.TextIOWrapper(written))
        self.assertEqual(stream.before, [0, 5, 6, 7], "the job, two requests and the finish")

    @unittest.skipUnless(hasattr(signal, "SIGSTOP"), "there is no stopping")
    def test_a_process_answers_over_a_pipe_that_stays_open_and_may_be_stopped_between(self):
        command = [sys.executable, "-B", "-m", "reference_worker", "fake"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        with subprocess.Popen(command, cwd=ROOT, **pipes) as worker:
            late = threading.Timer(30, worker.kill)
            late.start()
            self.addCleanup(late.cancel)
            read = lambda count: [json.loads(worker.stdout.readline())["event"] for _ in range(count)]
            worker.stdin.write(self.job(self.measure(), [REQUEST]))
            self.assertEqual(read(6)[4:], ["warmup", "sample"])
            worker.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
            worker.stdin.write(serve.line(REQUEST).encode())
            worker.send_signal(signal.SIGCONT)
            self.assertEqual(read(1), ["sample"])
            worker.stdin.write(serve.line(FINISH).encode())
            self.assertEqual(read(2), ["usage", "done"])
            self.assertEqual(worker.wait(), 0)

    def test_the_case_that_was_asked_for_is_run(self):
        cases = [{"prompts": [[token]], "trace": [[4, 5, 6, 7]]} for token in (1, 2)]
        events, _ = self.serve(self.measure(cases=cases), [{**REQUEST, "case": 1}, REQUEST, FINISH])
        self.assertEqual([event["case"] for event in events[5:7]], [1, 0])
        warm = events[4]["iterations"][0]["cases"]
        self.assertEqual([event["output"] for event in events[5:7]], [warm[1]["output"], warm[0]["output"]])

    def counted(self, lead_in, turns, **task):
        """The numbers of tokens appended at a time, and the events by a clock that each append puts on by 1 and each wait
        for a turn by 100."""
        lengths, waited = [], []

        class Counting(Adapter):
            def append(self, tokens, every):
                lengths.append(len(tokens[0]))
                return super().append(tokens, every)

        class Waiting(io.BytesIO):
            def readline(self):
                waited.append(100)
                return super().readline()

        limits = {"min_iterations": 1, "max_iterations": 1, "max_ns": 10**9, "settled_within": 0.05}
        task = self.measure(warmup=limits, lead_in=lead_in, **task)
        now = lambda: len(lengths) + sum(waited)
        output = io.StringIO()
        with (
            mock.patch.object(clock, "now_ns", now), mock.patch.object(clock, "cpu_ns", now),
            mock.patch.object(threads, "cpu_times", lambda: {"1": (now(), now())}),
        ):
            serve.serve(lambda: Counting, Waiting(self.job(task, turns + [FINISH])), 0, output)
        return lengths, [json.loads(line) for line in output.getvalue().splitlines()]

    def lengths(self, lead_in, requests, **task):
        """The numbers of tokens appended at a time after warm-up, and the usage."""
        lengths, events = self.counted(lead_in, [REQUEST] * requests, **task)
        cold_and_warm = 4 + 4
        return lengths[cold_and_warm:], events[-2]

    def test_the_cold_start_is_a_request_to_its_last_token_and_its_context_is_part_of_the_first(self):
        cases = [{"context": [[1] * 5], "prompts": [[2, 3, 4]], "trace": [[4, 5, 6, 7]]}]
        lengths, events = self.counted(0, [REQUEST], cases=cases)
        self.assertEqual(lengths[:5], [5, 3, 1, 1, 1])
        self.assertEqual(events[3]["marks_ns"], [2, 3, 4, 5])
        _, events = self.counted(0, [REQUEST])
        self.assertEqual(events[3]["marks_ns"], [1, 2, 3, 4])

    def test_a_lead_in_is_the_beginning_of_the_request_and_of_no_more_tokens(self):
        request = [3, 1, 1, 1]
        for lead_in, before in [(0, []), (1, [3]), (2, [3, 1]), (9, request)]:
            self.assertEqual(self.lengths(lead_in, 2)[0], 2 * (before + request))

    def test_a_request_in_slices_is_the_request_and_its_pauses_are_in_no_mark(self):
        slices = [{"turn": "slice", "case": 0, "marks": marks} for marks in (1, 1, 9)]
        whole, _ = self.serve(self.measure(), [REQUEST, FINISH])
        sliced, _ = self.serve(self.measure(), slices + [FINISH])
        self.assertEqual([event["event"] for event in sliced[5:8]], ["slice", "slice", "sample"])
        self.assertEqual([event["marks"] for event in sliced[5:7]], [1, 2])
        self.assertEqual(sliced[7]["output"], whole[5]["output"])
        _, events = self.counted(0, slices)
        self.assertEqual(events[7]["marks_ns"], [1, 2, 3, 4], "each wait for a turn takes 100")

    def sliced(self, *given, turns=(), **task):
        """The events of a request in slices of one mark, given these inputs in turn; after each, these turns."""
        one = {"turn": "slice", "case": 0, "marks": 1}
        slices = [one if each is None else {**one, "input": {"continue": each}} for each in given]
        lines = [line for each in slices for line in (each, *turns)]
        events, error = self.serve(self.measure(**task), [*lines, FINISH])
        self.assertIsNone(error)
        return events[5:-2]

    def tokens(self, prompts, trace=None, **changes):
        """The answer to one request of a case of its own."""
        case = {"prompts": prompts, "trace": trace or [[0] * 4] * len(prompts)}
        decode = "forced" if trace else "greedy"
        events, _ = self.serve(self.measure(cases=[case], decode=decode, **changes), [REQUEST, FINISH])
        return events[5]["output"]["tokens"]

    def test_prompts_of_a_turn_replace_those_of_the_case_and_its_context_stays(self):
        own, other, trace = [[1, 2, 3], [3, 2, 1]], [[5, 6, 7], [8, 9, 10]], [[4, 5, 6, 7], [7, 6, 5, 4]]
        for context in ([], [[9, 8], [8, 9]]):
            case = {"context": context, "prompts": own, "trace": trace}
            for kv_cache in ("on", "off"):
                measured = self.measure(cases=[case], kv_cache=kv_cache)
                turns = [{**REQUEST, "input": {"continue": given}} for given in (
                    {"prompts": other, "trace": trace}, {"prompts": other}, {"trace": trace[::-1]}, {})]
                events, error = self.serve(measured, [*turns, REQUEST, FINISH])
                self.assertIsNone(error)
                answers = [event["output"]["tokens"] for event in events[5:10]]
                whole = lambda prompts: [before + prompt for before, prompt in zip(context or [[], []], prompts)]
                self.assertEqual(answers[:2], [self.tokens(whole(other), trace), self.tokens(whole(other))])
                self.assertEqual(answers[2:4], [self.tokens(whole(own), trace[::-1]), self.tokens(whole(own))])
                self.assertEqual(answers[4], self.tokens(whole(own), trace), "the next request is the case's own again")

    def test_a_slice_is_fed_what_came_with_it_or_its_own_choice(self):
        prompts, fed = [[5, 6, 7], [8, 9, 10]], [[1, 2, 3], [4, 5, 6]]
        columns = [{"trace": [row[at : at + 1] for row in fed]} for at in range(3)]
        trace = [row + [0] for row in fed]
        for kv_cache in ("on", "off"):
            events = self.sliced({"prompts": prompts}, *columns, kv_cache=kv_cache)
            self.assertEqual(events[-1]["output"]["tokens"], self.tokens(prompts, trace))
        events = self.sliced({"prompts": prompts}, None, {}, None)
        self.assertEqual(events[-1]["output"]["tokens"], self.tokens(prompts))
        own = self.tokens(prompts)
        mixed = [[*row[:1], *other[1:3], 0] for row, other in zip(own, fed)]
        events = self.sliced({"prompts": prompts}, None, columns[1], columns[2])
        self.assertEqual(events[-1]["output"]["tokens"], self.tokens(prompts, mixed))

    def test_a_slice_of_several_marks_is_fed_a_token_for_each(self):
        slices = [
            {"turn": "slice", "case": 0, "marks": 1, "input": {"continue": {}}},
            {"turn": "slice", "case": 0, "marks": 9, "input": {"continue": {"trace": [[4, 5, 6], [7, 6, 5]]}}},
        ]
        whole, _ = self.serve(self.measure(), [REQUEST, FINISH])
        events, error = self.serve(self.measure(), [*slices, FINISH])
        self.assertIsNone(error)
        self.assertEqual(events[6]["output"], whole[5]["output"])

    def test_logits_are_those_of_the_last_step(self):
        ask, every = {"turn": "logits", "case": 0, "tokens": [3, 0]}, {"turn": "logits", "case": 0, "tokens": list(range(16))}
        events = self.sliced({}, None, None, None, turns=(ask, every, ask))
        kinds = [event["event"] for event in events]
        self.assertEqual(kinds, 3 * ["slice", "logits", "logits", "logits"] + ["sample", "logits", "logits", "logits"])
        chosen = events[12]["output"]["tokens"]
        for step in range(4):
            some, rows, again = (event["values"] for event in events[4 * step + 1 : 4 * step + 4])
            self.assertEqual([row.index(max(row)) for row in rows], [row[step] for row in chosen])
            self.assertEqual((some, some), ([[row[3], row[0]] for row in rows], again))
        whole, _ = self.serve(self.measure(), [{**REQUEST, "input": {"continue": {}}}, every, FINISH])
        self.assertEqual(whole[6], events[-2])

    def test_logits_are_computed_by_no_step_and_are_in_no_mark(self):
        ask = {"turn": "logits", "case": 0, "tokens": [1]}
        slices = [{"turn": "slice", "case": 0, "marks": marks} for marks in (1, 1, 9)]
        turns = [turn for each in slices for turn in (each, ask)]
        lengths, events = self.counted(2, turns)
        self.assertEqual(lengths[8:], [3, 1] + [3, 1, 1, 1])
        self.assertEqual(events[9]["marks_ns"], [1, 2, 3, 4])
        self.assertEqual((events[-2]["cpu_ns"], events[-2]["wall_ns"]), (4, 4))

    def test_logits_that_are_no_number_are_null(self):
        class Broken(Adapter):
            def values(self, logits):
                logits = logits[:]
                logits[1], logits[2] = float("nan"), float("-inf")
                return super().values(logits)

        output = io.StringIO()
        turns = [REQUEST, {"turn": "logits", "case": 0, "tokens": [2, 1]}, FINISH]
        serve.serve(lambda: Broken, io.BytesIO(self.job(self.measure(), turns)), 0, output)
        self.assertEqual(json.loads(output.getvalue().splitlines()[6])["values"][0], [None, None])

    def test_what_is_used_is_used_by_the_requests_alone(self):
        usage = self.lengths(2, 3)[1]
        self.assertEqual((usage["cpu_ns"], usage["wall_ns"]), (12, 12))
        self.assertEqual((usage["thread_cpu_ns"], usage["run_queue_ns"]), ([12], 12))

    def test_a_context_is_no_part_of_what_a_request_uses(self):
        cases = [{"context": [[1] * 5], "prompts": [[2, 3, 4]], "trace": [[4, 5, 6, 7]]}]
        lengths, usage = self.lengths(0, 2, cases=cases)
        self.assertEqual(lengths[-10:], 2 * [5, 3, 1, 1, 1])
        self.assertEqual((usage["cpu_ns"], usage["wall_ns"]), (8, 8))

    def test_the_weights_are_hashed_where_that_is_asked_for(self):
        expected = bundle.sha256_of(self.directory / "f32.safetensors")
        for finish, told in [({**FINISH, "hash": True}, expected), ({**FINISH, "hash": False}, None), (FINISH, None)]:
            events, _ = self.serve(self.measure(), [REQUEST, finish])
            self.assertEqual(events[6]["weights_sha256"], told)

    def test_the_weights_identity_is_what_the_system_says_of_the_file(self):
        file = self.directory / "f32.safetensors"
        os.utime(file, ns=(1, 2_000_000_003))
        events, _ = self.serve(self.measure(), [REQUEST, FINISH])
        found = os.stat(file)
        expected = {
            "device": found.st_dev, "inode": found.st_ino, "bytes": found.st_size, "modified_ns": found.st_mtime_ns,
        }
        self.assertEqual([events[2]["weights_identity"], events[6]["weights_identity"]], [expected] * 2)

    def refused(self, turns):
        """The reason why these turns are refused, after one request that was answered."""
        events, error = self.serve(self.measure(), [REQUEST, *turns])
        self.assertEqual([event["event"] for event in events[5:]], ["sample", "failed"])
        self.assertEqual((events[-1]["kind"], events[-1]["reason"]), ("input", str(error)))
        return str(error)

    def test_turns_that_end_without_a_finish_are_refused(self):
        self.assertEqual(self.refused([]), "the turns ended without a finish")

    def test_an_unknown_case_is_refused(self):
        for case in (1, -1, None):
            self.assertEqual(self.refused([{**REQUEST, "case": case}]), f"a turn asks for case {case}, and there are 1")

    def test_an_input_of_another_shape_is_refused(self):
        row, trace = [[1, 2, 3]] * 2, [[1, 2, 3, 4]] * 2
        for given, said in [
            ({"seed": 1}, "may be given `continue` alone"),
            ({"continue": {"prompts": row[:1]}}, "prompts need to be as many as those of its case, and as long"),
            ({"continue": {"prompts": [[1, 2, 3], [1, 2]]}}, "prompts need to be as many"),
            ({"continue": {"prompts": [[1, 2, 3], [1, 2, 16]]}}, "token id 16 is outside the vocabulary of 16 tokens"),
            ({"continue": {"trace": trace[:1]}}, "trace needs a row for each prompt, of length 4"),
            ({"continue": {"trace": row}}, "trace needs a row for each prompt, of length 4"),
            ({"continue": {"trace": [[1, 2, 3, -1]] * 2}}, "token id -1 is outside"),
        ]:
            self.assertIn(said, self.refused([{**REQUEST, "input": given}]))

    def test_an_input_that_does_not_fit_its_slice_is_refused(self):
        begun, one = {"continue": {}}, {"continue": {"trace": [[1]] * 2}}
        for first, later, said in [
            (one, None, "the first slice of a request may be given prompts, and no trace"),
            (None, one, "if its request began with `continue`"),
            (begun, {"continue": {"prompts": [[1, 2, 3]] * 2}}, "may be given a trace, and no prompts"),
            (begun, {"continue": {"trace": [[1, 2]] * 2}}, "of length 1"),
            (begun, {"continue": {"trace": [[1]]}}, "of length 1"),
        ]:
            slices = [{"turn": "slice", "case": 0, "marks": 1, "input": given} for given in (first, later)]
            events, error = self.serve(self.measure(), slices)
            self.assertEqual((events[-1]["event"], events[-1]["kind"]), ("failed", "input"))
            self.assertIn(said, str(error))

    def test_logits_are_asked_for_after_a_slice_or_a_sample_alone(self):
        ask, prepare = {"turn": "logits", "case": 0, "tokens": [1]}, {"turn": "prepare", "case": 0}
        for turns, said in [
            ([ask], "whose slice or sample is not the last answer"),
            ([REQUEST, prepare, ask], "whose slice or sample is not the last answer"),
            ([REQUEST, {**ask, "case": 1}], "a turn asks for case 1, and there are 1"),
            ([REQUEST, {**ask, "tokens": [16]}], "token id 16 is outside"),
        ]:
            events, error = self.serve(self.measure(lead_in=1), turns)
            self.assertEqual((events[-1]["event"], events[-1]["kind"]), ("failed", "input"))
            self.assertIn(said, str(error))

    def test_what_precedes_a_request_is_done_before_it_is_asked_for(self):
        prepare = {"turn": "prepare", "case": 0}
        events, error = self.serve(self.measure(lead_in=2), [prepare, REQUEST, FINISH])
        self.assertIsNone(error)
        kinds = [event["event"] for event in events]
        self.assertEqual(kinds[kinds.index("ready") :][:2], ["ready", "sample"])
        _, error = self.serve(self.measure(), [{"turn": "slice", "case": 0, "marks": 1}, prepare])
        self.assertIn("is under way", str(error))

    def test_an_unknown_turn_is_refused(self):
        self.assertEqual(self.refused([{"turn": "pass"}]), "unknown turn 'pass'")

    def test_a_framework_is_configured_by_the_job_before_it_is_initialised(self):
        asked = []

        class Configured(Adapter):
            @staticmethod
            def configure(settings):
                asked.append(settings["threads"])

            @staticmethod
            def runtime():
                asked.append("runtime")
                return Adapter.runtime()

        serve.serve(lambda: Configured, io.BytesIO(self.job({"kind": "load"}, [])), 0, io.StringIO())
        self.assertEqual(asked, [1, "runtime"])

    def test_weights_are_divided_by_adapters_that_can_alone(self):
        events, error = self.serve({"kind": "load"}, settings={"shards": 2})
        self.assertEqual((events[-1]["kind"], error.kind), ("unsupported", "unsupported"))
        self.assertIn("not divided over devices (2", events[-1]["reason"])

    def test_other_tasks_read_the_job_alone(self):
        stream = io.BytesIO(self.job({"kind": "load"}, [FINISH]))
        serve.serve(lambda: Adapter, stream, 0, io.StringIO())
        self.assertEqual(json.loads(stream.read()), FINISH)

    def test_forced_and_greedy_feed_what_they_say_and_the_cache_changes_nothing(self):
        tokens = {}
        for decode in ("forced", "greedy"):
            for kv_cache in ("on", "off"):
                events, _ = self.serve(self.measure(decode=decode, kv_cache=kv_cache))
                tokens[decode, kv_cache] = events[5]["output"]["tokens"]
                policy = "recomputed" if kv_cache == "off" else "growing"
                self.assertEqual(events[2]["in_effect"]["kv_cache"], policy)
        self.assertEqual(tokens["forced", "on"], tokens["forced", "off"])
        self.assertEqual(tokens["greedy", "on"], tokens["greedy", "off"])
        self.assertNotEqual(tokens["forced", "on"], tokens["greedy", "on"])

    def test_a_score_may_keep_a_part_of_the_positions(self):
        rows = [[1, 2, 3, 4], [4, 3, 2, 1]]
        task = {"kind": "score", "sequences": rows}
        for name, more in (("all", {}), ("kept", {"piece": 2, "kept": {"from": [1, 2], "count": 2}})):
            self.serve(task | more | {"file": str(self.directory / name)})

        def logits(name):
            data = (self.directory / name).read_bytes()
            length = int.from_bytes(data[:8], "little")
            shape = json.loads(data[8 : 8 + length])["logits"]["shape"]
            row, data = 4 * shape[2], data[8 + length :]
            return shape[:2], [data[at : at + row] for at in range(0, len(data), row)]

        (_, every), (shape, kept) = logits("all"), logits("kept")
        self.assertEqual((shape, kept), ([2, 2], [every[at] for at in (1, 2, 6, 7)]))

    def test_parity_s_logits_are_those_of_a_score_of_the_same_tokens(self):
        self.serve(self.measure(), self.parity())
        rows = [[1, 2, 3, 4, 5, 6, 7], [3, 2, 1, 7, 6, 5, 4]]
        self.serve({"kind": "score", "sequences": rows, "piece": 3, "file": str(self.directory / "score")})
        parity, scored = ((self.directory / name).read_bytes() for name in ("parity", "score"))
        length = struct.unpack("<Q", parity[:8])[0]
        self.assertEqual(json.loads(parity[8 : 8 + length])["case.0"]["shape"], [2, 7, 16])
        self.assertEqual(parity[8 + length :][-448:], scored[-448:])
        self.assertEqual(len(parity) - 8 - length, 2 * 7 * 16 * 4)

    def with_context(self, **changes):
        case = {"context": [[9, 8], [8, 9]], "prompts": [[1, 2, 3], [3, 2, 1]], "trace": [[4, 5, 6, 7], [7, 6, 5, 4]]}
        return self.measure(cases=[case], **changes)

    def test_a_context_is_a_part_of_what_is_continued(self):
        whole = {"prompts": [[9, 8, 1, 2, 3], [8, 9, 3, 2, 1]], "trace": [[4, 5, 6, 7], [7, 6, 5, 4]]}
        of = lambda task: self.serve(task)[0][5]["output"]
        expected = of(self.measure(cases=[whole], decode="greedy"))
        self.assertEqual(of(self.with_context(decode="greedy")), expected)
        self.assertEqual(of(self.with_context(decode="greedy", kv_cache="off")), expected)
        self.assertNotEqual(of(self.measure(decode="greedy")), expected)

    def test_a_context_is_in_the_cache_before_the_clock_starts(self):
        events, _ = self.serve(self.with_context(), settings={"options": {"step_ms": 20}})
        # The context's step and the prompt's.
        self.assertGreaterEqual(events[3]["marks_ns"][0], 40e6)
        first = min(event["marks_ns"][0] for event in events[5:7])
        self.assertLess(first, 40e6)

    def test_parity_may_leave_out_all_but_the_last_position_of_context_and_prompt(self):
        def parity(last_only):
            self.serve(self.with_context(), self.parity(prompt_last_only=last_only))
            data = (self.directory / "parity").read_bytes()
            length = struct.unpack("<Q", data[:8])[0]
            return json.loads(data[8 : 8 + length])["case.0"]["shape"], data[8 + length :]

        (shape, every), (short, last) = parity(False), parity(True)
        self.assertEqual((shape, short), ([2, 2 + 3 + 4, 16], [2, 1 + 4, 16]))
        kept = 4 * 5 * 16
        rows = [every[end - kept : end] for end in (len(every) // 2, len(every))]
        self.assertEqual(b"".join(rows), last)

    AUDIO = {"audio": {"bands": 2, "frames": 4}, "features": {"audio": "an encoder of audio"}}

    def heard(self, turn=0, turns=(REQUEST, FINISH), frames=tuple(range(8)), **changes):
        """What a model that hears answers, given these frames."""
        (self.directory / "frames").write_bytes(struct.pack("<8f", *frames))
        audio = {"file": str(self.directory / "frames"), "turn": turn}
        cases = [{"prompts": [[1, 2, 3]], "trace": [[4, 5, 6, 7]], "audio": audio, **changes}]
        return self.serve(self.measure(cases=cases, decode="greedy"), turns, model=self.AUDIO)

    def test_audio_is_encoded_before_the_prompt_and_its_bands_begin_where_they_are_told(self):
        plain, _ = self.heard()
        turned, _ = self.heard(turn=1)
        asked = {**REQUEST, "input": {"continue": {"turn": 1}}}
        sent, _ = self.heard(turns=(asked, FINISH))
        others, error = self.heard(frames=(1, 2, 3, 0, 5, 6, 7, 4))
        self.assertIsNone(error)
        output = lambda events: events[5]["output"]
        self.assertNotEqual(output(plain), output(turned))
        self.assertEqual(output(turned), output(others))
        self.assertEqual(output(turned), output(sent))
        sample = turned[5]
        self.assertTrue(0 < sample["heard_ns"] <= sample["marks_ns"][0])
        self.assertNotIn("heard_ns", self.serve(self.measure())[0][5])

    def test_parity_and_scores_listen(self):
        asked = {"parity": {"steps": 2, "file": str(self.directory / "parity")}}
        events, _ = self.heard(turns=[REQUEST, {**FINISH, **asked}])
        self.assertEqual(events[-2]["event"], "parity")
        row, audio = [1, 2, 3, 4, 5, 6, 7], {"file": str(self.directory / "frames")}
        score = {"kind": "score", "sequences": [row, row], "piece": 3, "file": str(self.directory / "score")}
        _, error = self.serve({**score, "audio": [audio, {**audio, "turn": 1}]}, model=self.AUDIO)
        self.assertIsNone(error)
        parity, scored = ((self.directory / name).read_bytes() for name in ("parity", "score"))
        one = 7 * 16 * 4
        self.assertEqual(parity[-one:], scored[-2 * one : -one])
        self.assertNotEqual(scored[-2 * one : -one], scored[-one:])

    def test_audio_that_makes_no_sense_is_refused(self):
        audio = {"file": str(self.directory / "frames")}
        for changes, said in [
            ({"audio": None}, "one for each sequence, if the model hears"),
            ({"audio": {"file": "/no such file"}}, "/no such file: No such file"),
            ({"audio": {"file": __file__}}, "where the model takes 32"),
            ({"prompts": [[1]] * 2, "trace": [[4, 5, 6, 7]] * 2}, "audio has one prompt, a KV cache, and no context"),
            ({"context": [[1]]}, "audio has one prompt"),
            ({"turns": [{**REQUEST, "input": {"continue": {"turn": -1}}}]}, "a turn's audio is a frame's number"),
        ]:
            events, error = self.heard(**changes)
            self.assertEqual((events[-1]["event"], events[-1]["kind"]), ("failed", "input"))
            self.assertIn(said, str(error))
        cases = [{"prompts": [[1, 2, 3]], "trace": [[4, 5, 6, 7]], "audio": audio}]
        for task in (self.measure(cases=cases), {"kind": "score", "sequences": [[1]], "audio": [audio], "file": "x"}):
            self.assertIn("and none if it does not", str(self.serve(task)[1]))
        one = {"turn": "slice", "case": 0, "marks": 1}
        later = [{**one, "input": {"continue": given}} for given in ({}, {"turn": 1})]
        self.assertIn("with the beginning of a request", str(self.heard(turns=later)[1]))

    def test_an_answer_continues_with_its_own_tokens(self):
        events, _ = self.serve(self.answer([[[1, 2, 3]]], 4))
        whole, _ = self.serve(self.measure(decode="greedy"))
        self.assertEqual(events[-2]["outputs"][0]["tokens"][0], whole[5]["output"]["tokens"][0])

    def test_a_slowdown_is_told_and_felt(self):
        events, _ = self.serve(self.measure(), settings={"slowdown": 0.05})
        self.assertIn("slowed by 5 % (positive control)", events[2]["in_effect"]["kernels"])

    def test_what_cannot_be_done_is_said_with_its_kind(self):
        load = {"kind": "load"}
        refusals = [
            ({"task": {"kind": "probe", "bytes": 1, "repeats": 1}}, "unsupported", "in Rust"),
            ({"settings": {"device": "cuda:0"}}, "unsupported", "cuda:0"),
            ({"settings": {"dequantised": True}}, "unsupported", "name an engine first"),
            ({"settings": {"precision": "bf16"}}, "input", "holds f32"),
            ({"settings": {"options": {"x": "1"}}}, "input", "unknown option 'x'"),
            ({"protocol": 1}, "input", "protocol 1"),
            ({"task": self.measure(decode={"sampled": {"temperature": 0.0, "seed": 1}})}, "input", "temperature of 0.0 draws nothing"),
            ({"task": self.answer([[[1]]], 1, {"sampled": {"temperature": 1.0, "top_k": 0, "seed": 1}})}, "input", "top_k of 0"),
            ({"task": self.answer([[[1]]], 1, {"sampled": {"temperature": 1.0, "top_p": 1.5, "seed": 1}})}, "input", "top_p is 1.5"),
            ({"task": self.answer([[[1]]], 1, "beam")}, "input", "unknown decode 'beam'"),
            ({"task": {"kind": "answer", "work": {"kind": "dream"}}}, "input", "unknown kind of work"),
            ({"task": self.measure(cases=[{"context": [[1]], "prompts": [[1], [2]], "trace": [[1] * 4] * 2}])}, "input", "context"),
            ({"task": {"kind": "score", "sequences": [[99]], "file": "x"}}, "input", "token id 99"),
            ({"task": {"kind": "score", "sequences": [[1] * 65], "file": "x"}}, "input", "context of 64"),
        ]
        for changes, kind, said in refusals:
            events, error = self.serve(**{"task": load, **changes})
            self.assertEqual((events[-1]["event"], events[-1]["kind"]), ("failed", kind))
            self.assertIn(said, events[-1]["reason"])
            self.assertEqual(str(error), events[-1]["reason"])


if __name__ == "__main__":
    unittest.main()
