"""Acknowledgements and confirms against models that are obviously right."""

from hypothesis import given
from hypothesis import strategies as st

from waybill.engine.amqp091.client.acknowledgements import Acknowledgements
from waybill.engine.amqp091.client.confirms import CUT_AT, Confirms

STEPS = st.lists(st.tuples(st.sampled_from(["ack", "up to", "flush"]), st.integers(1, 40)), max_size=80)


@given(STEPS)
def test_each_tag_is_settled_once_and_nothing_else(steps: list[tuple[str, int]]) -> None:
    acknowledgements = Acknowledgements()
    settled: set[int] = set()
    at_server: set[int] = set()
    unsent: list[int] = []
    for kind, tag in [*steps, ("flush", 0)]:
        if kind == "ack":
            assert acknowledgements.settle(tag) == (tag not in settled)
            if tag not in settled:
                unsent.append(tag)
            settled.add(tag)
        elif kind == "up to":
            assert acknowledgements.settle_up_to(tag) == (tag not in settled)
            if tag not in settled:
                settled |= set(range(1, tag + 1))
                at_server |= set(range(1, tag + 1))
                unsent = [other for other in unsent if other > tag]
        else:
            up_to, others = acknowledgements.compact(unsent)
            unsent = []
            for other in others:
                assert other not in at_server  # A second settlement would close the channel.
                at_server.add(other)
            if up_to:
                assert up_to not in at_server
                at_server |= set(range(1, up_to + 1))
    assert at_server == settled


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=60))
def test_each_publish_is_settled_once(count: int, answers: list[tuple[int, bool]]) -> None:
    confirms = Confirms()
    waiting = list(range(1, count + 1))
    for token in waiting:
        confirms.add(token, None)
    for number, multiple in answers:
        if number > count:
            continue
        expected = [token for token in waiting if (token <= number if multiple else token == number)]
        assert confirms.settle(number, multiple) == expected
        waiting = [token for token in waiting if token not in expected]
    assert confirms.settle_all() == waiting
    assert len(confirms) == 0


def test_the_window_does_not_grow_with_what_is_settled() -> None:
    confirms = Confirms()
    for number in range(1, 10 * CUT_AT):
        confirms.add(number, None)
        if number > 10:
            assert confirms.settle(number - 10, False) == [number - 10]
    assert len(confirms) == 10
    assert len(confirms._tokens) <= 2 * CUT_AT + 20


@given(st.permutations(list(range(1, 41))))
def test_gaps_are_never_more_than_what_is_unsettled(order: list[int]) -> None:
    acknowledgements = Acknowledgements()
    left = set(order)
    for tag in order:
        assert acknowledgements.settle(tag)
        assert not acknowledgements.settle(tag)
        left.discard(tag)
        assert acknowledgements.gap_count <= len(left)
        assert acknowledgements.low == min(left, default=41)


def test_one_delivery_that_is_never_settled_and_tags_that_leap_cost_nothing() -> None:
    acknowledgements = Acknowledgements()
    for tag in range(2, 10_000):
        assert acknowledgements.settle(tag)
    assert acknowledgements.settle(2**62)
    assert acknowledgements.settle(2**63 - 2)
    assert acknowledgements.gap_count == 3
    assert acknowledgements.settle_up_to(2**62 - 1)
    assert acknowledgements.gap_count == 1
    assert not acknowledgements.settle(5)
