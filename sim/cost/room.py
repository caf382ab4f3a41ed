"""How much KV cache is left on the devices beside a model's weights."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.cost.setup import ACTIVATION_BYTES, BYTES, RooflineOptions, Setup, exactly, resolve

_GIB = 1 << 30


class Room(msgspec.Struct, frozen=True):
    """Bytes on one device, and what all of them together hold."""

    memory: int
    usable: int
    """Of the memory, for an engine."""
    reserve: int
    weights: int
    kv_token: int
    """Of a token, in this device's layers."""
    tokens: int
    """All devices together."""
    pages: int
    """What ``memory.pages`` can be."""
    page_size: int


def weight_bytes(setup: Setup) -> int:
    """On one device, as if layers and embeddings were spread evenly."""
    model, options = setup.model, setup.options
    each = BYTES[options.weights]
    shared = model.linear_parameters * each + model.head_parameters * ACTIVATION_BYTES * (1 if model.tied else 2)
    routed = model.expert_parameters * model.experts.experts * each if model.experts else Fraction(0)
    return -int(-(shared / options.tensor_parallel + routed / setup.group) / options.pipeline_parallel // 1)


def measure(setup: Setup) -> Room:
    """What there is; ``pages`` is 0 or below if nothing is left."""
    options, memory = setup.options, setup.device.memory
    usable = int(memory * exactly(options.utilisation))
    reserve, weights = options.reserve_mib << 20, weight_bytes(setup)
    layers = -(-setup.model.layers // options.pipeline_parallel)
    kv_token = setup.kv_bytes * layers // setup.model.layers
    tokens = (usable - reserve - weights) // kv_token * setup.ranks
    return Room(memory, usable, reserve, weights, kv_token, tokens, tokens // options.page_size, options.page_size)


def check_room(setup: Setup) -> Room:
    """The same; raises ``UserError`` with the sum for a model that does not fit."""
    room = measure(setup)
    if room.pages >= 1:
        return room
    model, options = setup.model, setup.options
    fits = _enough(options)
    hint = f"; tensor_parallel = {fits} would do" if fits else "; no number of devices that share its heads would do"
    raise UserError(
        f"{model.name} does not fit: {_gib(room.weights)} GiB of {options.weights} weights on each of {setup.devices}"
        f" {setup.device.name} and {_gib(room.reserve)} GiB reserved leave nothing of the {_gib(room.usable)} GiB"
        f" that may be used ({options.utilisation:g} of {_gib(room.memory)} GiB){hint}",
        field="cost.options.model",
    )


def pages_left(options: RooflineOptions) -> int:
    """KV pages that the devices hold, for ``memory.pages``; raises ``UserError`` if the model does not fit."""
    return check_room(resolve(options)).pages


def room_of(cost: object) -> Room | None:
    """What the devices of a cost model hold, if it knows."""
    room = getattr(cost, "room", None)
    return room if isinstance(room, Room) else None


def check_pool(cost: object, pages: int, page_size: int) -> None:
    """Refuse a pool that the cost model's devices have no room for, or whose pages are not those that it prices."""
    room = room_of(cost)
    if room is None:
        return
    if page_size != room.page_size:
        raise UserError(
            f"pages are of {page_size} tokens, and the cost model prices pages of {room.page_size};"
            f" set cost.options.page_size={page_size} too",
            field="memory.page_size",
        )
    if pages > room.pages:
        raise UserError(
            f"{pages} pages of {page_size} tokens do not fit on the devices of the cost model, which hold {room.pages}"
            f" beside {_gib(room.weights)} GiB of weights each",
            field="memory.pages",
        )


def _enough(options: RooflineOptions) -> int:
    """The least power of two as ``tensor_parallel`` that leaves room; 0: none."""
    for power in range(12):
        more = msgspec.structs.replace(options, tensor_parallel=1 << power, expert_parallel=1)
        try:
            setup = resolve(more)
        except UserError:
            continue
        if measure(setup).pages >= 1:
            return 1 << power
    return 0


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f}"
