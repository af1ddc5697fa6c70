// Scaled dot-product attention, forward, by the FlashAttention-2 schedule on mma.sync: every NVIDIA GPU from Turing on.
//
// One block computes BM rows of one head's output. Q stays in place. K and V pass through shared memory in tiles of BN keys,
// the last tile first, so that only the first few turns have the code for masks. Scores and probabilities never leave
// registers: after pairs are packed to 16 bits, the accumulator layout of S = Q K^T is the operand layout of P V.
//
//   FlashAttention-2: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
//   Split keys: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023.
#pragma once
#include "block.cuh"
#include "results.cuh"

// Grid: (heads of all batches, rounded up to whole sections if causal, * row_tiles; splits).
// Shared memory: Config::Q_BYTES + STAGES * 2 * TILE_BYTES.
template <class C>
DEVICE void attention_fa2(const AttentionParams& p) {
  SHARED_MEMORY(memory);
  const u32 q_tile = shared_address(memory);
  Block<C> block = {p};
  {
    const Work work = work_of_block<C>(p, (int)blockIdx.x);
    if (work.head >= p.all_heads) return;
    const int batch = divide(work.head, p.heads), head = work.head - batch * (int)p.heads.divisor;
    const int kv_head = divide(head, p.group);
    const Share share = share_of_thread<C>((int)threadIdx.x, p.head_dim);
    block.first = work.first, block.last = work.last;
    block.k = p.k + batch * p.k_batch + kv_head * p.k_head + (u32)share.row0 * p.k_row + share.chunk * 16;
    block.v = p.v + batch * p.v_batch + kv_head * p.v_head + (u32)share.row0 * p.v_row + share.chunk * 16;
    block.q_tile = q_tile;
    const int lane = (int)threadIdx.x & 31, warp_row = ((int)threadIdx.x >> 5) * C::MI * 16;
    block.q_lane = q_tile + swizzled<C>(warp_row + (lane & 15), lane >> 4);
    block.warp.clear();
    if (work.first < work.last) {
      const i64 row = work.row0 + share.row0;
      block.all_tiles(p.q + batch * p.q_batch + head * p.q_head + row * p.q_row + share.chunk * 16, p.seq_q - work.row0, share);
    }
  }
  const int thread = thread_again(), lane = thread & 31, warp_row = (thread >> 5) * C::MI * 16;
  const Work work = work_of_block<C>(p, block_again());
  float lse[C::MI][2];
  Results<C> results = {p, work.head, work.row0 + warp_row + (lane >> 2), lane, q_tile + warp_row * C::ROW_BYTES};
  results.normalise(block.warp, lse);
  if (p.splits > 1)
    results.write_partial(block.warp, lse);
  else
    results.write(block.warp, lse);
}

// The same with all features: a window, packed heads, sequences of different lengths, a mask. Whether it is causal only changes
// the limits. Grid: (packs of all batches, rounded up to whole sections, * row_tiles; splits).
template <class C>
DEVICE void attention_general(const AttentionParams& p) {
  SHARED_MEMORY(memory);
  const u32 q_tile = shared_address(memory);
  // If sequences are longer than the host was told, there are more row tiles than the grid has: a block computes every
  // row_tiles-th tile. Everything but the number of the turn is computed again in each turn, because registers are full in the
  // main loop.
  for (int turn = 0;; turn++) {
    const int index = block_again(), section = divide(index, p.section_tiles);
    const int within = index - section * (int)p.section_tiles.divisor, place = divide(within, p.section);
    const int pack = section * (int)p.section.divisor + within - place * (int)p.section.divisor;
    const int row_tile = (turn + 1) * (int)p.row_tiles.divisor - 1 - place;
    if (pack >= p.all_heads) return;
    Block<C> block = {p};
    block.scope = scope_of<C>(p, pack, row_tile);
    const Scope& scope = block.scope;
    if (scope.rows <= 0) return;
    if constexpr (C::DROPS) block.key = key_of_dropout(dropout_of(p));
    {
      const int thread = thread_again(), lane = thread & 31, warp_row = (thread >> 5) * C::MI * 16;
      const Share share = share_of_thread<C>(thread, p.head_dim);
      block.first = scope.first, block.last = scope.last;
      if constexpr (C::PAGED) {
        block.k = first_k_page(p, scope) + share.chunk * 16;
        block.v = first_v_page(p, scope) + share.chunk * 16;
      } else {
        block.k = first_k_row(p, scope) + (u32)share.row0 * p.k_row + share.chunk * 16;
        block.v = first_v_row(p, scope) + (u32)share.row0 * p.v_row + share.chunk * 16;
      }
      block.q_tile = q_tile;
      block.q_lane = q_tile + swizzled<C>(warp_row + (lane & 15), lane >> 4);
      block.warp.clear();
      if (scope.first < scope.last) block.all_tiles(nullptr, 0, share);
    }
    const int thread = thread_again(), lane = thread & 31, warp_row = (thread >> 5) * C::MI * 16;
    float lse[C::MI][2];
    Results<C> results = {p, 0, warp_row + (lane >> 2), lane, q_tile + warp_row * C::ROW_BYTES, scope};
    results.normalise(block.warp, lse);
    if (p.splits > 1)
      results.write_partial(block.warp, lse);
    else
      results.write(block.warp, lse);
    if (!C::REPEATS || !p.q_starts) return;
    sync_block();  // every warp has left shared memory
  }
}
