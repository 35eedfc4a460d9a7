"""Retention reduces or removes files, but never one that another file needs or that must stay."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.storage import HistoryEntry
from fledge.storage.history.retention import Policy, plan


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_plan_breaks_a_chain_or_touches_what_must_stay(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    entries: list[HistoryEntry] = []
    for i in range(count):
        thin = data.draw(st.booleans())
        bases = [entry.path.name for entry in entries if entry.weights_only == thin]
        base = data.draw(st.sampled_from([None, *bases]))
        metric = data.draw(st.none() | st.integers(-3, 3))
        entries.append(HistoryEntry(Path(f"f{i}"), i, metric, i, thin, 1, base, str(i)))
    keep_weights_only = data.draw(st.none() | st.integers(0, 4))
    policy = Policy(
        data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3)), keep_weights_only, data.draw(st.booleans())
    )
    todo = plan(entries, policy)
    removed, thinned = ({entry.path.name for entry in group} for group in (todo.remove, todo.reduce))
    whole = [entry.path.name for entry in entries if not entry.weights_only]
    assert not (removed | thinned) & set(whole[-policy.keep_whole :])
    assert not removed & todo.best
    assert not removed & thinned
    for entry in entries:
        name = entry.path.name
        if name not in removed | thinned:  # stays as it is, so its base must too
            assert entry.base not in removed | thinned
    order = [entry.path.name for entry in todo.reduce]
    for entry in todo.reduce:  # a delta is rewritten before its base is
        assert entry.base not in order or order.index(entry.base) > order.index(entry.path.name)
    assert plan([entry for entry in entries if entry.path.name not in removed | thinned], policy).remove == ()
