from replay.engines.kv_pool import Block, KvPool


def filled(pool: KvPool, *hashes: int) -> list[Block]:
    blocks, _ = pool.allocate(len(hashes))
    for block, content_hash in zip(blocks, hashes, strict=True):
        pool.complete(block, content_hash)
    return blocks


def test_a_new_pool_is_free() -> None:
    pool = KvPool(5)
    assert (pool.available, pool.active, pool.cached) == (5, 0, 0)


def test_held_blocks_are_not_available() -> None:
    pool = KvPool(5)
    pool.allocate(2)
    assert (pool.available, pool.active) == (3, 2)


def test_a_private_block_is_free_once_released() -> None:
    pool = KvPool(2)
    blocks, _ = pool.allocate(2)
    pool.release(blocks)
    assert (pool.available, pool.cached) == (2, 0)


def test_released_content_stays_until_the_room_is_needed() -> None:
    pool = KvPool(3)
    pool.release(filled(pool, 1, 2))
    assert (pool.available, pool.active, set(pool)) == (3, 0, {1, 2})
    _, removed = pool.allocate(1)
    assert removed == []
    _, removed = pool.allocate(2)
    assert removed == [2, 1]  # a prefix outlives what follows it
    assert pool.cached == 0


def test_the_longest_idle_content_leaves_first() -> None:
    pool = KvPool(3)
    old, middle, young = (filled(pool, each) for each in (1, 2, 3))
    for blocks in (middle, old, young):
        pool.release(blocks)
    pool.hold(pool.match([2]))
    pool.release(pool.match([2]))
    assert pool.allocate(2)[1] == [1, 3]


def test_match_finds_the_longest_prefix() -> None:
    pool = KvPool(4)
    blocks = filled(pool, 1, 2, 3)
    assert pool.match([1, 2, 9, 3]) == blocks[:2]
    assert pool.match([9, 1]) == []


def test_content_that_is_held_again_cannot_be_evicted() -> None:
    pool = KvPool(2)
    pool.release(filled(pool, 1))
    hits = pool.match([1])
    assert pool.room_beside(hits) == 1
    pool.hold(hits)
    assert (pool.available, pool.active) == (1, 1)
    assert pool.room_beside(hits) == 1


def test_only_the_first_copy_is_news_and_only_the_last_one_is_missed() -> None:
    pool = KvPool(2)
    (first,), (second,) = pool.allocate(1)[0], pool.allocate(1)[0]
    assert pool.complete(first, 7)
    assert not pool.complete(second, 7)
    pool.release([first])
    pool.release([second])
    assert pool.allocate(1)[1] == []
    assert 7 in pool
    assert pool.allocate(1)[1] == [7]
    assert 7 not in pool


def test_shared_blocks_need_every_reference_gone() -> None:
    pool = KvPool(1)
    blocks = filled(pool, 1)
    pool.hold(blocks)
    pool.release(blocks)
    assert pool.available == 0
    pool.release(blocks)
    assert pool.available == 1


def test_clearing_forgets_content_and_keeps_what_is_held() -> None:
    pool = KvPool(3)
    pool.release(filled(pool, 1))
    held = filled(pool, 2)
    pool.clear()
    assert (pool.cached, pool.active, pool.available) == (0, 1, 2)
    pool.release(held)
    assert pool.available == 3
    assert pool.allocate(3)[1] == []
