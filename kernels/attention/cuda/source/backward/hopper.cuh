// The backward pass for Hopper: tensor copies, wgmma, one warpgroup that moves data and two that compute.
//
// A block keeps 128 keys, 64 for each warpgroup, and processes all tiles of queries that see these keys, over all heads of a
// group. Scores and slopes (dS) are computed transposed: the accumulators have keys as rows, so that, packed to 16 bits, they
// are directly the operands of dV += P^T dO and dK += dS^T Q. dQ is a sum over the keys of both warpgroups: for it, dS goes
// through shared memory, and dQ goes through shared memory to sums in global memory, which another kernel converts. If ORDERED,
// every sum is made in an order, so that it has the same bits in every run: each tile of keys waits for its turn at each tile
// of queries (order.cuh).
//
// If PARTS, a block takes only some of a group's heads for its tile of keys. Each part leaves its sums of dK and dV in global
// memory, and the one that is last adds them all in the order of the parts.
//
// If WINDOW, the queries of a tile of keys also have an end: later ones no longer see these keys.
//
//   The order of the products and the handling of dQ follow Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao,
//   "FlashAttention-3", 2024.
#pragma once
#include "backward/instructions.cuh"
#include "backward/order.cuh"
#include "backward/problem.cuh"
#include "backward/wgmma.cuh"
#include "small/instructions.cuh"

template <class T_, int D_, int QUERIES_, bool CAUSAL_, Order ORDER_, bool PARTS_ = false>
struct Backward {
  typedef T_ T;
  static constexpr int D = D_, QUERIES = QUERIES_;
  static constexpr bool CAUSAL = CAUSAL_, ORDERED = ORDER_ != ANY_ORDER, CYCLIC = ORDER_ == CYCLIC_ORDER;
  static constexpr bool PARTS = PARTS_, WINDOW = false;
  static constexpr bool LAST_FIRST = ORDERED && CAUSAL;  // from the last tile of queries, which sees all keys, to the first
  static constexpr int KEYS = 128, STAGES = 2, WARPGROUPS = 2, WARPGROUP_THREADS = 128, WARPGROUP_KEYS = 64, READERS = 8;
  static constexpr int CHUNK_COLUMNS = 64, CHUNK_ROW_BYTES = 128, CHUNKS = D / CHUNK_COLUMNS, UNITS = 16;
  static constexpr int K_CHUNK_BYTES = KEYS * CHUNK_ROW_BYTES, K_BYTES = CHUNKS * K_CHUNK_BYTES;
  static constexpr int Q_CHUNK_BYTES = QUERIES * CHUNK_ROW_BYTES, Q_BYTES = CHUNKS * Q_CHUNK_BYTES;
  static constexpr int STAT_BYTES = QUERIES * 4;
  static constexpr int SLOPE_CHUNK_BYTES = KEYS * CHUNK_ROW_BYTES, SLOPE_BYTES = QUERIES / 64 * SLOPE_CHUNK_BYTES;  // of dS, 64 queries per chunk
  static constexpr int SLOPES = 2;
  static constexpr int SUM_BYTES = QUERIES * D * 4, SUM_PART_BYTES = SUM_BYTES / WARPGROUPS;
  static constexpr int PIECE_BYTES = WARPGROUPS * WARPGROUP_THREADS * 16, PART_BYTES = 2 * KEYS * D * 4;  // of a part's dK and dV
  static_assert(!(PARTS && ORDERED), "parts of a group come in no order");
  static_assert(!(CAUSAL && CYCLIC), "in a cyclic order every tile of queries must see all keys");
  static_assert(QUERIES * D == SUMS_OF_TILE && WARPGROUPS == SHARES_OF_TILE, "each warpgroup must have a 64 x 64 share of dQ");
  // Offsets in shared memory.
  static constexpr int K = 0, V = K + K_BYTES, Q = V + K_BYTES, DOUT = Q + STAGES * Q_BYTES, SLOPE = DOUT + STAGES * Q_BYTES;
  static constexpr int SUM = SLOPE + SLOPES * SLOPE_BYTES, SHIFT = SUM + SUM_BYTES, DELTA = SHIFT + STAGES * STAT_BYTES;
  static constexpr int BYTES = DELTA + STAGES * STAT_BYTES;
  // Named barriers. If ORDERED, there is one SUM_FULL for each stage, which both warpgroups fill, and one SUM_EMPTY for each
  // stage and warpgroup. There is one SLOPE_READY for each stage and warpgroup.
  static constexpr int SUM_FULL = 3, SUM_EMPTY = 5, SLOPE_READY = 9;
  static constexpr int PAIR_THREADS = 256, SUM_THREADS = WARPGROUP_THREADS + 32;
  static constexpr int TILE_THREADS = PAIR_THREADS + 32;
  static constexpr int MOVER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
  static constexpr int BARRIERS = 4 + 4 * STAGES;
  static constexpr bool CLAIMS = CAUSAL && !ORDERED;  // without a mask tiles of keys arrive together: all would wait for the first
  static constexpr int NOT_STORED = 0, BEING_STORED = 1, STORED = 2;  // the states of a share of a sum; `claim` sets the second
  // V dO^T takes D / 16 steps. In so many of them V is read from registers in place of shared memory; there are no more registers.
  // The exponentials of so many 16 queries are computed while dQ of the tile before is.
  static constexpr int EARLY = 3;
  static constexpr bool LATE_HAND_OVER = D == 64;  // dQ is handed over after dP has been started: faster at D = 64, slower at 128
  static constexpr int V_STEPS = D == 64 ? 0 : ORDER_ == ORDER_OF_KEYS ? 3 : 4;
};

