"""What is known of every metric."""

from pytest_perfdl.model.metrics import scope


def test_sizes_are_exact_in_a_narrower_scope_than_counts():
    assert scope("ops") == ("torch", "flags", "device")
    assert scope("peak_memory") == ("torch", "flags", "device", "threads", "cpu_capability", "allocator")
    assert scope("of_my_own") == scope("peak_memory")
