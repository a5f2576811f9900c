"""Every limit and interval of the bus and of its clients: default, unit and reason.

Owns: the numbers. How flags, environment and file become these values is `cli.settings`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

PROTOCOL_VERSION = 1
"""Version of the session protocol; `Hello` and `Welcome` carry it."""

DEFAULT_ENDPOINT = "127.0.0.1:50051"
"""Where `gagent serve` listens and clients look, `host:port`."""

DEFAULT_PLATFORM = "local"
"""Name of the platform when none is given."""

SESSION_METADATA_KEY = "gagent-session"
"""Metadata key in which a unary call carries the session token of its agent."""

MIB = 1024 * 1024


class ConversationPolicy(enum.StrEnum):
    """What the bus does about a message that is out of sequence in its interaction protocol."""

    OBSERVE = "observe"
    """Those who watch the traffic are told, and nobody else."""
    WARN = "warn"
    """Its sender is told, too; the message is delivered all the same."""
    ENFORCE = "enforce"
    """It is refused."""


@dataclass(frozen=True, slots=True)
class BusLimits:
    """Bounds of one bus. Each has a counter or an outcome that says when it was reached."""

    max_message_bytes: int = 1_000_000
    """Largest `BusMessage`, in bytes encoded: fits the default payload of NATS with room for headers."""
    max_frame_bytes: int = 4 * MIB
    """Largest frame, in bytes: the transport's own limit; one frame takes several messages."""
    mailbox_messages: int = 10_000
    """Unsettled messages in one mailbox; a sixteenth more for senders who have little in it."""
    mailbox_bytes: int = 64 * MIB
    """Unsettled bytes in one mailbox."""
    total_mail_bytes: int = 1024 * MIB
    """Unsettled bytes in all mailboxes together, so that many idle agents cannot fill the memory."""
    window_messages: int = 4_096
    """Unsettled deliveries of one session when its hello names no window."""
    window_bytes: int = 8 * MIB
    """Unsettled bytes of one session when its hello names no window."""
    send_window_messages: int = 4_096
    """Messages that one session may have sent and not yet receipted."""
    send_window_bytes: int = 16 * MIB
    """Bytes that one session may have sent and not yet receipted."""
    max_sessions: int = 10_000
    """Open sessions on one node."""
    max_agents: int = 100_000
    """Registered agents."""
    max_receivers: int = 100
    """Delivery addresses of one message."""
    max_df_entries: int = 100_000
    """Entries in the DF."""
    max_lease: float | None = None
    """Longest lease that the DF grants, in seconds; None grants what is asked, and no end when nothing is asked."""
    max_watches: int = 250
    """Streams that watch agents at the same time, and as many that watch descriptions."""
    watch_events: int = 10_000
    """Events of agents, and as many of descriptions, that are kept for streams that read slowly or come back."""
    df_subscriptions: int = 100
    """Subscriptions of one agent with the DF, by ACL message."""
    max_id_bytes: int = 128
    """Longest message id, in bytes of UTF-8."""
    dedupe_window: float = 600.0
    """Seconds that the key of a settled message is remembered."""
    dedupe_rows: int = 200_000
    """Keys of settled messages that are remembered at most."""
    mailbox_ttl: float = 7 * 86_400.0
    """Seconds that mail waits for an agent that does not come."""
    max_deliveries: int = 5
    """Deliveries of one message before it is given up: sent back each time, or with its receiver lost each time."""
    dead_letters: int = 10_000
    """Dead letters that are kept at most; beyond that the oldest one goes."""
    dead_letter_bytes: int = 64 * MIB
    """Bytes of dead letters that are kept at most; one is always kept."""
    dead_letter_ttl: float = 30 * 86_400.0
    """Seconds that a dead letter is kept."""
    urgent_messages: int = 16
    """Urgent deliveries that may go out beyond a full window."""
    owed_answers: int = 10_000
    """Answers of one agent that the bus watches over; beyond that the oldest one is left to the requester's time-out."""
    max_turns: int = 200
    """Turns of two agents in one conversation, beyond which the bus ends it; 0 for no bound. A turn is a message that answers:
    what one agent sends in a row is one turn."""
    max_hops: int = 64
    """Messages, each of which answers or forwards the one before, that may lead to another one, beyond the turns of its own
    conversation; counted in the header `hops`. 0 for no bound."""
    conversations: int = 20_000
    """Pairs of agents that the bus follows in their conversations; beyond that it forgets, of whoever began the most, the one
    that has been idle longest."""
    conversation_pairs: int = 256
    """Pairs of agents that it follows in one conversation; further ones speak in it unwatched."""
    conversation_idle: float = 600.0
    """Seconds without a message after which a conversation, also one that was ended, begins anew."""
    conversation_policy: ConversationPolicy = ConversationPolicy.OBSERVE
    """What is done about messages that are out of sequence."""
    max_tasks: int = 100_000
    """Delegated tasks that the bus keeps, ended ones included."""
    tasks_per_agent: int = 10_000
    """The same of one delegator."""
    total_task_bytes: int = 256 * MIB
    """Bytes of all tasks together, with their events, from which on no new ones are taken and little is kept of events."""
    task_depth: int = 8
    """Longest chain of tasks, each of which came of the one before."""
    task_attempts: int = 100
    """Attempts at one task that may be asked for."""
    task_releases: int = 20
    """Attempts at one task that executors may give back; from then on what is given back counts like any other attempt."""
    task_attachments: int = 100
    """Attachments of one task."""
    task_checkpoint_bytes: int = 256 * 1024
    """Largest checkpoint of a task, in bytes."""
    task_report_parts: int = 1_000
    """Parts of output that one report may bring."""
    task_events: int = 1_000
    """Events of one task that are kept; beyond that the oldest one goes."""
    task_event_bytes: int = MIB
    """Bytes of them; one is always kept."""
    task_watches: int = 5_000
    """Streams that watch tasks at the same time."""
    task_lease: float = 30.0
    """Seconds without a report after which the executor of a task counts as lost."""
    task_cancel_grace: float = 30.0
    """Seconds that an executor has to end a task that is to be cancelled."""
    task_retention: float = 86_400.0
    """Seconds that a task is kept after its end."""
    max_contexts: int = 10_000
    """Shared contexts, of conversations and of trees of tasks, that the bus keeps."""
    contexts_per_agent: int = 1_000
    """The same of one agent, which began them: it put their first entries."""
    total_context_bytes: int = 256 * MIB
    """Bytes of all shared contexts together."""
    context_entries: int = 1_000
    """Entries of one shared context."""
    context_value_bytes: int = 64 * 1024
    """Largest value of an entry, in bytes of UTF-8."""
    context_bytes: int = MIB
    """Bytes of keys and values of one shared context."""
    context_removals: int = 1_000
    """Removed entries of one shared context that are remembered for those who come back to watch it."""
    context_changes: int = 1_000
    """Changes of one shared context that wait for streams which read slowly; of as many bytes as the context may have."""
    context_retention: float = 86_400.0
    """Seconds that the shared context of a conversation is kept after the last message or change in it."""
    context_participants: int = 50_000
    """Places of agents in conversations without a shared context that the bus remembers, so that they may begin one; beyond that
    it forgets, of whoever began the most, the oldest ones."""
    context_members: int = 256
    """Agents that have a part in the shared context of one conversation; further ones that are addressed in it do not."""
    context_idle: float = 21_600.0
    """Seconds without a message after which it is forgotten who spoke in a conversation that has no shared context."""
    context_watches: int = 1_000
    """Streams that watch shared contexts at the same time."""
    traffic_watches: int = 32
    """Streams that watch the traffic at the same time."""
    heartbeat_interval: float = 15.0
    """Seconds between heartbeats; after three silent ones a session is lost."""
    missed_heartbeats: int = 3
    """Heartbeats that may be missed."""
    resume_grace: float = 30.0
    """Seconds that a lost session may be resumed and that an ephemeral name lasts."""
    probe_timeout: float = 2.0
    """Seconds within which the holder of a name has to show life when somebody else asks for it."""
    hello_timeout: float = 10.0
    """Seconds within which a new stream has to say hello."""
    write_timeout: float = 10.0
    """Seconds that one write to a client may take before the session counts as lost."""
    drain_grace: float = 5.0
    """Seconds that sessions get to end when the bus shuts down."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Intervals and bounds of one agent on the client's side."""

    concurrency: int = 64
    """Handlers that run at the same time; messages of one lane never do."""
    task_concurrency: int = 16
    """Delegated tasks that the agent works on at the same time, beside its handlers; further ones wait unacknowledged."""
    task_output_bytes: int = 256 * 1024
    """Bytes of output of one task that wait for the bus before whoever makes more has to wait."""
    window_messages: int = 4_096
    """Unsettled deliveries that the agent takes at most."""
    window_bytes: int = 8 * MIB
    """Unsettled bytes that the agent takes at most."""
    connect_timeout: float = 5.0
    """Seconds that the first connection may take."""
    request_timeout: float = 120.0
    """Seconds that `request` waits for its answer."""
    call_timeout: float = 10.0
    """Deadline of a unary call, in seconds."""
    initial_backoff: float = 1.0
    """Upper bound of the first wait before a reconnect, in seconds; the wait is drawn evenly below it and it doubles."""
    max_backoff: float = 5.0
    """Upper bound of any wait before a reconnect, in seconds."""
    write_timeout: float = 10.0
    """Seconds that one write to the bus may take before the connection counts as lost."""
    max_queued_bytes: int = 16 * MIB
    """Bytes of messages without a receipt beyond which `send` waits. `send_all` has a quarter as much wait for one receiver
    that has no room, and as much for all of these together, beside it."""
    answer_patience: float = 30.0
    """Seconds that what a handler returned waits for room at whoever asked, before the handler counts as failed."""
    retry_delay: float = 1.0
    """Seconds before a message comes again whose handler raised; doubles with each attempt, up to 60."""
    handled_ids: int = 20_000
    """Handled messages that are remembered at least, so that a redelivery does not run a handler again; up to twice as many."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of one WebSocket gateway."""

    max_sockets: int = 1_000
    """Open sockets."""
    max_frame_bytes: int = 2 * MIB
    """Largest frame of a client, in bytes. Messages are bounded by the bus; in JSON one takes more room."""
    window_messages: int = 16
    """Deliveries on their way to a client that are not acknowledged, where it asks for no other window: as many as usual
    WebSocket libraries take without their program, so that they still answer pings."""
    max_window_messages: int = 1_024
    """The same, where it does."""
    window_bytes: int = MIB
    """Bytes of them; one message always fits an empty window."""
    send_window_messages: int = 64
    """Messages of one client without a receipt; beyond that nothing more of it is read."""
    send_window_bytes: int = 4 * MIB
    """Bytes of them."""
    max_watches: int = 32
    """Tasks that one client watches at the same time."""
    ping_interval: float = 15.0
    """Seconds between pings."""
    ping_timeout: float = 10.0
    """Seconds after a ping in which a client has to be heard of."""
    probe_timeout: float = 2.0
    """Seconds within which the client that holds a name has to show life when another one asks for it."""
    token_check_interval: float = 1.0
    """Seconds between looks at the file of tokens."""
