"""What plans and pages say of budgets is what `scripts/fit_budgets.py` measured."""

import json
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
SAVED = json.loads((ROOT / "scripts" / "results" / "fit-budgets.json").read_text())
BUDGETS = [case for cases in SAVED.values() for how, case in cases.items() if how != "plain"]
MEASURED = [case for case in BUDGETS if "refused" not in case]
PAGE = " ".join((ROOT / "docs" / "memory-budgets.md").read_text().split())


def test_every_budget_was_measured_or_refused():
    assert len(BUDGETS) == 5 * len(SAVED) == 135
    assert not [case for case in MEASURED if "peak" not in case]


def test_the_page_says_how_many_budgets_held():
    shares = sorted(case["peak"] / case["budget"] for case in MEASURED)
    held = sum(share <= 1 for share in shares)
    near = sum(1 < share <= 1.03 for share in shares)
    last = len(shares) - held - near
    assert shares[-1] <= 1.05
    assert f"Of {len(BUDGETS)} budgets {len(BUDGETS) - len(MEASURED)} were below" in PAGE
    assert f"Of the other {len(shares)}, the largest peak of five steps was within {held};" in PAGE
    numbers = {3: "three"}
    assert f"at most 3 % above {near} more, and 3 to 5 % above the last {numbers[last]}" in PAGE
    assert f"In the median a step needed {shares[len(shares) // 2]:.0%} of its budget".replace("%", " %") in PAGE
