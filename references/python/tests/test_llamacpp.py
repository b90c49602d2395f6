"""Which libraries of llama.cpp are refused, with the standard library alone."""

import _ctypes
import ctypes
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker import llama_library
from reference_worker.bundle import WorkerError


class Libraries(unittest.TestCase):
    def refusal(self, directory):
        with mock.patch.dict(os.environ, {llama_library.DIRECTORY: str(directory)}):
            with self.assertRaises(WorkerError) as refused:
                llama_library.load()
        return str(refused.exception)

    def test_a_library_that_cannot_be_called_is_refused_with_what_to_do(self):
        self.assertIn("is not set: name the directory", self.refusal(""))
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "libllama-common.so").touch()
            self.assertIn("photofinish setup --references=llamacpp", self.refusal(directory))
            library = Path(directory) / "libllama.so"
            library.touch()
            self.assertIn("libllama.so cannot be loaded: ", self.refusal(directory))
            library.unlink()
            # A library that says no version, as llama.cpp's did for long.
            library.symlink_to(_ctypes.__file__)
            self.assertIn("is llama.cpp older than 0.4, and this worker is written for 0.4.x and 0.5.x", self.refusal(directory))

    def test_structures_have_the_sizes_of_the_versions_that_are_named(self):
        structures = (llama_library.ModelParams, llama_library.ContextParams, llama_library.Batch)
        self.assertEqual([ctypes.sizeof(structure) for structure in structures], [80, 160, 56])

    def test_the_cpu_library_is_the_one_that_is_mapped(self):
        mapped = "7f00-7f01 r-xp 0 00:1f 1 /a dir/ggml-cpu/libggml-base.so\n7f02-7f03 r-xp 0 00:1f 2 /a dir/libggml-cpu-{}.so\n"
        self.assertEqual(llama_library.cpu_library(mapped.format("haswell")), "ggml-cpu-haswell")
        self.assertEqual(llama_library.cpu_library(mapped.format("armv8.2_1")), "ggml-cpu-armv8.2_1")
        self.assertEqual(llama_library.cpu_library("/usr/lib/libggml-cpu.so.0.25.3"), "ggml-cpu")


if __name__ == "__main__":
    unittest.main()
