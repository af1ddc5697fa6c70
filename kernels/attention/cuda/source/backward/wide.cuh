// The backward pass for Hopper and head dimensions over 128: as hopper.cuh, with the keys of a tile shared by two blocks.
//
// A block has registers for dK and dV of 64 keys of 256 columns, and no more. With so few keys, though, dQ would be added up in
// memory twice as often as with 128. So two blocks of a cluster keep 64 keys each and process the same tiles of queries; each
// copies its dS into the other's shared memory, and each computes half of the columns of dQ over all 128 keys.
//
// In a block, one warpgroup computes S, the weights P and dV, the other dP, dS and dK. Accumulators have keys as rows, as in
// hopper.cuh. Both warpgroups hold the same elements of S and dP in the same lanes, so P goes from one to the other in float32,
// 16 bytes a lane side by side. A tile's dQ is computed a tile later, when the other block's dS is sure to have come.
#pragma once
#include "backward/ampere_sums.cuh"
#include "backward/cluster.cuh"
#include "backward/hopper.cuh"

// The address of a matrix in shared memory for products, whose descriptors have room for 18 bits of it. In a cluster, the bits
// above them say which block's memory it is.
DEVICE u32 matrix_of_block(u32 address, u32 chunk_bytes) { return matrix(address & 0x3ffff, chunk_bytes); }

// D and DV: the padded widths of Q and K, and of V and dO.
template <class T_, int D_, int DV_>
struct BackwardWide {
  typedef T_ T;
  static constexpr int D = D_, DV = DV_, QUERIES = 64, KEYS = 128, OWN_KEYS = 64;  // of a tile, of a cluster, of a block
  static constexpr bool CAUSAL = true, WINDOW = false;  // `above` may be so large that no query is limited
  static constexpr int WARPGROUP_THREADS = 128, PAIR_THREADS = 256, SENDER_THREADS = WARPGROUP_THREADS + 32, READERS = 8;
  static constexpr int CHUNK_COLUMNS = 64, CHUNK_ROW_BYTES = 128, CHUNK_BYTES = 64 * CHUNK_ROW_BYTES, UNITS = 16;
  static constexpr int CHUNKS = D / CHUNK_COLUMNS, V_CHUNKS = DV / CHUNK_COLUMNS, SUM_CHUNKS = 2;  // of dQ, for a block
  static constexpr int Q_BYTES = CHUNKS * CHUNK_BYTES, V_BYTES = V_CHUNKS * CHUNK_BYTES, P_BYTES = 64 * 64 * 4;
  static constexpr int STAGES = 2, SLOPES = 2, SLOPE_BYTES = 2 * CHUNK_BYTES, STAT_BYTES = QUERIES * 4;  // dS: own keys, the other's
  static constexpr int DOUT_STAGES = D + DV > 384 ? 1 : 2;
  // Offsets in shared memory. OTHER: the columns of the other block's K that this block needs for its columns of dQ.
  static constexpr int K = 0, OTHER = K + Q_BYTES, V = OTHER + SUM_CHUNKS * CHUNK_BYTES, Q = V + V_BYTES, DOUT = Q + STAGES * Q_BYTES;
  static constexpr int SLOPE = DOUT + DOUT_STAGES * V_BYTES, P = SLOPE + SLOPES * SLOPE_BYTES, SHIFT = P + P_BYTES;
  static constexpr int DELTA = SHIFT + STAGES * STAT_BYTES, WAITS = DELTA + STAGES * STAT_BYTES, BARRIERS = 15;
  static constexpr int BYTES = WAITS + BARRIERS * 8;
  static constexpr int P_FULL = 1, P_EMPTY = 2, SLOPE_STORED = 3;  // named barriers; of the last there is one for each place
  static constexpr int MOVER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
};

