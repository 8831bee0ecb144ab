"""`SeqSet` against Python's own set."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from logclient_backend.wal.seqs import SeqSet

small = st.integers(0, 60)
sets = st.sets(small)


def made(numbers: set[int]) -> SeqSet:
    return SeqSet((number, number) for number in numbers)


@given(sets, st.lists(st.one_of(st.tuples(small, small), st.lists(small, unique=True))))
def test_set_of_ranges_equals_a_set(start, changes):
    """Ranges and runs of seqs added in any order make the same set, in ranges that do not touch."""
    plain = set(start)
    seqs = made(start)
    for change in changes:
        if isinstance(change, tuple):
            first, last = sorted(change)
            seqs.add(first, last)
            plain.update(range(first, last + 1))
        else:
            seqs.add_seqs(sorted(change))
            plain.update(change)
    assert list(seqs) == sorted(plain)
    assert len(seqs) == len(plain)
    ranges = seqs.ranges()
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


@given(sets, sets)
def test_difference_equals_that_of_sets(a, b):
    """`minus` and `includes` say what sets say."""
    assert set(made(a).minus(made(b))) == a - b
    assert made(a).includes(made(b)) == (b <= a)


@given(sets, st.sets(small, min_size=1))
def test_unseen_names_the_new_positions(seen, asked):
    """`unseen` gives exactly the positions of seqs that are not in the set, None for all of them."""
    seqs = sorted(asked)
    new = [at for at, seq in enumerate(seqs) if seq not in seen]
    aside = SeqSet()
    aside.add_seqs(sorted(seen))
    for known in (made(seen), aside):
        found = known.unseen(seqs)
        assert (list(range(len(seqs))) if found is None else found) == new


def test_interleaved_runs_become_one_range():
    """A stream that logs two shapes in turn ends as one range."""
    seqs = SeqSet()
    seqs.add_seqs(range(1, 1001, 2))
    seqs.add_seqs(range(2, 1001, 2))
    assert seqs.ranges() == [(1, 1000)]
