// Attention of few queries over many keys: decoding, which is one or a few new tokens against a long cache.
//
// The work is to read K and V once, at the speed of memory; arithmetic hardly counts. The query heads that share a head of K
// and V, and their few queries, are packed into the rows of one 16-row fragment, so that each key is read once for all of them.
// The keys are split over blocks, and in a block over its warps. Each warp has a separate ring of tiles in shared memory and
// never waits for another warp: while it multiplies one tile, the next tiles are in flight, and its loop has no barrier. At the
// end the results of the warps of a block are joined through shared memory, and those of the blocks through global memory by
// the block that ends last.
//
//   Packed groups: Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models", 2023, for the sharing itself.
//   Split keys: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023.
#pragma once
#include "paged.cuh"

// With FLOAT8, K and V have eight bits an element and are widened in registers, times a scale for each head. A fragment of
// eight keys and 16 bytes has 16 elements of a row, and a lane gets four that follow each other where 16-bit elements give it
// two and two; so Q lies in the same order. Of V a lane gets two columns of two keys, so fragments of O have every other column.
template <class T_, int D_, int MI_, int KEYS_, int WARPS_, int STAGES_, bool PAGED_ = false, bool FLOAT8_ = false>
struct DecodeConfig {
  typedef T_ T;
  static constexpr int D = D_, MI = MI_, KEYS = KEYS_, WARPS = WARPS_, STAGES = STAGES_;
  static constexpr bool VECTOR = true, ASYNC = HAS_ASYNC_COPY, CAUSAL = true;
  static constexpr bool Q_IN_REGISTERS = MI * D <= 128;
  static constexpr bool PAGED = PAGED_;  // keys are in pages, which a table lists
  static constexpr bool FLOAT8 = FLOAT8_;
  static constexpr bool KEEPS_SCOPE = !(FLOAT8 && D == 256);  // whether the main loop leaves registers for it
  static constexpr bool EXACT = !FLOAT8 || D <= 128 || HAS_FLOAT8;  // widened without an instruction, wide rows leave no registers

  static constexpr int BM = MI * 16, BN = KEYS, THREADS = WARPS * 32;
  static constexpr int PER_CHUNK = FLOAT8 ? 16 : 8;  // elements of K or V
  static constexpr int ROW_BYTES = D * 16 / PER_CHUNK, Q_ROW_BYTES = D * 2;
  static constexpr int CHUNKS = D / PER_CHUNK, Q_CHUNKS = D / 8;
  static constexpr int ROWS_PER_PASS = 32 / CHUNKS;  // one warp copies a tile
  static constexpr int PASSES = KEYS / ROWS_PER_PASS;
  static constexpr int KQ = D / 16, NS = KEYS / 8, NO = D / 8, KV = KEYS / 16;
  static constexpr int Q_BYTES = BM * Q_ROW_BYTES, TILE_BYTES = KEYS * ROW_BYTES;
  static constexpr int RING_BYTES = STAGES * 2 * TILE_BYTES;  // of a warp

  static_assert(D == 64 || D == 128 || D == 256, "D must be 64, 128 or 256");
  static_assert(KEYS % 16 == 0 && KEYS % ROWS_PER_PASS == 0, "KEYS must be a multiple of 16 and of the rows of a pass");
  static_assert(!PAGED || KEYS == 16 || KEYS == 32, "with pages, KEYS must be 16 or 32: a lane looks up the page of one key");
  static_assert(STAGES == 1 || ASYNC, "more than one stage needs asynchronous copies (sm_80 or newer)");
  static_assert(BM * D * 4 <= RING_BYTES, "a warp's part of the output must fit into its ring");
  static_assert(2 * WARPS * BM * 8 <= Q_BYTES, "the sums of the rows must fit into the memory of Q");
};

template <class C>
struct DecodeWarp {
  const AttentionParams& p;
  const Scope& scope;
  Warp<C> warp;
  const char *k, *v;  // this lane's chunk of this lane's first row; with pages, of the first page's first row
  int lane;
  int valid;          // whether the lane's chunk lies inside the head dimension
  u32 q_lane;         // the start of this lane's ldmatrix rows of Q
  u32 ring;           // this warp's tiles: K and V of each stage
  float scale_log2;