template <class C>
struct WideBarriers {
  u32 base;
  __device__ __forceinline__ u32 k_full() const { return base; }
  __device__ __forceinline__ u32 v_full() const { return base + 8; }
  __device__ __forceinline__ u32 other_full() const { return base + 16; }
  __device__ __forceinline__ u32 q_full(int stage) const { return base + 24 + 8 * stage; }
  __device__ __forceinline__ u32 q_empty(int stage) const { return base + 40 + 8 * stage; }
  __device__ __forceinline__ u32 dout_full(int stage) const { return base + 56 + 8 * stage; }
  __device__ __forceinline__ u32 dout_empty(int stage) const { return base + 72 + 8 * stage; }
  __device__ __forceinline__ u32 slope_full(int place) const { return base + 88 + 8 * place; }    // of both blocks' keys
  __device__ __forceinline__ u32 slope_free(int place) const { return base + 104 + 8 * place; }  // in the other block
  __device__ __forceinline__ void init() const {
    barrier_init(k_full(), 1);
    barrier_init(v_full(), 1);
    barrier_init(other_full(), 1);
    for (int i = 0; i < 2; i++) {
      barrier_init(q_full(i), 1);
      barrier_init(q_empty(i), C::READERS);
      barrier_init(dout_full(i), 1);
      barrier_init(dout_empty(i), C::READERS);
      barrier_init(slope_full(i), 1);
      barrier_init(slope_free(i), C::READERS);
    }
    barrier_init_done();
  }
};

// The number of a tile of queries among those of a block, over all heads of its group: with it go its place in rings, and the
// parities of their phases.
template <class C>
struct WideCount {
  int n;
  __device__ __forceinline__ int stage() const { return n & 1; }
  __device__ __forceinline__ u32 parity() const { return n >> 1 & 1; }
  __device__ __forceinline__ int dout_stage() const { return C::DOUT_STAGES == 1 ? 0 : n & 1; }
  __device__ __forceinline__ u32 dout_parity() const { return C::DOUT_STAGES == 1 ? n & 1 : n >> 1 & 1; }
};

DEVICE int tiles_of_block(const BackwardParams& p, const BackwardTile& t) {
  return (int)p.group.divisor * max(p.query_tiles - t.first, 0);
}

// The thread that starts all copies from global memory.
template <class C>
struct WideProducer {
  const BackwardParams& p;
  const TensorMap &q, &k, &v, &dout;
  WideBarriers<C> barriers;
  u32 memory;

  __device__ __forceinline__ void copy(u32 to, const TensorMap& map, u32 full, int first, int chunks, int row, int head, int batch) const {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++)
      copy_box(memory + to + chunk * C::CHUNK_BYTES, map, full, (first + chunk) * C::CHUNK_COLUMNS, row, head, batch);
  }
  __device__ __forceinline__ void copy_kept(const BackwardTile& t) const {
    const int rank = rank_in_cluster(), own = t.key0 + rank * C::OWN_KEYS, others = t.key0 + (rank ^ 1) * C::OWN_KEYS;
    const int first = rank * C::SUM_CHUNKS, chunks = min(C::SUM_CHUNKS, C::CHUNKS - first);
    barrier_arrive_expecting(barriers.k_full(), C::Q_BYTES);
    copy(C::K, k, barriers.k_full(), 0, C::CHUNKS, own, t.kv_head, t.batch);
    barrier_arrive_expecting(barriers.v_full(), C::V_BYTES);
    copy(C::V, v, barriers.v_full(), 0, C::V_CHUNKS, own, t.kv_head, t.batch);
    barrier_arrive_expecting(barriers.other_full(), chunks * C::CHUNK_BYTES);
    copy(C::OTHER, k, barriers.other_full(), first, chunks, others, t.kv_head, t.batch);
  }
  __device__ __forceinline__ void run(const BackwardTile& t) const {
    WideCount<C> count = {0};
    const int first_head = t.kv_head * (int)p.group.divisor;
    copy_kept(t);
#pragma unroll 1
    for (int head = first_head; head < first_head + (int)p.group.divisor; head++)
#pragma unroll 1
      for (int n = t.first; n < p.query_tiles; n++, count.n++) {
        const int stage = count.stage(), dout_stage = count.dout_stage();
        const int row = (t.batch * (int)p.heads.divisor + head) * (int)p.stat_rows.divisor + n * C::QUERIES;
        barrier_wait(barriers.q_empty(stage), count.parity() ^ 1);  // the phases before the first count as ended
        barrier_arrive_expecting(barriers.q_full(stage), C::Q_BYTES + C::STAT_BYTES);
        copy(C::Q + stage * C::Q_BYTES, q, barriers.q_full(stage), 0, C::CHUNKS, n * C::QUERIES, head, t.batch);
        copy_bytes(memory + C::SHIFT + stage * C::STAT_BYTES, p.shift + row, C::STAT_BYTES, barriers.q_full(stage));
        barrier_wait(barriers.dout_empty(dout_stage), count.dout_parity() ^ 1);
        barrier_arrive_expecting(barriers.dout_full(dout_stage), C::V_BYTES + C::STAT_BYTES);
        copy(C::DOUT + dout_stage * C::V_BYTES, dout, barriers.dout_full(dout_stage), 0, C::V_CHUNKS, n * C::QUERIES, head, t.batch);
        copy_bytes(memory + C::DELTA + dout_stage * C::STAT_BYTES, p.delta + row, C::STAT_BYTES, barriers.dout_full(dout_stage));
      }
  }
};

