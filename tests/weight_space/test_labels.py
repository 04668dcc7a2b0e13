"""Labels against a list of what stands at each position of a dimension."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings, strategies as st

from neuralfunctionals.weight_space.labels import (
    alternatives,
    cut,
    find,
    fresh,
    leaves,
    pin,
    product,
    regroup,
    restrict,
    split_product,
    total,
    unify,
    unit,
)

LABELS = st.recursive(
    st.integers(1, 6).map(fresh),
    lambda parts: st.lists(parts, min_size=2, max_size=3).flatmap(lambda p: st.sampled_from([product(p), total(p)])),
    max_leaves=5,
).filter(lambda label: label.size <= 60)


def places(label):
    """For each position, the sets that it combines, and its number in each."""
    label = find(label)
    if label.size == 1:
        return [()]
    if label.kind == "set":
        return [((id(label), n),) for n in range(label.size)]
    parts = [places(part) for part in label.parts]
    if label.kind == "sum":
        return [place for part in parts for place in part]
    return [sum(chosen, ()) for chosen in itertools.product(*parts)]


def is_pinned(*labels):
    return all(leaf.role == "pinned" for label in labels for leaf in leaves(label) if leaf.size > 1)


def of_size(size):
    """Labels of a given size: sets, products and sums."""
    factors = [n for n in range(2, size) if size % n == 0]
    kinds = [st.builds(fresh, st.just(size))]
    if factors:
        kinds.append(st.sampled_from(factors).map(lambda n: product([fresh(n), fresh(size // n)])))
        kinds.append(
            st.sampled_from(factors).map(
                lambda n: total(product([fresh(part), fresh(n)]) for part in (1, size // n - 1) if part)
            )
        )
    if size > 1:
        kinds.append(st.integers(1, size - 1).map(lambda n: total([fresh(n), fresh(size - n)])))
    return st.one_of(kinds)


@given(LABELS)
def test_nested_products_and_sums_are_flat(label):
    label = find(label)
    assert all(find(part).kind != label.kind for part in label.parts)
    assert len(places(label)) == label.size


@given(LABELS, st.data())
def test_pieces_of_a_cut_stand_one_after_the_other(label, data):
    cuts = data.draw(st.lists(st.integers(0, label.size), max_size=3, unique=True).map(sorted))
    pieces = cut(label, cuts)
    if pieces is not None:
        bounds = [0, *(c for c in cuts if 0 < c < label.size), label.size]
        assert [p.size for p in pieces] == [b - a for a, b in itertools.pairwise(bounds)]
        assert [place for piece in pieces for place in places(piece)] == places(label)


def test_sets_and_sums_of_sets_can_be_cut_anywhere_and_products_between_their_rows():
    for label in (fresh(6), total([fresh(2), fresh(3), fresh(1)])):
        for place in range(1, 6):
            assert [piece.size for piece in cut(label, [place])] == [place, 6 - place]
    assert cut(product([fresh(3), fresh(2)]), [1]) is None
    assert [piece.size for piece in cut(product([fresh(3), fresh(2)]), [2])] == [2, 4]
    a, b, c = fresh(2), fresh(3), fresh(4)
    assert [find(piece).parts or [piece] for piece in cut(total([a, b, c]), [5])] == [[a, b], [c]]


@given(LABELS, st.data())
def test_a_split_product_combines_the_outer_and_the_inner_label(label, data):
    outer_size = data.draw(st.integers(1, label.size))
    pieces = split_product(label, outer_size)
    if pieces is not None:
        outer, inner = pieces
        assert (outer.size, inner.size) == (outer_size, label.size // outer_size)
        assume(not is_pinned(label))
        assert [o + i for o in places(outer) for i in places(inner)] == places(label)
    elif find(label).kind == "set":
        assert label.size % outer_size


def test_terms_of_a_sum_share_the_inner_label_when_it_is_split():
    a, b, c = fresh(4), fresh(6), fresh(10)
    outer, inner = split_product(total([a, b, c]), 10)
    assert (outer.size, inner.size) == (10, 2)
    assert {find(find(x).parts[-1]) for x in (a, b, c)} == {find(inner)}
    assert split_product(total([fresh(4), fresh(5)]), 3) is None
    assert split_product(total([fresh(4), product([fresh(3), fresh(2)])]), 5) is not None


@settings(max_examples=300)
@given(st.integers(1, 24).flatmap(lambda n: st.tuples(of_size(n), of_size(n))))
def test_unified_labels_have_the_same_places_or_are_pinned(pair):
    a, b = pair
    unify(a, b, "a test")
    assert places(a) == places(b) or is_pinned(a, b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (lambda: fresh(6), lambda: product([fresh(2), fresh(3)]), [2, 3]),
        (lambda: product([fresh(6), fresh(2)]), lambda: product([fresh(3), fresh(4)]), [3, 2, 2]),
        (lambda: product([fresh(2), fresh(6)]), lambda: product([fresh(4), fresh(3)]), [2, 2, 3]),
        (lambda: total([fresh(2), fresh(4)]), lambda: total([fresh(3), fresh(3)]), [2, 3]),
        (lambda: total([fresh(4), fresh(2)]), lambda: product([fresh(3), fresh(2)]), [2, 2]),
    ],
)
def test_unification_refines_as_little_as_it_must(a, b, expected):
    for left, right in ((a(), b()), (b(), a())):
        unify(left, right, "a test")
        assert places(left) == places(right)
        assert not any(leaf.role == "pinned" for leaf in leaves(left))
        assert [leaf.size for leaf in dict.fromkeys(leaves(left))] == expected


def test_labels_that_do_not_fit_are_pinned_and_sizes_must_agree():
    a, b = product([fresh(2), fresh(3)]), product([fresh(3), fresh(2)])
    unify(a, b, "a test")
    assert is_pinned(a, b)
    assert all(leaf.reason == "dimensions that do not fit meet at a test" for leaf in leaves(a))
    with pytest.raises(AssertionError, match="sizes 2 and 3 meet at a test"):
        unify(fresh(2), fresh(3), "a test")


@given(st.lists(LABELS, min_size=1, max_size=3), st.data())
def test_views_keep_the_order_of_places(labels, data):
    size = math.prod(label.size for label in labels)
    assume(size <= 120)
    first = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    shape = data.draw(st.sampled_from([[first, size // first], [1, first, size // first], [size], [size, 1]]))
    new = regroup(labels, shape, "a test")
    assert [label.size for label in new] == shape
    if not is_pinned(*new):
        assert places(product(new)) == places(product(labels))


def test_a_view_splits_a_set_and_gives_up_on_factors_that_do_not_fit():
    a, b = regroup([fresh(12)], [3, 4], "a test")
    assert (a.size, b.size) == (3, 4)
    assert not is_pinned(a, b)
    merged = regroup([a, b], [12], "a test")[0]
    assert find(merged).parts == [find(a), find(b)]
    assert is_pinned(*regroup([fresh(2), fresh(3)], [3, 2], "a test"))
    assert [label.size for label in regroup([unit(), fresh(5)], [5, 1], "a test")] == [5, 1]


@given(LABELS, st.data())
def test_blocks_cover_every_position_once(label, data):
    for leaf in leaves(label):
        if data.draw(st.booleans()):
            pin(leaf, "a test")
    label, found = find(label), {}
    for start, factors in alternatives(label):
        for numbers in itertools.product(*(range(x.size) for x, _ in factors)):
            at = start + sum(n * stride for n, (_, stride) in zip(numbers, factors, strict=True))
            assert at not in found
            pairs = zip(numbers, factors, strict=True)
            found[at] = {(id(x), n) for n, (x, _) in pairs if x.size > 1 and x.role != "pinned"}
    free = {id(leaf) for leaf in leaves(label) if leaf.role != "pinned"}
    assert found == {n: {x for x in place if x[0] in free} for n, place in enumerate(places(label))}


def test_neighbouring_pinned_parts_of_a_sum_are_one_block():
    a, b, c = fresh(2, "pinned"), fresh(3, "pinned"), fresh(4)
    blocks = alternatives(total([a, b, c]))
    assert [(start, [x.size for x, _ in factors]) for start, factors in blocks] == [(0, [5]), (5, [4])]


def test_roles_only_become_stricter():
    label = product([fresh(2), fresh(3)])
    restrict(label, "output", "first")
    restrict(label, "hidden", "second")
    assert {(leaf.role, leaf.reason) for leaf in leaves(label)} == {("output", "first")}
    pin(label, "third")
    assert {(leaf.role, leaf.reason) for leaf in leaves(label)} == {("pinned", "third")}
    other = fresh(6)
    unify(other, label, "a test")
    assert is_pinned(other)
    assert find(other) is find(label)
