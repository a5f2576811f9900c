"""Every limit and interval of the bus and of its clients: default, unit and reason.

Owns: the numbers. How flags, environment and file become these values is `cli.settings`.
"""

from __future__ import annotations

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
