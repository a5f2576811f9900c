"""What errors have in common."""

from gagent_grpc.errors import BusDraining, BusError, MailboxFull, first_error


def test_the_first_error_of_a_group_is_found_at_any_depth() -> None:
    first = BusDraining("soon")
    inner = BaseExceptionGroup("inner", [first, MailboxFull("bob", "10 messages")])
    outer = BaseExceptionGroup("outer", [BaseExceptionGroup("middle", [inner]), BusError("late")])
    assert first_error(outer) is first
