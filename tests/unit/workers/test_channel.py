"""Messages between two processes, of which one may be gone at any time."""

import os
import socket
import threading
import time

import pytest

from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout
from pytest_perfdl.workers.channel import Channel, pair


@pytest.fixture
def both():
    ours, raw = pair()
    theirs = Channel(raw)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("message", [None, 0, "", b"", (1, "two", [3.0]), {"key": None}])
def test_a_message_arrives_as_it_was(both, message):
    ours, theirs = both
    theirs.send(message)

    assert ours.receive() == message


def test_messages_arrive_in_order_and_both_ways(both):
    ours, theirs = both
    for number in range(3):
        theirs.send(number)
        ours.send(-number)

    assert [ours.receive() for _ in range(3)] == [0, 1, 2]
    assert [theirs.receive() for _ in range(3)] == [0, -1, -2]


def test_a_message_larger_than_any_buffer(both):
    ours, theirs = both
    data = os.urandom(8 << 20)
    sender = threading.Thread(target=theirs.send, args=(data,))
    sender.start()

    assert ours.receive() == data
    sender.join()


def test_a_closed_peer_is_noticed_after_its_last_message(both):
    ours, theirs = both
    theirs.send("last words")
    theirs.close()

    assert ours.receive() == "last words"
    with pytest.raises(ChannelClosed):
        ours.receive()


def test_sending_to_a_closed_peer(both):
    ours, theirs = both
    theirs.close()

    with pytest.raises(ChannelClosed):
        ours.send("anybody there?")


def test_a_dead_peer_is_noticed_though_its_end_is_held_open(both):
    """As when a worker has forked a process of its own: no end-of-file comes while that one lives."""
    ours, theirs = both
    theirs.send("sent before it died")

    assert ours.receive(alive=lambda: False) == "sent before it died"
    with pytest.raises(ChannelClosed):
        ours.receive(alive=lambda: False)


def test_half_a_message_of_a_dead_peer_is_no_message():
    ours, raw = socket.socketpair()
    channel = Channel(ours)
    with raw:
        raw.sendall(b"\0\0\0\0\0\0\0\x20half")
        with pytest.raises(ChannelClosed):
            channel.receive(alive=lambda: False)
    channel.close()


def test_a_deadline_that_has_passed(both):
    ours, theirs = both
    with pytest.raises(ChannelTimeout):
        ours.receive(deadline=time.monotonic() - 1)

    theirs.send("in time after all")
    assert ours.receive(deadline=time.monotonic() - 1) == "in time after all"