// The same for queries that see no keys before a window. It is a type around the other so that kernels without a window keep
// their names for what is in shared memory, and so their machine code. `above` may hide nothing.
template <class C>
struct Windowed : C {
  static constexpr bool WINDOW = true;
  static_assert(C::CAUSAL, "the first query that sees a key must be known");
};

struct BackwardTile {
  int batch, kv_head, key0;
  int first, masked;  // query tiles first .. masked - 1 are masked, masked .. end_of(p, t) - 1 are not
  int end, limited;   // if WINDOW, tiles limited .. end - 1 have queries that some of these keys come too early for
};

// Returns the number of the tile after the last one whose queries see the keys.
template <class C>
DEVICE int end_of(const BackwardParams& p, const BackwardTile& t) {
  return C::WINDOW ? t.end : p.query_tiles;
}

// Sets the tile of work. Returns false for the surplus heads of the last section; it does so only at the end, as otherwise the
// old tile would have to stay in registers. Under a causal mask the first tiles of keys are seen by the most queries, so the
// longest tiles come first, over all heads of a section.
template <class C>
DEVICE bool backward_tile_of(const BackwardParams& p, int index, BackwardTile& t) {
  const int section = divide(index, p.section_tiles), within = index - section * (int)p.section_tiles.divisor;
  const int tile = divide(within, p.section), head = section * (int)p.section.divisor + within - tile * (int)p.section.divisor;
  t.batch = divide(head, p.kv_heads), t.kv_head = head - t.batch * (int)p.kv_heads.divisor;
  t.key0 = tile * C::KEYS;
  t.first = 0, t.masked = t.key0 + C::KEYS > p.seq_k ? p.query_tiles : 0;
  if (C::CAUSAL) {
    const int seen_from = t.key0 - p.above, free_from = t.key0 + C::KEYS - 1 - p.above;
    const int first = seen_from <= 0 ? 0 : seen_from / C::QUERIES, free = free_from <= 0 ? 0 : (free_from + C::QUERIES - 1) / C::QUERIES;
    t.first = min(first, p.query_tiles), t.masked = max(t.masked, min(free, p.query_tiles));
  }
  if constexpr (C::WINDOW) {
    const int seen_to = t.key0 + C::KEYS - 1 - p.below, free_to = t.key0 - p.below;
    t.end = seen_to < 0 ? 0 : min(seen_to / C::QUERIES + 1, p.query_tiles);
    t.limited = free_to < 0 ? 0 : (free_to + 1) / C::QUERIES;
  }
  return head < p.all_kv_heads;
}

// Returns the head of K and V that has a number: if PARTS, each part of its group has a number of its own.
template <class C>
DEVICE int head_of_keys(const BackwardParams& p, int head) {
  return C::PARTS ? head >> p.part_bits : head;
}

template <class C>
struct BackwardBarriers {
  u32 base;
  __device__ __forceinline__ u32 k_full() const { return base; }
  __device__ __forceinline__ u32 k_empty() const { return base + 8; }
  __device__ __forceinline__ u32 v_full() const { return base + 16; }
  __device__ __forceinline__ u32 v_empty() const { return base + 24; }
  __device__ __forceinline__ u32 q_full(int stage) const { return base + 32 + 8 * stage; }
  __device__ __forceinline__ u32 q_empty(int stage) const { return base + 32 + 8 * (C::STAGES + stage); }
  __device__ __forceinline__ u32 dout_full(int stage) const { return base + 32 + 8 * (2 * C::STAGES + stage); }
  __device__ __forceinline__ u32 dout_empty(int stage) const { return base + 32 + 8 * (3 * C::STAGES + stage); }
  __device__ __forceinline__ void init() const {
    barrier_init(k_full(), 1);
    barrier_init(v_full(), 1);
    barrier_init(k_empty(), C::READERS);
    barrier_init(v_empty(), C::READERS);
    for (int stage = 0; stage < C::STAGES; stage++) {
      barrier_init(q_full(stage), 1);
      barrier_init(dout_full(stage), 1);
      barrier_init(q_empty(stage), C::READERS);
      barrier_init(dout_empty(stage), C::READERS);
    }
    barrier_init_done();
  }
};

// Everything that a thread keeps from tile to tile, in one register: a place in the ring of two stages (bit 0 is the stage, bit
// 1 the parity of its phase), the parity of the phase of K and V, and the number of heads of the group still to process.
struct BackwardPlace {
  u32 word;
  __device__ __forceinline__ int stage() const { return (int)(word & 1); }
  __device__ __forceinline__ u32 parity() const { return word >> 1 & 1; }
  __device__ __forceinline__ void next() { word = (word & ~3u) | (word + 1 & 3); }
  __device__ __forceinline__ u32 k_parity() const { return word >> 2 & 1; }
  __device__ __forceinline__ void next_keys() { word ^= 4; }
  __device__ __forceinline__ void set_heads(int heads) { word = (word & 7) | (u32)heads << 3; }
  __device__ __forceinline__ bool has_heads() const { return word >= 8; }
  __device__ __forceinline__ void next_head() { word -= 8; }
  __device__ __forceinline__ bool is_last_head() const { return word < 16; }
};