  // The address of the lane's chunk in pass i, from the address of its first chunk. The swizzle XORs the row's low three bits
  // into the chunk's index; these bits are those of the lane's first row plus those of a number known at compile time.
  static __device__ __forceinline__ u32 chunk_of(u32 first, int i) {
    return (first ^ ((u32)(i * C::ROWS_PER_PASS & 7) << 4)) + i * C::ROWS_PER_PASS * C::ROW_BYTES;
  }
  __device__ __forceinline__ u32 first_chunk() const { return ring + swizzled<C>(lane / C::CHUNKS, lane % C::CHUNKS); }
  __device__ __forceinline__ u32 k_lane() const { return ring + swizzled<C>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1); }
  __device__ __forceinline__ u32 v_lane() const { return ring + C::TILE_BYTES + swizzled<C>(lane & 15, lane >> 4); }

  __device__ __forceinline__ bool has_row(int n, int i) const { return n * C::KEYS + lane / C::CHUNKS + i * C::ROWS_PER_PASS < scope.seq_k; }

#if HAS_ASYNC_COPY
  // Copies tile n of K or V into the ring. It is a separate group of copies, which is empty if there is no such tile.
  __device__ __forceinline__ void fetch(u32 first, const char* source, u32 row_stride, int n) const {
    if (n < scope.last && valid) {
      source += (i64)n * C::KEYS * row_stride;
      copy_rows(first, source, row_stride, n);
    }
    copy_async_commit();
  }

  // Copies the tile's rows, which follow each other, from this lane's first row on.
  __device__ __forceinline__ void copy_rows(u32 first, const char* source, u32 row_stride, int n) const {
    if ((n + 1) * C::KEYS <= scope.seq_k) {
#pragma unroll
      for (int i = 0; i < C::PASSES; i++, source += (u32)C::ROWS_PER_PASS * row_stride) copy_async(chunk_of(first, i), source);
    } else {
      for (int i = 0; i < C::PASSES; i++) {
        const bool inside = has_row(n, i);
        copy_async_or_zero(chunk_of(first, i), inside ? source + i * C::ROWS_PER_PASS * (i64)row_stride : source, inside);
      }
    }
  }

  // The same for a tile whose keys are in `pages`, which `pages_of` returned.
  __device__ __forceinline__ void fetch_paged(u32 first, const char* first_page, i64 page_stride, u32 row_stride, int n, int pages) const {
    if (n < scope.last) {
      if (tile_has_one_page()) {
        const char* source = first_page + offset_of_key(p, n * C::KEYS, pages, page_stride, row_stride);
        if (valid) copy_rows(first, source + (i64)(lane / C::CHUNKS) * row_stride, row_stride, n);
      } else {
#pragma unroll
        for (int i = 0; i < C::PASSES; i++) {
          const int row = lane / C::CHUNKS + i * C::ROWS_PER_PASS, key = n * C::KEYS + row;
          const int page = shuffle(pages, row);
          const char* source = first_page + offset_of_key(p, key, page, page_stride, row_stride);
          if (valid) copy_async_or_zero(chunk_of(first, i), source, key < scope.seq_k);
        }
      }
    }
    copy_async_commit();
  }