// A warp that sends each tile's dS to the other block. It ends when the other has told that it has read them all, because the two
// blocks' last meeting orders nothing, and no message may come to a block that has ended.
template <class C>
DEVICE void send_slopes(WideBarriers<C> barriers, u32 memory, int tiles, int lane) {
#pragma unroll 1
  for (WideCount<C> count = {0}; count.n < tiles + 2; count.n++) {
    const int place = count.stage();
    barrier_wait(barriers.slope_free(place), count.parity() ^ 1);
    if (count.n >= tiles) continue;
    named_sync(C::SLOPE_STORED + place, C::SENDER_THREADS);
    if (lane == 0) {
      const u32 own = memory + C::SLOPE + place * C::SLOPE_BYTES;
      barrier_arrive_expecting(barriers.slope_full(place), C::CHUNK_BYTES);  // the other block's
      copy_to_peer(own + C::CHUNK_BYTES, own, C::CHUNK_BYTES, barriers.slope_full(place));
    }
    sync_warp();
  }
}

// A warpgroup that multiplies. SCORES: it computes S, P and dV; else dP, dS and dK. WIDTH: of what it sums.
template <class C, bool SCORES>
struct WideConsumer {
  typedef typename C::T T;
  static constexpr int WIDTH = SCORES ? C::DV : C::D;
  const BackwardParams& p;
  WideBarriers<C> barriers;
  u32 memory;
  float sum[WIDTH / 2];

