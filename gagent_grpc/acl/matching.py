"""The matching rule of FIPA SC00023: does a description satisfy a template?

Owns: the comparison of two values. Leaves to others: which descriptions are compared and in what order (`bus.df`,
`bus.ams`), and the normal form of agent names: a caller that knows its platform makes `a` and `a@here` one name first.
"""

from __future__ import annotations

from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, Property, ServiceDescription


def matches_df(template: DFAgentDescription, entry: DFAgentDescription) -> bool:
    """Return whether ``entry`` satisfies ``template``.

    Every parameter that is present in the template must match: constants are equal, case included; a set contains
    the template's elements. Each service of the template matches some service of the entry; two of them may match
    the same one. What is absent in the template does not matter, what is absent in the entry does not match.

    Spec: FIPA SC00023, matching of DF templates.
    """
    return Offer(entry).satisfies(template)


class Offer:
    """A DF entry made ready to be compared with many services or many templates.

    What is prepared is prepared once, and only when a template asks for it: entry and template both come from
    strangers, and 64 services with hundreds of properties each may be compared with 64 others.
    """

    def __init__(self, entry: DFAgentDescription) -> None:
        self.entry = entry
        self._by_type: dict[str | None, list[_Service]] | None = None

    def satisfies(self, template: DFAgentDescription) -> bool:
        """Return whether the entry satisfies ``template``, by the rules of `matches_df`."""
        entry = self.entry
        return (
            _equal(template.name, entry.name)
            and template.protocols <= entry.protocols
            and template.ontologies <= entry.ontologies
            and template.languages <= entry.languages
            and (template.lease_seconds is None or template.lease_seconds == entry.lease_seconds)
            and all(map(self._has, template.services))
        )

    def _has(self, wanted: ServiceDescription) -> bool:
        by_type = self._by_type
        if by_type is None:
            by_type = self._by_type = {}
            for service in self.entry.services:
                by_type.setdefault(service.type, []).append(_Service(service))
        if wanted.type is None:
            return any(one.satisfies(wanted) for same in by_type.values() for one in same)
        return any(one.satisfies(wanted) for one in by_type.get(wanted.type, ()))


def matches_service(template: ServiceDescription, service: ServiceDescription) -> bool:
    """Return whether ``service`` satisfies ``template``, by the rules of `matches_df`.

    A property that has a name and no value in the template matches every value.

    Spec: FIPA SC00023 §6.1.2 (service-description).
    """
    return _Service(service).satisfies(template)


class _Service:
    """A service that is offered, and its properties as sets from when they are first asked for."""

    __slots__ = ("_names", "_service", "_values")

    def __init__(self, service: ServiceDescription) -> None:
        self._service = service
        self._names: set[str] | None = None
        self._values: set[tuple[str, str | None]] | None = None

    def satisfies(self, template: ServiceDescription) -> bool:
        service = self._service
        return (
            _equal(template.type, service.type)
            and _equal(template.name, service.name)
            and template.protocols <= service.protocols
            and template.ontologies <= service.ontologies
            and template.languages <= service.languages
            and _equal(template.ownership, service.ownership)
            and (not template.properties or self._contains(template.properties))
        )

    def _contains(self, wanted: tuple[Property, ...]) -> bool:
        """Return whether every wanted property is offered."""
        names = self._names
        if names is None:
            names = self._names = {prop.name for prop in self._service.properties}
        for prop in wanted:
            if prop.name not in names:
                return False
            if prop.value is None:
                continue
            if self._values is None:
                # Pairs and not the properties, whose hashes are several times as slow.
                self._values = {(offered.name, offered.value) for offered in self._service.properties}
            if (prop.name, prop.value) not in self._values:
                return False
        return True


def matches_ams(template: AMSAgentDescription, entry: AMSAgentDescription) -> bool:
    """Return whether ``entry`` satisfies ``template``: name, ownership and state are equal where the template has them.

    Spec: FIPA SC00023 §6.1.3 (ams-agent-description).
    """
    return (
        _equal(template.name, entry.name)
        and _equal(template.ownership, entry.ownership)
        and (template.state is None or template.state == entry.state)
    )


def _equal(wanted: str | None, found: str | None) -> bool:
    """Return whether a constant of the template is absent or equal."""
    return wanted is None or wanted == found