// The thread that takes work and starts all copies.
template <class C>
struct BackwardProducer {
  const BackwardParams& p;
  const TensorMap &q, &k, &v, &dout;
  BackwardBarriers<C> barriers;
  u32 memory;
  volatile int* present;  // for the number of the present tile of work

  __device__ __forceinline__ void copy(u32 to, const TensorMap& map, u32 full, int chunk_bytes, int row, int head, int batch) const {
#pragma unroll
    for (int chunk = 0; chunk < C::CHUNKS; chunk++)
      copy_box(memory + to + chunk * chunk_bytes, map, full, chunk * C::CHUNK_COLUMNS, row, head, batch);
  }
  // Copies a tile of Q or dO, and the shifts or deltas of its rows.
  __device__ __forceinline__ void copy_rows(u32 to, u32 stats_to, const TensorMap& map, const float* stats, u32 full, int stage, int n,
                                            int head, int batch) const {
    barrier_arrive_expecting(full, C::Q_BYTES + C::STAT_BYTES);
    copy(to + stage * C::Q_BYTES, map, full, C::Q_CHUNK_BYTES, n * C::QUERIES, head, batch);
    const int row = (batch * (int)p.heads.divisor + head) * (int)p.stat_rows.divisor + n * C::QUERIES;
    copy_bytes(memory + stats_to + stage * C::STAT_BYTES, stats + row, C::STAT_BYTES, full);
  }
  __device__ __forceinline__ void leave() const {
    __threadfence();
    if (atomicAdd(p.counter + 1, 1) == (int)gridDim.x - 1) {
      p.counter[0] = 0;
      p.counter[1] = 0;
      __threadfence();
    }
  }
  __device__ __forceinline__ void copy_kv(int index, u32 parity) const {
    BackwardTile t;
    backward_tile_of<C>(p, index, t);
    barrier_wait(barriers.v_empty(), parity);  // V first, because its place is released first
    barrier_arrive_expecting(barriers.v_full(), C::K_BYTES);
    copy(C::V, v, barriers.v_full(), C::K_CHUNK_BYTES, t.key0, head_of_keys<C>(p, t.kv_head), t.batch);
    barrier_wait(barriers.k_empty(), parity);
    *present = index;  // published by the barrier's phase, like K
    barrier_arrive_expecting(barriers.k_full(), C::K_BYTES);
    copy(C::K, k, barriers.k_full(), C::K_CHUNK_BYTES, t.key0, head_of_keys<C>(p, t.kv_head), t.batch);
  }

  // Where sums have the order of the keys, work is taken in that order, and only by blocks that are running. So the first
  // unfinished tile of keys never waits. In a cyclic order each block has work of its own, because a block takes its next tile
  // before it has finished the present one, and no two tiles of a head may be in one block.
  static constexpr bool BY_PLACE = !C::ORDERED || C::CYCLIC;
  __device__ __forceinline__ int first_item() const { return BY_PLACE ? (int)blockIdx.x : atomicAdd(p.counter, 1); }
  __device__ __forceinline__ int next_item(int index) const {
    return C::CYCLIC ? index + blocks_again() : (BY_PLACE ? blocks_again() : 0) + atomicAdd(p.counter, 1);
  }

  // The first queries of a tile of keys are copied before the keys, because the places of the keys are in use until the tile
  // before has ended.
  __device__ __forceinline__ void run() const {
    BackwardPlace place = {2 | 4};  // an empty ring: the phases before the first count as ended
    for (int index = first_item(); index < p.items; index = next_item(index)) {
      BackwardTile t;
      if (!backward_tile_of<C>(p, index, t)) continue;
      int due = (int)opaque((u32)index);  // opaque, or the compiler makes two loops, and runs out of registers
      int head = t.kv_head * (int)p.group.divisor, n = C::LAST_FIRST ? end_of<C>(p, t) - 1 : t.first;
      const int start = C::CYCLIC ? first_queries(p, t.key0 / C::KEYS) : 0;
      place.set_heads((int)p.group.divisor);
#pragma unroll 1
      do {  // one loop over heads and tiles copies the keys in one place, also keys that no query sees
        if (C::LAST_FIRST ? n >= t.first : n < end_of<C>(p, t)) {
          const int m = C::CYCLIC ? around(p, n + start) : n;
          barrier_wait(barriers.q_empty(place.stage()), place.parity());
          copy_rows(C::Q, C::SHIFT, q, p.shift, barriers.q_full(place.stage()), place.stage(), m, head, t.batch);
          barrier_wait(barriers.dout_empty(place.stage()), place.parity());
          copy_rows(C::DOUT, C::DELTA, dout, p.delta, barriers.dout_full(place.stage()), place.stage(), m, head, t.batch);
          place.next();
        }
        if (due >= 0) copy_kv(due, place.k_parity());
        due = (int)opaque(~0u);
        if (C::LAST_FIRST ? --n < t.first : ++n >= end_of<C>(p, t)) {
          n = C::LAST_FIRST ? end_of<C>(p, t) - 1 : t.first, head++;
          place.next_head();
        }
      } while (place.has_heads());
      place.next_keys();
    }
    barrier_wait(barriers.k_empty(), place.k_parity());
    *present = -1;
    barrier_arrive(barriers.k_full());
    leave();
  }
};

