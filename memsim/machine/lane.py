"""A slot of an SM as leaps see it, and how it goes on at another trip of another unit."""

from __future__ import annotations

from collections.abc import Iterator

from memsim.machine.plan import BodyPlan, Environment
from memsim.machine.sm import Sm
from memsim.machine.traced import MovesOver, Ring


class Lane:
    """A slot: the units that it works on, the trip it makes next, and where it is to be after a leap."""

    __slots__ = (
        "carry",
        "ended",
        "entering",
        "group",
        "in_trip",
        "jump",
        "last_ps",
        "moved",
        "number",
        "samples",
        "sm",
        "stop",
        "unit",
        "units",
        "value",
    )  # fmt: skip

    @property
    def jump_value(self) -> int:
        """The trip that a leap leads to."""
        return self.jump[1] if self.jump is not None else self.value

    def __init__(self, number: int, group: int, sm: Sm) -> None:
        self.number, self.group, self.sm = number, group, sm
        self.units: Iterator[Environment] = iter(())
        self.unit: Environment | None = None
        self.value = self.stop = 0
        self.entering = self.moved = self.ended = self.in_trip = False
        self.jump: tuple[Environment | None, int] | None = None
        self.last_ps = -1
        self.samples = 0
        self.carry = 0.0


def aim(
    body: BodyPlan, coordinates: Environment, trips: int, stop: int, done: int, to: int, moves: list[MovesOver],
    rings: list[Ring],
) -> None:  # fmt: skip
    """Have a loop go on at another trip, of the unit that has these coordinates, with what is in its rings."""
    moves[:] = [(m.access, *m.over(coordinates, stop)) for m in body.moves]
    for number, (buffers, parts, _, _, pending) in enumerate(rings):
        turned = [pending[(done * parts + n - to * parts) % buffers] for n in range(buffers)]
        rings[number] = (buffers, parts, trips * parts, [moves[m] for m in body.rings[number].moves], turned)
