"""The first page: ratios to the best peers now and by commit, and the scores of conformance and mutation."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import geometric_mean

from asv_benchmarks import accepted, table
from asv_benchmarks.accepted import Run
from asv_benchmarks.site import plots
from asv_benchmarks.table import Ratios
from verification.scores import Score

FAMILIES = {
    "T": "network of the thesis",
    "P": "networks with few inputs",
    "A": "attention",
    "C": "classifier, by parameters",
    "N": "convolutions",
    "G": "what reads at indices",
    "L": "contractions",
}

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>hofunc, measured</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
</head>
<body>
<header>
<h1>hofunc, measured</h1>
<p>Exact derivatives of order two and more of torch functions: how fast beside the best other ways, how often right,
and how well that is tested. Nothing here is estimated; each figure has the commit that it is of.</p>
</header>
<main>
<ul class="tiles">
{tiles}
</ul>
<section id="ratios">
<h2>Beside the best peer</h2>
<p>Time of the fastest peer over that of the fastest of hofunc's ways in the same class, on a logarithmic scale: right
of 1, hofunc is faster. Small dots are workloads, large ones geometric means, whose number stands at the right.</p>
<p class="legend">{legend}</p>
<div class="panels">
{ratios}
</div>
{tables}
</section>
<section id="history">
<h2>By commit</h2>
<p>Geometric means of the families at the commits whose measurements were accepted; a thin line says that a family was
not measured again.</p>
<div class="panels">
{history}
</div>
{runs}
</section>
<section id="scores">
<h2>How often right, and how well tested</h2>
<div class="panels">
{scores}
</div>
</section>
<section id="asv">
<h2>Time and memory of every commit</h2>
{asv}
</section>
</main>
</body>
</html>
"""
ASV = """\
<p><a href="asv/index.html">The pages of asv</a> have what was measured of single commits: time, memory, and what plans
count. Shared machines move their times by tens of percent.</p>"""
NO_ASV = """\
<p>asv has measured nothing here yet. <code>make bench</code> measures the commit that is checked out and keeps the
figures; <code>make bench-site</code> then shows them, beside those of other commits.</p>"""


def page(runs: Sequence[Run], scores: Mapping[str, Sequence[Score]], *, asv: bool) -> str:
    """Return the text of the page.

    Args:
        runs: What was accepted, the oldest first.
        scores: The scores of every kind, the oldest first.
        asv: Whether there are pages of asv beside it.
    """
    ratios = accepted.latest(runs)
    return TEMPLATE.format(
        tiles="\n".join([*_tiles(ratios), *_score_tiles(scores)]),
        legend=" ".join(f'<span class="s{place}">{escape(title)}</span>' for place, title in enumerate(ratios)),
        ratios="\n".join(_panels(ratios)),
        tables="\n".join(_details(f"{title}, as a table", _means(found)) for title, found in ratios.items()),
        history="\n".join(_histories(runs)),
        runs=_details("What was measured when", _runs(runs)),
        scores="\n".join(_scores(scores)),
        asv=ASV if asv else NO_ASV,
    )


def _values(ratios: Ratios, kind: str) -> list[float]:
    return [value for row in ratios.values() if (value := row[kind].value) is not None]


def _tiles(ratios: Mapping[str, Ratios]) -> Iterator[str]:
    title, found = next(iter(ratios.items()))
    for kind in table.CLASSES:
        if values := _values(found, kind):
            faster = sum(value > 1 for value in values)
            note = f"{kind}, {title.lower()}: geometric mean; faster at {faster} of {len(values)} workloads"
            yield _tile(f"{geometric_mean(values):.2f} ×", note)


def _score_tiles(scores: Mapping[str, Sequence[Score]]) -> Iterator[str]:
    orders = scores["conformance"][-1].figures["orders"]
    order, counts = list(orders.items())[-1]
    note = f"of {sum(counts.values())} of torch's ops right at order {order}, {counts['wrong']} wrong"
    yield _tile(_percent(counts["right"], sum(counts.values())), note)
    figures = scores["mutation"][-1].figures
    yield _tile(_killed(figures), f"of faults put into the code noticed by the tests, of a sample of {figures['size']}")


def _tile(figure: str, note: str) -> str:
    return f"<li><strong>{figure}</strong> {escape(note)}</li>"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _killed(figures: Mapping[str, int]) -> str:
    return _percent(figures["killed"], figures["killed"] + figures["survived"])


def _panel(heading: str, *parts: str) -> str:
    return "\n".join(["<figure>", f"<figcaption>{escape(heading)}</figcaption>", *parts, "</figure>"])


