// The backward pass by mma.sync with five products, for chips from Ampere on. A block keeps a tile of keys, and processes all
// tiles of queries that see these keys, over all heads of a group.
//
// Scores and slopes (dS) are computed transposed, with keys as rows. Where each warp has different keys, the accumulators,
// packed to 16 bits, are directly the operands of dV += P^T dO and dK += dS^T Q, and only dS goes through shared memory, for dQ
// = dS K. Where warps share keys, P goes through shared memory too; then a warp has 32 keys, and reads less for each product.
#pragma once
#include "backward/ampere_sums.cuh"

// A block has WARPS warps with FRAGMENTS times 16 keys each, STAGES tiles of Q and dO, and SLOPES tiles of dS. A warp computes
// the scores of a tile in PARTS. If UNEVEN, K and V have two widths, and VALUE is that of V, padded.
template <class T_, int D_, int KEYS_, int QUERIES_, int WARPS_, int FRAGMENTS_, int STAGES_, int SLOPES_, int PARTS_, int VALUE_ = 0>
struct Ampere {
  static constexpr bool UNEVEN = VALUE_ > 0;
  static constexpr int VALUE = UNEVEN ? VALUE_ : D_;
  typedef T_ T;
  static constexpr int D = D_, KEYS = KEYS_, QUERIES = QUERIES_, WARPS = WARPS_, FRAGMENTS = FRAGMENTS_;
  static constexpr int STAGES = STAGES_, SLOPES = SLOPES_, PARTS = PARTS_;
  static constexpr int THREADS = WARPS * 32, ROW_BYTES = D * 2, CHUNKS = D / 8, ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr int WARP_KEYS = FRAGMENTS * 16, KEY_WARPS = KEYS / WARP_KEYS, QUERY_WARPS = WARPS / KEY_WARPS;
  static constexpr bool SHARES = QUERY_WARPS > 1;
  static constexpr int WARP_QUERIES = QUERIES / QUERY_WARPS, PART = WARP_QUERIES / PARTS;
  static constexpr int UNITS = PART / 8, DEPTH = PART / 16;          // of the scores that a warp computes at a time
  static constexpr int COLUMNS = D / QUERY_WARPS, OUT = COLUMNS / 8;  // of dK and dV, for one warp
  static constexpr int K_BYTES = KEYS * ROW_BYTES, Q_BYTES = QUERIES * ROW_BYTES;
  static constexpr int SLOPE_ROW_BYTES = QUERIES * 2, SLOPE_BYTES = KEYS * SLOPE_ROW_BYTES, STAT_BYTES = QUERIES * 4;
  // Offsets in shared memory. WEIGHTS is P, where P goes through shared memory.
  static constexpr int K = 0, V = K + K_BYTES, Q = V + K_BYTES, DOUT = Q + STAGES * Q_BYTES, SLOPE = DOUT + STAGES * Q_BYTES;
  static constexpr int WEIGHTS = SLOPE + SLOPES * SLOPE_BYTES, SHIFT = WEIGHTS + (SHARES ? SLOPE_BYTES : 0);
  static constexpr int DELTA = SHIFT + STAGES * STAT_BYTES, BYTES = DELTA + STAGES * STAT_BYTES;
  typedef AmpereSums<T, D, QUERIES, WARPS> Sums;
  static_assert(KEYS % WARP_KEYS == 0 && WARPS % KEY_WARPS == 0 && PART % 16 == 0 && OUT % 4 == 0, "sizes must fit 16x16 fragments");
  static_assert(KEYS % ROWS_PER_PASS == 0 && QUERIES % ROWS_PER_PASS == 0, "a pass of copies must divide both tiles");
  static_assert(SLOPES <= STAGES && !(SHARES && SLOPES > 1), "at most STAGES slopes, and one if warps share P");
};

