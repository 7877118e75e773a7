#!/usr/bin/env python
"""Run every shell command of the README and of docs/getting-started.md as a user would, and print how each ended.

The commands are the lines of their ```sh blocks. Commands of a page run in order in one folder, which is empty at
first. Scripts run in the folder of this repository, as the pages say. The exit code is 1 if a command fails.

    python scripts/readme_commands.py           # all commands
    python scripts/readme_commands.py --quick   # without the scripts that set up; about two minutes on 2 cores
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("README.md", "docs/getting-started.md")
SET_UP = ("scripts/demo.sh", "scripts/docs.sh", "scripts/test.sh")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"skip {', '.join(SET_UP)}")
    quick = parser.parse_args().quick
    failed = 0
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            for command in commands((ROOT / page).read_text()):
                if quick and command.startswith(SET_UP):
                    print(f"skipped         {page}: {command}", flush=True)
                    continue
                failed += not run(page, command, folder)
    sys.exit(1 if failed else 0)


def commands(text):
    """List the commands of a page without comments.

    >>> commands("```sh\\n# first\\ntfgc a  # why\\ntfgc b \\\\\\n  --c\\n```\\n```python\\nx\\n```")
    ['tfgc a', 'tfgc b   --c']
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]


def run(page, command, folder):
    """Run one command, print a line about it, and its output if it failed; return whether it succeeded."""
    # The `tfgc` of this Python, wherever it is installed.
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    start = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT if command.startswith("scripts/") else folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"exit code {done.returncode:<3}{time.perf_counter() - start:6.1f} s  {page}: {command}", flush=True)
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()
