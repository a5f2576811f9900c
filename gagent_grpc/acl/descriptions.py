"""Agent management descriptions of FIPA SC00023 as values: what the AMS and the DF keep, and search constraints.

Owns: the values. Leaves to others: matching (`acl.matching`), registries (`bus.ams`, `bus.df`), the wire (`codec`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LifeCycleState(enum.IntEnum):
    """Life-cycle state of an agent (SC00023 §5.1); the values are those of the wire."""

    INITIATED = 1
    ACTIVE = 2
    SUSPENDED = 3
    WAITING = 4
    TRANSIT = 5
    UNKNOWN = 6
    """The bus lost the agent: its session ended without a farewell. Mail waits."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Property:
    """One property of a service (SC00023 §6.1.2)."""

    name: str
    value: str | None = None
    """None in a template matches any value."""


@dataclass(frozen=True, slots=True)
class ServiceDescription:
    """FIPA's service-description (SC00023 §6.1.2). None means absent, which in a template is "don't care"."""

    name: str | None = None
    type: str | None = None
    protocols: frozenset[str] = frozenset()
    ontologies: frozenset[str] = frozenset()
    languages: frozenset[str] = frozenset()
    ownership: str | None = None
    properties: tuple[Property, ...] = ()


@dataclass(frozen=True, slots=True)
class DFAgentDescription:
    """FIPA's df-agent-description (SC00023 §6.1.1). None or empty means absent, in a template "don't care"."""

    name: str | None = None
    """AID of the agent; absent in most templates."""
    services: tuple[ServiceDescription, ...] = ()
    protocols: frozenset[str] = frozenset()
    ontologies: frozenset[str] = frozenset()
    languages: frozenset[str] = frozenset()
    lease_seconds: float | None = None
    """On registration the lease asked for, in an answer the lease granted, in seconds; None for no end."""


@dataclass(frozen=True, slots=True)
class AMSAgentDescription:
    """FIPA's ams-agent-description (SC00023 §6.1.3). None means absent, in a template "don't care"."""

    name: str | None = None
    ownership: str | None = None
    state: LifeCycleState | None = None


@dataclass(frozen=True, slots=True)
class PlatformService:
    """FIPA's ap-service (SC00023 §6.1.6): what a platform itself offers."""

    name: str
    type: str
    addresses: tuple[str, ...] = ()
    """Where it is reached, `host:port`."""


@dataclass(frozen=True, slots=True)
class PlatformDescription:
    """FIPA's ap-description (SC00023 §6.1.5)."""

    name: str
    services: tuple[PlatformService, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchConstraints:
    """FIPA's search-constraints (SC00023 §6.1.4)."""

    max_results: int = 1
    """Largest number of results; negative asks for all, 0 is not allowed."""
    max_depth: int = 0
    """How many federated directories a search may cross; 0 searches this one only."""
    search_id: str = ""
    """Identity of the search across directories; "" for none."""