#endif

  // Copies tile n of K or V into the ring.
  __device__ __forceinline__ void fetch_k(u32 first, int n, int pages) const {
#if HAS_ASYNC_COPY
    if constexpr (C::PAGED)
      fetch_paged(first, k, p.k_batch, p.k_row, n, pages);
    else
      fetch(first, k, p.k_row, n);
#endif
  }
  __device__ __forceinline__ void fetch_v(u32 first, int n, int pages) const {
#if HAS_ASYNC_COPY
    if constexpr (C::PAGED)
      fetch_paged(first, v, p.v_batch, p.v_row, n, pages);
    else
      fetch(first, v, p.v_row, n);
#endif
  }

  __device__ __forceinline__ bool tile_has_one_page() const { return (p.page.divisor & (C::KEYS - 1)) == 0; }

  // The pages of tile n, where keys are in pages: lane l has the page of the tile's key l % KEYS, or of the sequence's last
  // key. It is requested one tile ahead, so the copies that need it do not wait for it.
  __device__ __forceinline__ int pages_of(int n) const {
    if constexpr (C::PAGED) {
      if (n >= scope.last) return 0;
      const int key = n * C::KEYS + (lane & (C::KEYS - 1)), last = scope.seq_k - 1;
      return page_of_key(p, scope, key < last ? key : last);
    }
    return 0;
  }

  __device__ __forceinline__ void load(Chunk (&chunk)[C::PASSES], const char* source, u32 row_stride, int n) const {
    source += (i64)n * C::KEYS * row_stride;
#pragma unroll
    for (int i = 0; i < C::PASSES; i++, source += (u32)C::ROWS_PER_PASS * row_stride)
      chunk[i] = n < scope.last && valid && has_row(n, i) ? *(const Chunk*)source : Chunk{0, 0, 0, 0};
  }
  __device__ __forceinline__ void load_paged(Chunk (&chunk)[C::PASSES], const char* first_page, i64 page_stride, u32 row_stride, int n, int pages) const {
#pragma unroll
    for (int i = 0; i < C::PASSES; i++) {
      const int row = lane / C::CHUNKS + i * C::ROWS_PER_PASS;
      const int page = shuffle(pages, row);
      const char* source = first_page + offset_of_key(p, n * C::KEYS + row, page, page_stride, row_stride);
      chunk[i] = n < scope.last && valid && has_row(n, i) ? *(const Chunk*)source : Chunk{0, 0, 0, 0};
    }
  }
  __device__ __forceinline__ void load_k(Chunk (&chunk)[C::PASSES], int n, int pages) const {
    if constexpr (C::PAGED)
      load_paged(chunk, k, p.k_batch, p.k_row, n, pages);
    else
      load(chunk, k, p.k_row, n);
  }
  __device__ __forceinline__ void load_v(Chunk (&chunk)[C::PASSES], int n, int pages) const {
    if constexpr (C::PAGED)
      load_paged(chunk, v, p.v_batch, p.v_row, n, pages);
    else
      load(chunk, v, p.v_row, n);
  }
  __device__ __forceinline__ void store(u32 first, const Chunk (&chunk)[C::PASSES]) const {
#pragma unroll
    for (int i = 0; i < C::PASSES; i++) store_shared(chunk_of(first, i), chunk[i]);
  }

  // Processes this warp's share of the block's tiles, which is every WARPS-th. Groups of copies are committed in the order K,
  // V, K, V ..., one ring ahead. As soon as a tile has been read, the next copy into its place starts.
  __device__ __forceinline__ void all_tiles(int first) {
#if HAS_ASYNC_COPY
    u32 stage = 0;
    int pages = pages_of(first + C::STAGES * C::WARPS);
    for (int n = first; n < scope.last; n += C::WARPS) {
      const int ahead = n + C::STAGES * C::WARPS;
      copy_async_wait<2 * C::STAGES - 1>();
      sync_warp();
      warp.scores(q_lane, k_lane() + stage);
      sync_warp();
      fetch_k(first_chunk() + stage, ahead, pages);
      if (!is_open<C>(scope, n)) hide(p, scope, warp, n, 0, lane);
      warp.template softmax<true>(scale_log2);
      copy_async_wait<2 * C::STAGES - 1>();
      sync_warp();
      warp.template accumulate<C::EXACT>(v_lane() + stage);
      sync_warp();
      fetch_v(first_chunk() + stage + C::TILE_BYTES, ahead, pages);
      pages = pages_of(ahead + C::WARPS);
      stage = stage + 2 * C::TILE_BYTES == C::RING_BYTES ? 0 : stage + 2 * C::TILE_BYTES;
    }
#else
    if constexpr (C::D > 128 || C::MI > 1 || (C::FLOAT8 && C::PAGED)) {  // there are no registers that could hold tiles during the computation
      for (int n = first; n < scope.last; n += C::WARPS) {
        Chunk tile[C::PASSES];
        sync_warp();
        const int pages = pages_of(n);
        load_k(tile, n, pages);
        store(first_chunk(), tile);
        load_v(tile, n, pages);
        store(first_chunk() + C::TILE_BYTES, tile);
        sync_warp();
        warp.scores(q_lane, k_lane());
        if (!is_open<C>(scope, n)) hide(p, scope, warp, n, 0, lane);
        warp.template softmax<true>(scale_log2);
        warp.accumulate(v_lane());
      }
      return;
    }
    Chunk k_next[C::PASSES], v_next[C::PASSES];
    int pages = pages_of(first);
    load_k(k_next, first, pages);
    load_v(v_next, first, pages);
    pages = pages_of(first + C::WARPS);
    for (int n = first; n < scope.last; n += C::WARPS) {
      sync_warp();
      store(first_chunk(), k_next);
      store(first_chunk() + C::TILE_BYTES, v_next);
      sync_warp();
      load_k(k_next, n + C::WARPS, pages);
      load_v(v_next, n + C::WARPS, pages);
      pages = pages_of(n + 2 * C::WARPS);
      warp.scores(q_lane, k_lane());
      if (!is_open<C>(scope, n)) hide(p, scope, warp, n, 0, lane);
      warp.template softmax<true>(scale_log2);
      warp.accumulate(v_lane());
    }
#endif
  }

  // Starts the copies of the ring's first tiles. What copies will never write, beyond the head dimension, is zeroed.
  __device__ __forceinline__ void start(int first) const {
#if HAS_ASYNC_COPY
    const u32 chunk = first_chunk();
    if (!valid)
      for (int tile = 0; tile < 2 * C::STAGES; tile++)
#pragma unroll
        for (int i = 0; i < C::PASSES; i++) store_shared(chunk_of(chunk + tile * C::TILE_BYTES, i), Chunk{0, 0, 0, 0});
    int pages[C::STAGES];
#pragma unroll
    for (int stage = 0; stage < C::STAGES; stage++) pages[stage] = pages_of(first + stage * C::WARPS);
#pragma unroll
    for (int stage = 0; stage < C::STAGES; stage++) {
      const u32 to = chunk + stage * 2 * C::TILE_BYTES;
      fetch_k(to, first + stage * C::WARPS, pages[stage]);
      fetch_v(to + C::TILE_BYTES, first + stage * C::WARPS, pages[stage]);
    }
#endif
  }
};

