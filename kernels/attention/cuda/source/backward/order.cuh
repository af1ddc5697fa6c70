// Sums of dQ in the order of the keys, so that they have the same bits in every run. For each tile of queries, a number beside
// the sums says which tile of keys is to be added next.
#pragma once
#include "backward/instructions.cuh"
#include "backward/problem.cuh"

// A warp that adds every second tile of queries of its block, the shares of both warpgroups at once. While it waits for the
// turn of its keys, and until its addition is done, the other warp handles the next tile. `own` is the stage of its tiles. The
// share of the first tile of keys replaces the old sums, so nobody has to clear them.
template <class C>
DEVICE void backward_ordered_adder(const BackwardParams& p, u32 memory, u32 told, int own, int lane) {
  const int next_empty = C::SUM_EMPTY + C::WARPGROUPS * (own ^ 1);  // the barrier at which the other warp's tile is awaited
  if (own == 1)
    for (int warpgroup = 0; warpgroup < C::WARPGROUPS; warpgroup++) named_arrive(next_empty + warpgroup, C::SUM_THREADS);
  for (;;) {
    named_sync(C::SUM_FULL + own, C::TILE_THREADS);
    const u64 tile_and_turn = load_shared_address(told + 8 * own);
    if (tile_and_turn == 0) break;
    const int turn = (int)(tile_and_turn >> 32) - 1, tile = (int)(u32)tile_and_turn;
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
