// What one block does: which rows and keys it processes, and the order of copies, barriers and arithmetic.
#pragma once
#include "paged.cuh"

// The output rows and the keys of this block.
struct Work {
  int head, row0;   // the head, counted over all batches
  int first, last;  // tiles first .. last - 1 of keys
};

// Causal row tiles differ in length: the longest go first, so that the short ones fill the gaps at the end. Heads are taken a
// section at a time, so that the K and V in use fit in the L2 cache; the last section may have too many heads.
template <class C>
DEVICE Work work_of_block(const AttentionParams& p, int block) {
  Work w;
  int row_tile;
  if (C::CAUSAL) {
    const int section = divide(block, p.section_tiles), within = block - section * (int)p.section_tiles.divisor;
    const int place = divide(within, p.section);
    row_tile = (int)p.row_tiles.divisor - 1 - place;
    w.head = section * (int)p.section.divisor + within - place * (int)p.section.divisor;
  } else {
    w.head = divide(block, p.row_tiles);
    row_tile = block - w.head * (int)p.row_tiles.divisor;
  }
  w.row0 = row_tile * C::BM;
  w.last = (p.seq_k + C::BN - 1) / C::BN;
  if (C::CAUSAL) {
    int last_row = (w.row0 + C::BM < p.seq_q ? w.row0 + C::BM : p.seq_q) - 1;
    int visible = last_row + p.causal_offset + 1;
    int last = visible <= 0 ? 0 : (visible + C::BN - 1) / C::BN;
    w.last = last < w.last ? last : w.last;
  }
  w.first = (int)blockIdx.y * p.tiles_per_split;
  int end = w.first + p.tiles_per_split;
  w.last = end < w.last ? end : w.last;
  return w;
}

struct Nothing {};
template <bool GENERAL>
struct ScopeIf {
  typedef Nothing Type;
};
template <>
struct ScopeIf<true> {
  typedef Scope Type;
};

template <bool DROPS>
struct KeyIf {
  typedef Nothing Type;
};
template <>
struct KeyIf<true> {
  typedef DropoutKey Type;
};

template <class C>
struct Block {
  const AttentionParams& p;
  int first, last;             // see Work
  Warp<C> warp;
  const char *k, *v;           // this thread's first chunk of the next tile of K, and of V; with pages, of the first page
  u32 q_tile;                  // address in shared memory of Q; the stages of K and V follow
  u32 q_lane;                  // the start of this lane's ldmatrix rows of Q
  typename ScopeIf<C::GENERAL>::Type scope;
  typename KeyIf<C::DROPS>::Type key;

  static constexpr u32 STAGE_BYTES = 2 * C::TILE_BYTES;

  // Registers are full in the main loop. Values that take only a few instructions to compute are not kept across the loop, but
  // computed again.
  __device__ __forceinline__ Share share_again() const { return share_of_thread<C>(thread_again(), p.head_dim); }

  // This thread's share of a tile of V, which may be narrower than K.
  __device__ __forceinline__ Share of_values(const Share& share) const {
    return C::SHAPED ? share_of_thread<C>(thread_again(), p.value_dim) : share;
  }

  // The address of this thread's first chunk in the first stage of K.
  __device__ __forceinline__ u32 chunk(const Share& share) const {
    return q_tile + C::Q_BYTES + swizzled<C>(share.row0, share.chunk);
  }

  // ldmatrix: for Q and V, lanes 0-15 give rows 0-15 and lanes 16-31 the next 8 columns. For K, whose rows are the columns of
  // the product, every other group of eight lanes gives the next 8 columns, and lanes 16-31 the next 8 rows.
  __device__ __forceinline__ u32 k_lane() const {
    const u32 lane = (u32)thread_again() & 31;
    return q_tile + C::Q_BYTES + swizzled<C>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  }
  __device__ __forceinline__ u32 v_lane() const {
    const u32 lane = (u32)thread_again() & 31;
    return q_tile + C::Q_BYTES + C::TILE_BYTES + swizzled<C>(lane & 15, lane >> 4) + (C::SHAPED ? (u32)blockIdx.z * C::NO * 16 : 0);
  }

  __device__ __forceinline__ int keys() const {
    if constexpr (C::GENERAL)
      return scope.seq_k;
    else
      return p.seq_k;
  }

  // The number of keys that the block's first row sees.
  __device__ __forceinline__ int limit() const { return work_of_block<C>(p, block_again()).row0 + p.causal_offset + 1; }

  // Whether tile n ends beyond the last key, or beyond what the block's first row sees. Once this is false, it is false for all
  // further tiles.
  __device__ __forceinline__ bool needs_mask(int n) const {
    if constexpr (C::GENERAL) return C::HAS_MASK || !is_open<C>(scope, n);
    return (n + 1) * C::BN > p.seq_k || (C::CAUSAL && (n + 1) * C::BN > limit());
  }