// The byte offset of 16 bytes of float32 output in a warp's ring. Rows are XORed into pairs of chunks, so that neither the
// accumulators' pairs nor whole chunks have bank conflicts.
template <class C>
DEVICE u32 float_chunk(int row, int chunk) {
  return (u32)(row * C::D * 4 + ((chunk ^ ((row & 7) << 1)) << 4));
}

DEVICE float top_of(float top) { return top == MINUS_INFINITY ? 0.0f : top; }  // inf - inf would be NaN

// Joins the results of the warps in shared memory: every warp's O and its sums, relative to the block's maximum, are in its ring
// and, after the pairs from which the maximum was found, in the place of Q.
template <class C>
DEVICE void join_warps(DecodeWarp<C>& of, u32 sums, int w) {
  const int lane = of.lane;
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float& sum = of.warp.sum[i][r];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
    }
  sync_block();  // every warp has left Q
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      if ((lane & 3) == 0)
        store_shared(sums + (w * C::BM + i * 16 + r * 8 + (lane >> 2)) * 8, Pair{of.warp.top[i][r], of.warp.sum[i][r]});
  sync_block();
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = i * 16 + r * 8 + (lane >> 2);
      if (row >= of.scope.rows) continue;
      float top = MINUS_INFINITY;
#pragma unroll
      for (int other = 0; other < C::WARPS; other++) top = fmaxf(top, load_shared_pair(sums + (other * C::BM + row) * 8).x);
      const float factor = exp2_approx(of.warp.top[i][r] - top_of(top));
      if ((lane & 3) == 0) store_shared(sums + ((C::WARPS + w) * C::BM + row) * 8, Pair{top, of.warp.sum[i][r] * factor});
      if constexpr (C::FLOAT8) {
#pragma unroll
        for (int j = 0; j < C::NO; j += 2) {
          const float(&even)[4] = of.warp.o[i][j], (&odd)[4] = of.warp.o[i][j + 1];
          store_shared(of.ring + float_chunk<C>(row, 2 * j + (lane & 3)),
                       Chunk{(u32)__float_as_int(even[2 * r] * factor), (u32)__float_as_int(odd[2 * r] * factor),
                             (u32)__float_as_int(even[2 * r + 1] * factor), (u32)__float_as_int(odd[2 * r + 1] * factor)});
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < C::NO; j++) {
        const Pair pair = {of.warp.o[i][j][2 * r] * factor, of.warp.o[i][j][2 * r + 1] * factor};
        store_shared(of.ring + float_chunk<C>(row, 2 * j + ((lane & 3) >> 1)) + (lane & 1) * 8, pair);
      }
    }
  sync_block();
}

