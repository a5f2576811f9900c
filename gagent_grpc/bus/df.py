"""The directory facilitator's registry: who offers what, under which lease.

Owns: entries, their order of registration, leases, the search index, and the bounds. Leaves to others: who may change
which entry (`bus.platform`), who is alive (`bus.ams`), the clock (each method is told ``now``), and persistence.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gagent_grpc.acl.descriptions import DFAgentDescription, SearchConstraints, ServiceDescription
from gagent_grpc.acl.matching import matches_df
from gagent_grpc.bus.ports import StoredDescription
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    AgentNotRegistered,
    MissingParameter,
    ResourceExhausted,
    UnrecognisedParameterValue,
)

MAX_SERVICES = 64
"""Most services of one entry or template."""
MAX_DESCRIPTION_CHARS = 65_536
"""Most characters in all texts of one entry or template together; each text counts one more."""

_OBJECT = "df-agent-description"
Key = tuple[str, str]
"""What an entry is found by: the kind of text ("type", "service-protocol", "protocol", ...) and the text."""


@dataclass(slots=True)
class _Entry:
    """One registration."""

    name: str
    number: int
    """Order of registration; it survives modification."""
    description: DFAgentDescription
    """With the granted lease."""
    keys: frozenset[Key]
    registered_at: float
    """Unix seconds."""
    lease_end: float
    """Unix seconds; infinite without a lease."""


class DirectoryFacilitator:
    """The yellow pages of one platform: a synchronous table without I/O.

    Names are compared as they are: the caller makes `a` and `a@here` one name. An entry whose lease has ended never
    matches and does not block a new registration; `expire` removes it.

    Spec: FIPA SC00023 §4.1 and §6.2.
    """

    def __init__(
        self,
        *,
        max_entries: int,
        max_lease: float | None = None,
        matches: Callable[[DFAgentDescription, DFAgentDescription], bool] = matches_df,
    ) -> None:
        """Make an empty registry.

        Args:
            max_entries: Most entries at a time.
            max_lease: Longest lease in seconds, granted also where none was asked; None for no limit.
            matches: Rule that compares template and entry, called once for each entry that the index yields.
        """
        self._max_entries = max_entries
        self._max_lease = max_lease
        self._matches = matches
        self._by_name: dict[str, _Entry] = {}
        # Numbers only grow, so the order of this table is the order of registration.
        self._by_number: dict[int, _Entry] = {}
        # Sorted entry numbers: the smallest list that a template selects is walked in order of registration. A list
        # and not a dict, because a modification can put an old number into a young key.
        self._index: dict[Key, list[int]] = {}
        # (lease end, number); items whose entry has gone or has another lease by now are skipped.
        self._leases: list[tuple[float, int]] = []
        self._next_number = 0

    def __len__(self) -> int:
        """Return how many entries there are, those with an ended lease included until `expire` removes them."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[DFAgentDescription]:
        """Yield all descriptions, oldest registration first."""
        return iter([entry.description for entry in self._by_number.values()])

    def check(self, description: DFAgentDescription) -> None:
        """Make sure that `replace` would take an entry; nothing is changed.

        Raises:
            MissingParameter: As for `register`.
            UnrecognisedParameterValue: As for `register`.
            ResourceExhausted: The registry is full.
        """
        checked = self._checked(description)
        if _name_of(checked) not in self._by_name:
            self._check_room()

    def register(self, description: DFAgentDescription, *, now: float) -> DFAgentDescription:
        """Add an entry.

        A service without a name is named after its type.

        Args:
            description: What the agent offers; ``lease_seconds`` is the lease asked for.
            now: Unix seconds.

        Returns:
            The entry as it is kept, with the granted lease.

        Raises:
            AgentAlreadyRegistered: The agent has an entry; `modify` changes it.
            MissingParameter: The name of the agent or the type of a service is absent.
            UnrecognisedParameterValue: The lease is not a positive number, or the entry is over a limit.
            ResourceExhausted: The registry is full.

        Spec: FIPA SC00023 §6.2 (register).
        """
        checked = self._checked(description)
        name = _name_of(checked)
        if self._current(name, now) is not None:
            raise AgentAlreadyRegistered(name, "DF")
        return self._install(name, checked, now)

    def modify(self, description: DFAgentDescription, *, now: float) -> DFAgentDescription:
        """Replace the entry of an agent as a whole; the lease starts anew and the order of registration stays.

        Args:
            description: The new entry.
            now: Unix seconds.

        Returns:
            The entry as it is kept, with the granted lease.

        Raises:
            AgentNotRegistered: The agent has no entry, or its lease has ended.
            MissingParameter: As for `register`.
            UnrecognisedParameterValue: As for `register`.

        Spec: FIPA SC00023 §6.2 (modify).
        """
        checked = self._checked(description)
        name = _name_of(checked)
        if self._current(name, now) is None:
            raise AgentNotRegistered(name, "DF")
        return self._install(name, checked, now)

    def replace(self, description: DFAgentDescription, *, now: float) -> DFAgentDescription:
        """Install an entry whether the agent has one or not, as a session that says hello does.

        The lease starts anew; an entry that is there keeps its place in the order.

        Args:
            description: The entry.
            now: Unix seconds.

        Returns:
            The entry as it is kept, with the granted lease.

        Raises:
            MissingParameter: As for `register`.
            UnrecognisedParameterValue: As for `register`.
            ResourceExhausted: The registry is full.
        """
        checked = self._checked(description)
        return self._install(_name_of(checked), checked, now)

    def renew(self, name: str, lease_seconds: float | None, *, now: float) -> DFAgentDescription:
        """Start the lease of an entry anew; everything else stays.

        Args:
            name: The agent.
            lease_seconds: Lease asked for; None for as long as the one that runs.
            now: Unix seconds.

        Returns:
            The entry as it is kept, with the granted lease.

        Raises:
            AgentNotRegistered: The agent has no entry, or its lease has ended.
            UnrecognisedParameterValue: The lease is not a positive number.
        """
        entry = self._current(name, now)
        if entry is None:
            raise AgentNotRegistered(name, "DF")
        description = entry.description
        if lease_seconds is not None:
            granted = self._granted(lease_seconds)
            if granted != description.lease_seconds:
                description = replace(description, lease_seconds=granted)
        return self._install(name, description, now)

    def restore(self, stored: StoredDescription, *, now: float) -> bool:
        """Take over an entry as the youngest one, with its age and what is left of its lease.

        Args:
            stored: An entry that `stored` returned; in the order of their age, entries keep their order.
            now: Unix seconds.

        Returns:
            Whether it is there: an entry whose lease has ended is not taken.

        Raises:
            MissingParameter: As for `register`.
            UnrecognisedParameterValue: As for `register`.
            ResourceExhausted: The registry is full.
        """
        checked = self._checked(stored.description)
        lease_end = min(stored.lease_end, self._lease_end(checked, now))
        if lease_end <= now:
            return False
        self._put(_name_of(checked), checked, now, stored.registered_at, lease_end)
        return True

    def stored(self, name: str) -> StoredDescription:
        """Return what a store keeps of the entry of an agent, which must have one."""
        entry = self._by_name[name]
        return StoredDescription(entry.description, entry.registered_at, entry.lease_end)

    def deregister(self, name: str) -> None:
        """Remove the whole entry of an agent.

        Raises:
            AgentNotRegistered: There is none.

        Spec: FIPA SC00023 §6.2 (deregister).
        """
        if not self.withdraw(name):
            raise AgentNotRegistered(name, "DF")

    def withdraw(self, name: str) -> bool:
        """Remove the entry of an agent, for clean-up; return whether there was one."""
        entry = self._by_name.get(name)
        if entry is not None:
            self._remove(entry)
        return entry is not None

    def get(self, name: str) -> DFAgentDescription | None:
        """Return the entry of an agent, or None; an entry whose lease has ended is there until `expire` removes it."""
        entry = self._by_name.get(name)
        return None if entry is None else entry.description

    def current(self, name: str, now: float) -> DFAgentDescription | None:
        """Return the entry of an agent unless its lease has ended at ``now`` (Unix seconds); None when there is none."""
        entry = self._current(name, now)
        return None if entry is None else entry.description

    def search(
        self,
        template: DFAgentDescription,
        constraints: SearchConstraints,
        *,
        now: float,
        live: Callable[[str], bool],
    ) -> list[DFAgentDescription]:
        """Return the entries that match ``template``, oldest registration first.

        Only entries that share the template's rarest indexed text (type or name of a service, protocol, ontology,
        language) are looked at, so the cost does not grow with registrations of other kinds. A template with nothing
        of the sort walks all of them. The search ends with the last result that is asked for.

        Args:
            template: Pattern; an empty one matches every entry.
            constraints: ``max_results`` bounds the answer; the depth is the caller's business.
            now: Unix seconds; entries whose lease has ended do not match.
            live: Says whether an agent may be found at present; it must not change the registry.

        Returns:
            The matching entries; empty when none match.

        Raises:
            UnrecognisedParameterValue: ``max_results`` is 0, or the template is over a limit.

        Spec: FIPA SC00023 §6.2 (search), §6.1.4 (search-constraints).
        """
        limit = constraints.max_results
        if limit == 0:
            raise UnrecognisedParameterValue(
                "search-constraints", "max-results", "is 0; expected a positive number, or a negative one for all"
            )
        check_size(template)
        found: list[DFAgentDescription] = []
        for entry in self._candidates(template):
            if entry.lease_end > now and live(entry.name) and self._matches(template, entry.description):
                found.append(entry.description)
                if len(found) == limit:
                    break
        return found

    def providers(self, service: str, *, first: int, most: int, now: float) -> tuple[int, list[tuple[int, str]]]:
        """Return some of those who offer a service, in turn and without looking at the others.

        Args:
            service: Type of the service.
            first: Place of the first one that is looked at; beyond the last one it begins again.
            most: How many are looked at.
            now: Unix seconds; entries whose lease has ended are left out.

        Returns:
            How many entries offer it, and the place and agent of each that was looked at.
        """
        numbers = self._index.get(("type", service), [])
        count = len(numbers)
        found = []
        for place in (at % count for at in range(first, first + min(most, count))):
            entry = self._by_number[numbers[place]]
            if entry.lease_end > now:
                found.append((place, entry.name))
        return count, found

    def service_types(self, most: int) -> list[str]:
        """Return types of services that are registered, at most ``most``."""
        return list(itertools.islice((text for kind, text in self._index if kind == "type"), most))

    def offers(self, name: str, service: str, *, now: float) -> bool:
        """Return whether an agent offers a service of this type."""
        entry = self._by_name.get(name)
        return entry is not None and ("type", service) in entry.keys and entry.lease_end > now

    def expire(self, now: float) -> list[str]:
        """Remove the entries whose lease has ended at ``now`` (Unix seconds) and return their names, in that order."""
        gone: list[str] = []
        while self._leases and self._leases[0][0] <= now:
            lease_end, number = heapq.heappop(self._leases)
            entry = self._by_number.get(number)
            if entry is not None and entry.lease_end == lease_end:
                self._remove(entry)
                gone.append(entry.name)
        return gone

    def _checked(self, description: DFAgentDescription) -> DFAgentDescription:
        """Return the entry with completed services and the granted lease."""
        if not description.name:
            raise MissingParameter(_OBJECT, "name")
        check_size(description)
        services = tuple(_named(service) for service in description.services)
        return replace(description, services=services, lease_seconds=self._granted(description.lease_seconds))

    def _check_room(self) -> None:
        if len(self._by_name) >= self._max_entries:
            raise ResourceExhausted(f"the DF holds {len(self):,} entries, its limit (max_df_entries)")

    def _granted(self, asked: float | None) -> float | None:
        """Return the lease in seconds for the one that was asked for."""
        if asked is None:
            return self._max_lease
        # Written so that NaN fails too.
        if not (asked > 0 and math.isfinite(asked)):
            raise UnrecognisedParameterValue(_OBJECT, "lease-time", f"is {asked:g} s; expected more than 0 s")
        return asked if self._max_lease is None else min(asked, self._max_lease)

    def _current(self, name: str, now: float) -> _Entry | None:
        """Return the entry of ``name`` unless its lease has ended."""
        entry = self._by_name.get(name)
        return entry if entry is not None and entry.lease_end > now else None

    def _install(self, name: str, description: DFAgentDescription, now: float) -> DFAgentDescription:
        """Keep a checked entry, with a new lease, in the place of the current one or as the youngest."""
        return self._put(name, description, now, now, self._lease_end(description, now))

    def _put(
        self, name: str, description: DFAgentDescription, now: float, registered_at: float, lease_end: float
    ) -> DFAgentDescription:
        """Keep a checked entry in the place of the current one, whose age it gets, or as the youngest."""
        keys = frozenset(keys_of(description))
        entry = self._current(name, now)
        if entry is None:
            if name not in self._by_name:
                self._check_room()
            self.withdraw(name)  # An entry whose lease has ended gives up its place in the order.
            entry = _Entry(name, self._next_number, description, frozenset(), registered_at, lease_end)
            self._next_number += 1
            self._by_name[name] = entry
            self._by_number[entry.number] = entry
        self._reindex(entry, keys)
        entry.description = description
        entry.lease_end = lease_end
        if lease_end < math.inf:
            self._push_lease(entry)
        return description

    @staticmethod
    def _lease_end(description: DFAgentDescription, now: float) -> float:
        """Return when the lease in a checked entry ends that starts now."""
        return math.inf if description.lease_seconds is None else now + description.lease_seconds

    def _push_lease(self, entry: _Entry) -> None:
        """Note when the lease of ``entry`` ends."""
        heapq.heappush(self._leases, (entry.lease_end, entry.number))
        # Each renewal leaves an outdated item behind; the bound keeps a long lease that is often renewed from piling
        # them up.
        if len(self._leases) > 2 * len(self._by_name) + 64:
            self._leases = [(e.lease_end, e.number) for e in self._by_number.values() if e.lease_end < math.inf]
            heapq.heapify(self._leases)

    def _remove(self, entry: _Entry) -> None:
        del self._by_name[entry.name]
        del self._by_number[entry.number]
        self._reindex(entry, frozenset())

    def _reindex(self, entry: _Entry, keys: frozenset[Key]) -> None:
        """Find ``entry`` by ``keys`` and by nothing else from now on."""
        for key in entry.keys - keys:
            numbers = self._index[key]
            del numbers[bisect_left(numbers, entry.number)]
            if not numbers:
                del self._index[key]
        for key in keys - entry.keys:
            insort(self._index.setdefault(key, []), entry.number)
        entry.keys = keys

    def _candidates(self, template: DFAgentDescription) -> Iterator[_Entry]:
        """Yield the entries that can match ``template``, oldest first: those of its rarest key."""
        if template.name is not None:
            entry = self._by_name.get(template.name)
            return iter(()) if entry is None else iter((entry,))
        keys = list(keys_of(template))
        if not keys:
            return iter(self._by_number.values())
        rarest = min((self._index.get(key, ()) for key in keys), key=len)
        return (self._by_number[number] for number in rarest)


