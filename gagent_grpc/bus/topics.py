"""Who listens to which topics.

Owns: the form of topics and subscriptions, and finding the listeners of a topic without looking at the others. Leaves to
others: bringing messages to them (`bus.router`), writing subscriptions down (`bus.sessions`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from gagent_grpc.errors import InvalidArgument, shown

TOPIC = "topic:"
"""Beginning of the address of a topic."""
MAX_TOPICS = 100
"""Most subscriptions of one agent."""
_MAX_BYTES = 255


def check_topic(name: str) -> str:
    """Return the name of a topic, as it stands after `topic:` in an address.

    Raises:
        InvalidArgument: It is not a dotted name of at most 255 bytes whose levels are printable, without blanks, `*` or
            `>`.
    """
    if not name or len(name.encode(errors="surrogatepass")) > _MAX_BYTES or not all(map(_is_level, name.split("."))):
        raise InvalidArgument(
            f"the topic {shown(name)} is not valid; expected a dotted name such as sales.eu, of at most {_MAX_BYTES} bytes, "
            "without blanks, `*` or `>`",
            field="to",
        )
    return name


def check_subscriptions(topics: Iterable[str]) -> tuple[str, ...]:
    """Return subscriptions without repetitions, in their order.

    Raises:
        InvalidArgument: There are more than `MAX_TOPICS`, or one is neither a topic nor one whose last level is `*` or
            `>`.
    """
    found = tuple(dict.fromkeys(topic.removeprefix(TOPIC) for topic in topics))
    if len(found) > MAX_TOPICS:
        raise InvalidArgument(f"{len(found):,} topics; expected at most {MAX_TOPICS}", field="topics")
    for topic in found:
        levels = topic.split(".")
        if levels[-1] in ("*", ">"):
            levels[-1] = "x"
        try:
            check_topic(".".join(levels))
        except InvalidArgument:
            raise InvalidArgument(
                f"the subscription {shown(topic)} is not valid; expected a dotted name such as sales.eu, of at most "
                f"{_MAX_BYTES} bytes, whose last level may be `*` for any one level or `>` for all that follow",
                field="topics",
            ) from None
    return found


def _is_level(level: str) -> bool:
    return bool(level) and level.isprintable() and not any(char in "*> " for char in level)


class Topics:
    """The subscriptions of one node, by the local names of the agents."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, ...]] = {}
        # By subscription as it is written. A topic is asked for under each of the few that cover it. Dicts and not sets,
        # so that listeners come in the order in which they subscribed.
        self._listeners: dict[str, dict[str, None]] = {}

    def of(self, name: str) -> tuple[str, ...]:
        """Return the subscriptions of an agent."""
        return self._of.get(name, ())

    def replace(self, name: str, topics: tuple[str, ...]) -> bool:
        """Give an agent these subscriptions, which are checked, in the place of its former ones; return whether they differ."""
        former = self._of.get(name, ())
        if topics == former:
            return False
        for topic in former:
            if topic not in topics:
                listeners = self._listeners[topic]
                del listeners[name]
                if not listeners:
                    del self._listeners[topic]
        for topic in topics:
            self._listeners.setdefault(topic, {})[name] = None
        if topics:
            self._of[name] = topics
        else:
            del self._of[name]
        return True

    def listeners(self, topic: str) -> list[str]:
        """Return the agents that listen to a topic, each once."""
        levels = topic.split(".")
        covering = [topic, ".".join([*levels[:-1], "*"])]
        covering += [".".join([*levels[:depth], ">"]) for depth in range(len(levels))]
        found: dict[str, None] = {}
        for subscription in covering:
            found.update(self._listeners.get(subscription, {}))
        return list(found)
