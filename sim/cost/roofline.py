"""Step time from what a step must move and compute, for devices that nobody here has.

Each part of a step takes the longer of two times, memory and arithmetic (the roofline of Williams, Waterman and
Patterson 2009, "Roofline: an insightful visual performance model", CACM 52(4)), at a share of the device's peaks that
is an option; the parts run one after another, and what nobody computes with comes on top:

- *linear*: the weights that every token needs, read once a step; two operations per parameter and token;
- *experts*: the routed experts that the step's tokens touch.  With E experts, k per token and every choice equally
  likely, B tokens touch E·(1 − (1 − k/E)^B) of them: what the mean of independent draws gives;
- *output*: the output layer, for rows that sample;
- *attention*: KV read and written; operations per KV position read (decoding) and per pair (prefill);
- *activations*: what moves through memory between products;
- *links*: see ``parallel``; *swap* over the host's link and *copies* within the device; *overhead*.

Everything is fixed-point: coefficients in femtoseconds, from exact rational arithmetic, rounded up, once; a step is
then sums and products of integers, rounded down to nanoseconds.  Each part is a maximum or a sum of terms that do not
decrease in any count, so neither does the step.  Nothing was measured: there is no ``reach``, and every step is an
estimate.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import msgspec

from stepwell.core.protocols import BatchShape
from stepwell.sim.cost.parallel import traffic
from stepwell.sim.cost.room import check_room
from stepwell.sim.cost.running import run_by_steps
from stepwell.sim.cost.setup import ACTIVATION_BYTES, BYTES, RooflineOptions, Setup, resolve

FS_PER_NS = 1_000_000
_FS_PER_S = 10**15

_ONE = 1 << 96
_MOST_TOKENS = 1 << 14
"""Beyond so many tokens in a step all experts are touched, to within less than a femtosecond, or nearly."""

Bound = Literal["memory", "compute", "link", "host", "fixed"]


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """Femtoseconds of one device, per what the name says."""

    linear: int
    """To read all of it."""
    linear_token: int
    experts: list[int]
    """To read those that 0, 1, 2, … tokens touch; the last one holds for more.  Empty: there are none."""
    expert_token: int
    output: int
    output_row: int
    kv_token: int
    decode_token: int
    """Operations of a decoding token per position that it attends to."""
    prefill_pair: int
    activation: int
    link_token: int
    link_row: int
    hops: int
    swap_page: int
    copy_page: int
    step: int
    layers: int
    request: int


class Part(msgspec.Struct, frozen=True):
    """What one part of a step takes on each device, by what it is bound, and what it moves and computes there."""

    name: str
    fs: int
    bound: Bound
    bytes: int = 0
    operations: int = 0


class Roofline:
    """Predicts step times of a model of the catalogue on devices of the catalogue, from data sheets."""

    name = "roofline"
    Options = RooflineOptions
    reach = None

    def __init__(self, options: RooflineOptions | None = None) -> None:
        self.options = RooflineOptions() if options is None else options
        self.setup = resolve(self.options)
        self.room = check_room(self.setup)
        self.coefficients = _coefficients(self.setup)
        self._ranks = self.setup.ranks

    def step_ns(self, shape: BatchShape) -> int:
        """Time of one step; at least the overhead of a step that does nothing."""
        it, ranks = self.coefficients, self._ranks
        read = -(-shape.kv_tokens // ranks)
        written = -(-(shape.prefill_tokens + shape.decode_requests) // ranks)
        return (self._rest_fs(shape) + max((read + written) * it.kv_token, read * it.decode_token)) // FS_PER_NS

    def _rest_fs(self, shape: BatchShape) -> int:
        """All but reading and writing KV, and what decoding computes with it."""
        it, ranks = self.coefficients, self._ranks
        tokens = shape.prefill_tokens + shape.decode_requests
        rows = shape.decode_requests + shape.prefill_requests
        fs = it.step + rows * it.request + shape.swap_pages * it.swap_page + shape.copied_pages * it.copy_page
        fs += -(-shape.prefill_pairs // ranks) * it.prefill_pair
        if tokens:
            mine = -(-tokens // ranks)
            fs += it.layers + it.hops + mine * (it.activation + it.link_token) + max(it.linear, mine * it.linear_token)
            if it.experts:
                touched = it.experts[tokens] if tokens < len(it.experts) else it.experts[-1]
                fs += max(touched, tokens * it.expert_token)
        if rows:
            own = -(-rows // ranks)
            fs += own * it.link_row + max(it.output, own * it.output_row)
        return fs

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """Step by step: each rounds by itself.  In a run only what attention reads grows, by a constant."""
        if self._ranks > 1:
            return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)
        it, decoding = self.coefficients, shape.decode_requests
        rest = self._rest_fs(shape)
        moving = (shape.kv_tokens + shape.prefill_tokens + decoding) * it.kv_token
        computing = shape.kv_tokens * it.decode_token
        more_moving, more_computing = decoding * it.kv_token, decoding * it.decode_token
        now_ns = start_ns
        ends: list[int] = []
        append = ends.append
        for _ in range(steps):
            now_ns += (rest + (moving if moving > computing else computing)) // FS_PER_NS
            append(now_ns)
            if now_ns >= until_ns:
                break
            moving += more_moving
            computing += more_computing
        return ends

    def parts(self, shape: BatchShape) -> list[Part]:
        """The same step taken apart; the parts' sum, rounded down, is ``step_ns``."""
        it, ranks, setup = self.coefficients, self._ranks, self.setup
        tokens = shape.prefill_tokens + shape.decode_requests
        rows = shape.decode_requests + shape.prefill_requests
        mine, read, own = -(-tokens // ranks), -(-shape.kv_tokens // ranks), -(-rows // ranks)
        some = 1 if tokens else 0
        pairs = -(-shape.prefill_pairs // ranks) * it.prefill_pair
        attention = self._part("attention", (read + mine) * it.kv_token, read * it.decode_token, setup.plain_operations)
        computed = attention.operations + _times(pairs, setup.plain_operations)
        bound: Bound = "compute" if attention.bound == "compute" or pairs > attention.fs else "memory"
        touched = it.experts[min(tokens, len(it.experts) - 1)] if it.experts else 0
        sent = mine * it.link_token + own * it.link_row
        swapped, copied = shape.swap_pages * it.swap_page, shape.copied_pages * it.copy_page
        return [
            self._part("linear", some * it.linear, mine * it.linear_token, setup.operations),
            self._part("experts", touched, tokens * it.expert_token, setup.operations),
            self._part("output", it.output if rows else 0, own * it.output_row, setup.plain_operations),
            Part("attention", attention.fs + pairs, bound, attention.bytes, computed),
            self._part("activations", mine * it.activation, 0, setup.operations),
            Part("links", some * it.hops + sent, "link", _times(sent, setup.link)),
            Part("swap", swapped, "host", _times(swapped, setup.host)),
            self._part("copies", copied, 0, setup.operations),
            Part("overhead", it.step + some * it.layers + rows * it.request, "fixed"),
        ]

    def _part(self, name: str, memory_fs: int, compute_fs: int, rate: Fraction) -> Part:
        """The longer of two times."""
        return Part(
            name,
            max(memory_fs, compute_fs),
            "memory" if memory_fs >= compute_fs else "compute",
            _times(memory_fs, self.setup.bandwidth),
            _times(compute_fs, rate),
        )


def _times(fs: int, rate: Fraction) -> int:
    """What is done in that time."""
    return int(fs * rate / _FS_PER_S)


def _fs(amount: Fraction | int, rate: Fraction) -> int:
    """Rounded up, so that nothing becomes free."""
    return -int(-(amount * _FS_PER_S / rate) // 1)


def _coefficients(setup: Setup) -> Coefficients:
    model, options, sent = setup.model, setup.options, traffic(setup)
    tensor, weights = options.tensor_parallel, BYTES[options.weights]
    expert_fs = _fs(model.expert_parameters * weights / setup.group, setup.bandwidth)
    page_bytes = Fraction(setup.kv_bytes * options.page_size, options.pipeline_parallel)
    return Coefficients(
        linear=_fs(model.linear_parameters * weights / tensor, setup.bandwidth),
        linear_token=_fs(Fraction(2 * model.linear_parameters, tensor), setup.operations),
        experts=_touched(setup, expert_fs),
        expert_token=_fs(
            Fraction(2 * model.expert_parameters * (model.experts.active if model.experts else 0), setup.group),
            setup.operations,
        ),
        output=_fs(Fraction(model.head_parameters * ACTIVATION_BYTES, tensor), setup.bandwidth),
        output_row=_fs(Fraction(2 * model.head_parameters, tensor), setup.plain_operations),
        kv_token=_fs(setup.kv_bytes, setup.bandwidth),
        decode_token=_fs(Fraction(model.layers * model.attention.decode_operations(), tensor), setup.plain_operations),
        prefill_pair=_fs(Fraction(model.layers * model.attention.prefill_operations(), tensor), setup.plain_operations),
        activation=_fs(Fraction(model.moved * ACTIVATION_BYTES, tensor), setup.bandwidth),
        link_token=_fs(sent.token_bytes, setup.link),
        link_row=_fs(sent.row_bytes, setup.link),
        hops=sent.hops_ns * FS_PER_NS,
        swap_page=_fs(page_bytes, setup.host),
        copy_page=_fs(2 * page_bytes, setup.bandwidth),
        step=options.step_overhead_ns * FS_PER_NS,
        layers=model.layers * options.layer_overhead_ns * FS_PER_NS,
        request=options.request_overhead_ns * FS_PER_NS,
    )


def _touched(setup: Setup, expert_fs: int) -> list[int]:
    """Time to read the experts that so many tokens touch, as long as more tokens still touch more of them.

    ``left`` is (1 − k/E)^B in units of ``_ONE``, rounded down at each step: it never grows, so the times never shrink.
    """
    if setup.model.experts is None or not setup.model.sparse_layers:
        return []
    count, active = setup.model.experts.experts, setup.model.experts.active
    times, left = [0], _ONE
    while left and len(times) < _MOST_TOKENS:
        left = left * (count - active) // count
        times.append(count * expert_fs * (_ONE - left) // _ONE)
        if times[-1] == count * expert_fs:
            break
    return times
