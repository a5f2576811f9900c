"""The 22 communicative acts of FIPA SC00037, with the numbers of the bit-efficient encoding (SC00069)."""

from __future__ import annotations

import enum

from gagent_grpc.errors import UnknownPerformative


class Performative(enum.IntEnum):
    """A communicative act; the value is its code in FIPA SC00069, which the wire uses too."""

    ACCEPT_PROPOSAL = 0x01
    AGREE = 0x02
    CANCEL = 0x03
    CFP = 0x04
    CONFIRM = 0x05
    DISCONFIRM = 0x06
    FAILURE = 0x07
    INFORM = 0x08
    INFORM_IF = 0x09
    INFORM_REF = 0x0A
    NOT_UNDERSTOOD = 0x0B
    PROPAGATE = 0x0C
    PROPOSE = 0x0D
    PROXY = 0x0E
    QUERY_IF = 0x0F
    QUERY_REF = 0x10
    REFUSE = 0x11
    REJECT_PROPOSAL = 0x12
    REQUEST = 0x13
    REQUEST_WHEN = 0x14
    REQUEST_WHENEVER = 0x15
    SUBSCRIBE = 0x16

    @property
    def text(self) -> str:
        """The act as FIPA writes it: `query-ref` for QUERY_REF."""
        return _TEXTS[self]

    def __str__(self) -> str:
        return _TEXTS[self]

    @classmethod
    def parse(cls, text: str) -> Performative:
        """Return the act that ``text`` names; case does not matter (FIPA SC00070).

        Raises:
            UnknownPerformative: ``text`` is none of the 22 acts.
        """
        found = _BY_TEXT.get(text.strip().lower()) if isinstance(text, str) else None
        if found is None:
            raise UnknownPerformative(text, EXPECTED)
        return found

    @classmethod
    def from_code(cls, code: int) -> Performative:
        """Return the act with the FIPA code ``code``.

        Raises:
            UnknownPerformative: No act has this code; 0 means that the performative is absent.
        """
        found = ACTS_BY_CODE.get(code)
        if found is None:
            raise UnknownPerformative(code, f"1 to {len(ACTS_BY_CODE)} ({EXPECTED})")
        return found


_TEXTS = {act: act.name.lower().replace("_", "-") for act in Performative}
_BY_TEXT = {text: act for act, text in _TEXTS.items()}
ACTS_BY_CODE = {int(act): act for act in Performative}
"""The acts by their FIPA codes."""
EXPECTED = ", ".join(_BY_TEXT)
"""The 22 acts, for error texts."""

EXPECTS_ANSWER = frozenset(
    {
        Performative.REQUEST,
        Performative.REQUEST_WHEN,
        Performative.REQUEST_WHENEVER,
        Performative.QUERY_IF,
        Performative.QUERY_REF,
        Performative.CFP,
        Performative.PROPOSE,
        Performative.SUBSCRIBE,
        Performative.PROXY,
        Performative.PROPAGATE,
    }
)
"""Acts whose sender waits for an answer (the initiating acts of the interaction protocols, SC00026 to SC00036)."""

NEVER_ANSWERED = frozenset({Performative.FAILURE, Performative.NOT_UNDERSTOOD, Performative.REFUSE})
"""Acts that platform and library never answer by themselves, or two broken agents would go on for ever."""
