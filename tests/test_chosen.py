"""blocks= and groups=: which blocks of a derivative are computed, and how they come."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from hofunc.plan.ablation import ABLATIONS
from hofunc.plan.strategies import STRATEGIES
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.oracles import nested_reverse

Params = dict[str, Any]


def params(device: torch.device) -> Params:
    shapes = {"w": (3, 2), "b": (3,), "v": (3,), "unused": (2,)}
    return {name: rand(device, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def loss(p: Params, x: Tensor) -> Tensor:
    """A network of one layer, whose last weights are linear but for a square."""
    return (((x @ p["w"].T + p["b"]).tanh() @ p["v"]) ** 2).mean() + (p["v"] ** 3).sum()


def picked(nest: Any, *keys: Any) -> Any:
    """Return the block of a nest at some keys."""
    for key in keys:
        nest = nest[key]
    return nest


# What is computed is right, by every strategy.

LISTED: dict[int, list[tuple[str, ...]]] = {
    1: [("v",), ("w",)],
    2: [("w", "v"), ("v", "w"), ("b", "b"), ("unused", "v")],
    3: [("w", "v", "w"), ("b", "b", "b"), ("v", "w", "w"), ("v", "v", "b")],
}


@pytest.mark.parametrize("strategy", ["auto", *STRATEGIES, *ABLATIONS])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_blocks_are_those_of_the_whole_derivative(order: int, strategy: str, device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    whole = nested_reverse(loss, order)(p, x)
    found = hofunc.hod(loss, order, blocks="diagonal", strategy=strategy)(p, x)
    assert_equal(found, {name: picked(whole, *[name] * order) for name in p})
    found = hofunc.hod(loss, order, blocks=LISTED[order], strategy=strategy)(p, x)
    assert_equal(found, tuple(picked(whole, *names) for names in LISTED[order]))
    found = hofunc.hod(loss, order, groups=[["v", "w"], ["unused"]], strategy=strategy)(p, x)
    for group, names in zip(found, [["v", "w"], ["unused"]], strict=True):
        for places in product(range(len(names)), repeat=order):
            assert_equal(picked(group, *places), picked(whole, *(names[place] for place in places)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pair_of_blocks_alone(strategy: str, device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    whole = nested_reverse(loss, 2, (0, 1))(p, x)
    names = [(0, name) for name in p] + [1]
    for pair in product(names, repeat=2):
        (found,) = hofunc.hessian(loss, (0, 1), blocks=[pair], strategy=strategy)(p, x)
        keys = [name if isinstance(name, tuple) else (name,) for name in pair]
        assert_equal(found, picked(whole, *keys[0], *keys[1]))


def outputs(p: Params, x: Tensor) -> dict[str, Any]:
    return {"y": (x @ p["w"].T + p["b"]).sin() * p["v"], "z": [p["v"].exp(), x.prod()]}


@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_the_structure_of_outputs_is_outermost(layout: str, device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    whole = nested_reverse(outputs, 2, (0, 1))(p, x)
    transform = hofunc.hessian(outputs, (0, 1), blocks=[(0, 1), ((0, "w"), "w")], layout=layout)
    is_block = {"is_leaf": lambda each: isinstance(each, hofunc.Derivative)}
    for call in (transform, transform.plan(p, x)):
        found = tree_map(lambda each: each if isinstance(each, Tensor) else each.dense(), call(p, x), **is_block)
        assert found.keys() == {"y", "z"}
        for got, expected in ((found["y"], whole["y"]), (found["z"][1], whole["z"][1])):
            assert_equal(got, ({name: expected[0][name][1] for name in p}, expected[0]["w"][0]["w"]))


def test_an_entry_stands_for_all_that_is_below_it(device: torch.device) -> None:
    def f(p: Params) -> Tensor:
        (first, second), scale = p["layers"], p["scale"]
        return ((first["w"] * first["b"]).sin() @ second["w"] * scale).exp()

    vectors = [rand(device, 3, seed=seed) for seed in range(3)]
    p = {"layers": [{"w": vectors[0], "b": vectors[1]}, {"w": vectors[2]}], "scale": rand(device, seed=3)}
    whole = nested_reverse(f, 2)(p)
    found = hofunc.hessian(f, blocks=[(("layers", 0), "scale"), ("scale", ("layers", 1, "w")), (0, (0, "scale"))])(p)
    first = {name: whole["layers"][0][name]["scale"] for name in ("w", "b")}
    assert_equal(found[0], first)
    assert_equal(found[1], whole["scale"]["layers"][1]["w"])
    last = {"w": whole["layers"][1]["w"]["scale"]}
    assert_equal(found[2], {"layers": [first, last], "scale": whole["scale"]["scale"]})
    (group,) = hofunc.hessian(f, groups=[[("layers", 0), "scale"]])(p)
    assert_equal(group[0]["b"][0]["w"], whole["layers"][0]["b"]["layers"][0]["w"])
    assert_equal(group[1][0]["w"], whole["scale"]["layers"][0]["w"])
    assert_equal(group[1][1], whole["scale"]["scale"])


def test_arguments_are_named_by_their_positions(device: torch.device) -> None:
    x, y, z = (rand(device, size, seed=size) for size in (2, 3, 4))

    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x.prod() * y.prod() * z.prod()

    whole = nested_reverse(f, 2, (0, 1, 2))(x, y, z)
    found = hofunc.hessian(f, (2, 0), blocks=[(0, 2), (2, -3), (-1, -1)])(x, y, z)
    assert_equal(found, (whole[0][2], whole[2][0], whole[2][2]))
    groups = hofunc.hessian(f, (0, 1, 2), groups=[[2, 0], [1]])(x, y, z)
    assert_equal(groups, (((whole[2][2], whole[2][0]), (whole[0][2], whole[0][0])), ((whole[1][1],),)))
    assert_equal(groups[0], hofunc.hessian(f, (2, 0))(x, y, z))


# With all else that a transform can do.


def test_all_orders_have_blocks_of_their_own(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    wholes = [nested_reverse(loss, order)(p, x) for order in (1, 2, 3)]
    value, first, second, third = hofunc.derivatives(loss, 3, blocks=[("w",), ("v", "v", "w"), ("v",)])(p, x)
    assert_equal(value, loss(p, x))
    assert_equal(first, (wholes[0]["w"], wholes[0]["v"]))
    assert second == ()
    assert_equal(third, (wholes[2]["v"]["v"]["w"],))
    found = hofunc.derivatives(loss, 3, blocks="diagonal").plan(p, x)(p, x)
    for order, whole in enumerate(wholes, 1):
        assert_equal(found[order], {name: picked(whole, *[name] * order) for name in p})
    assert_equal(hofunc.jacobian(loss, groups=[["b"]])(p, x), ((wholes[0]["b"],),))


def rows(p: Params, x: Tensor) -> Tensor:
    return ((x @ p["w"].T + p["b"]).tanh() @ p["v"]) ** 2


@pytest.mark.parametrize("options", [{"chunk_size": 3}, {"max_bytes": 300_000}, {"strict": True}])
def test_blocks_of_rows_in_chunks(options: dict[str, Any], device: torch.device) -> None:
    p, x = params(device), rand(device, 20, 2, seed=9)
    whole = nested_reverse(rows, 2, (0, 1))(p, x)
    transform = hofunc.hessian(rows, (1, 0), blocks=[("v", 1), (1, 1)], **options)
    expected = (whole[0]["v"][1], whole[1][1])
    for call in (transform, transform.plan(p, x)):
        assert_equal(call(p, x), expected)


@pytest.mark.parametrize("blocks", ["diagonal", [("v", "w"), ("w", "v"), ("w", "w"), (0, "b")], [("unused", "w")]])
def test_blocks_in_pieces(blocks: Any, device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    for f in (loss, outputs):
        for order in (1, 2):
            chosen = blocks if order == 2 or isinstance(blocks, str) else [("v",), (0,), ("b",)]
            expected = hofunc.hod(f, order, blocks=chosen)(p, x)
            assert_equal(hofunc.hod(f, order, blocks=chosen, chunk_size=2)(p, x), expected)
    found = hofunc.derivatives(loss, 2, blocks=[("w", "v")], chunk_size=2)(p, x)
    assert_equal(found, (loss(p, x), (), (nested_reverse(loss, 2)(p, x)["w"]["v"],)))


def test_under_vmap_and_grad_and_again(device: torch.device) -> None:
    p, x = params(device), rand(device, 5, 4, 2, seed=9)
    transform = hofunc.hessian(loss, blocks=[("w", "v"), ("unused", "b")])
    mapped = torch.func.vmap(transform, (None, 0))(p, x)
    for place in range(5):
        assert_equal(tuple(each[place] for each in mapped), transform(p, x[place]))

    def norm(scale: Tensor) -> Tensor:
        found: Tensor = hofunc.hessian(loss, blocks="diagonal")({**p, "v": p["v"] * scale}, x[0])["w"].square().sum()
        return found

    scale = torch.tensor(0.7, dtype=torch.float64, device=device)

    def by_torch(scale: Tensor) -> Tensor:
        found = torch.func.hessian(lambda w: loss({**p, "w": w, "v": p["v"] * scale}, x[0]))(p["w"])
        return found.square().sum()

    expected = torch.func.grad(by_torch)(scale)
    assert_equal(torch.func.grad(norm)(scale), expected)
    assert_equal(hofunc.jacobian(norm)(scale), expected)
    twice = hofunc.jacobian(transform, blocks=[("v",)])(p, x[0])
    assert_equal(twice[0][0], nested_reverse(loss, 3)(p, x[0])["w"]["v"]["v"])


def holomorphic(a: Tensor, b: Tensor) -> Tensor:
    return (a * b.exp()).sum() ** 2


def test_complex_tensors(device: torch.device) -> None:
    a, b = (torch.complex(rand(device, 2, seed=seed), rand(device, 2, seed=seed + 2)) for seed in (0, 1))
    options: dict[str, Any] = {"argnums": (0, 1), "holomorphic": True}
    for order in (1, 2):
        whole = hofunc.hod(holomorphic, order, **options)(a, b)
        found = hofunc.hod(holomorphic, order, blocks=[(1,) * order], **options)(a, b)
        assert_equal(found, (picked(whole, *[1] * order),))
        found = hofunc.hod(holomorphic, order, blocks="diagonal", **options)
        assert_equal(found.plan(a, b)(a, b), tuple(picked(whole, *[place] * order) for place in (0, 1)))
    parts = hofunc.hessian(holomorphic, (0, 1))(a, b)
    assert_equal(hofunc.hessian(holomorphic, (0, 1), blocks=[(1, 0)])(a, b), (parts[1][0],))
    refused(
        lambda: hofunc.hessian(lambda a, b: holomorphic(a, b) + b.conj().sum(), blocks=[(1, 1)], **options)(a, b),
        hofunc.ArgumentError,
        "holomorphic=True",
        "order 1",
    )


def test_strict_looks_at_what_is_asked_for(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    hofunc.hessian(loss, blocks=[("w", "v"), ("v", "b")], strict=True)(p, x)
    refused(
        lambda: hofunc.hessian(loss, blocks="diagonal", strict=True)(p, x),
        hofunc.ArgumentError,
        "does not depend on args[0]['unused']",
    )
    linear = hofunc.hessian(lambda a, b: a.sin() * b, (0, 1), blocks=[(0, 0), (1, 1)], strict=True)
    refused(lambda: linear(x[0, 0], x[0, 1]), hofunc.ArgumentError, "by args[1], which does not depend on args[1]")
    hofunc.hessian(lambda a, b: a.sin() * b, (0, 1), blocks=[(0, 0), (0, 1)], strict=True)(x[0, 0], x[0, 1])


def test_aux_and_results_that_are_pytrees(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    found, aux = hofunc.hessian(lambda p, x: (loss(p, x), "aux"), has_aux=True, blocks="diagonal")(p, x)
    assert aux == "aux"
    assert_equal(tree_map(lambda block, _: block * 2, found, p), {name: found[name] * 2 for name in p})


def test_taps_and_parameters_are_named_by_wrt(device: torch.device) -> None:
    def f(x: Tensor, p: Params) -> Tensor:
        h = hofunc.tap("hidden", (p["w"] * x).tanh())
        pair = hofunc.tap("pair", {"a": h.sin(), "b": h * 2})
        return (pair["a"] * pair["b"]).square().sum() + x.prod()

    x, p = rand(device, 3), {"w": rand(device, 3, seed=1)}
    wrt = ("x", "hidden", "p", "pair")
    whole = hofunc.hessian(f, wrt=wrt)(x, p)
    blocks = [("hidden", "x"), (("pair", "a"), ("p", "w")), ("w", 0), ((1, "w"), "hidden"), ("b", "b")]
    found = hofunc.hessian(f, wrt=wrt, blocks=blocks)(x, p)
    expected = whole[1][0], whole[3]["a"][2]["w"], whole[2]["w"][0], whole[2]["w"][1], whole[3]["b"][3]["b"]
    assert_equal(found, expected)
    diagonal = hofunc.hessian(f, wrt=wrt, blocks="diagonal").plan(x, p)(x, p)
    assert_equal(diagonal[1:3], (whole[1][1], {"w": whole[2]["w"][2]["w"]}))
    (group,) = hofunc.hessian(f, wrt=wrt, groups=[["hidden", "x"]])(x, p)
    assert_equal(group, ((whole[1][1], whole[1][0]), (whole[0][1], whole[0][0])))
    refused(
        lambda: hofunc.hessian(f, wrt=wrt, blocks=[("hiden", "x")])(x, p),
        hofunc.ArgumentError,
        "one of what is differentiated by, 0, 'hidden', 1, 'pair', or a path in one",
        "Did you mean ('hidden',)?",
    )


# Nothing else is computed.


def chain(p: Sequence[Tensor], x: Tensor) -> Tensor:
    for w in p:
        x = (w * x).sin()
    return x.sum()


def leaves(device: torch.device, count: int) -> list[Tensor]:
    return [rand(device, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_diagonal_costs_what_its_blocks_do(strategy: str, device: torch.device) -> None:
    p, x = leaves(device, 10), rand(device, 6, seed=99)
    diagonal = hofunc.hessian(chain, blocks="diagonal", strategy=strategy).plan(p, x)
    whole = hofunc.hessian(chain, strategy=strategy).plan(p, x)
    alone = [hofunc.hessian(lambda w, k=k: chain([*p[:k], w, *p[k + 1 :]], x), strategy=strategy) for k in range(10)]
    assert diagonal.flops <= sum(each.plan(w).flops for each, w in zip(alone, p, strict=True))
    assert 2 * diagonal.flops < whole.flops
    assert diagonal.steps < whole.steps


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_step_has_the_size_of_a_block_that_was_not_asked_for(strategy: str, device: torch.device) -> None:
    inputs = [rand(device, size, seed=size) for size in (5, 7, 11)]

    def f(*inputs: Tensor) -> Tensor:
        return (inputs[0].sin().sum() * inputs[1].exp().sum() + inputs[2].prod()).sin()

    def largest(argnums: int | tuple[int, ...] = (0, 1, 2), **options: Any) -> int:
        plan = hofunc.hessian(f, argnums, strategy=strategy, **options).plan(*inputs)
        return max(prod(step.shape) for step in plan._subject.at_once.steps)

    assert largest(groups=[[0, 1]]) <= largest((0, 1))  # as inputs may be varied jointly where all blocks are asked for
    assert largest(blocks=[(1, 0)]) == 35
    assert largest(blocks=[(0, 0)]) == largest(0)
    assert largest() >= 121


def test_an_input_in_no_block_is_as_one_that_is_not_differentiated_by(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    for strategy in ("auto", *STRATEGIES):
        alone = hofunc.hessian(lambda w: loss({**p, "w": w}, x), strategy=strategy).plan(p["w"])
        chosen = hofunc.hessian(loss, (0, 1), blocks=[("w", "w")], strategy=strategy).plan(p, x)
        assert (chosen.steps, chosen.flops, chosen.strategy) == (alone.steps, alone.flops, alone.strategy)


@pytest.mark.parametrize(
    "options", [{"order": 1, "blocks": "diagonal"}, {"order": 2, "groups": [["w", "b", "v", "unused"]]}]
)
def test_blocks_that_are_all_there_are_share_the_plan_of_all(options: dict[str, Any], device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    chosen, whole = hofunc.hod(loss, **options).plan(p, x), hofunc.hod(loss, options["order"]).plan(p, x)
    assert chosen._subject.wanted == whole._subject.wanted == (options["order"],)
    assert tree_leaves(chosen(p, x))[0].shape == tree_leaves(whole(p, x))[0].shape


def test_explain_says_how_many_blocks_there_are(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    text = hofunc.hessian(loss, (0, 1), blocks=[("w", "w"), ("w", "v")]).plan(p, x).explain()
    assert text.startswith("hessian(loss): order 2, 2 of 25 blocks, by the strategy ")
    assert "args[0]['w'], args[0]['v']" in text
    assert "args[0]['b'], args[0]" not in text


# What is asked for wrongly.

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"blocks": "diagonal", "groups": [[0]]}, "expected one of the two"),
    "a word": ({"blocks": "diagnal"}, "expected one of ('all', 'diagonal')"),
    "nothing": ({"blocks": []}, "blocks: got []"),
    "None": ({"blocks": None}, "blocks: got None"),
    "a dict": ({"blocks": {"a": (0, 0)}}, "expected a list of tuples"),
    "one block": ({"blocks": (0, 0)}, "Put each block into a tuple: blocks=[(0, 0)]"),
    "no groups": ({"groups": []}, "groups: got []"),
    "an empty group": ({"groups": [[0], []]}, "groups: got []"),
    "one group": ({"groups": [0, 1]}, "Put each group into a list"),
    "a string": ({"groups": "wv"}, "groups: got 'wv'"),
    "too few": ({"blocks": [("w",)]}, "('w',), of 1 entries, expected 2, one for every slot"),
    "too many": ({"blocks": [(0, "w", "w")]}, "of 3 entries, expected 2"),
    "a float": ({"blocks": [(0.5, 0)]}, "an entry of blocks: got 0.5"),
    "True": ({"groups": [[True]]}, "an entry of groups: got True"),
    "an empty path": ({"blocks": [((), 0)]}, "an entry of blocks: got ()"),
    "a tensor": ({"blocks": [((0, torch.ones(2)), 0)]}, "an entry of blocks: got (0, tensor"),
    "twice": ({"blocks": [("w", "v"), ("w", "v")]}, "blocks: got ('w', 'v') twice"),
    "twice, by other names": ({"blocks": [("w", "v"), ((0, "w"), "v")]}, "blocks: got ((0, 'w'), 'v') twice"),
    "a group twice": ({"groups": [["w", "v"], ["v", "w"]]}, "groups: got ('v', 'w') twice"),
    "a tensor twice in a group": ({"groups": [["w", 0]]}, "groups: got a tensor twice in ('w', 0)"),
    "another argument": ({"blocks": [(1, 1)]}, "got 1, which names no tensor that is differentiated by"),
    "no argument": ({"blocks": [(9, 0)]}, "expected one of what is differentiated by, 0,"),
    "misspelt": ({"blocks": [("unusd", 0)]}, "Did you mean (0, 'unused')?"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_asked_for_wrongly_is_refused(name: str, device: torch.device) -> None:
    options, message = WRONG[name]
    p, x = params(device), rand(device, 4, 2, seed=9)
    refused(lambda: hofunc.hessian(loss, **options)(p, x), hofunc.ArgumentError, "hessian: ", message)
    refused(lambda: hofunc.hessian(loss, **options).plan(p, x), hofunc.ArgumentError, message)


def test_an_order_of_blocks_beyond_the_highest_is_refused() -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: hofunc.derivatives(loss, 2, blocks=[("w", "w", "w")]),
        lambda: hofunc.jacobian(loss, blocks=["w"]),
    ]
    refused(wrong[0], hofunc.ArgumentError, "derivatives: blocks", "of 3 entries, expected at most 2")
    refused(wrong[1], hofunc.ArgumentError, "jacobian: blocks: got 'w'", "blocks=[(0,)]")


def test_blocks_that_were_asked_for_do_not_change_with_the_list(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    blocks = [["w", "w"]]
    transform = hofunc.hessian(loss, blocks=blocks)
    blocks[0][1] = "v"
    blocks.append(["v", "v"])
    assert [leaf.shape for leaf in tree_leaves(transform(p, x))] == [(3, 2, 3, 2)]


def test_memory_is_counted_of_what_is_asked_for(device: torch.device) -> None:
    x, y = rand(device, 3), rand(device, 100, seed=1)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.sin().sum() + y.exp().sum()

    three = [(0, 0), (0, 1), (1, 0)]  # of which two are zero, of 2400 bytes each
    by_all = hofunc.hessian(f, (0, 1), max_bytes=10_000)
    (found,) = hofunc.hessian(f, (0, 1), blocks=[(0, 0)], max_bytes=4_000)(x, y)
    assert_equal(found, torch.diag(-x.sin()))
    assert len(hofunc.hessian(f, (0, 1), blocks=three, max_bytes=10_000)(x, y)) == 3
    for refusing in (by_all, hofunc.hessian(f, (0, 1), blocks=three, max_bytes=4_000)):
        refused(partial(refusing, x, y), hofunc.ArgumentError, "max_bytes=")


def test_keys_may_come_in_another_order(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    transform = hofunc.hessian(loss, blocks=[("w", "v"), (0, "b")])
    expected = transform(p, x)
    found = transform(dict(reversed(p.items())), x)
    assert_equal(found[0], expected[0])
    assert_equal({name: found[1][name] for name in p}, expected[1])


def test_the_structure_of_arguments_may_change_from_call_to_call(device: torch.device) -> None:
    p, x = params(device), rand(device, 4, 2, seed=9)
    transform = hofunc.hessian(loss, blocks="diagonal")
    fewer = {name: p[name] for name in ("v", "b", "w")}
    for given in (p, fewer, p):
        assert [*transform(given, x)] == [*given]
