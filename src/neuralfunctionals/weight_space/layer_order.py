"""The order of a network's layers, found from their shapes and the numbers in their names: `find_order`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import LayerSpec

_GIVE_LAYERS = (
    "Give the right one, from input to output: layers=[...], or on the command line --layers. Or read the module with "
    "NetworkSpec.from_module."
)
_MAX_WORK = 500_000
"""Limit on the search for an order, in visited layers: a second or two."""


def find_order(specs: Mapping[str, LayerSpec]) -> list[LayerSpec]:
    """The layers from input to output.

    Raises:
        ValueError: If no order fits, several do, or the search takes too long.
    """
    found = _chains(specs)
    first = next(found, None)
    if first is None:
        shapes = ", ".join(f"{name}: {spec}" for name, spec in specs.items())
        raise UserError(f"Expected layers that fit one after the other, but found no such order among {shapes}.")
    if next(found, None) is not None:
        raise UserError(f"Several orders of the layers {sorted(specs)} fit their shapes. {_GIVE_LAYERS}")
    return first


def _chains(specs: Mapping[str, LayerSpec]) -> Iterator[list[LayerSpec]]:
    """All orders of the layers that fit the shapes and the numbers in the names.

    If several layers could come next, only those are tried after which a walk over all others is possible. So layers
    without numbers cannot lead to a dead end. Numbers can; then the search may raise and ask for the order.
    """
    queues = _numbered(specs)  # the next layer is the first of a queue
    heads = [0] * len(queues)
    chain: list[LayerSpec] = []
    work = 0

    def candidates() -> Iterator[int]:
        last = chain[-1] if chain else None
        fitting = [q for q, queue in enumerate(queues) if heads[q] < len(queue) and _fits(last, queue[heads[q]])]
        count(len(queues))
        if len(fitting) < 2:
            yield from fitting
            return
        left = [layer for queue, head in zip(queues, heads, strict=True) for layer in queue[head:]]
        for q in fitting:
            count(len(left))
            if _can_follow(queues[q][heads[q]], left):
                yield q

    def count(layers: int) -> None:
        nonlocal work
        work += layers
        if work > _MAX_WORK:
            raise UserError(
                f"The order of {len(specs)} layers takes too long to find from their shapes. {_GIVE_LAYERS}"
            )

    choices, chosen = [candidates()], []
    while choices:
        queue = next(choices[-1], None)
        if queue is not None:
            chain.append(queues[queue][heads[queue]])
            heads[queue] += 1
            chosen.append(queue)
            if len(chain) < len(specs):
                choices.append(candidates())
                continue
            yield list(chain)
        else:
            choices.pop()
        if chosen:
            heads[chosen.pop()] -= 1
            chain.pop()


def _numbered(specs: Mapping[str, LayerSpec]) -> list[list[LayerSpec]]:
    """Layers whose names differ only in numbers, in the order of these numbers."""
    families: dict[tuple[str, int], list[tuple[list[int], LayerSpec]]] = {}
    seen: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, layer in specs.items():
        pattern, numbers = re.sub(r"\d+", "#", name), [int(n) for n in re.findall(r"\d+", name)]
        # Names with equal numbers, such as a1 and a01, have no order.
        copy = seen[pattern, tuple(numbers)] = seen.get((pattern, tuple(numbers)), -1) + 1
        families.setdefault((pattern, copy), []).append((numbers, layer))
    return [[layer for _, layer in sorted(family, key=lambda pair: pair[0])] for family in families.values()]


def _fits(last: LayerSpec | None, layer: LayerSpec) -> bool:
    """Whether a layer can come after another, or first."""
    if last is None:
        return True
    return last.out_neurons == layer.in_neurons and (not layer.kernel or len(last.kernel) == len(layer.kernel))


def _can_follow(layer: LayerSpec, left: Sequence[LayerSpec]) -> bool:
    """Whether the shapes allow an order of all remaining layers that starts with this one."""
    left = [other for other in left if other is not layer]
    convolutions = [other for other in left if other.kernel]
    if any(len(other.kernel) != len(layer.kernel) for other in convolutions):
        return False
    width = _walk_end(layer.out_neurons, convolutions)
    return width is not None and _walk_end(width, [other for other in left if not other.kernel]) is not None


def _walk_end(start: int, layers: Sequence[LayerSpec]) -> int | None:
    """The last width of a walk that starts at a width and uses every layer once, as an edge between widths.

    Such a walk exists if it can leave every width as often as it arrives there, except for start and end (Euler); if
    not, this returns None.
    """
    surplus = {start: -1}
    neighbours: dict[int, set[int]] = {start: set()}
    for layer in layers:
        for width, other, change in (
            (layer.in_neurons, layer.out_neurons, 1),
            (layer.out_neurons, layer.in_neurons, -1),
        ):
            surplus[width] = surplus.get(width, 0) + change
            neighbours.setdefault(width, set()).add(other)
    reached, waiting = {start}, [start]
    while waiting:
        new = neighbours[waiting.pop()] - reached
        reached |= new
        waiting += new
    ends = {width: count for width, count in surplus.items() if count}
    return next(iter(ends)) if list(ends.values()) == [-1] and len(reached) == len(neighbours) else None