  // Whether this warp has anything to compute in tile n: it has not if all its rows end before the tile.
  template <bool MASKED>
  __device__ __forceinline__ bool active(int n) const {
    if constexpr (C::GENERAL) return !MASKED || sees<C>(p, scope, n, (thread_again() >> 5) * C::MI * 16);
    return !(MASKED && C::CAUSAL) || n * C::BN < limit() + ((thread_again() >> 5) + 1) * C::MI * 16 - 1;
  }

  template <bool MASKED>
  __device__ __forceinline__ void masked_scores(int n, u32 stage) {
    warp.scores(opaque(q_lane), k_lane() + stage);
    if constexpr (C::GENERAL) {
      const int thread = thread_again(), warp_row = (thread >> 5) * C::MI * 16;
      if constexpr (C::SHAPED) shape<C>(p, scope, warp, n, warp_row, thread & 31);
      if constexpr (C::HAS_MASK) add_mask<C>(p, scope, warp, n, warp_row, thread & 31);
      if (MASKED && !is_open<C>(scope, n)) hide<C>(p, scope, warp, n, warp_row, thread & 31);
    } else if (MASKED) {
      const int thread = thread_again(), column = n * C::BN + 2 * (thread & 3);
      warp.mask(p.seq_k - column, limit() + (thread >> 5) * C::MI * 16 + ((thread & 31) >> 2) - column);
    }
  }

  // Scores that were shaped, or to which a mask was added, are already scaled.
  template <bool MASKED>
  __device__ __forceinline__ void softmax(int n) {
    warp.template softmax<MASKED>(C::SCALED ? 1.0f : p.scale_log2);
    if constexpr (C::DROPS) drop<C>(p, scope, warp, key, n, (thread_again() >> 5) * C::MI * 16, thread_again() & 31);
  }

  __device__ __forceinline__ void next_tile() {
    if constexpr (!C::PAGED) k -= (u32)C::BN * p.k_row, v -= (u32)C::BN * p.v_row;
  }

  // Copies tile n of K or V, which is the current tile, to shared memory from this thread's first chunk on.
  template <bool BOUNDED>
  __device__ __forceinline__ void copy_k(u32 first, int n, const Share& share) const {
    if constexpr (C::PAGED)
      copy_paged_tile<C, BOUNDED>(p, scope, first, k, p.k_batch, p.k_row, n, share);
    else
      copy_tile<C, C::BN, BOUNDED>(first, k, p.k_row, BOUNDED ? keys() - n * C::BN : C::BN, share);
  }
  template <bool BOUNDED>
  __device__ __forceinline__ void copy_v(u32 first, int n, const Share& share) const {
    if constexpr (C::PAGED)
      copy_paged_tile<C, BOUNDED>(p, scope, first, v, p.v_batch, p.v_row, n, of_values(share));
    else
      copy_tile<C, C::BN, BOUNDED>(first, v, p.v_row, BOUNDED ? keys() - n * C::BN : C::BN, of_values(share));
  }
  template <class ROWS>
  __device__ __forceinline__ void load_k(ROWS& to, int n, int rows, const Share& share) const {
    if constexpr (C::PAGED)
      load_paged_tile<C>(p, scope, to, k, p.k_batch, p.k_row, n, share);
    else
      to.load(k, p.k_row, rows, share);
  }
  template <class ROWS>
  __device__ __forceinline__ void load_v(ROWS& to, int n, int rows, const Share& share) const {
    if constexpr (C::PAGED)
      load_paged_tile<C>(p, scope, to, v, p.v_batch, p.v_row, n, of_values(share));
    else
      to.load(v, p.v_row, rows, of_values(share));
  }

  // Two stages: the next tile's K and V are in flight during all of the present tile. There is one barrier per tile. It makes
  // the tile that has landed visible, and it ensures that every warp has left the stage that is overwritten next.
  template <bool MASKED>
  __device__ __forceinline__ void step_ahead(int n) {
#if HAS_ASYNC_COPY
    const u32 stage = n & 1 ? STAGE_BYTES : 0, other = STAGE_BYTES - stage;
    copy_async_wait<0>();
    sync_block();
    if (n > first) {
      next_tile();
      const Share share = share_again();
      copy_k<false>(chunk(share) + other, n - 1, share);
      copy_v<false>(chunk(share) + other + C::TILE_BYTES, n - 1, share);
      copy_async_commit();
    }
    if (active<MASKED>(n)) {
      masked_scores<MASKED>(n, stage);
      softmax<MASKED>(n);
      warp.accumulate(v_lane() + stage);
    }
#endif
  }