def _name_of(description: DFAgentDescription) -> str:
    """Return the name of a checked description."""
    assert description.name is not None
    return description.name


def _named(service: ServiceDescription) -> ServiceDescription:
    """Return ``service`` with a name; its type is the name of one that has none."""
    if not service.type:
        raise MissingParameter("service-description", "type")
    return service if service.name else replace(service, name=service.type)


def check_size(description: DFAgentDescription) -> int:
    """Return the characters of an entry or template that is within the limits.

    Raises:
        UnrecognisedParameterValue: It has too many services, too many characters, or some that are no valid Unicode.
    """
    count = len(description.services)
    if count > MAX_SERVICES:
        raise UnrecognisedParameterValue(_OBJECT, "services", f"has {count:,} elements; the limit is {MAX_SERVICES}")
    texts = list(_texts(description))
    size = sum(len(text) + 1 for text in texts)
    if size > MAX_DESCRIPTION_CHARS:
        why = f"has texts of {size:,} characters; the limit is {MAX_DESCRIPTION_CHARS:,}"
        raise UnrecognisedParameterValue(_OBJECT, "services", why)
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        why = "holds half of a surrogate pair; expected valid Unicode"
        raise UnrecognisedParameterValue(_OBJECT, "services", why) from None
    return size


def _texts(description: DFAgentDescription) -> Iterator[str]:
    """Yield every text of a description."""
    parts: tuple[DFAgentDescription | ServiceDescription, ...] = (description, *description.services)
    for part in parts:
        yield part.name or ""
        yield from part.protocols
        yield from part.ontologies
        yield from part.languages
    for service in description.services:
        yield service.type or ""
        yield service.ownership or ""
        for prop in service.properties:
            yield prop.name
            yield prop.value or ""


def keys_of(description: DFAgentDescription) -> Iterator[Key]:
    """Yield what an entry is found by, which is as well what a template needs an entry to have."""
    for service in description.services:
        if service.type is not None:
            yield "type", service.type
        if service.name is not None:
            yield "service-name", service.name
        yield from (("service-protocol", text) for text in service.protocols)
        yield from (("service-ontology", text) for text in service.ontologies)
        yield from (("service-language", text) for text in service.languages)
    yield from (("protocol", text) for text in description.protocols)
    yield from (("ontology", text) for text in description.ontologies)
    yield from (("language", text) for text in description.languages)
