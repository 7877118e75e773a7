"""The one order of a step: gradients as they were made, each just before what needs it; what frees memory at once.

Three rules, in one pass over the large gradients (the goals), each run with all that it still needs:

1. Of what a goal needs, late results come first, then forward operations as they were made, copies last: a replay
   starts when all else is there.
2. Whatever can run and makes no more bytes than end with it runs at once, and so does what no gradient needs (losses,
   metrics, updates): what it reads may end.
3. A forward operation waits until a gradient needs it, and of the goals that could be next the one that needs the least
   new forward bytes comes first: where a loss is a sum of parts, one part is done before the next begins.

Where the parts read one forward pass, as losses of many layers do, rule 3 makes gradients that wait for those of later
layers. So steps with such a choice are also ordered by the goals that most others follow from, one behind the other,
and the order of the lower peak counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tfgc._rewrite.goals import following, nearest
from tfgc._rewrite.liveness import peak
from tfgc._rewrite.on_host import fetched_ahead
from tfgc._step.step import HEAVY, Step


def ordered(step: Step) -> Step:
    """The same operations in the order in which they run."""
    passes = _Passes(step)
    made = fetched_ahead(step.reordered(passes.run(by_price=True)))
    if not passes.chose:
        return made
    return min(made, fetched_ahead(step.reordered(passes.run(by_price=False))), key=peak)


class _Passes:
    def __init__(self, step: Step) -> None:
        self.step, self.ops = step, step.ops
        self.chose = False  # whether another rule would have taken another goal
        self.loose = sorted(step.ops)  # as made; copies behind all that was traced
        self.late = {i for i, op in step.ops.items() if op.segment or op.is_gradient}
        self.makes = {i: sum(map(step.size, step.makes[i])) for i in step.ops}
        self._all_left = Counter(b for i in step.ops for b in step.reads[i])
        for tensor in step.results:
            self._all_left[step.buffer(tensor)] += 1
        self.readers: dict[int, list[int]] = defaultdict(list)
        self._all_missing: dict[int, int] = {}
        needed = {i: {t[0] for t in op.inputs} | set(op.controls) for i, op in step.ops.items()}
        for i, others in needed.items():
            self._all_missing[i] = len(others)
            for j in others:
                self.readers[j].append(i)
        self.ends: set[int] = set()  # what no gradient or copy needs: losses, metrics, updates
        unread = {i: len(self.readers[i]) for i in step.ops}
        last = [i for i, count in unread.items() if not count]
        while last:  # not by number: results wait for updates that were gathered after them
            i = last.pop()
            if i not in self.late:
                self.ends.add(i)
                for j in needed[i]:
                    unread[j] -= 1
                    if not unread[j]:
                        last.append(j)
        self.goals = [i for i in self.loose if i in self.late and not self.ops[i].segment and self.ops[i].type in HEAVY]
        self.behind, self.goals_missing = nearest(step, self.goals)
        self.follow = following(step, self.goals)

    def run(self, by_price: bool) -> list[int]:
        step, self.by_price = self.step, by_price
        self.left, self.missing = self._all_left.copy(), self._all_missing.copy()
        self.done: set[int] = set()
        self.order: list[int] = []
        for i in self.loose:  # constants, reads of variables, learning rates: updates wait for them
            if not self.missing[i] and not step.reads[i] and not self.makes[i]:
                self._take(i)
        for goal in self._goals():
            self._just_in_time(goal)
        for i in self.loose:
            if i in self.late and not self.ops[i].segment:
                self._just_in_time(i)
            elif i not in self.late:
                self._forward(i)
        return self.order

    def _take(self, first: int) -> None:
        """Run an operation whose needs are met, and at once what then can run and makes no more bytes than it frees."""
        step, queue = self.step, [first]
        while queue:
            i = queue.pop()
            if i in self.done:
                continue
            self.done.add(i)
            self.order.append(i)
            for j in self.readers[i]:
                self.missing[j] -= 1
            found = [j for j in self.readers[i] if self._runs_at_once(j)]
            for b in step.reads[i]:
                self.left[b] -= 1
                if self.left[b] == 1:  # the last reader of it may have waited for that
                    found += [j for j in step.readers[b] if self._runs_at_once(j)]
            queue += sorted(found, key=self.ends.__contains__)  # the last one runs first

    def _runs_at_once(self, i: int) -> bool:
        """Whether an operation can run now, and ends a way or makes no more bytes than end with it."""
        if self.missing[i] or i in self.done:
            return False
        return i in self.ends or self.makes[i] <= sum(
            self.step.size(b) for b in self.step.reads[i] if self.left[b] == 1
        )

    def _needs(self, i: int) -> list[int]:
        """What must run before an operation, in the order of rule 1."""
        op = self.ops[i]
        return [*op.controls, *sorted((t[0] for t in op.inputs), key=self._rank)]

    def _rank(self, i: int) -> int:
        if self.ops[i].segment or i not in self.late:
            return 3 if self.ops[i].segment else 2
        op = self.ops[i]  # what still waits for the forward part comes first: that takes longest
        waits = any(j not in self.late and j not in self.done for j in (*(t[0] for t in op.inputs), *op.controls))
        return 0 if waits else 1

    def _forward(self, i: int) -> None:
        """Run a forward operation and what it needs, as made."""
        own: set[int] = set()
        stack = [i]
        while stack:
            j = stack.pop()
            if j in own or j in self.done:
                continue
            own.add(j)
            for k in self._needs(j):
                if k in self.late:
                    self._just_in_time(k)
                else:
                    stack.append(k)
        for j in sorted(own):
            if j not in self.done:
                self._take(j)

    def _just_in_time(self, goal: int) -> None:
        """Run a late operation with all that it still needs."""
        if goal in self.done:
            return
        stack: list[tuple[int, Iterator[int]]] = [(goal, iter(self._needs(goal)))]
        while stack:
            i, rest = stack[-1]
            j = next((j for j in rest if j not in self.done), None)
            if j is None:
                stack.pop()
                if i not in self.done:
                    self._take(i)
            elif j in self.late:
                stack.append((j, iter(self._needs(j))))
            else:
                self._forward(j)

    def _goals(self) -> Iterator[int]:
        """The heavy gradients: of those whose heavy gradients before are done, the one of least new forward bytes."""
        behind, missing, follow = self.behind, self.goals_missing.copy(), self.follow
        ready = [i for i in self.goals if not missing[i]]
        needed = [i for i in self._undone(self.goals) if i not in self.late] if self.by_price else []
        waiting: dict[int, list[int]] = {}  # for each goal that was ready what it needs that makes forward bytes
        while ready:
            while needed and needed[-1] in self.done:
                needed.pop()
            for i in ready if needed else ():  # what runs has all that it needs: more is never missing
                before = waiting[i] if i in waiting else self._undone([i])
                waiting[i] = [j for j in before if j not in self.late and j not in self.done and self.makes[j]]
            prices = {i: sum(map(self.makes.__getitem__, waiting.get(i, ()))) if needed else 0 for i in ready}
            longest = min(ready, key=lambda i: (-follow[i], i))
            goal = min(ready, key=lambda i: (prices[i], i)) if self.by_price else longest
            self.chose = self.chose or goal != longest
            ready.remove(goal)
            yield goal
            for j in behind[goal]:
                missing[j] -= 1
                if not missing[j]:
                    ready.append(j)

    def _undone(self, goals: list[int]) -> Iterator[int]:
        """What must still run for some operations."""
        stack, seen = list(goals), set()
        while stack:
            i = stack.pop()
            if i not in seen and i not in self.done:
                seen.add(i)
                yield i
                stack += [t[0] for t in self.ops[i].inputs]
                stack += self.ops[i].controls