template <class C>
struct BackwardConsumer {
  typedef typename C::T T;
  const BackwardParams& p;
  BackwardBarriers<C> barriers;
  u32 memory, sum_to;  // sum_to: where `share_of` is left for the warp that adds dQ
  int warpgroup;
  float dk[C::D / 2], dv[C::D / 2];
  u32 v[C::V_STEPS ? 4 * C::V_STEPS : 1];

  // These are computed again where they are needed, so that they take no registers in the loop.
  __device__ __forceinline__ int lane() const { return thread_again() & 31; }
  __device__ __forceinline__ int warp() const { return thread_again() >> 5 & 3; }

  __device__ __forceinline__ void release(u32 empty) const {
    sync_warp();  // since the other lanes' loads of the rows' numbers
    if (lane() == 0) barrier_arrive(empty);
  }

  // Starts x y^T for this warpgroup's 64 rows of x (K or V) and all queries of y (Q or dO); it is added to c if `accumulate` is
  // not 0. HELD: so many steps of 16 columns of V are in registers.
  template <int HELD>
  __device__ __forceinline__ void start_turned(float (&c)[C::QUERIES / 2], u32 x, u32 y, int accumulate) const {
    const u32 a = matrix(memory + x + warpgroup * C::WARPGROUP_KEYS * C::CHUNK_ROW_BYTES, 16), b = matrix(memory + y, 16);
    warpgroup_fence();
#pragma unroll
    for (int step = HELD; step < C::D / 16; step++) {
      const u32 chunk = step / 4, within = step % 4 * 32 / C::UNITS;
      wgmma_shared<T, C::QUERIES>(c, descriptor(a + chunk * (C::K_CHUNK_BYTES / C::UNITS) + within),
                                  descriptor(b + chunk * (C::Q_CHUNK_BYTES / C::UNITS) + within), accumulate | (step > HELD));
    }
    if constexpr (HELD > 0) {
#pragma unroll
      for (int step = 0; step < HELD; step++)
        wgmma_across<T, C::QUERIES>(c, v + 4 * step, descriptor(b + step / 4 * (C::Q_CHUNK_BYTES / C::UNITS) + step % 4 * 32 / C::UNITS));
    }
    warpgroup_commit();
  }
  // Loads the first columns of this warpgroup's rows of V.
  __device__ __forceinline__ void load_v() {
    const int own_lane = lane(), row = warpgroup * C::WARPGROUP_KEYS + warp() * 16 + (own_lane & 15);
    const u32 at = memory + C::V + row * C::CHUNK_ROW_BYTES;
#pragma unroll
    for (int step = 0; step < C::V_STEPS; step++) {
      u32 x[4];
      load_matrices(x, at + step / 4 * C::K_CHUNK_BYTES + (((step % 4 * 2 + (own_lane >> 4)) ^ (row & 7)) << 4));
#pragma unroll
      for (int i = 0; i < 4; i++) v[4 * step + i] = x[i];
    }
  }
  // Loads the numbers (SHIFT or DELTA) of the four of the i-th 16 queries whose columns this lane holds.
  __device__ __forceinline__ void load_four(float (&x)[4], u32 numbers, int stage, int i) const {
    const Chunk c = load_shared(memory + numbers + stage * C::STAT_BYTES + (lane() & 3) * 16 + i * 64);
    x[0] = __int_as_float((int)c.x), x[1] = __int_as_float((int)c.y), x[2] = __int_as_float((int)c.z), x[3] = __int_as_float((int)c.w);
  }
  // Starts out += x y, for x in registers. The rows of y are the queries.
  __device__ __forceinline__ void start_along(float (&out)[C::D / 2], const u32 (&x)[C::QUERIES / 4], u32 y) const {
    const u32 b = matrix(memory + y, C::Q_CHUNK_BYTES);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::QUERIES / 16; step++)
      wgmma_registers<T, C::D>(out, x + 4 * step, descriptor(b + step * (16 * C::CHUNK_ROW_BYTES / C::UNITS)), 1);
    warpgroup_commit();
  }
  // Starts this warpgroup's share of dQ = dS K: half of the queries or half of the columns.
  __device__ __forceinline__ void start_dq(float (&dq)[32], u32 slope) const {
    const bool by_queries = C::QUERIES == 128;
    const u32 a = matrix(memory + slope + (by_queries ? warpgroup * C::SLOPE_CHUNK_BYTES : 0), 16);
    const u32 b = matrix(memory + C::K + (by_queries ? 0 : warpgroup * C::K_CHUNK_BYTES), 16);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::KEYS / 16; step++) {
      const u32 rows = step * (16 * C::CHUNK_ROW_BYTES / C::UNITS);
      wgmma_turned<T, 64>(dq, descriptor(a + rows), descriptor(b + rows), step > 0);
    }
    warpgroup_commit();
  }

  // Sets scores that a query does not see to -inf.
  __device__ __forceinline__ void mask(float (&s)[C::QUERIES / 2], int key0, int query0) const {
    const int own_lane = lane(), own_warp = warp();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = key0 + warpgroup * C::WARPGROUP_KEYS + own_warp * 16 + (own_lane >> 2) + 8 * r;
      int begin = C::CAUSAL ? key - p.above - query0 - 2 * (own_lane & 3) : 0;
      if (key >= p.seq_k) begin = C::QUERIES;
#pragma unroll
      for (int i = 0; i < C::QUERIES / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + e < begin) s[4 * i + 2 * r + e] = MINUS_INFINITY;
    }
  }
  // Sets scores of keys before a query's window to -inf.
  __device__ __forceinline__ void limit(float (&s)[C::QUERIES / 2], int key0, int query0) const {
    const int own_lane = lane(), own_warp = warp();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = key0 + warpgroup * C::WARPGROUP_KEYS + own_warp * 16 + (own_lane >> 2) + 8 * r;
      const int last = key - p.below - query0 - 2 * (own_lane & 3);
#pragma unroll
      for (int i = 0; i < C::QUERIES / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + e > last) s[4 * i + 2 * r + e] = MINUS_INFINITY;
    }
  }

  // Turns the scores of the i-th 16 queries into weights.
  __device__ __forceinline__ void weigh(float (&s)[C::QUERIES / 2], int i, const float (&shift)[4]) const {
#pragma unroll
    for (int x = 0; x < 8; x++) {
      float& weight = s[8 * i + x];
      weight = exp2_approx(fused(weight, p.scale_log2, -shift[x / 4 * 2 + x % 2]));
    }
  }
  // The barrier at which one warpgroup waits for the other's dS.
  __device__ __forceinline__ int slope_ready(int stage, int waiting) const { return C::SLOPE_READY + C::WARPGROUPS * stage + waiting; }
  // Stores this warpgroup's share of dQ where it is added from.
  __device__ __forceinline__ void store_share(const float (&dq)[32], int stage, u64 share) const {
    named_sync(C::SUM_EMPTY + (C::ORDERED ? C::WARPGROUPS * stage : 0) + warpgroup, C::SUM_THREADS);
    const u32 sum = memory + C::SUM + warpgroup * C::SUM_PART_BYTES + (thread_again() & 127) * 16;
#pragma unroll
    for (int i = 0; i < 8; i++)
      store_shared(sum + i * C::WARPGROUP_THREADS * 16,
                   Chunk{(u32)__float_as_int(dq[4 * i]), (u32)__float_as_int(dq[4 * i + 1]), (u32)__float_as_int(dq[4 * i + 2]),
                         (u32)__float_as_int(dq[4 * i + 3])});
    if constexpr (C::ORDERED) {
      if (thread_again() == C::WARPGROUP_THREADS) store_shared_address(sum_to + 8 * stage, share);
    } else {
      if ((thread_again() & 127) == 0) store_shared_address(sum_to, share);
    }
  }
  __device__ __forceinline__ void hand_over(int stage) const {
    publish_shared();
    if constexpr (C::ORDERED)
      named_arrive(C::SUM_FULL + stage, C::TILE_THREADS);
    else
      named_arrive(C::SUM_FULL + warpgroup, C::SUM_THREADS);
  }

  // Computes a tile, and dQ of the tile before: so the tensor cores have work while exponentials are computed, and the other
  // warpgroup has had time to store its dS. FIRST: there is no tile before. `share` is the number of this tile's share of dQ,
  // and `before` that of the tile before. `last`: no other tile follows.
  template <bool FIRST>
  __device__ __forceinline__ void step(int key0, int n, bool last, bool masked, bool limited, int share, int& before,
                                       BackwardPlace& place) {
    float s[C::QUERIES / 2], d[C::QUERIES / 2], dq[32], shift[C::EARLY][4], delta[C::QUERIES / 16][4];
    const int stage = place.stage();
    if constexpr (FIRST) barrier_wait(barriers.q_full(stage), place.parity());
    start_turned<0>(s, C::K, C::Q + stage * C::Q_BYTES, 0);
    if constexpr (!FIRST) {
      named_sync(slope_ready(stage ^ 1, warpgroup), C::PAIR_THREADS);
      start_dq(dq, C::SLOPE + (stage ^ 1) * C::SLOPE_BYTES);
    }
#pragma unroll
    for (int i = 0; i < C::EARLY; i++) load_four(shift[i], C::SHIFT, stage, i);
    warpgroup_wait<FIRST ? 0 : 1>();
    settled(s);
    if (masked) mask(s, key0, n * C::QUERIES);
    if constexpr (C::WINDOW)
      if (limited) limit(s, key0, n * C::QUERIES);
    if (p.scale_log2 > 0.0f) {  // which it always is: without a branch, ptxas moves the exponentials after the wait for dQ
#pragma unroll
      for (int i = 0; i < C::EARLY; i++) weigh(s, i, shift[i]);
    }
    barrier_wait(barriers.dout_full(stage), place.parity());
#pragma unroll
    for (int i = 0; i < C::QUERIES / 16; i++) load_four(delta[i], C::DELTA, stage, i);
    if constexpr (!FIRST) {
      warpgroup_wait<0>();
      settled(dq);
      store_share(dq, stage ^ 1, share_of(key0 / C::KEYS, before, false));
      if constexpr (!C::LATE_HAND_OVER) hand_over(stage ^ 1);
    }
    before = share;
#pragma unroll
    for (int i = 0; i < C::QUERIES / 16; i++)
#pragma unroll
      for (int x = 0; x < 8; x++) d[8 * i + x] = -delta[i][x / 4 * 2 + x % 2];
    settled(d);  // keeps each number in a separate register; while no product is in flight, or ptxas would wait for its end
    start_turned<C::V_STEPS>(d, C::V, C::DOUT + stage * C::Q_BYTES, 1);
    if constexpr (!FIRST && C::LATE_HAND_OVER) hand_over(stage ^ 1);
#pragma unroll
    for (int i = C::EARLY; i < C::QUERIES / 16; i++) {
      float late_shift[4];
      load_four(late_shift, C::SHIFT, stage, i);
      weigh(s, i, late_shift);
    }
    u32 weights[C::QUERIES / 4], slopes[C::QUERIES / 4];
    warpgroup_wait<0>();
    settled(d);
    if (last) release(barriers.v_empty());
    const int again = lane(), row = warpgroup * C::WARPGROUP_KEYS + warp() * 16 + (again & 15);
    const u32 row_at = memory + C::SLOPE + stage * C::SLOPE_BYTES + row * C::CHUNK_ROW_BYTES;
#pragma unroll
    for (int i = 0; i < C::QUERIES / 16; i++) {
#pragma unroll
      for (int x = 0; x < 8; x += 2) {
        const int at = 8 * i + x;
        slopes[at / 2] = pack<T>(s[at] * d[at], s[at + 1] * d[at + 1]);
        weights[at / 2] = pack<T>(s[at], s[at + 1]);
      }
      store_matrices(row_at + i / 4 * C::SLOPE_CHUNK_BYTES + (((i % 4 * 2 + (again >> 4)) ^ (row & 7)) << 4), slopes[4 * i],
                     slopes[4 * i + 1], slopes[4 * i + 2], slopes[4 * i + 3]);
    }
    start_along(dv, weights, C::DOUT + stage * C::Q_BYTES);
    start_along(dk, slopes, C::Q + stage * C::Q_BYTES);
    publish_shared();
    named_arrive(slope_ready(stage, warpgroup ^ 1), C::PAIR_THREADS);
    warpgroup_wait<1>();
    settled(dv);
    release(barriers.dout_empty(stage));
    place.next();
    if (!last) barrier_wait(barriers.q_full(place.stage()), place.parity());
    warpgroup_wait<0>();
    settled(dk);
    release(barriers.q_empty(stage));
  }
  // Computes dQ of the last tile of these keys.
  __device__ __forceinline__ void finish(int key0, int before, const BackwardPlace& place) const {
    const int stage = place.stage() ^ 1;
    float dq[32];
    named_sync(slope_ready(stage, warpgroup), C::PAIR_THREADS);
    start_dq(dq, C::SLOPE + stage * C::SLOPE_BYTES);
    warpgroup_wait<0>();
    settled(dq);
    release(barriers.k_empty());
    store_share(dq, stage, share_of(key0 / C::KEYS, before, true));
    hand_over(stage);
  }

  // A quad of lanes holds 32 columns of a row in pieces of two columns. After a 4x4 transpose each lane has eight neighbouring
  // columns.
  __device__ __forceinline__ Chunk gathered(int lane, u32 a, u32 b, u32 c, u32 d) const {
    const bool odd = lane & 1, high = lane & 2;
    u32 other = shuffle_xor(odd ? a : b, 1);
    if (odd) a = other; else b = other;
    other = shuffle_xor(odd ? c : d, 1);
    if (odd) c = other; else d = other;
    other = shuffle_xor(high ? a : c, 2);
    if (high) a = other; else c = other;
    other = shuffle_xor(high ? b : d, 2);
    if (high) b = other; else d = other;
    return Chunk{a, b, c, d};
  }
  __device__ __forceinline__ void write(char* base, const Strides& at, const BackwardTile& t, float (&c)[C::D / 2], float factor) const {
    const int own_lane = lane(), own_warp = warp();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = t.key0 + warpgroup * C::WARPGROUP_KEYS + own_warp * 16 + (own_lane >> 2) + 8 * r;
      char* to = base + t.batch * at.batch + head_of_keys<C>(p, t.kv_head) * at.head + row * at.row + (own_lane & 3) * 16;
#pragma unroll
      for (int i = 0; i < C::D / 32; i++) {
        u32 pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++) pair[j] = pack<T>(c[16 * i + 4 * j + 2 * r] * factor, c[16 * i + 4 * j + 2 * r + 1] * factor);
        const Chunk chunk = gathered(own_lane, pair[0], pair[1], pair[2], pair[3]);
        if (row < p.seq_k && 32 * i + 8 * (own_lane & 3) < p.head_dim) store_global(to + 64 * i, chunk);
      }
    }
  }

  // Returns where a part leaves this thread's sums of dK for a tile of keys; those of dV are half of PART_BYTES further.
  __device__ __forceinline__ char* sums_of_part(int head, int tile) const {
    const i64 place = (i64)(head * (int)p.tiles.divisor + tile) * C::PART_BYTES;
    return parts_of(p) + place + (thread_again() - C::WARPGROUP_THREADS) * 16;
  }
  // `factor` is never a constant: stored from the registers in which products are added, four in a row, sums are spilled.
  __device__ __forceinline__ void leave_sums(char* to, const float (&c)[C::D / 2], float factor) const {
#pragma unroll
    for (int i = 0; i < C::D / 8; i++)
      store_global(to + i * C::PIECE_BYTES,
                   Chunk{(u32)__float_as_int(c[4 * i] * factor), (u32)__float_as_int(c[4 * i + 1] * factor),
                         (u32)__float_as_int(c[4 * i + 2] * factor), (u32)__float_as_int(c[4 * i + 3] * factor)});
  }
  // Leaves this warp's sums beside those of the same warp of the other parts. Returns whether all parts have done so.
  __device__ __forceinline__ bool leave_part(int head, int tile) const {
    char* const to = sums_of_part(head, tile);
    leave_sums(to, dk, p.scale);
    leave_sums(to + C::PART_BYTES / 2, dv, __int_as_float((int)opaque(0x3f800000u)));
    __threadfence();
    sync_warp();
    int before = 0;
    if (lane() == 0) {
      const int warp_of_all = (thread_again() - C::WARPGROUP_THREADS) / 32;
      const int tile_of_all = head_of_keys<C>(p, head) * (int)p.tiles.divisor + tile;
      before = atomicAdd(arrivals_of(p) + tile_of_all * C::READERS + warp_of_all, 1);
      __threadfence();
    }
    before = uniform(before);
    sync_warp();
    return before + 1 == 1 << p.part_bits;
  }
  // Adds the sums of all parts, its own too, so that the order is the same whichever is the last, and writes the rows.
  __device__ __forceinline__ void write_parts(char* base, const Strides& at, const BackwardTile& t, const char* from) const {
    float c[C::D / 2];
#pragma unroll
    for (int i = 0; i < C::D / 2; i++) c[i] = 0.0f;
#pragma unroll 1
    for (int part = 0; part < 1 << p.part_bits; part++) {
#pragma unroll
      for (int i = 0; i < C::D / 8; i++) {
        const Chunk x = *(const Chunk*)(from + i * C::PIECE_BYTES);
        c[4 * i] += __int_as_float((int)x.x), c[4 * i + 1] += __int_as_float((int)x.y);
        c[4 * i + 2] += __int_as_float((int)x.z), c[4 * i + 3] += __int_as_float((int)x.w);
      }
      from += (i64)(int)p.tiles.divisor * C::PART_BYTES;
    }
    write(base, at, t, c, 1.0f);
  }

  // Returns the present tile of work. It is read again, because registers are full. Only the lane that later releases K reads
  // it.
  __device__ __forceinline__ int work(const volatile int* present) const { return uniform(lane() == 0 ? *present : 0); }

  __device__ __forceinline__ void run(const volatile int* present) {
    BackwardPlace place = {0};
    for (;; place.next_keys()) {
      barrier_wait(barriers.k_full(), place.k_parity());
      if (work(present) < 0) break;
      barrier_wait(barriers.v_full(), place.k_parity());
#pragma unroll
      for (int i = 0; i < C::D / 2; i++) dk[i] = dv[i] = 0.0f;
      int before = -1;  // the share whose dQ is still to be computed
#pragma unroll 1
      for (place.set_heads((int)p.group.divisor); place.has_heads(); place.next_head()) {
        BackwardTile t;
        backward_tile_of<C>(p, work(present), t);
        if (t.first < end_of<C>(p, t)) load_v();
        const int kv_head = t.batch * (int)p.kv_heads.divisor + t.kv_head;
        const int head_share = ((kv_head + 1) * (int)p.group.divisor - (int)(place.word >> 3)) * p.query_tiles;
        for (int i = t.first; i < end_of<C>(p, t); i++) {
          const int n = C::LAST_FIRST ? end_of<C>(p, t) - 1 - i + t.first : i;
          const bool last = i + 1 == end_of<C>(p, t) && place.is_last_head(), limited = C::WINDOW && n >= t.limited;
          if (before < 0)
            step<true>(t.key0, n, last, n < t.masked, limited, head_share + n, before, place);
          else
            step<false>(t.key0, n, last, n < t.masked, limited, head_share + n, before, place);
        }
      }
      BackwardTile t;
      backward_tile_of<C>(p, work(present), t);
      if (t.first >= end_of<C>(p, t)) {  // no query sees these keys
        release(barriers.v_empty());
        release(barriers.k_empty());
      } else {
        finish(t.key0, before, place);
      }
      if constexpr (C::PARTS) {
        const int head = t.batch * (int)p.kv_heads.divisor + t.kv_head, tile = t.key0 / C::KEYS;
        if (!leave_part(head, tile)) continue;
        const char* from = sums_of_part(head_of_keys<C>(p, head) << p.part_bits, tile);
        write_parts(p.dk, p.at_dk, t, from);
        write_parts(p.dv, p.at_dv, t, from + C::PART_BYTES / 2);
      } else {
        write(p.dv, p.at_dv, t, dv, 1.0f);
        write(p.dk, p.at_dk, t, dk, p.scale);
      }
    }
    if constexpr (C::ORDERED) {
      named_sync(C::SUM_EMPTY + C::WARPGROUPS * place.stage() + warpgroup, C::SUM_THREADS);
      for (int stage = 0; stage < C::STAGES; stage++) {
        if (thread_again() == C::WARPGROUP_THREADS) store_shared_address(sum_to + 8 * stage, 0);
        named_arrive(C::SUM_FULL + stage, C::TILE_THREADS);
      }
    } else {
      named_sync(C::SUM_EMPTY + warpgroup, C::SUM_THREADS);
      if ((thread_again() & 127) == 0) store_shared_address(sum_to, 0);
      named_arrive(C::SUM_FULL + warpgroup, C::SUM_THREADS);
    }
  }
};