  __device__ __forceinline__ int lane() const { return thread_again() & 31; }
  __device__ __forceinline__ int warp() const { return thread_again() >> 5 & 3; }
  __device__ __forceinline__ void release(u32 empty) const {
    sync_warp();
    if (lane() == 0) barrier_arrive(empty);
  }
  // Starts c += x y^T for the block's keys and a tile's queries: K Q^T, or V dO^T.
  template <int COLUMNS>
  __device__ __forceinline__ void start_turned(float (&c)[32], u32 x, u32 y, int accumulate) const {
    const u32 a = matrix_of_block(opaque(memory + x), 16), b = matrix_of_block(opaque(memory + y), 16);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < COLUMNS / 16; step++) {
      const u32 at = step / 4 * (C::CHUNK_BYTES / C::UNITS) + step % 4 * 32 / C::UNITS;
      wgmma_shared<T, C::QUERIES>(c, descriptor(a + at), descriptor(b + at), accumulate | (step > 0));
    }
    warpgroup_commit();
  }
  // Starts sum += x y, for x in registers. The rows of y are the queries.
  __device__ __forceinline__ void start_along(const u32 (&x)[C::QUERIES / 4], u32 y) {
    const u32 b = matrix_of_block(opaque(memory + y), C::CHUNK_BYTES);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::QUERIES / 16; step++)
      wgmma_registers<T, WIDTH>(sum, x + 4 * step, descriptor(b + step * (16 * C::CHUNK_ROW_BYTES / C::UNITS)), 1);
    warpgroup_commit();
  }
  // The 64 columns of dQ that this warpgroup computes. Where there are fewer than the cluster has warpgroups, the last repeats
  // those of another, and does not add them.
  __device__ __forceinline__ int sum_chunk() const { return rank_in_cluster() * C::SUM_CHUNKS + !SCORES; }
  __device__ __forceinline__ void start_dq(float (&dq)[32], WideCount<C> of) const {
    barrier_wait(barriers.slope_full(of.stage()), of.parity());
    const int place = of.stage();
    const int chunk = min(sum_chunk(), C::CHUNKS - 1), others = chunk - rank_in_cluster() * C::SUM_CHUNKS;
    warpgroup_fence();
#pragma unroll
    for (int of_other = 0; of_other < 2; of_other++) {
      const u32 a = matrix_of_block(opaque(memory + C::SLOPE) + place * C::SLOPE_BYTES + of_other * C::CHUNK_BYTES, 16);
      const u32 b = matrix_of_block(opaque(memory) + (of_other ? C::OTHER + others * C::CHUNK_BYTES : C::K + chunk * C::CHUNK_BYTES), 16);
#pragma unroll
      for (int step = 0; step < C::OWN_KEYS / 16; step++) {
        const u32 rows = step * (16 * C::CHUNK_ROW_BYTES / C::UNITS);
        wgmma_turned<T, 64>(dq, descriptor(a + rows), descriptor(b + rows), of_other + step > 0);
      }
    }
    warpgroup_commit();
  }
  // Adds this warpgroup's columns of dQ to the sums, in the order in which AmpereSums reads them, and gives dS' place back.
  __device__ __forceinline__ void add_dq(float (&dq)[32], int tile, int place) const {
    settled(dq);
    sync_warp();
    if (lane() == 0) barrier_arrive_in_peer(barriers.slope_free(place));
    if (sum_chunk() >= C::CHUNKS) return;
    float* to = p.sums + (i64)tile * (C::QUERIES * C::D) + sum_chunk() * (64 * 64) + warp() * (16 * 64) + lane() * 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float four[4] = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
      add_four(to + j * 128, four);
    }
  }
  // Loads the numbers (SHIFT or DELTA) of the four of the i-th 16 queries whose columns this lane holds.
  __device__ __forceinline__ void load_four(float (&x)[4], u32 numbers, int stage, int i) const {
    const Chunk c = load_shared(memory + numbers + stage * C::STAT_BYTES + (lane() & 3) * 16 + i * 64);
    x[0] = __int_as_float((int)c.x), x[1] = __int_as_float((int)c.y), x[2] = __int_as_float((int)c.z), x[3] = __int_as_float((int)c.w);
  }
  // Sets scores that a query does not see to -inf.
  __device__ __forceinline__ void mask(float (&s)[32], int key0, int query0) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = key0 + warp() * 16 + (lane() >> 2) + 8 * r;
      const int begin = key >= p.seq_k ? C::QUERIES : key - p.above - query0 - 2 * (lane() & 3);
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + e < begin) s[4 * i + 2 * r + e] = MINUS_INFINITY;
    }
  }
  __device__ __forceinline__ u32 weight_place(int j) const { return memory + C::P + j * (C::WARPGROUP_THREADS * 16) + (thread_again() & 127) * 16; }

  // Computes S, P and this tile's part of dV, and dQ of the tile before. FIRST: there is none before.
  template <bool FIRST>
  __device__ __forceinline__ void step_scores(int key0, int n, bool masked, int before, WideCount<C> count) {
    float s[32], dq[32];
    const int stage = count.stage(), dout_stage = count.dout_stage();
    const WideCount<C> last = {count.n - 1};
    barrier_wait(barriers.q_full(stage), count.parity());
    start_turned<C::D>(s, C::K, C::Q + stage * C::Q_BYTES, 0);
    warpgroup_wait<0>();
    settled(s);
    if (masked) mask(s, key0, n * C::QUERIES);
#pragma unroll
    for (int i = 0; i < C::QUERIES / 16; i++) {
      float shift[4];
      load_four(shift, C::SHIFT, stage, i);
#pragma unroll
      for (int x = 0; x < 8; x++) s[8 * i + x] = exp2_approx(fused(s[8 * i + x], p.scale_log2, -shift[x / 4 * 2 + x % 2]));
    }
    release(barriers.q_empty(stage));  // loads of SHIFT may not have returned: the other warpgroup gives the place back after P
    if constexpr (!FIRST) named_sync(C::P_EMPTY, C::PAIR_THREADS);
    u32 weights[C::QUERIES / 4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      store_shared(weight_place(j), Chunk{(u32)__float_as_int(s[4 * j]), (u32)__float_as_int(s[4 * j + 1]),
                                          (u32)__float_as_int(s[4 * j + 2]), (u32)__float_as_int(s[4 * j + 3])});
      weights[2 * j] = pack<T>(s[4 * j], s[4 * j + 1]);
      weights[2 * j + 1] = pack<T>(s[4 * j + 2], s[4 * j + 3]);
    }
    named_arrive(C::P_FULL, C::PAIR_THREADS);
    barrier_wait(barriers.dout_full(dout_stage), count.dout_parity());
    start_along(weights, C::DOUT + dout_stage * C::V_BYTES);
    if constexpr (!FIRST) start_dq(dq, last);
    warpgroup_wait<0>();
    settled(sum);
    release(barriers.dout_empty(dout_stage));
    if constexpr (!FIRST) add_dq(dq, before, last.stage());
  }

  // Computes dP, dS and this tile's part of dK, and dQ of the tile before.
  template <bool FIRST>
  __device__ __forceinline__ void step_slopes(int before, WideCount<C> count) {
    float d[32], dq[32];
    const int stage = count.stage(), dout_stage = count.dout_stage();
    const WideCount<C> last = {count.n - 1};
    barrier_wait(barriers.dout_full(dout_stage), count.dout_parity());
#pragma unroll
    for (int i = 0; i < C::QUERIES / 16; i++) {
      float delta[4];
      load_four(delta, C::DELTA, dout_stage, i);
#pragma unroll
      for (int x = 0; x < 8; x++) d[8 * i + x] = -delta[x / 4 * 2 + x % 2];
    }
    settled(d);  // keeps each number in a register of its own
    start_turned<C::DV>(d, C::V, C::DOUT + dout_stage * C::V_BYTES, 1);
    warpgroup_wait<0>();
    settled(d);
    release(barriers.dout_empty(dout_stage));
    named_sync(C::P_FULL, C::PAIR_THREADS);
    u32 slopes[C::QUERIES / 4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const Chunk w = load_shared(weight_place(j));
      slopes[2 * j] = pack<T>(__int_as_float((int)w.x) * d[4 * j], __int_as_float((int)w.y) * d[4 * j + 1]);
      slopes[2 * j + 1] = pack<T>(__int_as_float((int)w.z) * d[4 * j + 2], __int_as_float((int)w.w) * d[4 * j + 3]);
    }
    named_arrive(C::P_EMPTY, C::PAIR_THREADS);
    // The other block has read what was copied from here two tiles ago; this one's products have, by the weights' barrier.
    barrier_wait(barriers.slope_free(stage), count.parity() ^ 1);
    const int row = warp() * 16 + (lane() & 15);
    const u32 row_at = memory + C::SLOPE + stage * C::SLOPE_BYTES + row * C::CHUNK_ROW_BYTES;
#pragma unroll
    for (int i = 0; i < C::QUERIES / 16; i++)
      store_matrices(row_at + (((i * 2 + (lane() >> 4)) ^ (row & 7)) << 4), slopes[4 * i], slopes[4 * i + 1], slopes[4 * i + 2],
                     slopes[4 * i + 3]);
    publish_shared();
    named_arrive(C::SLOPE_STORED + stage, C::SENDER_THREADS);
    if constexpr (!FIRST) start_dq(dq, last);
    barrier_wait(barriers.q_full(stage), count.parity());
    start_along(slopes, C::Q + stage * C::Q_BYTES);
    if constexpr (!FIRST) {
      warpgroup_wait<1>();
      add_dq(dq, before, last.stage());
    }
    warpgroup_wait<0>();
    settled(sum);
    release(barriers.q_empty(stage));
  }

  // Computes dQ of the last tile.
  __device__ __forceinline__ void finish(int before, WideCount<C> last) const {
    float dq[32];
    start_dq(dq, last);
    warpgroup_wait<0>();
    add_dq(dq, before, last.stage());
    if constexpr (SCORES) named_sync(C::P_EMPTY, C::PAIR_THREADS);
  }

  __device__ __forceinline__ void write(const BackwardTile& t, int key0) const {
    const Strides& at = SCORES ? p.at_dv : p.at_dk;
    char* base = (SCORES ? p.dv : p.dk) + t.batch * at.batch + t.kv_head * at.head;
#pragma unroll
    for (int i = 0; i < WIDTH / 32; i++) {
      float x[4][4];
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x[j][e] = sum[16 * i + 4 * j + e];
      write_units<T>(x, base, at.row, key0 + warp() * 16, p.seq_k, 32 * i, SCORES ? p.value_dim : p.head_dim, lane(),
                     SCORES ? 1.0f : p.scale);
    }
  }

  __device__ __forceinline__ void run(const BackwardTile& t) {
    const int key0 = t.key0 + rank_in_cluster() * C::OWN_KEYS;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) sum[i] = 0.0f;
    barrier_wait(SCORES ? barriers.k_full() : barriers.v_full(), 0);
    const int tiles = uniform(tiles_of_block(p, t));
    if (tiles) {
      const int first_head = (t.batch * (int)p.kv_heads.divisor + t.kv_head) * (int)p.group.divisor;
      int n = t.first, tile = first_head * p.query_tiles + n;
      WideCount<C> count = {0};
      if constexpr (SCORES) step_scores<true>(key0, n, n < t.masked, tile, count);
      else step_slopes<true>(tile, count);
      barrier_wait(barriers.k_full(), 0);
      barrier_wait(barriers.other_full(), 0);
#pragma unroll 1
      for (count.n = 1; count.n < tiles; count.n++) {
        const int before = tile;
        n++, tile++;
        if (n == p.query_tiles) n = t.first, tile += t.first;  // of the next head
        if constexpr (SCORES) step_scores<false>(key0, n, n < t.masked, before, count);
        else step_slopes<false>(before, count);
      }
      finish(tile, WideCount<C>{tiles - 1});
    } else {
      barrier_wait(barriers.other_full(), 0);  // a block must not end while something is copied into it
    }
    write(t, key0);
  }
};

