"""The page docs/reference/zoo.md, from what was found: ``python -m verification.zoo.table``."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hofunc.releases import RELEASE
from verification.conformance.verdicts import BROKEN, REFUSED, RIGHT, SLOW, UNJUDGED, WRONG
from verification.zoo.entries import ENTRIES
from verification.zoo.judge import ORDERS, SECONDS, Verdict, is_as_said
from verification.zoo.pace import Pace
from verification.zoo.results import DIED, Found, load

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "zoo.md"

TEXT = """\
# Zoo

hofunc on functions of other people's libraries, as these are, at orders 2 and 3. `make zoo` makes this page, in an
environment of its own with the versions that are pinned in constraints.txt: torch {torch}, float64, one thread
on a machine of {processors} processors; {count} of {entries_there_are} functions, of {libraries}
libraries.

{summary}

Each derivative is contracted with random weights and directions to one number, which nested reverse and forward mode
of torch.func, nested torch.autograd where torch.func fails, and differences of torch's first derivative judge, none of
which uses hofunc. Where they disagree, differences decide. Where torch cannot differentiate a function twice, or does
so wrongly, the oracles may take another function of the same values: the same model with eager attention and its norm
written out, or a solver that autograd sees all steps of.

Times are those that the process had a processor, not those that passed: other work shared the processors. It may also
have taken their caches, so figures vary from run to run, for hofunc and torch alike. Entries can be redone one by one:
a row is of the last run of its entry.

- **right**: as the oracles say that are named under "by".
- **first**: milliseconds of the first call of `hofunc.hod`, which plans.
- **later**, **plan**: how many times as fast as the best that torch offers is a later call, and a call of the plan:
  above 1, hofunc is faster. All are called in turn, and medians compared.
- **too slow**: over {seconds:.0f} seconds.
- **torch's best**: the fastest of the nestings of `jacrev` and `jacfwd`, and of a loop over rows by `torch.autograd`,
  that returns the same; a dash where none does.

## Totals

{totals}

## What is not right

{failures}

## Where there is no plan

What they keep from call to call decides what they compute, or a plan cannot follow what they read. The transform itself
records them at every call.

{plans}

## All functions