// A warp that adds one warpgroup's shares of dQ to the sums. At each of the two barriers one side only arrives, and the side
// that waits sees what the other wrote before. BACKWARD.md explains why racecheck still reports hazards. If CLAIMS, whoever is the
// first to add to a sum stores its share instead, and nobody has to clear the sums; except where some queries see no keys.
// Whoever has added all shares of its keys counts them as finished.
template <class C>
DEVICE void backward_adder(const BackwardParams& p, u32 memory, u32 sum_to, int warpgroup, int lane) {
  const u32 from = memory + C::SUM + warpgroup * C::SUM_PART_BYTES;
  const bool claims = C::CLAIMS && p.above >= 0 && (!C::WINDOW || p.seq_q + p.below <= p.seq_k);
  int* const states = turns_of(p);
  int ahead = 0, seen_ahead = C::NOT_STORED;  // the share that is expected next, and its state: so it is known when it is needed
  named_arrive(C::SUM_EMPTY + warpgroup, C::SUM_THREADS);
  for (;;) {
    named_sync(C::SUM_FULL + warpgroup, C::SUM_THREADS);
    const u64 told = load_shared_address(sum_to);
    if (told == 0) break;
    const int tile = tile_of_share(told), share = tile * C::WARPGROUPS + warpgroup;
    const u64 to = (u64)p.sums + (u64)(u32)share * C::SUM_PART_BYTES;
    int state = C::STORED;
    if (lane == 0) {
      if (claims) state = share == ahead && seen_ahead == C::STORED ? C::STORED : claim(states + share);
      if (state == C::BEING_STORED) await_turn(states + share, C::STORED);
      if (state == C::NOT_STORED)
        store_floats(to, from, C::SUM_PART_BYTES);
      else
        add_floats(to, from, C::SUM_PART_BYTES);
      additions_commit();
      additions_have_read();
    }
    sync_warp();
    named_arrive(C::SUM_EMPTY + warpgroup, C::SUM_THREADS);
    if constexpr (C::CLAIMS) {
      if (claims && lane == 0) {
        if (state == C::NOT_STORED) {
          additions_done();
          give_turn(states + share, C::STORED);
        }
        ahead = min(share + C::WARPGROUPS, p.all_heads * p.query_tiles * C::WARPGROUPS - 1);
        seen_ahead = look_at(states + ahead);
      }
      sync_warp();
    }
    if (is_last_share(told)) {
      if (lane == 0) {
        additions_done();
        count_up(finished_of(p) + divide(tile / p.query_tiles, p.group) * (int)p.tiles.divisor + keys_of_share(told));
      }
      sync_warp();
    }
  }
}