DEVICE float inverse_of(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

template <class T>
DEVICE void write_four(const AttentionParams& p, const Scope& scope, const Place& at, int column, const float (&x)[4]) {
  *(Words*)(out_row(p, scope, at) + column * 2) = Words{pack<T>(x[0], x[1]), pack<T>(x[2], x[3])};
}

// Writes the block's rows, normalised, to the output or to this split's part of it.
template <class C>
DEVICE void write_block(const AttentionParams& p, const Scope& scope, u32 sums, u32 rings, int thread) {
  const int fours = p.head_dim / 4;
  for (int index = thread; index < scope.rows * (C::D / 4); index += C::THREADS) {
    const int row = index / (C::D / 4), four = index % (C::D / 4);
    if (four >= fours) continue;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < C::WARPS; w++) {
      const Chunk part = load_shared(rings + w * C::RING_BYTES + float_chunk<C>(row, four));
      x[0] += __int_as_float((int)part.x), x[1] += __int_as_float((int)part.y);
      x[2] += __int_as_float((int)part.z), x[3] += __int_as_float((int)part.w);
    }
    Pair sum = load_shared_pair(sums + (C::WARPS * C::BM + row) * 8);
#pragma unroll
    for (int w = 1; w < C::WARPS; w++) sum.y += load_shared_pair(sums + ((C::WARPS + w) * C::BM + row) * 8).y;
    const float inverse = inverse_of(sum.y) * (C::FLOAT8 ? p.v_scale[scope.kv_head] : 1.0f), lse = sum.y == 0.0f ? MINUS_INFINITY : sum.x + log2_approx(sum.y);
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] *= inverse;
    const Place at = place_of_row(p, scope, row);
    const i64 place = index_of_place(p, scope, at);
    if (scope.parts == 1) {
      write_four<typename C::T>(p, scope, at, four * 4, x);
      if (four == 0 && p.lse) p.lse[place] = lse * LN_2;
    } else {
      const i64 part = (i64)blockIdx.y * p.all_rows + place;
      *(Chunk*)(p.partial_out + part * p.head_dim + four * 4) =
          Chunk{(u32)__float_as_int(x[0]), (u32)__float_as_int(x[1]), (u32)__float_as_int(x[2]), (u32)__float_as_int(x[3])};
      if (four == 0) p.partial_lse[part] = lse;
    }
  }
}

