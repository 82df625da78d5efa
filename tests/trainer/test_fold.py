"""The fold's shape is that of the log's tree, and any number of ranks can share it."""

from __future__ import annotations

from bitwitness.trainer.fold import completed, crossings, fold_order, parents, ranges


def test_the_fold_has_the_shape_of_the_tree() -> None:
    assert fold_order(1) == []
    assert fold_order(3) == [(0, 2, 1), (0, 3, 2)]
    assert fold_order(7) == [(0, 2, 1), (2, 2, 1), (0, 4, 2), (4, 2, 1), (4, 3, 2), (0, 7, 4)]
    assert all(len(fold_order(n)) == n - 1 for n in range(1, 20))
    assert [node for nodes in completed(7) for node in nodes] == fold_order(7)


def test_ranges_cover_the_shards_and_are_cut_at_large_subtrees() -> None:
    assert ranges(8, 8) == [range(n, n + 1) for n in range(8)]
    assert ranges(8, 2) == [range(0, 4), range(4, 8)]
    assert ranges(8, 3) == [range(0, 2), range(2, 5), range(5, 8)]
    assert ranges(16, 5) == [range(0, 4), range(4, 8), range(8, 12), range(12, 14), range(14, 16)]
    for shards in range(1, 40):
        for ranks in range(1, shards + 1):
            owned = ranges(shards, ranks)
            assert [shard for own in owned for shard in own] == list(range(shards))
            assert all(own for own in owned) and max(map(len, owned)) == -(-shards // ranks)


def test_every_node_is_made_once_from_what_its_ranks_have() -> None:
    for shards in range(1, 21):
        for ranks in range(1, shards + 1):
            owned = ranges(shards, ranks)
            inside = [
                node for own in owned for shard in own for node in completed(shards)[shard] if node.first >= own[0]
            ]
            crossed = crossings(shards, owned)
            assert sorted([*inside, *(each.node for each in crossed)]) == sorted(fold_order(shards))
            held = [dict[int, int]() for _ in owned]  # by rank: the sums that it has, by their first shard
            for rank, own in enumerate(owned):
                held[rank] = {shard: 1 for shard in own}
                for node in (node for shard in own for node in completed(shards)[shard] if node.first >= own[0]):
                    assert held[rank][node.first] == node.left
                    held[rank][node.first] += held[rank].pop(node.right)
            for node, receiver, sender in crossed:
                assert held[receiver][node.first] == node.left
                held[receiver][node.first] += held[sender].pop(node.right)
            assert held[0] == {0: shards} and not any(held[1:])
            above = parents(crossed)
            assert above.keys() == set(range(1, ranks)) and all(rank > over for rank, over in above.items())
    assert [list(parents(crossings(8, ranges(8, 8))).values()).count(rank) for rank in range(8)] == [
        3,
        0,
        1,
        0,
        2,
        0,
        1,
        0,
    ]