// Grid: two blocks, a cluster, for each of p.items tiles of 128 keys.
template <class C>
DEVICE void backward_wide(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& dout, const BackwardParams& p) {
  SHARED_MEMORY(bytes);
  const u32 memory = shared_address_in_cluster(bytes);
  const WideBarriers<C> barriers = {memory + C::WAITS};
  const int thread = (int)threadIdx.x, warpgroup = uniform(thread / C::WARPGROUP_THREADS);
  if (thread == 0) barriers.init();
  sync_cluster();
  wait_for_previous();
  BackwardTile t;
  const bool is_tile = backward_tile_of<C>(p, block_again() >> 1, t);
  if (is_tile) {
    if (warpgroup == 0) {
      fewer_registers<C::MOVER_REGISTERS>();
      const int warp = uniform(thread / 32);
      if (thread == 0) {
        const WideProducer<C> producer = {p, q, k, v, dout, barriers, memory};
        producer.run(t);
      } else if (warp == 1) {
        send_slopes<C>(barriers, memory, tiles_of_block(p, t), thread & 31);
      }
    } else if (warpgroup == 1) {
      more_registers<C::CONSUMER_REGISTERS>();
      WideConsumer<C, true> consumer = {p, barriers, memory};
      consumer.run(t);
    } else {
      more_registers<C::CONSUMER_REGISTERS>();
      WideConsumer<C, false> consumer = {p, barriers, memory};
      consumer.run(t);
    }
  }
  sync_cluster();  // neither block ends while the other works
}