{entries}
"""


def page(found: Sequence[Found], entries: int) -> str:
    """Return the text of the page, of those found of so many entries."""
    return TEXT.format(
        torch=".".join(map(str, RELEASE)),
        processors=os.cpu_count(),
        count=len(found),
        entries_there_are=entries,
        libraries=len({ENTRIES[each.key].library for each in found}),
        summary=_summary(found),
        seconds=SECONDS,
        totals="\n".join(_totals(found)),
        failures="\n".join(_failures(found)),
        plans="\n".join(_plans(found)),
        entries="\n".join(_table(HEAD, map(_row, found))),
    )


def line(found: Found) -> str:
    """Return what a run says of an entry."""
    verdicts = [f"order {each.order} {each.verdict} {each.note[:300]}".strip() for each in found.verdicts]
    paces = [
        f"order {each.order}: {_ratio(each.torch, each.later)} / {_ratio(each.torch, each.plan)}"
        for each in found.paces
    ]
    return f"{found.key}: {'; '.join([*verdicts, found.failure, *paces])}"


def is_as_expected(found: Found) -> bool:
    """Tell whether an entry is right wherever it is not refused as it says, or too slow to plan."""
    return len(found.verdicts) == len(ORDERS) and all(
        each.verdict in {RIGHT, SLOW} or is_as_said(each, ENTRIES[found.key].refused) for each in found.verdicts
    )


def _summary(found: Sequence[Found]) -> str:
    """Return the totals in a sentence for each order, and one for the times of both."""
    lines = []
    for order in ORDERS:
        verdicts = [_at(each, order).verdict for each in found]
        shares = [f"{100 * verdicts.count(word) / max(1, len(found)):.0f} % {word}" for word in (RIGHT, WRONG, REFUSED)]
        lines.append(f"At order {order}: **{', '.join(shares)}**.")
    known, faster = zip(*(_compared(found, order, "later") for order in ORDERS), strict=True)
    lines.append(f"Later calls are at least level with torch's best in **{_share(sum(faster), sum(known))}**")
    return "\n".join(lines) + "\nof the functions and orders at which torch returns the same at all."


def _totals(found: Sequence[Found]) -> Iterator[str]:
    by_order = {order: [_at(each, order) for each in found] for order in ORDERS}
    rows = [
        [word, *(_share(sum(each.verdict == word for each in by_order[order]), len(found)) for order in ORDERS)]
        for word in (RIGHT, WRONG, REFUSED, BROKEN, SLOW, UNJUDGED)
    ]
    for title, field in (("a later call", "later"), ("a plan", "plan")):
        compared = [_compared(found, order, field) for order in ORDERS]
        rows.append([f"{title} at least as fast as torch", *(_share(faster, of) for of, faster in compared)])
    return _table(["", *(f"order {order}" for order in ORDERS)], rows)


def _compared(found: Sequence[Found], order: int, field: str) -> tuple[int, int]:
    """Return how many functions torch can do that hofunc does right, and in how many hofunc is no slower."""
    paces = [pace for each in found for pace in each.paces if pace.order == order and pace.torch is not None]
    seconds = [(getattr(pace, field), pace.torch) for pace in paces]
    return len(seconds), sum(ours is not None and ours <= torch for ours, torch in seconds)


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / max(1, of):.0f} %)"


def _at(found: Found, order: int) -> Verdict:
    """Return the verdict at an order, or one that says why there is none."""
    known = {verdict.order: verdict for verdict in found.verdicts}
    return known.get(order, Verdict(order, BROKEN, (), found.failure or "no result"))


def _failures(found: Sequence[Found]) -> Iterator[str]:
    rows = []
    for each in found:
        verdicts = [_at(each, order) for order in ORDERS]
        if any(verdict.verdict != RIGHT for verdict in verdicts):
            cells = [verdict.verdict for verdict in verdicts]
            rows.append([f"`{ENTRIES[each.key].library}` {_name(each)}", *cells, _reason(each, verdicts)])
    return _table(["function", *(f"order {order}" for order in ORDERS), "reason"], rows)


def _reason(found: Found, verdicts: Sequence[Verdict]) -> str:
    refused = ENTRIES[found.key].refused
    if refused is not None and any(is_as_said(verdict, refused) for verdict in verdicts):
        return refused.reason
    return _cell(next(verdict.note for verdict in verdicts if verdict.verdict != RIGHT))


def _plans(found: Sequence[Found]) -> Iterator[str]:
    reasons = {each.key: pace.no_plan for each in found for pace in each.paces if pace.no_plan}
    rows = ([f"`{ENTRIES[key].library}` {ENTRIES[key].name}", _cell(reason)] for key, reason in reasons.items())
    return _table(["function", "reason"], rows)


HEAD = (
    "library",
    "function",
    "option",
    *(
        f"{title}"
        for order in ORDERS
        for title in (f"order {order}", "by", "first, ms", "later", "plan", "torch's best")
    ),
)


def _row(found: Found) -> Iterator[str]:
    entry, paces = ENTRIES[found.key], {pace.order: pace for pace in found.paces}
    yield f"{entry.library} {found.version}"
    yield _name(found)
    yield ", ".join(f"`{name}={value!r}`" for name, value in entry.options.items())
    for order in ORDERS:
        verdict = _at(found, order)
        yield verdict.verdict
        yield ", ".join(verdict.by)
        yield from _times(paces.get(order))


def _times(pace: Pace | None) -> tuple[str, ...]:
    if pace is None:
        return "", "", "", ""
    return f"{1e3 * pace.first:.0f}", _ratio(pace.torch, pace.later), _ratio(pace.torch, pace.plan), pace.way or "-"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return "-" if theirs is None or ours is None else f"{theirs / ours:.2g}"


def _name(found: Found) -> str:
    return ENTRIES[found.key].name.replace("_", " ")


def _cell(text: str) -> str:
    return text[:300].replace("|", "/").replace("\n", " ")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *map(list, rows)]
    return (f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Write the page, of what has been examined so far."""
    found = {key: each for key, each in load().items() if each.verdicts or each.failure != DIED}
    PAGE.write_text(page([found[key] for key in ENTRIES if key in found], len(ENTRIES)), encoding="utf-8")


if __name__ == "__main__":
    main()