// out = sum_s 2^(lse_s - max) out_s / sum_s 2^(lse_s - max) over the parts of the block's rows, all of which are written. A
// thread sums four columns of a row, or of two rows at once; the loads of sixteen parts are in flight together.
template <class C>
DEVICE void join_parts(const AttentionParams& p, const Scope& scope, int thread) {
  constexpr int ROWS = C::ASYNC && C::MI == 1 && C::D <= 128 && C::BM * C::D / 4 > C::THREADS ? 2 : 1, AT_ONCE = 16;
  const int all = scope.rows * (C::D / 4);
  for (int start = thread; start < all; start += ROWS * C::THREADS) {
    const float *part[ROWS], *sums[ROWS];
    bool exists[ROWS];
    i64 place[ROWS];
    float x[ROWS][4], top[ROWS], total[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      const int index = start + m * C::THREADS, four = index % (C::D / 4);
      exists[m] = index < all && four * 4 < p.head_dim;
      place[m] = index_of_place(p, scope, place_of_row(p, scope, exists[m] ? index / (C::D / 4) : 0));
      part[m] = p.partial_out + place[m] * p.head_dim + (exists[m] ? four * 4 : 0), sums[m] = p.partial_lse + place[m];
      x[m][0] = x[m][1] = x[m][2] = x[m][3] = total[m] = 0.0f, top[m] = MINUS_INFINITY;
    }
    for (int first = 0; first < scope.parts; first += AT_ONCE) {
      Chunk chunk[ROWS][AT_ONCE];
      float lse[ROWS][AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
          const i64 rows = (first + i) * p.all_rows;
          lse[m][i] = load_fresh(sums[m] + rows, first + i < scope.parts, MINUS_INFINITY);
          chunk[m][i] = load_fresh((const Chunk*)(part[m] + rows * p.head_dim), first + i < scope.parts);
        }
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        float most = top[m];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) most = fmaxf(most, lse[m][i]);
        const float factor = exp2_approx(top[m] - top_of(most));
        top[m] = most, total[m] *= factor;
#pragma unroll
        for (int e = 0; e < 4; e++) x[m][e] *= factor;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
          const float weight = exp2_approx(lse[m][i] - top_of(most));
          total[m] += weight;
          x[m][0] += weight * __int_as_float((int)chunk[m][i].x), x[m][1] += weight * __int_as_float((int)chunk[m][i].y);
          x[m][2] += weight * __int_as_float((int)chunk[m][i].z), x[m][3] += weight * __int_as_float((int)chunk[m][i].w);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      if (!exists[m]) continue;
      const int index = start + m * C::THREADS, four = index % (C::D / 4);
      const float inverse = inverse_of(total[m]);
#pragma unroll
      for (int e = 0; e < 4; e++) x[m][e] *= inverse;
      write_four<typename C::T>(p, scope, place_of_row(p, scope, index / (C::D / 4)), four * 4, x[m]);
      if (four == 0 && p.lse) p.lse[place[m]] = total[m] == 0.0f ? MINUS_INFINITY : (top[m] + log2_approx(total[m])) * LN_2;
    }
  }
}

// The byte offset of a chunk of Q: as `swizzled`, in longer rows.
template <class C>
DEVICE u32 q_chunk(int row, int chunk) {
  return (u32)(row * C::Q_ROW_BYTES + ((chunk ^ (row & 7)) << 4));
}

template <class C>
DEVICE void copy_q(const AttentionParams& p, const Scope& scope, u32 q_tile, int thread) {
  for (int index = thread; index < C::BM * C::Q_CHUNKS; index += C::THREADS) {
    const int row = index / C::Q_CHUNKS, chunk = index % C::Q_CHUNKS;
    const bool inside = row < scope.rows && chunk * 8 < p.head_dim;
    const char* source = inside ? q_row(p, scope, place_of_row(p, scope, row)) + chunk * 16 : p.q;
    if constexpr (C::FLOAT8) {  // of two chunks, the even words come first
      const Chunk words = inside ? *(const Chunk*)source : Chunk{0, 0, 0, 0};
      const u32 even = q_tile + q_chunk<C>(row, chunk & ~1) + (chunk & 1) * 8, odd = q_tile + q_chunk<C>(row, chunk | 1) + (chunk & 1) * 8;
      store_shared(even, words.x), store_shared(even + 4, words.z);
      store_shared(odd, words.y), store_shared(odd + 4, words.w);
      continue;
    }
#if HAS_ASYNC_COPY
    copy_async_or_zero(q_tile + q_chunk<C>(row, chunk), source, inside);
#else
    store_shared(q_tile + q_chunk<C>(row, chunk), inside ? *(const Chunk*)source : Chunk{0, 0, 0, 0});
#endif
  }
#if HAS_ASYNC_COPY
  copy_async_commit();
#endif
}

