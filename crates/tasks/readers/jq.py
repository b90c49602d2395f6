"""The command jq by its library, which PyPI has: `jq [-r] [-R] PROGRAM FILE`."""

import argparse
import json

import jq

parser = argparse.ArgumentParser(prog="jq")
parser.add_argument("-r", action="store_true", help="print strings as they are")
parser.add_argument("-R", action="store_true", help="each line is a string")
parser.add_argument("program")
parser.add_argument("file")
asked = parser.parse_args()

program = jq.compile(asked.program)
with open(asked.file, encoding="utf-8") as file:
    for line in file:
        given = program.input_value(line.rstrip("\n")) if asked.R else program.input_text(line)
        for value in given:
            print(value if asked.r and isinstance(value, str) else json.dumps(value))
