"""Tests of gpu_run.py, without a GPU: `python3 -m unittest discover tools/gpu`."""

import os
import pathlib
import struct
import tempfile
import unittest

import gpu_run


def library(*entries):
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 32, len(data)) + b"\7" * 12 + struct.pack("<I", generation) + data
        for kind, generation, data in entries
    )
    return b"before\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(body)) + body + b"after"


class Tests(unittest.TestCase):
    def test_code_of_other_generations_becomes_zeros(self):
        data = bytearray(library((2, 80, b"\1" * 8), (2, 90, b"\2" * 8), (1, 90, b"\3" * 8)))
        gpu_run.keep_code(data, 90)
        self.assertEqual(data, library((2, 80, bytes(8)), (2, 90, b"\2" * 8), (1, 90, bytes(8))))

    def test_a_container_without_that_generation_and_a_broken_one_stay(self):
        whole = library((2, 80, b"\1" * 8), (1, 80, b"\3" * 8))
        data = bytearray(whole)
        gpu_run.keep_code(data, 90)
        self.assertEqual(data, whole)
        for length in range(len(whole)):
            gpu_run.keep_code(bytearray(whole[:length]), 80)

    def test_the_plan_is_sound(self):
        steps = gpu_run.read_plan(gpu_run.HERE.joinpath("plan.txt").read_text())
        self.assertEqual((steps[0][:2], steps[0][3][0]), (("encoder", 2.0), "compare"))
        for wrong in ["a | 1 | | x\na | 1 | | x", "../a | 1 | | x", "a | 0 | | x"]:
            self.assertRaises(SystemExit, gpu_run.read_plan, wrong)

    def test_complete_steps_are_not_repeated_and_those_without_time_wait(self):
        with tempfile.TemporaryDirectory() as scratch:
            program = pathlib.Path(scratch, "program")
            program.write_text(f"#!/bin/sh\necho $1 >> {scratch}/ran\n[ $1 = slow ] && exec sleep 60\n[ $1 = good ]\n")
            program.chmod(0o755)
            steps = gpu_run.read_plan("a|0.5||good\nb|0.5||bad\nlong|2||good\nslow|0.005||slow\nlast|0.1||good")
            for _ in range(2):
                done = gpu_run.follow(steps, str(program), pathlib.Path(scratch, "results"), 1, dict(os.environ))
                self.assertFalse(done)
            ran = pathlib.Path(scratch, "ran").read_text().split()
            self.assertEqual(ran, ["good", "bad", "slow", "good", "bad", "slow"])


if __name__ == "__main__":
    unittest.main()
