"""Requests to the AMS and the DF (ontology fipa-agent-management, SC00023) as one value, whatever their language.

Owns: which functions there are and what each one takes. Leaves to others: the two written forms (`acl.sl0`,
`acl.management_json`), and carrying a request out (`bus.ams`, `bus.df`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    PlatformDescription,
    SearchConstraints,
)
from gagent_grpc.errors import MissingParameter, UnrecognisedParameterValue, UnsupportedFunction

ONTOLOGY = "fipa-agent-management"
"""Name of the ontology (SC00023 §6); other platforms write it in other cases, so compare without case."""

Description = DFAgentDescription | AMSAgentDescription
"""What a registry keeps: the DF the one, the AMS the other."""
Item = Description | PlatformDescription
"""What a function returns: descriptions of agents, or get-description's of the platform."""


class ManagementFunction(enum.StrEnum):
    """A function of the AMS or the DF (SC00023 §6.2); the value is FIPA's word."""

    REGISTER = "register"
    DEREGISTER = "deregister"
    MODIFY = "modify"
    SEARCH = "search"
    GET_DESCRIPTION = "get-description"
    """Of the AMS only: describe the platform itself."""

    @classmethod
    def parse(cls, text: str) -> ManagementFunction:
        """Return the function that ``text`` names; case does not matter, `get_description` is `get-description`.

        Raises:
            UnsupportedFunction: There is no such function.
        """
        found = _BY_TEXT.get(text.strip().lower().replace("_", "-"))
        if found is None:
            raise UnsupportedFunction(f"no function {text[:80]!r}; expected one of: {', '.join(_BY_TEXT)}")
        return found


_BY_TEXT = {str(function): function for function in ManagementFunction}
_NEEDS_DESCRIPTION = frozenset({ManagementFunction.REGISTER, ManagementFunction.MODIFY})


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """One request to the AMS or the DF; `of` makes a checked one."""

    actor: str
    """AID of the agent that is asked: an `ams`, or a directory facilitator."""
    function: ManagementFunction
    description: Description | None = None
    """What is registered, or the template of a search. None on deregister means the sender's own entry."""
    constraints: SearchConstraints = field(default_factory=SearchConstraints)
    """Bounds of a search; the default for every other function."""

    @classmethod
    def of(
        cls,
        actor: str,
        function: ManagementFunction,
        description: Description | None = None,
        constraints: SearchConstraints | None = None,
    ) -> ManagementRequest:
        """Return the request when ``function`` takes these arguments.

        A search without a description gets the empty template, which every registration matches.

        Raises:
            MissingParameter: The function needs a description.
            UnrecognisedParameterValue: The description is of the other registry's kind, or there is an argument that
                the function does not take.
        """
        kind = description_kind(actor)
        if description is None:
            if function in _NEEDS_DESCRIPTION:
                raise MissingParameter(function.value, _WORDS[kind])
            if function is ManagementFunction.SEARCH:
                description = kind()
        elif function is ManagementFunction.GET_DESCRIPTION:
            raise UnrecognisedParameterValue(function.value, "description", "is given, the function takes none")
        elif not isinstance(description, kind):
            why = f"is a {_WORDS[type(description)]}; {actor} expects {_WORDS[kind]}"
            raise UnrecognisedParameterValue(function.value, "description", why)
        if constraints is not None and function is not ManagementFunction.SEARCH:
            raise UnrecognisedParameterValue(function.value, "search-constraints", "are given, only search takes them")
        return cls(actor, function, description, constraints or SearchConstraints())


_WORDS: dict[type[Description], str] = {
    DFAgentDescription: "df-agent-description",
    AMSAgentDescription: "ams-agent-description",
}


def description_kind(actor: str) -> type[Description]:
    """Return the kind of description that ``actor`` keeps.

    Every agent but an `ams` may be a directory facilitator: federated ones have names of their own (SC00023 §4.1).
    """
    return AMSAgentDescription if actor.partition("@")[0] == "ams" else DFAgentDescription
