"""Test files of the installed Keras, each run by `forced` in separate processes, and what came of each."""

import collections
import multiprocessing
import pathlib
import tempfile
import time

import forced

COUNTS = ("tests", "comparisons", "mismatches", "crashes", "kept", "plain", "enabled", "replays", "rounded")
# Exit codes of pytest: all passed, some failed, none found.
_NORMAL = (0, 1, 5)


def run_all(files, jobs, deadline):
    """Yield the row of each file as it is done."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tensorflow", "keras", "keras.src.testing", "tfgc", "pytest"])
    waiting, running = collections.deque(files), []
    with tempfile.TemporaryDirectory() as folder:
        try:
            while running or (waiting and time.monotonic() < deadline):
                while waiting and len(running) < jobs and time.monotonic() < deadline:
                    running.append(File(waiting.popleft(), server, pathlib.Path(folder)))
                time.sleep(0.05)
                for file in [file for file in running if file.advance()]:
                    running.remove(file)
                    yield file.name, file.row()
        finally:
            for file in running:
                file.end()


class File:
    """A file of tests on its way: its arms run one after the other, each in a separate process."""

    LIMIT = 3600  # plain training in half precision of what is large takes most of it

    def __init__(self, name, server, folder):
        self.name, self.began = name, time.monotonic()
        self._server, self._folder, self._ends = server, folder, {}
        self._ours = "layers" if name.startswith("layers/") else "models"
        self._waiting = ["layers"] if self._ours == "layers" else ["plain", "models"]
        self._process = None

    def advance(self):
        """Start or look after the next process; True if there is nothing left to do."""
        if self._process is not None:
            late = time.monotonic() > self._until
            if self._process.is_alive() and not late:
                return False
            self.end()
            self._ends[self._arm] = "took too long" if late else self._process.exitcode
            noted = forced.noted_in(self._lines(self._arm))
            if late or self._process.exitcode not in _NORMAL:
                # The test that was running is noted, and left out of the next process.
                if len(noted) > self._noted:
                    self._waiting[:0] = [self._arm]
                elif self._arm == "layers":
                    self._waiting.append("plain")
            elif self._arm == "layers" and any(row["outcome"] != "passed" for row in noted.values()):
                self._waiting.append("plain")
            self._process = None
        if not self._waiting:
            return True
        self._arm, self._until = self._waiting.pop(0), time.monotonic() + self.LIMIT
        self._noted = len(forced.noted_in(self._lines(self._arm)))
        self._process = self._server.Process(target=forced.run, args=(self.name, self._arm, self._lines(self._arm)))
        self._process.start()
        return False

    def end(self):
        """End its process, if one runs."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
            self._process.join()

    def _lines(self, arm):
        return str(self._folder / f"{self.name.replace('/', '.')}.{arm}")

    def row(self):
        plain, ours = (forced.noted_in(self._lines(arm)) for arm in ("plain", self._ours))
        return summary(plain, ours, self._ends) | {"seconds": round(time.monotonic() - self.began, 1)}


def summary(plain, ours, ends):
    """The counts of one file.

    Args:
        plain: A row for each test run plainly, by name; of layers none if all passed.
        ours: The same with tfgc.
        ends: Exit codes of the processes by arm, or words.
    """
    row = dict.fromkeys(COUNTS, 0) | {"kept_by_reason": {}, "not_enabled": {}, "told": []}
    for name, test in ours.items():
        before = plain.get(name, test)["outcome"]
        if before == "skipped":
            continue
        if before != "passed":
            row["plain"] += 1
            row["told"].append(["plain", f"{name}: {plain.get(name, test).get('words', 'its process ended')}"])
            continue
        row["tests"] += 1
        compared = test.get("compared", {})
        row["comparisons"] += sum(n for outcome, n in compared.items() if outcome != "plain")
        row["comparisons"] += "enabled" in test
        row["mismatches"] += compared.get("mismatch", 0)
        row["crashes"] += compared.get("crash", 0)
        row["plain"] += compared.get("plain", 0)
        row["rounded"] += compared.get("spread", 0) + compared.get("rounding", 0)
        row["told"] += [[kind, f"{name}: {words}"] for kind, words in test.get("told", [])]
        for reason, n in test.get("kept", {}).items():
            row["kept"] += n
            row["kept_by_reason"][reason] = row["kept_by_reason"].get(reason, 0) + n
        for reason, n in test.get("not enabled", {}).items():
            row["not_enabled"][reason] = row["not_enabled"].get(reason, 0) + n
        row["enabled"] += test.get("enabled", 0)
        row["replays"] += test.get("replays", 0)
        if test["outcome"] != "passed":
            kind = "mismatch" if test.get("wrong") else "crash"
            row["mismatches" if test.get("wrong") else "crashes"] += 1
            row["told"].append([kind, f"{name}: {test.get('words', 'its process ended')}"])
    for arm, end in ends.items():
        if end not in _NORMAL and arm != "plain" and all(test["outcome"] != "began" for test in ours.values()):
            kind, count = ("plain", "plain") if ends.get("plain") == end else ("crash", "crashes")
            row[count] += 1
            row["told"].append([kind, f"the process ended: {end}"])
    return row
