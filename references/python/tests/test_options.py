"""Options that several references take, with the standard library alone."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker import gpus, kernel_cache, tinygrad_compiler
from reference_worker.bundle import WorkerError


def asked(device, fraction=None):
    return {"device": device, "options": {} if fraction is None else {"memory_fraction": fraction}}


class Options(unittest.TestCase):
    def test_the_share_of_a_pool_is_of_a_gpu_and_above_nothing(self):
        self.assertIsNone(gpus.memory_fraction(asked("cpu")))
        self.assertEqual(gpus.memory_fraction(asked("cuda:0", "0.5")), 0.5)
        for fraction in ("0", "1.5", "half", "nan"):
            with self.assertRaises(WorkerError) as refused:
                gpus.memory_fraction(asked("cuda:0", fraction))
            self.assertEqual(refused.exception.kind, "input")
        with self.assertRaises(WorkerError) as refused:
            gpus.memory_fraction(asked("cpu", "0.5"))
        self.assertEqual(refused.exception.kind, "unsupported")

    def test_a_kernel_cache_is_warm_once_something_is_in_it(self):
        with tempfile.TemporaryDirectory() as directory, mock.patch.dict(os.environ, KEPT=directory):
            self.assertIn("empty", kernel_cache.found("KEPT"))
            (Path(directory) / "kernel").touch()
            self.assertIn("earlier processes", kernel_cache.found("KEPT"))
            os.environ["KEPT"] = str(Path(directory) / "not made yet")
            self.assertIn("empty", kernel_cache.found("KEPT"))
            del os.environ["KEPT"]
            self.assertIn("no kernels kept", kernel_cache.found("KEPT"))

    def test_each_compiler_has_a_cache_of_its_own(self):
        with tempfile.TemporaryDirectory() as directory:
            caches = set()
            for name in ("one", "two"):
                compiler = Path(directory) / name
                compiler.write_text(f"#!/bin/sh\n# {name}\n")
                compiler.chmod(0o755)
                told = {"CACHEDB": f"{directory}/kernels.db", tinygrad_compiler.VARIABLE: str(compiler)}
                with mock.patch.dict(os.environ, told):
                    tinygrad_compiler.choose()
                    self.assertEqual(os.environ["CC"], str(compiler))
                    caches.add(os.environ["CACHEDB"])
            self.assertEqual(len(caches), 2)
            self.assertTrue(all(cache.startswith(f"{directory}/kernels-") for cache in caches))


if __name__ == "__main__":
    unittest.main()