// Grid: at most p.items blocks, and at most one block per SM.
template <class C>
DEVICE void backward_hopper(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& dout, const BackwardParams& p) {
  SHARED_MEMORY(bytes);
  __shared__ __align__(8) u64 barrier_words[C::BARRIERS];
  __shared__ __align__(8) u64 sum_to[C::WARPGROUPS];
  __shared__ int present;
  const u32 memory = shared_address(bytes);
  const BackwardBarriers<C> barriers = {shared_address(barrier_words)};
  const int thread = (int)threadIdx.x, warpgroup = uniform(thread / C::WARPGROUP_THREADS), lane = thread & 31;
  if (thread == 0) barriers.init();
  wait_for_previous();
  let_next_start();
  sync_block();
  if (warpgroup == 0) {
    fewer_registers<C::MOVER_REGISTERS>();
    const int warp = uniform(thread / 32);
    if (thread == 0) {
      prefetch_map(k);
      prefetch_map(q);
      prefetch_map(v);
      prefetch_map(dout);
      const BackwardProducer<C> producer = {p, q, k, v, dout, barriers, memory, &present};
      producer.run();
    } else if (warp == 1 || warp == 2) {
      if constexpr (C::ORDERED)
        backward_ordered_adder<C>(p, memory, shared_address(sum_to), warp - 1, lane);
      else
        backward_adder<C>(p, memory, shared_address(sum_to + warp - 1), warp - 1, lane);
    }
  } else {
    more_registers<C::CONSUMER_REGISTERS>();
    BackwardConsumer<C> consumer = {p, barriers, memory, shared_address(sum_to + warpgroup - 1), warpgroup - 1};
    consumer.run(&present);
  }
}
