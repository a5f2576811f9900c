"""The origin of a dead letter that goes back into a mailbox: in its sender's name, with receipts for who asked for it.

Owns: that the letter stays dead until it is in the mailbox, as durably as promised, and is gone then. Leaves to others:
whether it goes (`bus.router`), the letters themselves (`bus.dead_letters`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.ports import StoredDeadLetter

if TYPE_CHECKING:
    from gagent_grpc.bus.router import Origin, Receipt


class Redriver:
    """`Origin` of one dead letter. Its sender hears nothing: it was told of the end before."""

    def __init__(self, dead: StoredDeadLetter, letters: DeadLetters, under_way: set[int], caller: Origin) -> None:
        """Make the origin of ``dead``.

        Args:
            dead: The letter.
            letters: Where it is removed once it is accepted.
            under_way: Numbers that are being put back; that of the letter is in it until its outcome is known.
            caller: Gets the receipt.
        """
        self.aid = dead.sender
        # The order of its session is over; nothing waits for it.
        self.holds = Holds()
        self._number = dead.number
        self._letters = letters
        self._under_way = under_way
        self._caller = caller
        under_way.add(dead.number)

    def expect(self, number: int) -> None:
        self._caller.expect(number)

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        # Now and not before: until its commit the stored letter is the only one there is.
        self._letters.remove([self._number])
        self._under_way.discard(self._number)
        self._caller.accepted(number, receiver, waited=waited, lazy=lazy)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        self._under_way.discard(self._number)
        self._caller.refuse(receipt, waited=waited)
