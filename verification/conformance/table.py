"""The page docs/reference/conformance.md, from what was found: ``python -m verification.conformance.table``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from verification import scores
from verification.conformance.entries import name_of, usable_entries
from verification.conformance.examine import SECONDS, Examined, Finding
from verification.conformance.expected import CONVENTIONS, EXPECTED, EXPECTED_COMPLEX
from verification.conformance.lines import ORDERS
from verification.conformance.results import COMPLEX_FOLDER, load
from verification.conformance.verdicts import FAILURES, RIGHT, UNJUDGED

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
COMPLEX_PAGE = PAGE.with_name("conformance-complex.md")
ORACLES = ("reverse", "forward", "differences")
NOT_USABLE = "-"

TEXT = """\
# Conformance

hofunc on torch's own database of ops (`torch.testing`'s OpInfo): every entry that torch says it differentiates twice in
float64, by all real inputs of its samples, at orders 1 to 3. `make conformance` makes this page, from all samples, or
from the first of each entry as `make conformance SAMPLES=20`.

Each derivative is contracted with random weights of the outputs and one random direction for each order, which leaves a
number that is wrong if any entry of the derivative is. Three oracles, none of which uses hofunc, say what it should be:
nested reverse mode, nested forward mode, and numerical differences of the value, or of torch's first derivative for
orders 2 and 3. The differences decide where they are sharp; at kinks, where they are not, both nested modes together,
for at a point without a derivative torch's convention is right. A sample for which too few oracles can tell is not
counted, and an entry without any that is counted is not usable.

- **right n**: n samples, all right.
- **refused n of m**: an `UnsupportedOpError` for n of m samples.
- **too slow**: more than {seconds:.0f} seconds, or the memory of the run.
- **decided by**: the oracles that agree with hofunc, and on how many samples and orders, unless all do on all of them.
- **rule**: the kinds of the rules of the ops that an entry consists of; "decomposed" is by torch's own definition of
  the op by others. Ops after "fallback" are left to nested torch.func.

## Totals

{totals}

{fallback}

## Where torch is wrong

Entries with samples on which the differences agree with hofunc, but a nested mode of torch does not.

{torch}

## What is not right

{failures}

## Where torch has a convention

Entries of which torch's derivative is not that of the function: the differences have no say, and hofunc follows torch.

{conventions}

## All entries

{entries}
"""


COMPLEX_TEXT = """\
# Conformance of complex numbers

hofunc on the complex samples of torch's own database of ops: every entry that torch says it differentiates twice in
complex128, by the real and imaginary parts of all inputs of its samples, at orders 1 and 2. It is made with, and to be
read as, [the page of real numbers](conformance.md). Samples examined: {samples}.

## Totals

{totals}

## What is not right

{failures}

## All entries