template <class C>
DEVICE Scope scope_of_turn(const AttentionParams& p, int item, int turn) {
  const int pack = divide(item, p.row_tiles);
  Scope scope = scope_of<C>(p, pack, item + (turn - pack) * (int)p.row_tiles.divisor);
  if (!p.tickets || p.q_starts) scope.parts = p.splits;  // the kernel that joins reads all parts; each turn may have other ones
  return scope;
}

// Grid: (packs of all batches * row_tiles; splits). Shared memory: Config::Q_BYTES + WARPS * RING_BYTES. With more than one
// split and no tickets, `attention_combine` must follow.
template <class C>
DEVICE void attention_decode(const AttentionParams& p) {
  SHARED_MEMORY(memory);
  const u32 q_tile = shared_address(memory), rings = q_tile + C::Q_BYTES;
  // If sequences are longer than the host was told, there are more row tiles than the grid has: a block computes every
  // row_tiles-th tile, and joins none before it has written its parts of all.
  Scope scope;
  for (int turn = 0;; turn++) {
    const int thread = thread_again(), lane = thread & 31, w = thread >> 5;
    scope = scope_of_turn<C>(p, block_again(), turn);
    if (turn > 0 && scope.rows <= 0) break;
    if (p.tickets && !p.q_starts && blockIdx.y > 0 && scope.first >= scope.last) return;  // a block without keys has no part

    DecodeWarp<C> of = {p, scope};
    of.lane = lane;
    of.valid = lane % C::CHUNKS * C::PER_CHUNK < p.head_dim;
    of.q_lane = q_tile + q_chunk<C>(lane & 15, lane >> 4);
    of.scale_log2 = C::FLOAT8 ? p.scale_log2 * p.k_scale[scope.kv_head] : p.scale_log2;
    of.ring = rings + w * C::RING_BYTES;
    const i64 row0 = lane / C::CHUNKS, chunk0 = lane % C::CHUNKS * 16;
    if constexpr (C::PAGED) {
      of.k = first_k_page(p, scope) + chunk0;
      of.v = first_v_page(p, scope) + chunk0;
    } else {
      of.k = first_k_row(p, scope) + row0 * p.k_row + chunk0;
      of.v = first_v_row(p, scope) + row0 * p.v_row + chunk0;
    }
    copy_q<C>(p, scope, q_tile, thread);  // first: after the tiles it would arrive last, and nothing could start
    of.start(scope.first + w);
#if HAS_ASYNC_COPY
    copy_async_wait<2 * C::STAGES>();
#endif
    of.warp.clear();
    sync_block();
    of.warp.keep_q(of.q_lane);
    of.all_tiles(scope.first + w);

    if constexpr (!C::KEEPS_SCOPE) scope = scope_of_turn<C>(p, block_again(), turn);
    join_warps(of, q_tile, w);
    write_block<C>(p, scope, q_tile, rings, thread);
    if (!p.q_starts) break;
    sync_block();  // every warp has left shared memory
  }
  if (p.splits == 1 || !p.tickets) return;
  const int thread = thread_again(), item = block_again();
  const u32 last = (u32)scope.parts - 1;
  if (last == 0) return;
  sync_block();  // every thread's part is written before the ticket is taken
  if (thread == 0) store_shared(q_tile, take_ticket(p.tickets + item, last));
  sync_block();
  if (load_shared_word(q_tile) != last) return;
  for (int turn = 0;; turn++) {
    if (p.q_starts) scope = scope_of_turn<C>(p, item, turn);
    if (scope.rows <= 0) return;
    join_parts<C>(p, scope, thread);
    if (!p.q_starts) return;
  }
}
