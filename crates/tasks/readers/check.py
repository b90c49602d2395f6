"""Runs the one-liners of a page's block `readers` on an example and compares what they print with the page; then
compares the Kubernetes example with the schema that Kubernetes publishes. For `cargo xtask test`."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PAGE, HISTORY, KUBERNETES = "docs/reference/files.md", "docs/examples/history.jsonl", "examples/parts/kubernetes.yaml"
# The programs that the page shows, one line each.
SHOWN = ["python3", "duckdb", "jq"]

# The programs of this environment come first, and jq is the script beside this file.
programs = tempfile.mkdtemp()
jq = pathlib.Path(programs, "jq")
jq.write_text(f"#!{sys.executable}\n" + pathlib.Path(__file__).with_name("jq.py").read_text())
jq.chmod(0o755)
path = os.pathsep.join([programs, os.path.dirname(sys.executable), os.environ.get("PATH", "")])

page = pathlib.Path(PAGE).read_text(encoding="utf-8")
between = page.split("<!-- readers: begin -->")[1].split("<!-- readers: end -->")[0]
examples = re.findall(r"```sh\n(.*)\n```\n```text\n([^`]*)```", between)
if [line.split()[0] for line, _ in examples] != SHOWN:
    sys.exit(f"error: {PAGE} must show one line of each: {', '.join(SHOWN)}")
with tempfile.TemporaryDirectory() as scratch:
    os.mkdir(f"{scratch}/results")
    shutil.copy(HISTORY, f"{scratch}/results/history.jsonl")
    # The output of pandas and DuckDB must not depend on personal settings.
    environment = os.environ | {"PATH": path, "HOME": scratch, "COLUMNS": "120"}
    for line, expected in examples:
        run = subprocess.run(["sh", "-c", line], cwd=scratch, env=environment, capture_output=True, text=True)
        # Ends of lines do not count: editors strip them.
        printed, shown = ([row.rstrip() for row in text.rstrip().split("\n")] for text in (run.stdout, expected))
        if run.returncode != 0 or printed != shown:
            sys.exit(f"error: {PAGE}: the line\n{line}\nprints\n{run.stdout}{run.stderr}\nrather than\n{expected}")
shutil.rmtree(programs)

validate = os.path.join(os.path.dirname(sys.executable), "kubernetes-validate")
subprocess.run([validate, "--strict", "--quiet", KUBERNETES], check=True)
