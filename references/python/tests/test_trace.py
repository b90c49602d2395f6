"""A run to look at, with the standard library alone: python3 -m unittest discover -s references/python/tests."""

import io
import json
import sys
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from reference_worker import bundle, openvino_profile, serve, trace
from reference_worker.adapters.fake import Adapter

CONFIG = {"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 64}


class Traces(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)
        manifest = {"format": 1, "name": "nothing", "files": {"f32.safetensors": {"sha256": "", "bytes": 3}}}
        (self.directory / "config.json").write_text(json.dumps(CONFIG))
        (self.directory / "manifest.json").write_text(json.dumps(manifest))
        (self.directory / "f32.safetensors").write_text("abc")
        self.file = self.directory / "profile.json"

    def trace(self, options, prompts=((1, 2, 3), (4, 5, 6)), new_tokens=3):
        work = {
            "kind": "generate", "cases": [{"prompts": prompts}], "new_tokens": new_tokens, "decode": "greedy", "kv_cache": "on",
        }
        task = {"kind": "trace", "work": work, "file": str(self.file)}
        settings = {"precision": "f32", "device": "cpu", "threads": 1, "jit": True, "options": options}
        job = {"protocol": serve.VERSION, "bundle": str(self.directory), "settings": settings, "task": task}
        output = io.StringIO()
        serve.serve(lambda: Adapter, io.BytesIO(serve.line({**job, "spawned_at_ns": 5}).encode()), 7, output)
        *_, traced, done = map(json.loads, output.getvalue().splitlines())
        self.assertEqual((traced["event"], done["event"]), ("traced", "done"))
        return traced

    def steps(self, traced):
        starts = ([request["start_ns"], *request["tokens_ns"]] for request in traced["requests"])
        return [step for request in starts for step in zip(request, request[1:])]

    def test_phases_follow_one_another_and_hold_their_requests_and_tokens(self):
        traced = self.trace({})
        names = [phase["name"] for phase in traced["phases"]]
        self.assertEqual(names, ["start-up", "load", "cold start", "warm-up", "request"])
        self.assertEqual(traced["phases"][0]["start_ns"], 5)
        readings = [phase[end] for phase in traced["phases"] for end in ("start_ns", "end_ns")]
        self.assertEqual(readings, sorted(readings))
        self.assertEqual([len(request["tokens_ns"]) for request in traced["requests"]], [1, 3, 3])
        self.assertEqual(traced["requests"][1]["tokens"], traced["requests"][2]["tokens"])
        self.assertEqual([len(row) for row in traced["requests"][2]["tokens"]], [3, 3])

    def test_a_framework_without_a_profiler_says_so_and_writes_no_file(self):
        traced = self.trace({})
        self.assertIsNone(traced["profiler"])
        self.assertEqual(traced["notes"], ["Photofinish reads no profiler of fake, so its own events are not here."])
        self.assertFalse(self.file.exists())

    def test_events_of_the_time_since_1970_are_put_on_the_workers_clock(self):
        traced = self.trace({"profiler": "CLOCK_REALTIME", "step_ms": "1"})
        events, alignment = json.loads(self.file.read_text()), traced["profiler"]["alignment"]
        self.assertEqual(traced["phases"][2]["name"], "profiler start")
        self.assertEqual((traced["profiler"]["events"], len(events)), (7, 7))
        error = alignment["error_ns"]
        for event, (start, end) in zip(events, self.steps(traced)):
            self.assertLessEqual(start - error, event["start_ns"])
            self.assertLessEqual(event["start_ns"] + event["duration_ns"], end + error)

    def test_events_without_times_stand_in_their_steps_one_after_another(self):
        traced = self.trace({"profiler": "none"})
        events = json.loads(self.file.read_text())
        self.assertEqual([event["start_ns"] for event in events], [start for start, _ in self.steps(traced)])
        self.assertEqual(traced["profiler"]["alignment"], {"clock": "none", "error_ns": None, "overhang_ns": 0})
        one = lambda step, duration: {"name": "a", "step": step, "duration_ns": duration}
        placed = trace.in_steps([one(0, 10), one(0, 20), one(1, 90), one(1, 60)], [(100, 200), (200, 300)])
        spans = [(event["start_ns"], event["duration_ns"]) for event in placed]
        self.assertEqual(spans, [(100, 10), (110, 20), (200, 60), (260, 40)], "shortened where they do not fit")

    def test_an_overhang_is_the_smaller_part_of_an_event_on_a_boundary(self):
        steps = [(100, 200), (200, 300)]
        over = lambda start, end: trace.overhang([{"start_ns": start, "duration_ns": end - start}], steps)
        self.assertEqual([over(100, 200), over(210, 290)], [0, 0])
        self.assertEqual([over(90, 150), over(290, 305), over(150, 206), over(190, 299)], [10, 5, 6, 10])
        self.assertEqual([over(0, 90), over(50, 400), over(310, 400)], [0, 0, 0])

    def test_a_trace_of_nothing_is_refused(self):
        for prompts, new_tokens in (([[]], 1), ([[1]], 0), ([[1], [1, 2]], 1)):
            with self.assertRaises(bundle.WorkerError):
                self.trace({}, prompts, new_tokens)


class Counters(unittest.TestCase):
    def test_a_node_is_told_of_each_step_also_where_its_average_falls(self):
        # Three microseconds and then less than one: the average, cut to whole ones, is 1.
        node = {"node_name": "layer 2 mlp/1", "node_type": "MatMul", "exec_type": "brgemm", "status": "Status.EXECUTED"}
        request = SimpleNamespace()
        profile = openvino_profile.Profile(request)
        for average in (3, 1):
            request.profiling_info = [SimpleNamespace(**node, real_time=timedelta(microseconds=average))]
            profile.note()
        told = [(event["part"], event["step"], event["duration_ns"]) for event in profile.end()["events"]]
        self.assertEqual(told, [("layer 2 mlp", 0, 3000), ("layer 2 mlp", 1, 0)])


class Parts(unittest.TestCase):
    def test_modules_of_transformers_are_parts_of_the_model(self):
        with mock.patch.dict(sys.modules, torch=mock.MagicMock()):
            from reference_worker.torch_profile import part_of
        parts = {
            "model.embed_tokens": "embedding", "model.layers.3.input_layernorm": "layer 3 attention norm",
            "model.layers.3.self_attn": "layer 3 attention", "model.layers.3.mlp": "layer 3 mlp", "lm_head": "head",
            "model.norm": "final norm", "transformer.h.11.attn": "layer 11 attention", "transformer.wpe": "embedding",
            "transformer.h.0.ln_2": "layer 0 mlp norm", "transformer.ln_f": "final norm",
            "": None, "model": None, "model.layers.3": None, "model.layers.3.self_attn.q_proj": None,
            "model.layers.3.self_attn.norm": None,
        }
        self.assertEqual({module: part_of(module) for module in parts}, parts)

    def test_operations_of_xla_are_of_the_part_that_they_were_written_in(self):
        with mock.patch.dict(sys.modules, jax=mock.MagicMock()):
            from reference_worker.jax_profile import parts_of
        text = """HloModule jit_step_1, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %multiply.1 = f32[4]{0} multiply(%p, %p), metadata={op_name="jit(step_1)/layer 2 mlp/mul" stack_frame_id=2}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %dot.2 = f32[4]{0} dot(%a, %a), metadata={op_name="jit(step_1)/layer 12 attention norm/dot_general"}
  %copy.3 = f32[4]{0} copy(%dot.2)
  ROOT %fusion.4 = f32[4]{0} fusion(%copy.3), kind=kLoop, calls=%fused
}
"""
        module, parts = parts_of(text)
        self.assertEqual(module, "jit_step_1")
        self.assertEqual((parts["dot.2"], parts["fusion.4"]), ("layer 12 attention norm", "layer 2 mlp"))
        self.assertNotIn("copy.3", parts)


if __name__ == "__main__":
    unittest.main()