  // One stage: V is in flight while S = Q K^T runs, and the next K while the softmax and P V run.
  template <bool MASKED>
  __device__ __forceinline__ void step_single(int n) {
    const bool computes = active<MASKED>(n);
#if HAS_ASYNC_COPY
    if constexpr (C::ASYNC) {
      copy_async_wait<0>();
      sync_block();  // K has landed; every warp has left V
      const Share share = share_again();
      copy_v<MASKED>(chunk(share) + C::TILE_BYTES, n, share);
      copy_async_commit();
      if (computes) masked_scores<MASKED>(n, 0);
      copy_async_wait<0>();
      sync_block();  // V has landed; every warp has left K
      if (n > first) {
        next_tile();
        const Share share = share_again();
        copy_k<false>(chunk(share), n - 1, share);
        copy_async_commit();
      }
      if (computes) {
        softmax<MASKED>(n);
        warp.accumulate(v_lane());
      }
      return;
    }
#endif
    const Share share = share_again();
    Staged<C, C::BN> next;
    load_v(next, n, keys() - n * C::BN, share);
    sync_block();  // K has landed; every warp has left V
    if (computes) masked_scores<MASKED>(n, 0);
    next.store(chunk(share) + C::TILE_BYTES);
    if (n > first) {
      next_tile();
      load_k(next, n - 1, C::BN, share);
    }
    if (computes) softmax<MASKED>(n);
    sync_block();  // V has landed; every warp has left K
    if (computes) warp.accumulate(v_lane());
    if (n > first) next.store(chunk(share));
  }

  template <bool MASKED>
  __device__ __forceinline__ void step(int n) {
    if constexpr (C::STAGES == 2)
      step_ahead<MASKED>(n);
    else
      step_single<MASKED>(n);
  }

  // Writes the rows of the heads of a pack, each to its own address.
  __device__ __forceinline__ void copy_packed_q(u32 first, const Share& share) const {
#pragma unroll
    for (int i = 0; i < C::BM / C::ROWS_PER_PASS; i++) {
      const int local = share.row0 + i * C::ROWS_PER_PASS;
      const bool inside = local < scope.rows;
      const char* source = q_row(p, scope, place_of_row(p, scope, inside ? local : 0)) + share.chunk * 16;
      const Chunk c = load_chunk<C>(source, inside ? share.valid : 0);
      const u32 keep = p.q_keep, flip = p.q_flip;
      store_shared(chunk_of_pass<C>(first, i), Chunk{(c.x & keep) ^ flip, (c.y & keep) ^ flip, (c.z & keep) ^ flip, (c.w & keep) ^ flip});
    }
  }

  __device__ __forceinline__ void all_tiles(const char* q, int q_rows, const Share& share) {
    const u32 chunk = this->chunk(share);
    int n = last - 1;
    if constexpr (!C::PAGED) k += (i64)n * ((u32)C::BN * p.k_row), v += (i64)n * ((u32)C::BN * p.v_row);
    if (C::ASYNC && !C::SHAPED && !share.valid) {
      zero_tile<C, C::BM>(chunk - C::Q_BYTES);
      for (int i = 0; i < 2 * C::STAGES; i++) zero_tile<C, C::BN>(chunk + i * C::TILE_BYTES);
    }
    if constexpr (C::ASYNC && C::SHAPED) {
      const bool no_values = !of_values(share).valid;
      if (!share.valid) zero_tile<C, C::BM>(chunk - C::Q_BYTES);
      for (int i = 0; i < 2 * C::STAGES; i++)
        if (i & 1 ? no_values : !share.valid) zero_tile<C, C::BN>(chunk + i * C::TILE_BYTES);
    }
    if constexpr (C::GENERAL)
      copy_packed_q(chunk - C::Q_BYTES, share);
    else
      copy_tile<C, C::BM, true>(chunk - C::Q_BYTES, q, p.q_row, q_rows, share);
    const u32 stage = C::STAGES == 2 && (n & 1) ? STAGE_BYTES : 0;
    copy_k<true>(chunk + stage, n, share);
#if HAS_ASYNC_COPY
    if constexpr (C::ASYNC) {
      if constexpr (C::STAGES == 2)
        copy_v<true>(chunk + stage + C::TILE_BYTES, n, share);
      copy_async_commit();
      if constexpr (C::Q_IN_REGISTERS) copy_async_wait<0>();
    }
#endif
    if constexpr (C::Q_IN_REGISTERS) {
      sync_block();
      warp.keep_q(q_lane);
    }
    if constexpr (C::HAS_MASK) {
      for (; n >= first; n--) step<true>(n);
      return;
    }
    for (; n >= first && needs_mask(n); n--) step<true>(n);
    for (; n >= first && !(C::GENERAL && needs_mask(n)); n--) step<false>(n);
    if constexpr (C::GENERAL)
      for (; n >= first; n--) step<true>(n);  // the last tiles, where a window hides some of the first keys
  }
};
