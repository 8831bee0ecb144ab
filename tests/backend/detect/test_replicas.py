"""`ReplicaDetector` on fingerprints of ranks that come in any order, one of which is odd or none."""

from __future__ import annotations

import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient_backend.detect.replicas import KEEP, Difference, ReplicaDetector

TENSORS = ("0.weight", "1.weight", "1.bias")


def values(step: int, odd: str = "", word: str = "dp0") -> dict[str, float]:
    """One rank's fingerprint of a step; the sums of the tensor `odd` are others."""
    found: dict[str, float] = {}
    for at, tensor in enumerate(TENSORS):
        off = 1e-3 if tensor == odd else 0.0
        found[f"fingerprint/{word}/{tensor}/bits"] = 1000 * step + at + (17 if off else 0)
        found[f"fingerprint/{word}/{tensor}/sum"] = step * 0.5 + at * (1 + off)
        found[f"fingerprint/{word}/{tensor}/norm"] = (step + 1.0 + at) * (1 + off)
    return found


def interleaved(ranks: int, steps: int, chance: random.Random, lag: int = 2) -> list[tuple[int, int]]:
    """(step, rank) in an order in which no rank is more than `lag` steps behind another."""
    at, order = [0] * ranks, []
    while min(at) < steps:
        ready = [rank for rank in range(ranks) if at[rank] < steps and at[rank] <= min(at) + lag]
        rank = chance.choice(ready)
        order.append((at[rank], rank))
        at[rank] += 1
    return order


@given(st.integers(2, 9), st.integers(1, 12), st.randoms(use_true_random=False))
def test_equal_replicas_give_no_finding(ranks: int, steps: int, chance: random.Random) -> None:
    detector = ReplicaDetector()
    for step, rank in interleaved(ranks, steps, chance):
        assert not detector.add(step, rank, values(step))
    assert not detector.close()


@given(st.integers(3, 9), st.integers(2, 12), st.randoms(use_true_random=False))
def test_odd_rank_is_named_once_with_tensor_and_step(ranks: int, steps: int, chance: random.Random) -> None:
    """Whatever the order in which records come, and whichever rank it is."""
    odd, since = chance.randrange(ranks), chance.randrange(1, steps)
    detector = ReplicaDetector()
    found: list[Difference] = []
    for step, rank in interleaved(ranks, steps, chance):
        tensor = "1.weight" if rank == odd and step >= since else ""
        found += detector.add(step, rank, values(step, tensor))
    found += detector.close()
    assert [(each.tensor, each.step, each.ranks, each.is_sure, each.is_over) for each in found] == [
        ("1.weight", since, (odd,), True, False)
    ]
    assert str(found[0]) == f"1.weight of dp0: rank {odd} differs from the {ranks - 1} others at step {since}"


def test_it_is_found_with_the_last_rank_of_that_step() -> None:
    """Not only when the run is over, nor with a later step, once the ranks are known."""
    detector = ReplicaDetector()
    for step in range(KEEP + 1):
        for rank in range(4):
            assert not detector.add(step, rank, values(step))
    step = KEEP + 1
    for rank in range(3):
        assert not detector.add(step, rank, values(step))
    (found,) = detector.add(step, 3, values(step, "1.bias"))
    assert (found.step, found.ranks) == (step, (3,))


def test_end_of_a_difference_is_an_event() -> None:
    detector = ReplicaDetector()
    found = []
    for step in range(6):
        for rank in range(3):
            found += detector.add(step, rank, values(step, "1.bias" if rank == 1 and 2 <= step < 4 else ""))
    found += detector.close()
    assert [(each.step, each.is_over) for each in found] == [(2, False), (4, True)]


def test_of_two_ranks_nobody_knows_which_is_odd() -> None:
    """Both are named, once."""
    detector = ReplicaDetector()
    found = []
    for step in range(6):
        for rank in range(2):
            found += detector.add(step, rank, values(step, "1.bias" if rank == 1 and step >= 2 else ""))
    found += detector.close()
    assert [(each.step, each.ranks, each.is_sure) for each in found] == [(2, (0, 1), False)]


def test_words_are_compared_apart() -> None:
    """Ranks that gave different words may hold different values; two ranks of one word are compared with each other."""
    detector = ReplicaDetector()
    found = []
    for step in range(3):
        for rank in range(6):
            word, odd = ("a", "") if rank % 2 else ("b", "1.weight")
            found += detector.add(step, rank, values(step, odd, word))
    assert not found + detector.close()


def test_tolerance() -> None:
    """Norms and sums within it are equal, however different the bits are; beyond it they are not."""
    for tolerance, is_found in ((2e-3, False), (1e-4, True)):
        detector = ReplicaDetector(tolerance)
        found = []
        for step in range(3):
            for rank in range(4):
                found += detector.add(step, rank, values(step, "1.bias" if rank == 2 else ""))
        found += detector.close()
        assert [each.ranks for each in found] == [(2,)] * is_found
    with pytest.raises(ValueError, match="share"):
        ReplicaDetector(1.0)


def test_nan_on_all_ranks_is_equal_and_on_one_is_not() -> None:
    for tolerance in (0.0, 1e-3):
        detector = ReplicaDetector(tolerance)
        found = []
        for step in range(3):
            for rank in range(4):
                given_ = dict.fromkeys(values(step), math.nan)
                if step == 2 and rank == 3:
                    given_ = values(step)
                found += detector.add(step, rank, given_)
        found += detector.close()
        assert {each.ranks for each in found} == {(3,)} and {each.step for each in found} == {2}


def test_rank_that_lags_or_ends_holds_nobody_up() -> None:
    """After KEEP newer steps the others are compared without it; what it gives later is counted."""
    detector = ReplicaDetector()
    found = []
    for step in range(40):
        for rank in range(4):
            if rank != 3 or step < 10:
                found += detector.add(step, rank, values(step, "1.bias" if rank == 1 and step == 20 else ""))
    assert [(each.step, each.is_over) for each in found] == [(20, False), (21, True)]
    assert found[0].ranks == (1,)
    assert not detector.add(11, 3, values(11)) and detector.late == len(values(11))


def test_records_in_pieces_and_repeated() -> None:
    """A fingerprint may come in several records, and a step twice: the first counts."""
    detector = ReplicaDetector()
    found = []
    for step in range(5):
        for rank in range(3):
            for key, value in values(step).items():
                found += detector.add(step, rank, {key: value, "loss": 1.0})
            found += detector.add(step, rank, values(step, "1.bias"))
    assert not found + detector.close()
    assert detector.compared == 5 * len(TENSORS)


def test_memory_does_not_grow_with_the_run() -> None:
    def size(thing: object) -> int:
        inside = thing.items() if isinstance(thing, dict) else ()
        return sys.getsizeof(thing) + sum(size(key) + size(value) for key, value in inside)

    detector = ReplicaDetector()
    sizes = []
    for step in range(20 * KEEP):
        for rank in range(4):
            detector.add(step, rank, values(step, "1.bias" if rank == 3 else ""))
        if step % KEEP == 0:
            sizes.append(size(detector._words["dp0"].steps) + size(detector._words["dp0"].odd))
    assert max(sizes[10:]) <= max(sizes[:10])
