"""Softmax, normalisations, attention and losses."""

from collections.abc import Iterator

from verification.programs.domain import APART, DIFFERENT, NONZERO, off
from verification.programs.row import Row, Shape, along, dims, equal, listed, row, shaped


def _gates(x: Shape) -> Iterator[str]:
    for dim in dims(x, 2):
        if x[dim] % 2 == 0:
            yield f"F.glu({{0}}, {dim})"
    if len(x) > 1:
        yield f"F.prelu({{0}}, {{w:{x[1]}}})"


def _normalised(x: Shape) -> Iterator[str]:
    if x and x[-1] > 1:
        yield f"F.layer_norm({{0}}, ({x[-1]},))"
        yield f"F.layer_norm({{0}}, ({x[-1]},), {{w:{x[-1]}}}, {{w:{x[-1]}}}, eps=0.1)"
        yield f"F.rms_norm({{0}}, ({x[-1]},), {{w:{x[-1]}}})"
    if len(x) > 1 and x[-1] * x[-2] > 1:
        yield f"F.layer_norm({{0}}, ({listed(x[-2:])}))"
    if len(x) > 1 and x[0] * x[1] * x[-1] > 2 and x[1] % 2 == 0 and (len(x) > 2 and x[2] > 1):
        yield f"F.group_norm({{0}}, 2, {{w:{x[1]}}}, {{w:{x[1]}}})"
    if len(x) == 3 and x[2] > 1:
        yield "F.group_norm({0}, 1)"
        yield "F.instance_norm({0})"


def _normalised_by_batch(x: Shape) -> Iterator[str]:
    if len(x) > 1 and x[0] * (x[2] if len(x) > 2 else 1) > 1:
        yield "F.batch_norm({0}, None, None, training=True)"
        yield f"F.batch_norm({{0}}, None, None, {{w:{x[1]}}}, {{w:{x[1]}}}, training=True, eps=0.1)"
        yield f"F.batch_norm({{0}}, {{w:{x[1]}}}, {{w:{x[1]}}}.exp())"
    if len(x) == 3:
        yield "F.local_response_norm({0}, 2)"


def _cells(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        rows, size = x
        yield f"torch.gru_cell({{0}}, {{w:{rows},2}}, {{w:6,{size}}}, {{w:6,2}})"
        yield f"torch.lstm_cell({{0}}, [{{w:{rows},1}}, {{w:{rows},1}}], {{w:4,{size}}}, {{w:4,1}})[0]"
        yield f"torch.rnn_tanh_cell({{0}}, {{w:{rows},2}}, {{w:2,{size}}}, {{w:2,2}})"


def _bags(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        for mode in ("sum", "mean"):
            yield f"F.embedding_bag({{i:0,{x[0] - 1},0}}, {{0}}, {{i:0,1}}, mode='{mode}')"


def _spectrum(x: Shape) -> Iterator[str]:
    if x and x[-1] > 1:
        yield "torch.fft.rfft({0}).real"
        yield "torch.fft.rfft({0}).imag"
        yield f"torch.fft.irfft(torch.fft.rfft({{0}}) * {{w:{x[-1] // 2 + 1}}}, n={x[-1]})"
        yield "(torch.fft.fft(0.1 * {0}.sin()) + 3).abs()"  # away from zero, where a modulus has a kink


def _unit(x: Shape) -> Iterator[str]:
    for dim in dims(x, 2):
        yield f"F.normalize({{0}}, dim={dim})"
    if x:
        yield f"F.cosine_similarity({{0}}, {{w:{','.join(map(str, x))}}}, dim=-1)"


def _attention(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        yield "F.scaled_dot_product_attention({0}[None], {0}[None], {0}[None])[0]"
        yield "F.scaled_dot_product_attention({0}[None, None], {0}[None, None], {0}.sin()[None, None])[0, 0]"
        yield f"({{0}} @ {{w:{x[1]},2}} @ ({{0}} @ {{w:{x[1]},2}}).mT).softmax(-1) @ {{0}}"
    if len(x) == 3:
        yield "F.scaled_dot_product_attention({0}, {0}, {0} * 0.5)"
        yield "F.scaled_dot_product_attention({0}, {0}, {0}, is_causal=True)"


def _classified(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        targets = ",".join(str(number % x[1]) for number in range(x[0]))
        yield f"F.cross_entropy({{0}}, {{i:{targets}}})"
        yield f"F.cross_entropy({{0}}, {{i:{targets}}}, reduction='none')"
        yield f"F.cross_entropy({{0}}, {{i:{targets}}}, weight={{w:{x[1]}}}.exp())"
        yield f"F.cross_entropy({{0}}, {{w:{x[0]},{x[1]}}}.softmax(1), label_smoothing=0.1)"
        yield f"F.nll_loss({{0}}.log_softmax(1), {{i:{targets}}}, reduction='sum')"
        yield f"F.kl_div({{0}}.log_softmax(1), {{w:{x[0]},{x[1]}}}.softmax(1), reduction='batchmean')"


def _compared(x: Shape) -> Iterator[str]:
    sizes = ",".join(map(str, x))
    yield f"F.binary_cross_entropy_with_logits({{0}}, {{w:{sizes}}}.sigmoid())"
    yield f"F.mse_loss({{0}}, {{w:{sizes}}}, reduction='sum')"
    yield f"F.soft_margin_loss({{0}}, {{w:{sizes}}}.sign())"


def _probable(x: Shape) -> Iterator[str]:
    yield f"F.binary_cross_entropy({{0}}.sigmoid(), {{w:{','.join(map(str, x))}}}.sigmoid(), reduction='sum')"


CROSS_ENTROPY = 1e-7  # of probabilities: torch's third derivative is off by 3e-9 at 0.95


def _loss(name: str, *calls: str) -> Row:
    """Return a row of losses of a difference that stays away from the kinks of the Huber loss."""
    return row(name, *(f"F.{call}({{0}}, torch.zeros_like({{0}}))" for call in calls), domain=off(0.0, -1.0, 1.0))


LAYERS = (
    along("softmax", "{{0}}.softmax({})", "{{0}}.log_softmax({})", "F.softmin({{0}}, {})", least=2),
    shaped("glu and prelu", _gates, domain=NONZERO),
    shaped("normalisation", _normalised, domain=APART),
    shaped("unit vectors", _unit, domain=NONZERO),
    shaped("attention", _attention),
    shaped("batch norm", _normalised_by_batch, domain=APART),
    shaped("recurrent cells", _cells),
    shaped("embedding bag", _bags),
    shaped("Fourier transform", _spectrum, domain=NONZERO),
    shaped("losses of classes", _classified),
    shaped("losses of numbers", _compared),
    shaped("losses of probabilities", _probable, tolerance=CROSS_ENTROPY),
    _loss("losses with a kink", "huber_loss", "smooth_l1_loss", "l1_loss"),
    row("likelihoods", "F.poisson_nll_loss({0}, {1}.exp())", "F.gaussian_nll_loss({0}, {1}, {1}.exp())", where=equal),
    row("mse", "F.mse_loss({0}, {1})", "F.mse_loss({0}, {1}, reduction='none')", where=equal),
    row("distance", "F.l1_loss({0}, {1})", "torch.dist({0}, {1})", where=equal, domain=DIFFERENT),
)
