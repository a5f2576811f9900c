"""What a store held becomes agents, mail and DF entries again, once, at the start.

Owns: what is taken over and what of it is flagged or left behind. Leaves to others: reading a store (`storage`), and
everything that happens later (`bus.platform`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from operator import attrgetter

from gagent_grpc.acl.descriptions import LifeCycleState
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.mailbox import Letter, Mailbox
from gagent_grpc.bus.ports import (
    Clock,
    Codec,
    Store,
    StoredAgent,
    StoredDeadLetter,
    StoredKey,
    StoredMessage,
    StoredPlatform,
)
from gagent_grpc.bus.post import ROLE, Post, addressed
from gagent_grpc.bus.topics import Topics
from gagent_grpc.errors import BusError, InvalidArgument

_log = logging.getLogger(__name__)


def restore(
    stored: StoredPlatform,
    *,
    ams: AgentManagementSystem,
    df: DirectoryFacilitator,
    post: Post,
    dedupe: Dedupe,
    topics: Topics,
    dead_letters: DeadLetters,
    store: Store,
    codec: Codec,
    clock: Clock,
    new_mailbox: Callable[[int], Mailbox],
    max_deliveries: int,
) -> None:
    """Take over what the store held. After an unclean stop what may have been delivered is flagged.

    What cannot be read stays in the store for the version of the bus that can; a DF entry whose lease has ended goes.

    Args:
        stored: What `Store.open` returned.
        ams: Gets the agents.
        df: Gets the entries, with what is left of their leases.
        post: Gets the mail.
        dedupe: Gets the keys of settled messages.
        topics: Gets the subscriptions.
        dead_letters: Gets the dead letters.
        store: Where it comes from.
        codec: Reads the messages.
        clock: Says which leases have ended.
        new_mailbox: Makes a mailbox whose next sequence is the number given.
        max_deliveries: How often a message is delivered at most.
    """
    may_be_doubled: set[AgentRecord] = set()
    newly_flagged: dict[str, list[tuple[int, int]]] = {}
    for agent in stored.agents:
        record = _record(agent, ams.platform, new_mailbox(agent.next_sequence))
        # A store does not say when the session ended, so the grace of an ephemeral name starts anew.
        record.detached_at = clock.monotonic()
        ams.add(record)
        if agent.attached and not stored.clean:
            may_be_doubled.add(record)
    dedupe.restore(stored.keys)
    buried = {(dead.receiver, dead.sequence): dead for dead in stored.dead_letters}
    dying: list[tuple[StoredMessage, StoredDeadLetter]] = []
    redriven: set[int] = set()
    twice = _moving(stored)
    for name, messages in itertools.groupby(stored.messages, attrgetter("receiver")):
        receiver = ams.find(name)
        if receiver is None:
            _log.warning("mail without an agent is left in the store: %s, %d messages", name, len(list(messages)))
            continue
        doubled = receiver in may_be_doubled
        letters: list[Letter] = []
        for message in messages:
            place = (name, message.sequence)
            receiver.mailbox.next_sequence = max(receiver.mailbox.next_sequence, message.sequence + 1)
            if place in twice:
                store.settle(name, message.sequence, None)
                continue
            dead = buried.get(place)
            if dead is not None and _is_of(dead, message):
                # The bus stopped while it gave it up.
                dying.append((message, dead))
                continue
            letter = _letter(message, codec)
            if letter is None:
                continue
            if message.redriven:
                redriven.add(message.redriven)
            if message.attempt >= max_deliveries:
                # Whether its readers were lost because of it is not known any more: it goes out by itself once more.
                letter.suspect, letter.reprieve = True, 1
            letter.redelivered = doubled or message.attempt > 0 or message.redriven > 0 or letter.envelope.resend
            if message.attempt > 0 or doubled:
                # Not handled: what was acknowledged before the stop and not answered. Nothing tells of it any more.
                post.owe(receiver, letter)
            if doubled and not message.attempt:
                newly_flagged.setdefault(name, []).append((message.sequence, 1))
            letters.append(letter)
        if letters:
            post.restore(receiver, letters)
    # Before anything else is written: that a session was open is soon overwritten, and a second stop would find no reason
    # for the flags.
    for receiver_name, attempts in newly_flagged.items():
        store.mark_attempts(receiver_name, attempts)
    now = clock.time()
    # The bus stopped while it put them back, and their mail is there.
    store.exhume(dead.number for dead in stored.dead_letters if dead.number in redriven)
    kept = [dead for dead in stored.dead_letters if dead.number not in redriven]
    dead_letters.restore(kept, stored.next_dead_letter, now=now)
    for message, dead in dying:
        _bury_at_last(message, dead, ams.platform, post=post, dedupe=dedupe, store=store, codec=codec, now=now)
    for listener, subscriptions in stored.topics.items():
        if ams.find(listener) is not None:
            topics.replace(listener, subscriptions)
    for entry in stored.descriptions:
        name = entry.description.name
        if name is None or ams.find(name) is None:
            continue
        try:
            if not df.restore(entry, now=now):
                store.remove_description(name)
        except BusError as error:
            _log.error("the DF entry of %s is left in the store: %s", name, error)
    _log.info(
        "store opened after %s stop: %d agents, %d messages, %d DF entries, %d dead letters",
        "a clean" if stored.clean else "an unclean",
        len(ams),
        len(stored.messages),
        len(df),
        len(dead_letters),
    )


def _record(agent: StoredAgent, platform: str, mailbox: Mailbox) -> AgentRecord:
    record = AgentRecord(
        agent.name, platform, principal=agent.principal, mailbox=mailbox, registered_at=agent.registered_at
    )
    record.ownership = agent.ownership
    record.state = agent.state if agent.state is not LifeCycleState.ACTIVE else LifeCycleState.UNKNOWN
    record.resume_to = agent.resume_to
    record.ephemeral = agent.ephemeral
    record.generation = agent.generation
    record.resume_digest = agent.resume_digest
    return record


def _moving(stored: StoredPlatform) -> set[tuple[str, int]]:
    """Return receiver and sequence of letters that were on their way to another mailbox and are in both.

    It is the one which is less likely to have been delivered that goes: its agent was lost, so it had no session.
    """
    attached = {agent.name for agent in stored.agents if agent.attached}
    seen: dict[tuple[str, str, str, float], StoredMessage] = {}
    gone: set[tuple[str, int]] = set()
    for message in stored.messages:
        if not message.via.startswith(ROLE):
            continue
        key = (message.via, message.sender, message.message_id, message.accepted_at)
        other = seen.setdefault(key, message)
        if other is message:
            continue
        keep, leave = sorted((other, message), key=lambda one: (-one.attempt, one.receiver not in attached))
        seen[key] = keep
        gone.add((leave.receiver, leave.sequence))
    return gone


def _is_of(dead: StoredDeadLetter, message: StoredMessage) -> bool:
    """Return whether a dead letter is that of a message: an agent that is registered anew counts its mail anew, too."""
    return (dead.sender, dead.message_id, dead.accepted_at) == (message.sender, message.message_id, message.accepted_at)


def _bury_at_last(
    message: StoredMessage,
    dead: StoredDeadLetter,
    platform: str,
    *,
    post: Post,
    dedupe: Dedupe,
    store: Store,
    codec: Codec,
    now: float,
) -> None:
    """Do what is left to do for a message that has become a dead letter: settle it, and tell its sender."""
    key = None
    if message.key:
        receiver = addressed(message.receiver, message.via)
        key = StoredKey(message.sender, message.key, receiver, message.digest, now)
        dedupe.settled((message.sender, message.key, receiver), message.digest, now)
    store.settle(message.receiver, message.sequence, key)
    try:
        envelope = codec.decode(message.payload, digest=message.digest)
    except InvalidArgument as error:
        _log.error("mail of %s that cannot be read is a dead letter, and nobody is told: %s", message.receiver, error)
        return
    why = f"given up as the bus stopped: {dead.error or dead.reason.name}"
    post.fail(envelope, message.sender, f"{message.receiver}@{platform}", why)


def _letter(message: StoredMessage, codec: Codec) -> Letter | None:
    try:
        envelope = codec.decode_stored(message.payload, digest=message.digest)
    except InvalidArgument as error:
        # Not handled: another version of the bus, or another limit, took it. It is there for that one.
        _log.error(
            "mail that cannot be read is left in the store: %s, %d (%s)", message.receiver, message.sequence, error
        )
        return None
    letter = Letter(message.sequence, envelope, message.sender, message.message_id, message.via, message.accepted_at)
    letter.attempt = message.attempt
    return letter
