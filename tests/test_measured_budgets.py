"""What the page says of budgets is what `scripts/fit_budgets.py` measured."""

import json
import pathlib
import statistics

ROOT = pathlib.Path(__file__).parent.parent
SAVED = json.loads((ROOT / "scripts" / "results" / "fit-budgets.json").read_text())
PAGE = " ".join((ROOT / "docs" / "memory-budgets.md").read_text().split())


def of(way):
    """All budgets of a way to train that ran."""
    found = [
        r for case, cases in SAVED.items() if case.endswith(f":{way}") for how, r in cases.items() if how != "plain"
    ]
    assert all("peaks" in r or "refused" in r for r in found)
    return [r for r in found if "peaks" in r], len(found)


def uses(ran):
    """The largest peak from the fourth step on, as a share of the budget."""
    return [max(r["peaks"][3:]) / r["budget"] for r in ran]


def test_the_page_says_how_many_budgets_held():
    for way, words in {"fit": "`fit`", "eager": "eager loops", "function": "`tfgc.function`"}.items():
        ran, asked = of(way)
        held = sum(use <= 1 for use in uses(ran))
        assert f"in {words} {held} of {len(ran)} held, {asked - len(ran) or 'none'} refused" in PAGE
        most = max(uses(ran))
        assert most <= 1 or f"missed by {most - 1:.1%}".replace("%", " %") in PAGE
        assert all(r["changes"] <= 3 and max(r["peaks"]) <= 1.3 * r["budget"] for r in ran)


def test_the_page_says_how_much_of_a_budget_is_used():
    rewritten = [r for way in ("fit", "eager", "function") for r in of(way)[0] if r["overhead"]]
    assert (
        f"In the median a step that recomputes used {statistics.median(uses(rewritten)):.0%}".replace("%", " %") in PAGE
    )
    changes = [r["changes"] for r in rewritten]
    assert f"{statistics.median(changes):g} change of plan in the median, {max(changes)} at most" in PAGE