template <class C>
struct AmpereBlock {
  typedef typename C::T T;
  typedef typename C::Sums Sums;
  const BackwardParams& p;
  u32 memory;
  Share share;
  int lane, warp, warp_key, warp_query;  // warp_key, warp_query: the first of the warp's keys and queries within a tile
  int batch, kv_head, first_head, key0;
  int first_tile, end_tile;              // the tiles of queries to process
  int head, tile, next_head, next_tile;  // the tile that is computed; the tile to copy next
  float dk[C::FRAGMENTS][C::OUT][4], dv[C::FRAGMENTS][C::OUT][4];

#if HAS_ASYNC_COPY
  template <int ROWS>
  __device__ __forceinline__ void copy(u32 to, const char* source, i64 row_bytes, int left, int valid) const {
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < ROWS / C::ROWS_PER_PASS; i++) {
      const int row = share.row0 + i * C::ROWS_PER_PASS;
      copy_async_or_zero(to + swizzled<C>(row, share.chunk), source + row * row_bytes + share.chunk * 16, row < left);
    }
  }
  // Whether this thread's chunk is inside the width of V and dO.
  __device__ __forceinline__ int valid_of_values() const {
    if constexpr (C::UNEVEN) return share_of_thread<C>((int)threadIdx.x, p.value_dim).valid;
    return share.valid;
  }
  // Zeroes the chunks beyond the head dimensions, which copies do not write.
  __device__ __forceinline__ void clear() const {
    const int valid = valid_of_values();
    if (share.valid && (!C::UNEVEN || valid)) return;
    for (int row = share.row0; row < 2 * C::KEYS + 2 * C::STAGES * C::QUERIES; row += C::ROWS_PER_PASS) {
      if constexpr (C::UNEVEN) {
        constexpr int FIRST_QUERY = 2 * C::KEYS, FIRST_SLOPE = FIRST_QUERY + C::STAGES * C::QUERIES;
        if ((row < FIRST_QUERY ? row >= C::KEYS : row >= FIRST_SLOPE) ? valid : share.valid) continue;
      }
      store_shared(memory + swizzled<C>(row, share.chunk), Chunk{0, 0, 0, 0});
    }
  }
  __device__ __forceinline__ void copy_keys(u32 to, const char* base, const Strides& at, int valid) const {
    copy<C::KEYS>(memory + to, base + batch * at.batch + kv_head * at.head + key0 * at.row, at.row, p.seq_k - key0, valid);
  }
  __device__ __forceinline__ void copy_queries(u32 to, const char* base, const Strides& at, int valid) const {
    const int row = next_tile * C::QUERIES;
    copy<C::QUERIES>(memory + to, base + batch * at.batch + next_head * at.head + row * at.row, at.row, p.seq_q - row, valid);
  }
  // Copies the next tile of queries, if there is one, with the shifts and deltas of its rows.
  __device__ __forceinline__ void copy_next(int stage) {
    if (next_head < first_head + (int)p.group.divisor) {
      copy_queries(C::Q + stage * C::Q_BYTES, p.q, p.at_q, share.valid);
      copy_queries(C::DOUT + stage * C::Q_BYTES, p.dout, p.at_dout, valid_of_values());
      const int chunk = (int)threadIdx.x;
      if (chunk < C::QUERIES / 2) {
        const bool second = chunk >= C::QUERIES / 4;
        const int within = chunk - (second ? C::QUERIES / 4 : 0);
        const i64 row = (i64)(batch * (int)p.heads.divisor + next_head) * (int)p.stat_rows.divisor + next_tile * C::QUERIES;
        const u32 to = memory + (second ? C::DELTA : C::SHIFT) + stage * C::STAT_BYTES + within * 16;
        copy_async_or_zero(to, (const char*)((second ? p.delta : p.shift) + row + within * 4), true);
      }
      if (++next_tile == end_tile) next_tile = first_tile, next_head++;
    }
    copy_async_commit();
  }
