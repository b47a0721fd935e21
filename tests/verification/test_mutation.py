"""Mutation testing: which mutants count and are drawn, which tests they meet, and what is said of them."""

from pathlib import Path

import pytest

from verification.mutation.choice import TESTED_IN, watchers
from verification.mutation.counting import differs
from verification.mutation.explained import Explanation, read, stale
from verification.mutation.mutant import Mutant, Place, sample
from verification.mutation.report import survivors, table, unexplained
from verification.mutation.session import Session

ROOT = Path(__file__).parent.parent.parent

PLACES = [Place("hofunc/algebra/term.py", f"operator{number % 3}", number, number + 1) for number in range(30)]


def mutant(line: int, package: str = "algebra") -> Mutant:
    before = "".join(f"a{number} =  {number}\n" for number in range(10))
    after = before.replace(f"a{line} =  {line}\n", f"a{line} =  {line + 1}\n")
    return Mutant(Place(f"hofunc/{package}/term.py", "NumberReplacer", line, line + 1), before, after)


def drawn(size: int, seed: int = 0, places: list[Place] = PLACES) -> list[int]:
    def make(place: Place) -> Mutant:
        return Mutant(place, "", str(place.occurrence))

    return [m.place.occurrence for m in sample(places, size, seed, make, lambda m: m.place.occurrence % 2 == 0)]


def test_a_sample_is_the_same_whatever_the_order_of_what_it_is_drawn_from() -> None:
    assert drawn(10) == drawn(10, places=PLACES[::-1])
    assert drawn(10) != drawn(10, seed=1)


def test_a_smaller_sample_is_the_start_of_a_larger_one() -> None:
    assert drawn(12)[:5] == drawn(5)


def test_a_sample_of_one_file_does_not_depend_on_others() -> None:
    others = [Place("hofunc/algebra/labels.py", "operator", 2 * number + 101, 1) for number in range(7)]
    assert drawn(1000, places=[*others, *PLACES]) == drawn(1000)


def test_a_sample_has_only_what_counts_and_nothing_twice() -> None:
    assert sorted(drawn(1000)) == list(range(0, 30, 2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x: int | None): pass", "def f(x: int + None): pass"),
        ("def f() -> int | None: pass", "def f() -> int & None: pass"),
        ("x: int | None = 1", "x: int ^ None = 1"),
        ("def f():\n    'one'\n    return 1", "def f():\n    'two'\n    return 1"),
        ("@lru_cache(maxsize=8)\ndef f(): pass", "@lru_cache(maxsize=9)\ndef f(): pass"),
        ("@functools.cache\ndef f(): pass", "def f(): pass"),
        ("raise ValueError(f'{x + 1}')", "raise ValueError(f'{x - 1}')"),
        ("if x > 1:\n    raise InternalError('no')", "if x >= 1:\n    raise InternalError('no')"),
        ("zip(x, y, strict=True)", "zip(x, y, strict=False)"),
        ("@dataclass(slots=True)\nclass A: pass", "@dataclass(slots=False)\nclass A: pass"),
        ("def f(x, *, y): pass", "def f(x, /, *, y): pass ("),
    ],
)
def test_what_no_test_could_see_does_not_count(before: str, after: str) -> None:
    assert not differs(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x: int = 1): pass", "def f(x: int = 2): pass"),
        ("x: int = 1", "x: int = 2"),
        ("raise ValueError('no')", "raise TypeError('no')"),
        ("if x > 1:\n    raise ValueError('no')", "if x >= 1:\n    raise ValueError('no')"),
        (
            "if x > 1:\n    raise InternalError\nelse:\n    y = 1",
            "if x > 1:\n    raise InternalError\nelse:\n    y = 2",
        ),
        ("@staticmethod\ndef f(): pass", "def f(): pass"),
        ("@lru_cache\ndef f(): return 1", "@lru_cache\ndef f(): return 2"),
        ("sorted(x, reverse=True)", "sorted(x, reverse=False)"),
        ("@dataclass(frozen=True)\nclass A: pass", "@dataclass(frozen=False)\nclass A: pass"),
    ],
)
def test_what_changes_a_result_counts(before: str, after: str) -> None:
    assert differs(before, after)


