// Sums of dQ in an order, so that they have the same bits in every run. For each tile of queries, a number beside the sums says
// how many tiles of keys have been added.
//
// In the order of the keys, tiles of keys that start together wait for each other. In a cyclic order they need not: each starts
// at a different tile of queries and, after the last, continues with the first. A tile of queries is met first by the last tile
// of keys that starts at or before it, then by the one before that, and so on in a circle. Tiles of keys then wait for tiles
// with higher numbers too, so all tiles of a head must be running at the same time.
#pragma once
#include "backward/instructions.cuh"
#include "backward/problem.cuh"

enum Order { ANY_ORDER, ORDER_OF_KEYS, CYCLIC_ORDER };

// Returns the tile of queries with which a tile of keys starts, in a cyclic order.
DEVICE int first_queries(const BackwardParams& p, int keys) { return divide(keys * p.query_tiles, p.tiles); }
// Returns the tile of queries that is n tiles after the first one of its head, in a circle.
DEVICE int around(const BackwardParams& p, int n) { return n >= p.query_tiles ? n - p.query_tiles : n; }
// Returns how many tiles of keys meet a tile of queries before `keys` does, in a cyclic order.
DEVICE int cyclic_turn(const BackwardParams& p, int keys, int queries) {
  const int all = (int)p.tiles.divisor, first = ((queries + 1) * all - 1) / p.query_tiles;
  return first - keys + (keys > first ? all : 0);
}

// What a warp that adds dQ is told of a share; it is never 0. It is the tile of keys, the tile of queries (as if its head's
// first tile were the one with which these keys start), and whether it is the last one of these keys.
DEVICE u64 share_of(int keys, int tile, bool last) { return (u64)((u32)keys + 1 | (u32)last << 31) << 32 | (u32)tile; }
DEVICE int keys_of_share(u64 share) { return (int)(share >> 32 & 0x7fffffff) - 1; }
DEVICE int tile_of_share(u64 share) { return (int)(u32)share; }
DEVICE bool is_last_share(u64 share) { return share >> 63; }

// A warp that adds every second tile of queries of its block, the shares of both warpgroups at once. While it waits for the
// turn of its keys, and until its addition is done, the other warp handles the next tile. `own` is the stage of its tiles. The
// share of the tile of keys that is first replaces the old sums, so nobody has to clear them.
template <class C>
DEVICE void backward_ordered_adder(const BackwardParams& p, u32 memory, u32 told, int own, int lane) {
  const int next_empty = C::SUM_EMPTY + C::WARPGROUPS * (own ^ 1);  // the barrier at which the other warp's tile is awaited
  if (own == 1)
    for (int warpgroup = 0; warpgroup < C::WARPGROUPS; warpgroup++) named_arrive(next_empty + warpgroup, C::SUM_THREADS);
  for (;;) {
    named_sync(C::SUM_FULL + own, C::TILE_THREADS);
    const u64 share = load_shared_address(told + 8 * own);
    if (share == 0) break;
    int turn = keys_of_share(share), tile = tile_of_share(share);
    if (C::CYCLIC) {
      const int first_of_head = tile / p.query_tiles * p.query_tiles;
      const int queries = around(p, tile - first_of_head + first_queries(p, turn));
      tile = first_of_head + queries, turn = cyclic_turn(p, turn, queries);
    }
    if (C::WINDOW) turn -= first_keys(p, tile % p.query_tiles * C::QUERIES, C::KEYS);
    if (lane == 0) {
      const u64 to = (u64)p.sums + (u64)(u32)tile * C::SUM_BYTES;
      await_turn(turns_of(p) + tile, turn);
      if (turn == 0)
        store_floats(to, memory + C::SUM, C::SUM_BYTES);
      else
        add_floats(to, memory + C::SUM, C::SUM_BYTES);
      additions_commit();
      additions_have_read();
    }
    sync_warp();
    for (int warpgroup = 0; warpgroup < C::WARPGROUPS; warpgroup++) named_arrive(next_empty + warpgroup, C::SUM_THREADS);
    if (lane == 0) {
      additions_done();
      give_turn(turns_of(p) + tile, turn + 1);
    }
    sync_warp();
  }
}
