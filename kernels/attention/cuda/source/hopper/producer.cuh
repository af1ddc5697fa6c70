// The thread that hands out the work and starts all copies. With a mask that is the same for all rows, or small pages, it is a
// warp.
#pragma once
#include "hopper/bias.cuh"

constexpr int NO_MORE_TILES = -1;

template <class C>
struct Producer {
  const HopperParams& p;
  const TensorMap &q, &k, &v, &mask;  // mask: the map of a staged mask
  Barriers<C> barriers;
  u32 q_tile, k_tiles, v_tiles, mask_tiles;  // shared memory
  volatile int* tile_slot;       // the tile that goes with Q to the consumers

  template <int CHUNKS>
  __device__ __forceinline__ void copy_kv(u32 to, const TensorMap& map, u32 full, int row, int kv_head, int batch) const {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
      copy_box(to + chunk * C::KV_CHUNK_BYTES, map, full, chunk * C::CHUNK_COLUMNS, row, kv_head, batch);
  }

  // Copies a tile's keys piece by piece from their pages. Pieces after the page of the last key are copied from behind the last
  // page of the cache, which gives zeros and the right number of bytes.
  template <int CHUNKS>
  __device__ __forceinline__ void copy_pages(u32 to, const TensorMap& map, u32 full, const Tile& tile, int n, int kv_head) const {
    const int* table = p.block_table + tile.batch * p.table_row;
    for (int row = 0; row < C::KEYS; row += p.piece) {
      const int key = n * C::KEYS + row, number = divide(key, p.page);
      const int page = key < tile.seq_k ? table[number] : p.pages;
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; chunk++)
        copy_box(to + chunk * C::KV_CHUNK_BYTES + row * C::CHUNK_ROW_BYTES, map, full, chunk * C::CHUNK_COLUMNS,
                 key - number * (int)p.page.divisor, kv_head, page);
    }
  }

  // Copies a tile of K or V, which is CHUNKS wide.
  template <int CHUNKS>
  __device__ __forceinline__ void copy_tile(u32 to, const TensorMap& map, u32 full, const Tile& tile, int n, int kv_head) const {
    barrier_arrive_expecting(full, C::SHARERS * CHUNKS * C::KV_CHUNK_BYTES);
    if constexpr (C::PAGED)
      copy_pages<CHUNKS>(to, map, full, tile, n, kv_head);
    else
      copy_kv<CHUNKS>(to, map, full, k_row(tile, n), kv_head, tensor(tile));
    if constexpr (C::SHARERS > 1) {
      Tile other = tile;
      go_to_sharer<C>(p, other, 1);
      copy_kv<CHUNKS>(to + CHUNKS * C::KV_CHUNK_BYTES, map, full, k_row(tile, n), divide(other.head, p.group), tensor(other));
    }
  }

  // Copies a tile of V, a row for each of its columns.
  __device__ __forceinline__ void copy_transposed(u32 to, u32 full, const Tile& tile, int n, int kv_head) const {
    barrier_arrive_expecting(full, C::KEY_CHUNKS * C::VALUE_DIM * C::CHUNK_ROW_BYTES);
#pragma unroll
    for (int chunk = 0; chunk < C::KEY_CHUNKS; chunk++)
      copy_box(to + chunk * (C::V_BYTES / C::KEY_CHUNKS), v, full, n * C::KEYS + chunk * C::CHUNK_COLUMNS, 0, kv_head, tile.batch);
  }

  // Copies a tile of the mask. Heads or batches that share a mask have no stride in it.
  __device__ __forceinline__ void copy_mask(const Tile& tile, int n, MaskPlace<C>& place) const {
    if constexpr (C::STAGED) {
      barrier_wait(barriers.mask_empty(place.stage()), place.parity());
      const u32 full = barriers.mask_full(place.stage());
      barrier_arrive_expecting(full, C::MASK_TILE_BYTES);
      copy_box(mask_tiles + place.stage() * C::MASK_TILE_BYTES, mask, full, n * C::KEYS, tile.row0, p.mask_head ? tile.head : 0,
               p.mask_batch ? tile.batch : 0);
      place.count++;
    }
  }

  __device__ __forceinline__ void copy_q(int index, const Tile& tile) const {
    if constexpr (C::PACKED) tile_slot[1] = tile.head, tile_slot[2] = tile.row0 / C::ROWS, index = tile.batch;
    *tile_slot = index;  // published by the barrier's phase, like Q
    barrier_arrive_expecting(barriers.q_full(), C::Q_BYTES);
#pragma unroll
    for (int chunk = 0; chunk < C::CHUNKS; chunk++)
#pragma unroll
      for (int sharer = 0; sharer < C::SHARERS; sharer++) {
        Tile own = tile;
        if (sharer) go_to_sharer<C>(p, own, sharer);
        copy_box(q_tile + chunk * C::Q_CHUNK_BYTES + sharer * C::ROWS * C::CHUNK_ROW_BYTES, q, barriers.q_full(),
                 chunk * C::CHUNK_COLUMNS, q_row(own), own.head, tensor(own));
      }
  }

  // Where a tile is in its tensors; packed sequences are one batch.
  static __device__ __forceinline__ int q_row(const Tile& tile) { return C::PACKED ? tile.q_start + tile.row0 : tile.row0; }
  static __device__ __forceinline__ int k_row(const Tile& tile, int n) {
    return C::PACKED ? tile.k_start + n * C::KEYS : n * C::KEYS;
  }
  static __device__ __forceinline__ int tensor(const Tile& tile) { return C::PACKED ? 0 : tile.batch; }

  // Each block's first tile has the block's own number. The others are taken from a counter, and only once the last copies of
  // the tile before have been started. If they were taken earlier, a block that is busy with a long tile would keep a second
  // tile from idle blocks.
  __device__ __forceinline__ int next_tile() const { return (int)gridDim.x + atomicAdd(p.counter, 1); }

  // The last block to end sets the counter to zero again.
  __device__ __forceinline__ void leave() const {
    __threadfence();
    if (atomicAdd(p.counter + 1, 1) == (int)gridDim.x - 1) {
      p.counter[0] = 0;
      p.counter[1] = 0;
      __threadfence();
    }
  }

  // Signals to the consumers, in the place where they look for the next tile, that there are no more tiles.
  __device__ __forceinline__ void end(u32 q_parity) const {
    barrier_wait(barriers.q_empty(), q_parity);
    *tile_slot = NO_MORE_TILES;
    barrier_arrive(barriers.q_full());
    leave();
  }

  __device__ __forceinline__ void run() const {
    Place<C> place = {0, 1};  // an empty ring: the phase before the first counts as ended
    MaskPlace<C> mask_place = {C::MASK_STAGES};  // likewise
    u32 q_parity = 1;
    Sequences<C> sequences = {0, 0, 0};
    if constexpr (C::PACKED) sequences.open(p);
    for (int index = (int)blockIdx.x; index < p.tiles; index = next_tile()) {
      Tile tile;
      if constexpr (C::PACKED) {
        if (!sequences.find(p, index, tile)) break;
      } else {
        if (!tile_of<C>(p, index, tile)) continue;
      }
      const int kv_head = divide(tile.head, p.group);
      bool q_is_due = true;
      for (int n = tile.last - 1; n >= tile.first; n--, place = place.next()) {
        barrier_wait(barriers.k_empty(place.stage), place.parity);
        copy_tile<C::CHUNKS>(k_tiles + place.stage * C::K_STAGE_BYTES, k, barriers.k_full(place.stage), tile, n, kv_head);
        if (q_is_due) {  // after the first K, which need not wait until the last tile's rows have been read
          barrier_wait(barriers.q_empty(), q_parity);
          copy_q(index, tile);
          q_is_due = false;
        }
        copy_mask(tile, n, mask_place);
        barrier_wait(barriers.v_empty(place.stage), place.parity);
        const u32 to = v_tiles + place.stage * C::V_STAGE_BYTES;
        if constexpr (C::FLOAT8)
          copy_transposed(to, barriers.v_full(place.stage), tile, n, kv_head);
        else
          copy_tile<C::VALUE_CHUNKS>(to, v, barriers.v_full(place.stage), tile, n, kv_head);
      }
      if (q_is_due) {  // rows that see no key: the consumers write zeros
        barrier_wait(barriers.q_empty(), q_parity);
        copy_q(index, tile);
      }
      q_parity ^= 1;
    }
    end(q_parity);
  }

  // ---- with a mask that is the same for all rows: the whole warp reads it, and lane 0 copies

  // Gives a tile's biases to the consumers. Returns to them and the caller whether any key is seen; if none is, no K and V are
  // copied.
  __device__ __forceinline__ bool tell(const FetchedBias<C>& bias, MaskPlace<C>& place, int lane) const {
    const bool seen = bias.seen();
    barrier_wait(barriers.mask_empty(place.stage()), place.parity());
    bias.store(mask_tiles + place.stage() * C::MASK_TILE_BYTES, seen, lane);
    sync_warp();
    if (lane == 0) barrier_arrive(barriers.mask_full(place.stage()));
    place.count++;
    return seen;
  }

  template <int CHUNKS>
  __device__ __forceinline__ void give(const TensorMap& map, u32 tiles, u32 empty, u32 full, const Place<C>& at, const Tile& tile,
                                       int n, int kv_head, int lane) const {
    if (lane > 0) return;
    barrier_wait(empty, at.parity);
    copy_tile<CHUNKS>(tiles + at.stage * C::SHARERS * CHUNKS * C::KV_CHUNK_BYTES, map, full, tile, n, kv_head);
  }
  __device__ __forceinline__ void give_q(int index, const Tile& tile, u32 parity, int lane) const {
    if (lane > 0) return;
    barrier_wait(barriers.q_empty(), parity);
    copy_q(index, tile);
  }

  __device__ __forceinline__ void run_with_bias(int lane) const {
    Place<C> at = {0, 1};
    MaskPlace<C> bias_at = {C::MASK_STAGES};
    u32 parity = 1;
    FetchedBias<C> bias;
    for (int index = (int)blockIdx.x; index < p.tiles; index = uniform(lane == 0 ? next_tile() : 0)) {
      Tile tile;
      if (!tile_of<C>(p, index, tile)) continue;
      const char* row = p.mask + tile.batch * p.mask_batch + tile.head * p.mask_head;
      const int kv_head = divide(tile.head, p.group);
      if (tile.first < tile.last)
        bias.fetch(row, p.mask_key, (tile.last - 1) * C::KEYS, p.seq_k, lane);
      else  // rows that see no key
        give_q(index, tile, parity, lane);
      for (int n = tile.last - 1; n >= tile.first; n--) {
        const bool seen = tell(bias, bias_at, lane);
        if (n > tile.first) bias.fetch(row, p.mask_key, (n - 1) * C::KEYS, p.seq_k, lane);  // for the next, while copies wait
        if (seen) give<C::CHUNKS>(k, k_tiles, barriers.k_empty(at.stage), barriers.k_full(at.stage), at, tile, n, kv_head, lane);
        if (n == tile.last - 1) give_q(index, tile, parity, lane);  // also if the tile is not seen: consumers need Q
        if (!seen) continue;
        give<C::VALUE_CHUNKS>(v, v_tiles, barriers.v_empty(at.stage), barriers.v_full(at.stage), at, tile, n, kv_head, lane);
        at = at.next();
      }
      parity ^= 1;
    }
    if (lane == 0) end(parity);
  }

  // ---- with small pages: the whole warp looks up the pages of the next tile, one piece a lane, and lane 0 copies

  struct Looked {
    int page, row;  // of the first key of this lane's piece
  };
  __device__ __forceinline__ Looked look_up(const Tile& tile, int n, int lane) const {
    const int key = n * C::KEYS + lane * p.piece, number = divide(key, p.page);
    const bool there = lane * p.piece < C::KEYS && key < tile.seq_k;
    return {there ? p.block_table[tile.batch * p.table_row + number] : p.pages, key - number * (int)p.page.divisor};
  }
  template <int CHUNKS>
  __device__ __forceinline__ void give_pages(const TensorMap& map, u32 tiles, u32 empty, u32 full, const Place<C>& at,
                                             const Looked& looked, int kv_head, int lane) const {
    if (lane == 0) {
      barrier_wait(empty, at.parity);
      barrier_arrive_expecting(full, CHUNKS * C::KV_CHUNK_BYTES);
    }
    const u32 to = tiles + at.stage * CHUNKS * C::KV_CHUNK_BYTES;
    for (int row = 0, piece = 0; row < C::KEYS; row += p.piece, piece++) {
      const int page = shuffle(looked.page, piece), first = shuffle(looked.row, piece);
      if (lane == 0)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
          copy_box(to + chunk * C::KV_CHUNK_BYTES + row * C::CHUNK_ROW_BYTES, map, full, chunk * C::CHUNK_COLUMNS, first, kv_head, page);
    }
  }

  __device__ __forceinline__ void run_pages_ahead(int lane) const {
    Place<C> at = {0, 1};
    u32 parity = 1;
    Sequences<C> sequences = {0, 0, 0};
    sequences.open(p);
    for (int index = (int)blockIdx.x; index < p.tiles; index = uniform(lane == 0 ? next_tile() : 0)) {
      Tile tile;
      if (!sequences.find(p, index, tile)) break;
      const int kv_head = divide(tile.head, p.group);
      Looked next = {};
      if (tile.first < tile.last)
        next = look_up(tile, tile.last - 1, lane);
      else  // rows that see no key
        give_q(index, tile, parity, lane);
      for (int n = tile.last - 1; n >= tile.first; n--) {
        const Looked looked = next;
        if (n > tile.first) next = look_up(tile, n - 1, lane);
        give_pages<C::CHUNKS>(k, k_tiles, barriers.k_empty(at.stage), barriers.k_full(at.stage), at, looked, kv_head, lane);
        if (n + 1 == tile.last) give_q(index, tile, parity, lane);
        give_pages<C::VALUE_CHUNKS>(v, v_tiles, barriers.v_empty(at.stage), barriers.v_full(at.stage), at, looked, kv_head, lane);
        at = at.next();
      }
      parity ^= 1;
    }
    if (lane == 0) end(parity);
  }
};