{entries}
"""


def complex_page(found: dict[str, Examined], names: Sequence[str]) -> str:
    """Return the text of the page of complex samples; see `page`."""
    orders, entries = ORDERS[:2], [found[name] for name in names]
    rows = ([f"`{entry.name}`", *(cell(entry, order) for order in orders)] for entry in entries)
    return COMPLEX_TEXT.format(
        samples=samples(entries),
        totals="\n".join(_totals(entries, orders)),
        failures="\n".join(_failures(entries, orders, EXPECTED_COMPLEX)),
        entries="\n".join(_table(["entry", *(f"order {order}" for order in orders)], rows)),
    )


def page(found: dict[str, Examined], names: Sequence[str]) -> str:
    """Return the text of the page.

    Args:
        found: What was found, by name.
        names: The entries of the database, in order.
    """
    entries = [found[name] for name in names]
    return TEXT.format(
        seconds=SECONDS,
        totals="\n".join(_totals(entries)),
        fallback=_fallback(entries),
        torch="\n".join(_torch_errors(entries)),
        failures="\n".join(_failures(entries)),
        conventions="\n".join(_table(["entry", "reason"], ([f"`{name}`", why] for name, why in CONVENTIONS.items()))),
        entries="\n".join(_rows(entries)),
    )


def counts(examined: Examined, order: int) -> Counter[str]:
    """Count the verdicts on the samples of an entry for which an oracle can tell."""
    return Counter(f.verdict for f in examined.findings if f.order == order and f.verdict != UNJUDGED)


def cell(examined: Examined, order: int) -> str:
    """Return what the table says of an entry at an order."""
    verdicts = counts(examined, order)
    for verdict in FAILURES:
        if verdicts[verdict]:
            return f"{verdict} {verdicts[verdict]} of {verdicts.total()}"
    return f"{RIGHT} {verdicts[RIGHT]}" if verdicts else NOT_USABLE


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *map(list, rows)]
    return (f"| {' | '.join(line)} |" for line in lines)


def tally(entries: Sequence[Examined], order: int) -> dict[str, int]:
    """Count the usable entries by what the table says of them at an order."""
    cells = [cell(entry, order) for entry in entries]
    return {verdict: sum(text.startswith(verdict) for text in cells) for verdict in (RIGHT, *FAILURES)}


def samples(entries: Sequence[Examined]) -> int:
    """Return how many samples were examined."""
    return sum(len({finding.sample for finding in entry.findings}) for entry in entries)


def score(found: dict[str, Examined], names: Sequence[str], orders: Sequence[int] = ORDERS) -> dict[str, Any]:
    """Return what is kept of a page in `verification.scores`."""
    entries = [found[name] for name in names]
    return {"samples": samples(entries), "orders": {str(order): tally(entries, order) for order in orders}}


def _totals(entries: Sequence[Examined], orders: Sequence[int] = ORDERS) -> Iterator[str]:
    tallies = [tally(entries, order) for order in orders]
    usable = [sum(counts.values()) for counts in tallies]

    def row(verdict: str) -> Iterator[str]:
        yield f"entries {verdict}"
        for counts, total in zip(tallies, usable, strict=True):
            yield f"{counts[verdict]} ({100 * counts[verdict] / max(1, total):.1f} %)"

    rows = [["usable entries", *map(str, usable)], *map(row, (RIGHT, *FAILURES))]
    return _table(["", *(f"order {order}" for order in orders)], rows)


def _fallback(entries: Sequence[Examined]) -> str:
    usable = [entry for entry in entries if entry.findings]
    count = sum(bool(entry.fallback) for entry in usable)
    share = f"{count} ({100 * count / max(1, len(usable)):.1f} %)"
    skipped = sum((Counter(entry.skipped) for entry in entries), Counter())
    left_out = "; ".join(f"{number} {reason}" for reason, number in sorted(skipped.items())) or "none"
    return (
        f"Of {len(entries)} entries, {len(usable)} have samples that can be differentiated; {share} use the fallback.\n"
        f"Samples examined: {samples(entries)}. Left out: {left_out}."
    )


def _torch_errors(entries: Sequence[Examined]) -> Iterator[str]:
    def wrong(entry: Examined, oracle: str) -> str:
        orders = {finding.order for finding in entry.findings if is_torch_error(finding) and oracle in finding.differ}
        return ", ".join(map(str, sorted(orders))) or "-"

    chosen = [entry for entry in entries if any(map(is_torch_error, entry.findings))]
    rows = ([f"`{entry.name}`", wrong(entry, "reverse"), wrong(entry, "forward")] for entry in chosen)
    return _table(["entry", "reverse wrong at order", "forward wrong at order"], rows)


def is_torch_error(finding: Finding) -> bool:
    """Tell whether hofunc and the differences agree that a nested mode is wrong."""
    return finding.verdict == RIGHT and "differences" in finding.agree and bool(finding.differ)


def _failures(
    entries: Sequence[Examined], orders: Sequence[int] = ORDERS, expected: Mapping[str, str] = EXPECTED
) -> Iterator[str]:
    rows = [
        [f"`{entry.name}`", *(cell(entry, order) for order in orders), expected.get(entry.name, _reason(failed[0]))]
        for entry in entries
        if (failed := [finding for finding in entry.findings if finding.verdict in FAILURES])
    ]
    return _table(["entry", *(f"order {order}" for order in orders), "reason"], rows)


def _reason(finding: Finding) -> str:
    """Return what is wrong with a sample, in short."""
    reason = finding.note.split("; Evidence")[0].split(", expected ")[0].removeprefix("hofunc: ")
    return reason[:120].replace("|", "/").replace("\n", " ") or finding.verdict


def _rows(entries: Sequence[Examined]) -> Iterator[str]:
    head = ["entry", "rule", *(f"order {order}" for order in ORDERS), "decided by"]
    return _table(head, ([*_row(entry)] for entry in entries))


def _row(entry: Examined) -> Iterator[str]:
    yield f"`{entry.name}`"
    fallback = f"fallback {', '.join(f'`{op}`' for op in entry.fallback)}" if entry.fallback else ""
    kinds = [kind for kind in entry.kinds if kind != "decomposed" or not fallback]
    yield ", ".join([*kinds, fallback] if fallback else kinds) or "; ".join(entry.skipped) or "constant"
    for order in ORDERS:
        yield cell(entry, order)
    yield _decided(entry)


def _decided(entry: Examined) -> str:
    judged = [finding for finding in entry.findings if finding.verdict == RIGHT]
    votes = Counter(oracle for finding in judged for oracle in finding.agree)
    if not judged:
        return NOT_USABLE
    if all(votes[oracle] == len(judged) for oracle in ORACLES):
        return "all"
    return ", ".join(f"{oracle} {votes[oracle]}" for oracle in ORACLES if votes[oracle]) + f" of {len(judged)}"


def main() -> None:
    """Write the pages, and keep their totals.

    Raises:
        SystemExit: An entry has not been examined yet.
    """
    real = load(), [name_of(op) for op in usable_entries()]
    complex_ones = load(COMPLEX_FOLDER), [name_of(op) for op in usable_entries(torch.complex128)]
    for found, names in (real, complex_ones):
        if missing := [name for name in names if name not in found]:
            raise SystemExit(f"not examined yet: {', '.join(missing)}. Run `make conformance`.")
    PAGE.write_text(page(*real), encoding="utf-8")
    COMPLEX_PAGE.write_text(complex_page(*complex_ones), encoding="utf-8")
    scores.keep("conformance", score(*real))
    scores.keep("conformance, complex numbers", score(*complex_ones, ORDERS[:2]))


if __name__ == "__main__":
    main()
