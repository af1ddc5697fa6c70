// The backward pass by mma.sync with five products, for Turing: the method of ampere.cuh in 64 KB of shared memory and without
// asynchronous copies.
//
// A warp keeps its rows of V in registers, because V is only an operand of dP, and always the same one, while K is needed for
// dQ too. The next tile of queries is loaded into registers before the products that end a tile, and stored in its place when
// no warp reads the old tile any more. Shifts and deltas of rows come from global memory while the scores are computed.
#pragma once
#include "backward/ampere.cuh"

// A block has WARPS warps with FRAGMENTS times 16 keys each. A warp computes the scores of a tile in PARTS.
template <class T_, int D_, int KEYS_, int QUERIES_, int WARPS_, int FRAGMENTS_, int PARTS_>
struct Turing {
  static constexpr bool UNEVEN = false;
  static constexpr int VALUE = D_;
  typedef T_ T;
  static constexpr int D = D_, KEYS = KEYS_, QUERIES = QUERIES_, WARPS = WARPS_, FRAGMENTS = FRAGMENTS_, PARTS = PARTS_;
  static constexpr int THREADS = WARPS * 32, ROW_BYTES = D * 2, CHUNKS = D / 8, ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr int WARP_KEYS = FRAGMENTS * 16, KEY_WARPS = KEYS / WARP_KEYS, QUERY_WARPS = WARPS / KEY_WARPS;
  static constexpr bool SHARES = QUERY_WARPS > 1;
  static constexpr int WARP_QUERIES = QUERIES / QUERY_WARPS, PART = WARP_QUERIES / PARTS;
  static constexpr int UNITS = PART / 8, DEPTH = PART / 16;          // of the scores that a warp computes at a time
  static constexpr int COLUMNS = D / QUERY_WARPS, OUT = COLUMNS / 8;  // of dK and dV, for one warp
  static constexpr int K_BYTES = KEYS * ROW_BYTES, Q_BYTES = QUERIES * ROW_BYTES;
  static constexpr int SLOPE_ROW_BYTES = QUERIES * 2, SLOPE_BYTES = KEYS * SLOPE_ROW_BYTES;
  // Offsets in shared memory. WEIGHTS is P, where P goes through shared memory.
  static constexpr int K = 0, Q = K + K_BYTES, DOUT = Q + Q_BYTES, SLOPE = DOUT + Q_BYTES, WEIGHTS = SLOPE + SLOPE_BYTES;
  static constexpr int BYTES = WEIGHTS + (SHARES ? SLOPE_BYTES : 0);
  typedef AmpereSums<T, D, QUERIES, WARPS> Sums;
  static_assert(KEYS % WARP_KEYS == 0 && WARPS % KEY_WARPS == 0 && PART % 16 == 0 && OUT % 4 == 0, "sizes must fit 16x16 fragments");
  static_assert(KEYS % ROWS_PER_PASS == 0 && QUERIES % ROWS_PER_PASS == 0, "a pass of copies must divide both tiles");
};

template <class C>
struct TuringBlock : AmpereBlock<C> {
  typedef AmpereBlock<C> Base;
  typedef typename C::T T;
  typedef float Scores[C::FRAGMENTS][C::UNITS][4];
  static constexpr int ROWS = C::QUERIES / C::ROWS_PER_PASS;  // rows of a tile, for one thread
  using Base::p, Base::memory, Base::lane, Base::warp, Base::warp_key, Base::warp_query, Base::batch, Base::kv_head;
  using Base::first_head, Base::first_tile, Base::end_tile, Base::head, Base::tile, Base::key0;
  using Base::dk, Base::dv;
  u32 v[C::D / 16][C::FRAGMENTS][4];
  Chunk next_q[ROWS], next_dout[ROWS];

