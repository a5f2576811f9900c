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
    return (
        _equal(template.name, entry.name)
        and template.protocols <= entry.protocols
        and template.ontologies <= entry.ontologies
        and template.languages <= entry.languages
        and (template.lease_seconds is None or template.lease_seconds == entry.lease_seconds)
        and all(any(matches_service(wanted, offered) for offered in entry.services) for wanted in template.services)
    )


def matches_service(template: ServiceDescription, service: ServiceDescription) -> bool:
    """Return whether ``service`` satisfies ``template``, by the rules of `matches_df`.

    A property that has a name and no value in the template matches every value.

    Spec: FIPA SC00023 §6.1.2 (service-description).
    """
    return (
        _equal(template.type, service.type)
        and _equal(template.name, service.name)
        and template.protocols <= service.protocols
        and template.ontologies <= service.ontologies
        and template.languages <= service.languages
        and _equal(template.ownership, service.ownership)
        and _contains(service.properties, template.properties)
    )


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


def _contains(offered: tuple[Property, ...], wanted: tuple[Property, ...]) -> bool:
    """Return whether every wanted property is offered."""
    if not wanted:
        return True
    # Both sides come from strangers, so the comparison is linear in their sizes and not in the product.
    values = set(offered)
    names = {prop.name for prop in offered}
    return all(prop.name in names if prop.value is None else prop in values for prop in wanted)
