// Scaled dot-product attention, forward, for Hopper: tensor copies, wgmma, one producer and two to four consumer warpgroups.
//
// A block stays on its SM and takes tiles of work from a counter. One of its threads copies the rows of Q, and then K and V in
// tiles of KEYS keys through a ring of STAGES, the last keys first. The consumers, with 64 rows each, multiply and
// exponentiate. README.md has a picture.
//
//   The schedule follows Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao, "FlashAttention-3", 2024.
#pragma once
#include "hopper/consumer.cuh"

// Writes the ones below each chunk of a transposed V, where no copy goes.
template <class C>
DEVICE void write_ones(u32 v_tiles, int thread) {
  constexpr u32 ONES = 0x38383838, PIECES = C::ONES_ROWS * C::CHUNK_ROW_BYTES / 16, CHUNKS = C::STAGES * C::KEY_CHUNKS;
  for (u32 i = thread; i < CHUNKS * PIECES; i += C::WARPGROUPS * C::WARPGROUP_THREADS)
    store_shared(v_tiles + (i / PIECES + 1) * (C::V_BYTES / C::KEY_CHUNKS) - (i % PIECES + 1) * 16, Chunk{ONES, ONES, ONES, ONES});
  stores_before_products();
}

// Grid: at most p.tiles blocks, and at most one per SM. Shared memory: Q_BYTES + STAGES * (K_STAGE_BYTES + V_STAGE_BYTES), at a
// multiple of 1024.
template <class C>
DEVICE void attention_fa90(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& mask, const HopperParams& p) {
  SHARED_MEMORY(memory);
  __shared__ __align__(8) u64 barrier_words[C::BARRIERS];
  __shared__ int tile_slot[C::SLOT_WORDS];
  const u32 q_tile = shared_address(memory), k_tiles = q_tile + C::Q_BYTES, v_tiles = k_tiles + C::STAGES * C::K_STAGE_BYTES,
            mask_tiles = v_tiles + C::STAGES * C::V_STAGE_BYTES;
  const Barriers<C> barriers = {shared_address(barrier_words)};
  const int thread = (int)threadIdx.x, warpgroup = uniform(thread / C::WARPGROUP_THREADS);
  if (warpgroup == 0) {
    // The first copies start as early as possible: the producer signals that the barriers are initialised, and does not wait.
    if (thread < C::PRODUCER_WARP_THREADS) {
      if (thread == 0) {
        prefetch_map(k);
        prefetch_map(q);
        prefetch_map(v);
        if (C::STAGED) prefetch_map(mask);
        barriers.init();
      }
      sync_warp();
      named_arrive(C::BARRIERS_READY, C::READY_THREADS);
    }
    fewer_registers<C::PRODUCER_REGISTERS>();
    const Producer<C> producer = {p, q, k, v, mask, barriers, q_tile, k_tiles, v_tiles, mask_tiles, tile_slot};
    if constexpr (C::KEY_BIAS) {
      if (thread < C::PRODUCER_WARP_THREADS) producer.run_with_bias(thread);
    } else if constexpr (C::PAGES_AHEAD) {
      if (thread < C::PRODUCER_WARP_THREADS) producer.run_pages_ahead(thread);
    } else {
      if (thread == 0) producer.run();
    }
  } else {
    if constexpr (C::ONES) write_ones<C>(v_tiles, thread - C::WARPGROUP_THREADS);
    named_sync(C::BARRIERS_READY, C::READY_THREADS);
    more_registers<C::CONSUMER_REGISTERS>();
    const int within = thread % C::WARPGROUP_THREADS, consumer_index = warpgroup - 1;
    const u32 rows = q_tile + consumer_index * C::WARPGROUP_ROWS * C::CHUNK_ROW_BYTES;
    const int sharer = C::SHARERS == 1 ? 0 : consumer_index / C::WARPGROUPS_OF_HEAD;
    Consumer<C> consumer = {p, barriers, consumer_index, within >> 5, within & 31};
    consumer.q_matrix = matrix(rows, 16);
    consumer.k_matrix = matrix(k_tiles + sharer * C::K_BYTES, 16);
    consumer.v_matrix = matrix(v_tiles + sharer * C::V_BYTES, C::KV_CHUNK_BYTES);
    consumer.v_tiles = v_tiles;
    if constexpr (C::KEY_BIAS) consumer.given.begin(mask_tiles, within & 31);
    if constexpr (C::STAGED)
      consumer.given.begin(mask_tiles, consumer_index % C::WARPGROUPS_OF_HEAD * C::WARPGROUP_ROWS + (within >> 5) * 16, within & 31);
    consumer.run(tile_slot);
  }
}