#endif

  // c += x y^T. The rows x are the warp's rows of a tile of keys (K or V); y is this lane's address in a tile of queries.
  template <u32 TILE, int WIDTH = C::D>
  __device__ __forceinline__ void multiply(float (&c)[C::FRAGMENTS][C::UNITS][4], u32 y) const {
    const u32 x = memory + TILE + swizzled<C>(warp_key + (lane & 15), lane >> 4);
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16; kk++) {
      u32 a[C::FRAGMENTS][4];
#pragma unroll
      for (int f = 0; f < C::FRAGMENTS; f++) load_matrices(a[f], (x ^ (kk << 5)) + f * 16 * C::ROW_BYTES);
#pragma unroll
      for (int j = 0; j < C::UNITS; j += 2) {
        u32 b[4];
        load_matrices(b, (y ^ (kk << 5)) + j * 8 * C::ROW_BYTES);
        mma_columns<T>(c, a, b, j);
      }
    }
  }
  // out += x y, for 16 columns of x in registers. The rows of y are the queries.
  __device__ __forceinline__ void accumulate(float (&out)[C::FRAGMENTS][C::OUT][4], const u32 (&x)[C::FRAGMENTS][4], u32 y) const {
#pragma unroll
    for (int j = 0; j < C::OUT; j += 2) {
      u32 b[4];
      load_matrices_transposed(b, y ^ (j << 4));
      mma_columns<T>(out, x, b, j);
    }
  }
  static __device__ __forceinline__ void fragments_of(u32 (&x)[C::FRAGMENTS][4], const float (&c)[C::FRAGMENTS][C::UNITS][4], int kk) {
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        x[f][i] = pack<T>(c[f][2 * kk + i / 2][i % 2 * 2], c[f][2 * kk + i / 2][i % 2 * 2 + 1]);
  }

  // The offset in a tile of P or dS, KEYS x QUERIES. Eight rows of one column of chunks fall on eight different groups of
  // banks.
  static __device__ __forceinline__ u32 slope_at(int key, int chunk) {
    const int turn = C::QUERIES == 32 ? key >> 1 & 3 : key & 7;
    return (u32)(key * C::SLOPE_ROW_BYTES + ((chunk ^ turn) << 4));
  }
  __device__ __forceinline__ void store(u32 tile_at, const u32 (&x)[C::FRAGMENTS][4], int query) const {
    const u32 at = tile_at + slope_at(warp_key + (lane >> 2), 0) + 4 * (lane & 3);
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        store_shared((at ^ ((query / 8 + i / 2) << 4)) + (f * 16 + i % 2 * 8) * C::SLOPE_ROW_BYTES, x[f][i]);
  }

  // Loads the numbers (SHIFT or DELTA) of the four of 16 queries whose columns this lane holds.
  __device__ __forceinline__ void load_four(float (&x)[4], u32 numbers, int stage, int query) const {
    const Chunk c = load_shared(memory + numbers + stage * C::STAT_BYTES + (lane & 3) * 16 + query * 4);
    x[0] = __int_as_float((int)c.x), x[1] = __int_as_float((int)c.y), x[2] = __int_as_float((int)c.z), x[3] = __int_as_float((int)c.w);
  }
  // Turns the scores of the i-th 16 queries into weights. The weight is zero where a query does not see a key. `first` is the
  // query of the lane's first column.
  template <bool MASKED>
  __device__ __forceinline__ void weigh(float (&s)[C::FRAGMENTS][C::UNITS][4], const float (&shift)[4], int i, int first) const {
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int key = key0 + warp_key + f * 16 + r * 8 + (lane >> 2);
        const int low = key < p.seq_k ? key - p.above - first : C::QUERIES, high = key - p.below - first;
#pragma unroll
        for (int e = 0; e < 4; e++) {  // the lane's columns are 0, 1, 8 and 9
          float& x = s[f][2 * i + e / 2][2 * r + e % 2];
          const int column = 16 * i + e / 2 * 8 + e % 2;
          x = exp2_approx(fused(x, p.scale_log2, -shift[e]));
          if (MASKED && (column < low || column > high)) x = 0.0f;
        }
      }
  }
  template <bool MASKED>
  __device__ __forceinline__ void weigh_tile(float (&s)[C::FRAGMENTS][C::UNITS][4], int stage, int query) const {
    const int first = tile * C::QUERIES + query + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < C::DEPTH; i++) {
      float shift[4];
      load_four(shift, C::SHIFT, stage, query + 16 * i);
      weigh<MASKED>(s, shift, i, first);
    }
  }
  // Sums of dP of the i-th 16 queries start at -delta; with the weights they end as dS.
  static __device__ __forceinline__ void start(float (&d)[C::FRAGMENTS][C::UNITS][4], const float (&delta)[4], int i) {
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int e = 0; e < 8; e++) d[f][2 * i + e / 4][e % 4] = -delta[e / 4 * 2 + e % 2];
  }
  static __device__ __forceinline__ void end(float (&d)[C::FRAGMENTS][C::UNITS][4], const float (&s)[C::FRAGMENTS][C::UNITS][4]) {
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int j = 0; j < C::UNITS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[f][j][i] *= s[f][j][i];
  }
  __device__ __forceinline__ bool is_open() const {
    const int query0 = tile * C::QUERIES, last = key0 + C::KEYS - 1;
    return last < p.seq_k && last <= query0 + p.above && key0 >= query0 + C::QUERIES - 1 + p.below;
  }

  // Computes weights and slopes of the warp's keys for `PART` queries. The sums of dP start at -delta.
  __device__ __forceinline__ void score(float (&s)[C::FRAGMENTS][C::UNITS][4], float (&d)[C::FRAGMENTS][C::UNITS][4], int stage,
                                        int query, bool masked) const {
    const u32 y = swizzled<C>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1) + stage * C::Q_BYTES + query * C::ROW_BYTES;
    clear_columns(s);
    multiply<C::K>(s, memory + C::Q + y);
    if (masked)
      weigh_tile<true>(s, stage, query);
    else
      weigh_tile<false>(s, stage, query);