def _panels(ratios: Mapping[str, Ratios]) -> Iterator[str]:
    ends = plots.powers(
        [value for found in ratios.values() for kind in table.CLASSES for value in _values(found, kind)]
    )
    for kind in table.CLASSES:
        series = {title: {name: row[kind] for name, row in found.items()} for title, found in ratios.items()}
        plot = plots.ratios(f"Ratios to the best peer, {kind}", FAMILIES, series, ends)
        yield _panel(kind, f"<p>{escape(table.MEANING[kind])}</p>", plot)


def _histories(runs: Sequence[Run]) -> Iterator[str]:
    titles = dict.fromkeys(run.title for run in runs)
    lines = {
        (title, kind): _lines([run for run in runs if run.title == title], kind)
        for title in titles
        for kind in table.CLASSES
    }
    ends = plots.powers([value for found in lines.values() for line in found for value in line.values.values()])
    for (title, kind), found in lines.items():
        commits = [run.commit for run in runs if run.title == title]
        plot = plots.history(f"Geometric means by commit, {kind}, {title.lower()}", found, commits, ends)
        yield _panel(f"{kind}, {title.lower()}", plot)


def _lines(runs: Sequence[Run], kind: str) -> list[plots.Line]:
    """Return the mean of every family after each run that measured any of it."""
    means: dict[str, dict[int, float]] = {}
    for place, run in enumerate(runs):
        (ratios,) = accepted.latest(runs[: place + 1]).values()
        families = table.families(ratios)
        for letter in dict.fromkeys(name[0] for name in run.workloads):
            mean = table.reduced(families[letter], "geometric mean", kind)
            if mean is not None:
                means.setdefault(letter, {})[place] = mean
    return [plots.Line(letter, f"f{letter}", values) for letter, values in means.items()]


def _scores(scores: Mapping[str, Sequence[Score]]) -> Iterator[str]:
    for kind, found in scores.items():
        parts = _mutation(found) if kind == "mutation" else _conformance(kind, found)
        yield _panel(kind, *parts)


def _conformance(kind: str, found: Sequence[Score]) -> Iterator[str]:
    last = found[-1]
    yield f"<p>Entries of torch's own database that are right, {last.figures['samples']:,} samples; {_of(last)}.</p>"
    for order, counts in last.figures["orders"].items():
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield f"<p>Order {order}: <strong>{_percent(counts['right'], sum(counts.values()))}</strong> ({words})</p>"
        yield plots.bar(f"{kind}, order {order}: {words}", counts)
    shares = {
        order: {
            place: 100 * counts[order]["right"] / sum(counts[order].values())
            for place, score in enumerate(found)
            if order in (counts := score.figures["orders"])
        }
        for order in last.figures["orders"]
    }
    if len(found) > 1:
        lines = [plots.Line(order, f"o{order}", values) for order, values in shares.items()]
        low = min(value for values in shares.values() for value in values.values())
        ends = (100.0 - 4 * (1 + int((100 - low) // 4)), 100.0)
        yield plots.history(f"{kind}: right by commit", lines, [score.commit for score in found], ends, "%")


def _mutation(found: Sequence[Score]) -> Iterator[str]:
    yield "<p>Small faults put into the algebra, the rules and the planner, drawn by chance; the tests should fail.</p>"
    for score in reversed(found):
        figures = score.figures
        counts = {"killed": figures["killed"], "survived": figures["survived"]}
        words = f"{figures['killed']} noticed, {figures['survived']} not, {figures['explained']} that nobody could"
        yield f"<p>{_of(score)}: <strong>{_killed(figures)}</strong> ({words})</p>"
        yield plots.bar(f"mutation at {score.commit}: {words}", counts)


def _of(of: Run | Score) -> str:
    return f"<code>{escape(of.commit)}</code>, {escape(of.date)}"


def _details(summary: str, rows: Iterator[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
    inner = "\n".join(lines)
    return f'<details><summary>{escape(summary)}</summary><div class="wide"><table>\n{inner}\n</table></div></details>'


def _means(ratios: Ratios) -> Iterator[Sequence[str]]:
    yield ["family", "points", *(f"{kind}, {title}" for kind in table.CLASSES for title in table.REDUCTIONS)]
    for family, members in table.families(ratios).items():
        values = [table.reduced(members, title, kind) for kind in table.CLASSES for title in table.REDUCTIONS]
        cells = ("-" if value is None else f"{value:.2f}" for value in values)
        yield [escape(f"{family} {FAMILIES.get(family, '')}"), str(len(members)), *cells]


def _runs(runs: Sequence[Run]) -> Iterator[Sequence[str]]:
    yield ["commit", "run", "workloads", "conditions"]
    for run in reversed(runs):
        letters = ", ".join(dict.fromkeys(name[0] for name in run.workloads))
        yield [_of(run), escape(run.title), f"{len(run.workloads)} of {letters}", escape(run.conditions)]