  // Each of these computes its place again, because registers are full in the main loop.
  template <int N>
  __device__ __forceinline__ void load(Chunk (&rows)[N], const char* source, i64 row_bytes, int left) const {
    const Share share = share_of_thread<C>(thread_again(), p.head_dim);
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int row = share.row0 + i * C::ROWS_PER_PASS;
      rows[i] = load_or_zero(source + row * row_bytes + share.chunk * 16, share.valid && row < left);
    }
  }
  template <int N>
  __device__ __forceinline__ void store_rows(int to, const Chunk (&rows)[N]) const {
    const Share share = share_of_thread<C>(thread_again(), p.head_dim);
    const u32 first = memory + to + swizzled<C>(share.row0, share.chunk);
#pragma unroll
    for (int i = 0; i < N; i++) store_shared(first + i * C::ROWS_PER_PASS * C::ROW_BYTES, rows[i]);
  }
  __device__ __forceinline__ void load_keys(Chunk (&rows)[C::KEYS / C::ROWS_PER_PASS], const char* base, const Strides& at) const {
    load(rows, base + batch * at.batch + kv_head * at.head + key0 * at.row, at.row, p.seq_k - key0);
  }
  // Loads a tile of queries from global memory, and later stores it where it is read.
  __device__ __forceinline__ void load_queries(int of_head, int of_tile) {
    const int row = of_tile * C::QUERIES, left = p.seq_q - row;
    load(next_q, p.q + batch * p.at_q.batch + of_head * p.at_q.head + row * p.at_q.row, p.at_q.row, left);
    load(next_dout, p.dout + batch * p.at_dout.batch + of_head * p.at_dout.head + row * p.at_dout.row, p.at_dout.row, left);
  }
  __device__ __forceinline__ bool has_next() const {
    return tile + 1 < end_tile || head + 1 < first_head + (int)p.group.divisor;
  }
  // The tile after this one, if there is one.
  __device__ __forceinline__ void load_next() {
    const bool same = tile + 1 < end_tile;
    if (has_next()) load_queries(same ? head : head + 1, same ? tile + 1 : first_tile);
  }
  __device__ __forceinline__ void store_next() const {
    store_rows(C::Q, next_q);
    store_rows(C::DOUT, next_dout);
  }
  // Brings V into its registers, by way of K's place.
  __device__ __forceinline__ void load_keys_and_values() {
    Chunk k_rows[C::KEYS / C::ROWS_PER_PASS], v_rows[C::KEYS / C::ROWS_PER_PASS];
    load_keys(v_rows, p.v, p.at_v);
    load_keys(k_rows, p.k, p.at_k);
    store_rows(C::K, v_rows);
    sync_block();  // V is there for all
    const u32 x = memory + C::K + swizzled<C>(warp_key + (lane & 15), lane >> 4);
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int kk = 0; kk < C::D / 16; kk++) load_matrices(v[kk][f], (x ^ (kk << 5)) + f * 16 * C::ROW_BYTES);
    sync_block();  // all have their rows of V
    store_rows(C::K, k_rows);
  }

  // Loads the numbers of those of 16 queries whose columns this lane holds.
  __device__ __forceinline__ void load_numbers(float (&x)[C::DEPTH][4], const float* numbers, int query) const {
    const i64 row = (i64)(batch * (int)p.heads.divisor + head) * (int)p.stat_rows.divisor + tile * C::QUERIES + query;
#pragma unroll
    for (int i = 0; i < C::DEPTH; i++) {
      const Chunk c = load_or_zero((const char*)(numbers + row + i * 16 + (lane & 3) * 4), true);
      x[i][0] = __int_as_float((int)c.x), x[i][1] = __int_as_float((int)c.y);
      x[i][2] = __int_as_float((int)c.z), x[i][3] = __int_as_float((int)c.w);
    }
  }
  template <bool MASKED>
  __device__ __forceinline__ void weigh_tile(Scores& s, const float (&shift)[C::DEPTH][4], int query) const {
    const int first = tile * C::QUERIES + query + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < C::DEPTH; i++) Base::template weigh<MASKED>(s, shift[i], i, first);
  }
  // d += V dO^T, for the warp's rows of V. y is this lane's address in dO.
  __device__ __forceinline__ void multiply_values(Scores& d, u32 y) const {
#pragma unroll
    for (int kk = 0; kk < C::D / 16; kk++)
#pragma unroll
      for (int j = 0; j < C::UNITS; j += 2) {
        u32 b[4];
        load_matrices(b, (y ^ (kk << 5)) + j * 8 * C::ROW_BYTES);
        mma_columns<T>(d, v[kk], b, j);
      }
  }
  // Computes weights and slopes of the warp's keys for `PART` queries. The sums of dP start at -delta.
  __device__ __forceinline__ void score(Scores& s, Scores& d, int query) const {
    const u32 y = memory + swizzled<C>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1) + query * C::ROW_BYTES;
    float shift[C::DEPTH][4], delta[C::DEPTH][4];
    load_numbers(shift, p.shift, query);
    load_numbers(delta, p.delta, query);
    clear_columns(s);
    Base::template multiply<C::K>(s, y + C::Q);
    if (Base::is_open())
      weigh_tile<false>(s, shift, query);
    else
      weigh_tile<true>(s, shift, query);
#pragma unroll
    for (int i = 0; i < C::DEPTH; i++) Base::start(d, delta[i], i);
    multiply_values(d, y + C::DOUT);
    Base::end(d, s);
  }
  // Processes a tile of queries with this warp's keys. dS goes to shared memory, and so does P where warps share keys; else dV
  // and dK are summed here.
  __device__ __forceinline__ void compute() {
    const u32 rows = memory + swizzled<C>(lane & 15, lane >> 4);
#pragma unroll 1
    for (int part = 0; part < C::PARTS; part++) {
      const int query = warp_query + part * C::PART;
      Scores s, d;
      score(s, d, query);
      u32 x[C::FRAGMENTS][4];
#pragma unroll
      for (int kk = 0; kk < C::DEPTH; kk++) {
        Base::fragments_of(x, s, kk);
        if constexpr (C::SHARES)
          Base::store(memory + C::WEIGHTS, x, query + kk * 16);
        else
          Base::accumulate(dv, x, rows + C::DOUT + (query + kk * 16) * C::ROW_BYTES);
      }
      if (!C::SHARES && part == C::PARTS - 1) load_next();
#pragma unroll
      for (int kk = 0; kk < C::DEPTH; kk++) {
        Base::fragments_of(x, d, kk);
        Base::store(memory + C::SLOPE, x, query + kk * 16);
        // Opaque in all turns but the first, as otherwise the places of all operands are kept through the loop, and registers
        // spill.
        if constexpr (!C::SHARES) Base::accumulate(dk, x, (kk ? opaque(rows) : rows) + C::Q + (query + kk * 16) * C::ROW_BYTES);
      }
    }
  }

  __device__ __forceinline__ void loop() {
    head = first_head, tile = first_tile;
    load_queries(head, tile);
    load_keys_and_values();
    store_next();
    for (;;) {
      sync_block();  // the tile is there for all, and all have done with dS of the one before
      compute();
      if constexpr (C::SHARES) {
        sync_block();  // P and dS are there for all
        load_next();
        Base::sum_shared(0, memory + C::SLOPE);
      }
      sync_block();  // dS is there for all, and none reads Q and dO any more
      if (has_next()) store_next();
      Base::add_dq(memory + C::SLOPE, head, tile);
      if (!has_next()) break;
      if (++tile == end_tile) tile = first_tile, head++;
    }
  }
};

// Grid: the same as for backward_ampere.
template <class C>
DEVICE void backward_turing(const BackwardParams& p) {
  go_through_queries<TuringBlock<C>>(p);
}