def test_a_file_is_watched_by_its_mirror_its_package_and_whole_derivatives() -> None:
    tests = watchers(ROOT, "hofunc/plan/reverse.py")
    assert tests[0] == "tests/plan/test_reverse.py"
    assert tests[-2:] == ["tests/test_exactness.py", "tests/test_baseline.py"]
    assert len(tests) == len({*tests}) > 10
    assert all((ROOT / test).exists() for test in tests)


def test_a_file_of_the_rules_is_watched_by_those_it_is_part_of() -> None:
    assert watchers(ROOT, "hofunc/rules/ops/pairs.py") == [
        "tests/rules/ops/test_elementwise.py",
        "tests/test_exactness.py",
    ]
    assert watchers(ROOT, "hofunc/rules/ops/norms.py") == ["tests/rules/ops/test_norms.py", "tests/test_exactness.py"]


def test_every_file_of_the_rules_has_tests_of_its_own_or_is_in_the_table() -> None:
    for file in (ROOT / "hofunc" / "rules").rglob("[!_]*.py"):
        mirror = ROOT / "tests" / file.relative_to(ROOT / "hofunc").with_name(f"test_{file.name}")
        assert mirror.exists() or file.stem in TESTED_IN
        named = {f"test_{name}.py" for name in TESTED_IN.get(file.stem, ())}
        assert named <= {Path(test).name for test in watchers(ROOT, file.relative_to(ROOT).as_posix())}


def test_a_mutant_says_what_it_changes() -> None:
    assert (mutant(3).was, mutant(3).becomes) == ("a3 = 3", "a3 = 4")
    assert mutant(3).diff == "-a3 =  3\n+a3 =  4"


def test_a_mutant_of_a_file_that_has_changed_is_another_one() -> None:
    one = mutant(3)
    assert one.key == mutant(3).key
    assert one.key != Mutant(one.place, one.before + "\n", one.after + "\n").key


EXPLAINED = Explanation("hofunc/algebra/term.py", "a2 = 2", "a2 = 3", "nobody reads it")


def test_the_score_leaves_out_what_was_not_run_and_what_is_explained() -> None:
    mutants = [mutant(line) for line in range(6)] + [mutant(0, "plan")]
    said = ["killed", "timeout", "survived", "survived", "killed"]
    verdicts = {m.key: verdict for m, verdict in zip(mutants, said, strict=False)}
    assert unexplained(mutants, verdicts, [EXPLAINED]) == [mutants[3]]
    _, algebra, plan, total = (line.split() for line in table(mutants, verdicts, [EXPLAINED]).splitlines())
    assert algebra == ["algebra", "6", "5", "3", "1", "1", "1", "75.0", "%"]
    assert plan == ["plan", "1", "0", "0", "0", "0", "0", "-"]
    assert total == ["all", "7", "5", "3", "1", "1", "1", "75.0", "%"]


def test_survivors_are_shown_with_file_and_line() -> None:
    assert survivors([mutant(3)]) == "hofunc/algebra/term.py:4 NumberReplacer\n-a3 =  3\n+a3 =  4"


def test_an_explanation_of_a_line_that_is_gone_or_of_a_killed_mutant_is_stale(tmp_path: Path) -> None:
    assert stale([EXPLAINED], tmp_path, []) == [EXPLAINED]
    file = tmp_path / EXPLAINED.file
    file.parent.mkdir(parents=True)
    file.write_text(mutant(2).before)
    assert not stale([EXPLAINED], tmp_path, [mutant(3)])
    assert stale([EXPLAINED], tmp_path, [mutant(2)]) == [EXPLAINED]


def test_the_list_of_explanations_is_whole() -> None:
    entries = read()
    assert len(entries) == len({(entry.file, entry.was, entry.becomes) for entry in entries})
    assert all(entry.reason for entry in entries)
    assert not stale(entries, ROOT, [])


def test_a_session_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "build" / "session.sqlite"
    session = Session(path)
    session.keep("one", "killed")
    session.keep("two", "survived")
    session.close()
    again = Session(path)
    assert again.verdicts() == {"one": "killed", "two": "survived"}
    again.forget_survivors()
    assert again.verdicts() == {"one": "killed"}
    again.close()
