"""What a handler may raise or return in the place of an answer: the two ways of FIPA to say no.

Owns: these two values. Leaves to others: sending them (`client.participants`).
"""

from __future__ import annotations

from typing import ClassVar

from gagent_grpc.acl.performative import Performative


class Declined(Exception):
    """Root of what a handler may say in the place of an answer; the message counts as handled.

    Attributes:
        content: Content of the answer; None for none.
    """

    act: ClassVar[Performative] = Performative.FAILURE

    def __init__(self, content: str | bytes | None = None) -> None:
        super().__init__(content if isinstance(content, str) else f"({self.act})")
        self.content = content


class Refuse(Declined):
    """Answers `refuse`: understood, and nothing is done (FIPA SC00037). A proposal is rejected so."""

    act = Performative.REFUSE


class Fail(Declined):
    """Answers `failure`: it was tried, and did not come about (FIPA SC00037). Any other error has the message come again."""

    act = Performative.FAILURE