#pragma unroll
    for (int i = 0; i < C::DEPTH; i++) {
      float delta[4];
      load_four(delta, C::DELTA, stage, query + 16 * i);
      start(d, delta, i);
    }
    multiply<C::V, C::VALUE>(d, memory + C::DOUT + y);
    end(d, s);
  }
  // Processes a tile of queries with this warp's keys. dS goes to shared memory, and so does P where warps share keys; else dV
  // and dK are summed here.
  __device__ __forceinline__ void compute(int stage, u32 slopes) {
    const bool masked = !is_open();
    const u32 rows = swizzled<C>(lane & 15, lane >> 4) + stage * C::Q_BYTES;
#if HAS_VECTOR_ADDITIONS
#pragma unroll 1  // with two at a time the compiler spills, from sm_90 on
#else
#pragma unroll
#endif
    for (int part = 0; part < C::PARTS; part++) {
      const int query = warp_query + part * C::PART;
      float s[C::FRAGMENTS][C::UNITS][4], d[C::FRAGMENTS][C::UNITS][4];
      score(s, d, stage, query, masked);
      u32 x[C::FRAGMENTS][4];
#pragma unroll
      for (int kk = 0; kk < C::DEPTH; kk++) {
        fragments_of(x, s, kk);
        if constexpr (C::SHARES)
          store(memory + C::WEIGHTS, x, query + kk * 16);
        else
          accumulate(dv, x, memory + C::DOUT + rows + (query + kk * 16) * C::ROW_BYTES);
      }
#pragma unroll
      for (int kk = 0; kk < C::DEPTH; kk++) {
        fragments_of(x, d, kk);
        store(slopes, x, query + kk * 16);
        if constexpr (!C::SHARES) accumulate(dk, x, memory + C::Q + rows + (query + kk * 16) * C::ROW_BYTES);
      }
    }
  }
  // Adds to dV and dK from the weights and slopes that several warps have written to shared memory.
  __device__ __forceinline__ void sum_shared(int stage, u32 slopes) {
    const u32 rows = (swizzled<C>(lane & 15, lane >> 4) ^ ((warp / C::KEY_WARPS * C::OUT) << 4)) + stage * C::Q_BYTES;
    const u32 at = slope_at(warp_key + (lane & 15), lane >> 4);
#pragma unroll
    for (int kk = 0; kk < C::QUERIES / 16; kk++) {
      u32 x[C::FRAGMENTS][4];
#pragma unroll
      for (int f = 0; f < C::FRAGMENTS; f++)
        load_matrices(x[f], memory + C::WEIGHTS + (at ^ (kk << 5)) + f * 16 * C::SLOPE_ROW_BYTES);
      accumulate(dv, x, memory + C::DOUT + rows + kk * 16 * C::ROW_BYTES);
#pragma unroll
      for (int f = 0; f < C::FRAGMENTS; f++) load_matrices(x[f], slopes + (at ^ (kk << 5)) + f * 16 * C::SLOPE_ROW_BYTES);
      accumulate(dk, x, memory + C::Q + rows + kk * 16 * C::ROW_BYTES);
    }
  }

  // Computes this warp's share of dQ = dS K for a tile of queries, and adds it to the sums.
  __device__ __forceinline__ void add_dq(u32 slopes, int of_head, int of_tile) const {
    float c[Sums::FRAGMENTS][Sums::UNITS][4];
    clear_columns(c);
    const u32 x = slopes + (slope_at((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1) ^ (Sums::row(warp) / 8 << 4));
    const u32 y = memory + C::K + (swizzled<C>(lane & 15, lane >> 4) ^ (Sums::column(warp) / 8 << 4));
#pragma unroll
    for (int kk = 0; kk < C::KEYS / 16; kk++) {
      u32 a[Sums::FRAGMENTS][4];
#pragma unroll
      for (int f = 0; f < Sums::FRAGMENTS; f++) load_matrices_transposed(a[f], (x ^ (f << 5)) + kk * 16 * C::SLOPE_ROW_BYTES);
#pragma unroll
      for (int j = 0; j < Sums::UNITS; j += 2) {
        u32 b[4];
        load_matrices_transposed(b, (y ^ (j << 4)) + kk * 16 * C::ROW_BYTES);
        mma_columns<T>(c, a, b, j);
      }
    }
    const i64 item = (i64)(batch * (int)p.heads.divisor + of_head) * p.query_tiles + of_tile;
    Sums::add(p.sums + item * (C::QUERIES * C::D), warp, lane, c);
  }

#if HAS_ASYNC_COPY
  __device__ __forceinline__ void loop() {
    clear();
    copy_keys(C::K, p.k, p.at_k, share.valid);
    copy_keys(C::V, p.v, p.at_v, valid_of_values());
    copy_next(0);
    int stage = 0, before_head = 0, before_tile = 0;
    head = first_head, tile = first_tile;
    for (int left = (int)p.group.divisor * (end_tile - first_tile); left > 0; left--) {
      const u32 slopes = memory + C::SLOPE + (C::SLOPES == 2 ? stage * C::SLOPE_BYTES : 0);
      copy_async_wait<0>();
      sync_block();  // the tile is there for all, and all have done with the one before
      if constexpr (C::STAGES == 2) copy_next(stage ^ 1);
      if constexpr (C::SLOPES == 2)
        if (before_head) add_dq(memory + C::SLOPE + (stage ^ 1) * C::SLOPE_BYTES, before_head - 1, before_tile);
      compute(stage, slopes);
      if constexpr (C::SLOPES == 1) {
        sync_block();  // dS is there for all, and P
        if constexpr (C::SHARES) {
          sum_shared(stage, slopes);
          if constexpr (C::STAGES == 1) sync_block();  // none reads Q and dO any more
        }
        if constexpr (C::STAGES == 1) copy_next(0);
        add_dq(slopes, head, tile);
      }
      before_head = head + 1, before_tile = tile;
      if (++tile == end_tile) tile = first_tile, head++;
      if (C::STAGES == 2) stage ^= 1;
    }
    if constexpr (C::SLOPES == 2) {
      sync_block();  // dS of the last tile is there for all
      add_dq(memory + C::SLOPE + (stage ^ 1) * C::SLOPE_BYTES, before_head - 1, before_tile);
    }
  }
#endif
  // Writes dK, or dV if VALUES.
  template <bool VALUES>
  __device__ __forceinline__ void write(const float (&x)[C::FRAGMENTS][C::OUT][4], char* base, const Strides& at, float factor) const {
    base += batch * at.batch + kv_head * at.head;
    const int column0 = C::SHARES ? warp / C::KEY_WARPS * C::COLUMNS : 0;
#pragma unroll
    for (int f = 0; f < C::FRAGMENTS; f++)
#pragma unroll
      for (int four = 0; four < C::OUT; four += 4) {
        float units[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) units[j][i] = x[f][four + j][i];
        write_units<T>(units, base, at.row, key0 + warp_key + f * 16, p.seq_k, column0 + four * 8,
                       VALUES && C::UNEVEN ? p.value_dim : p.head_dim, lane, factor);
      }
  }

  // Starts with a tile of keys of one head of K; `head_of_all` counts over all batches. Returns whether any query sees these
  // keys.
  __device__ __forceinline__ bool begin(int head_of_all, int key_tile) {
    const int thread = (int)threadIdx.x;
    share = share_of_thread<C>(thread, p.head_dim);
    lane = thread & 31, warp = thread >> 5;
    warp_key = warp % C::KEY_WARPS * C::WARP_KEYS, warp_query = warp / C::KEY_WARPS * C::WARP_QUERIES;
    batch = divide(head_of_all, p.kv_heads), kv_head = head_of_all - batch * (int)p.kv_heads.divisor;
    first_head = next_head = kv_head * (int)p.group.divisor, key0 = key_tile * C::KEYS;
    const int last_key = min(key0 + C::KEYS, p.seq_k) - 1;
    const int begin = max(key0 - p.above, 0), end = min(last_key - p.below + 1, p.seq_q);
    first_tile = next_tile = begin / C::QUERIES, end_tile = (end + C::QUERIES - 1) / C::QUERIES;
    clear_columns(dk);
    clear_columns(dv);
    return end > begin;
  }
};

// Grid: p.items tiles of keys, in sections of heads; the last section may have too many. Under a causal mask the first tiles of
// keys are seen by the most queries, so the longest tiles start first, over all heads of a section.
template <class B>
DEVICE void go_through_queries(const BackwardParams& p) {
  SHARED_MEMORY(memory);
  const int item = (int)blockIdx.x, section = divide(item, p.section_tiles), within = item - section * (int)p.section_tiles.divisor;
  const int tile = divide(within, p.section), head = section * (int)p.section.divisor + within - tile * (int)p.section.divisor;
  if (head >= p.all_kv_heads) return;
  B block = {p, shared_address(memory)};
  if (block.begin(head, tile)) block.loop();
  block.template write<false>(block.dk, p.dk, p.at_dk, p.scale);
  block.template write<true>(block.dv, p.dv, p.at_dv, 1.0f);
}
template <class C>
DEVICE void backward_ampere(const BackwardParams& p) {
  go_through_queries<AmpereBlock<C>>(p);
}
