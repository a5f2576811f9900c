"""How much goes into one frame."""

from __future__ import annotations

from gagent_grpc.codec.frame_size import LARGE, SMALL, FrameSize, patience


def test_frames_grow_while_they_get_through_at_once_and_are_small_again_on_a_slow_line() -> None:
    size = FrameSize()
    assert size.bytes == SMALL
    for _ in range(10):
        size.wrote(0.01)
    assert size.bytes == LARGE
    size.wrote(0.3)
    assert size.bytes == LARGE
    size.wrote(1.0)
    assert size.bytes == SMALL


def test_a_large_frame_gets_more_time() -> None:
    assert patience(10.0, 0) == 10.0
    assert patience(10.0, 640 * 1024) == 20.0
