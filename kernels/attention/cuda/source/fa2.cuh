// Scaled dot-product attention, forward, by the FlashAttention-2 schedule on mma.sync: every NVIDIA GPU from Turing on.
//
// One block computes BM rows of one head's output. Q stays; K and V pass through shared memory in tiles of BN keys, last tile
// first, so that only the first few tiles carry the code for masks. Scores and probabilities never leave registers: the
// accumulator layout of S = Q K^T is the operand layout of P V after packing pairs to 16 bits.
//
//   FlashAttention-2: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
//   Split keys: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023.
#pragma once
#include "params.cuh"

// O is rescaled only when a row's maximum has grown by more than this power of two since the last time. Until then the
// exponentials are taken against the older maximum: they stay below 2^8, exact in relative terms, and most tiles skip the
// multiplication of all of O.
#define RESCALE_THRESHOLD 8.0f

template <class T_, int D_, int BM_, int BN_, int WARPS_, int STAGES_, bool Q_IN_REGISTERS_, bool CAUSAL_, bool VECTOR_>
struct Config {
  typedef T_ T;
  static constexpr int D = D_, BM = BM_, BN = BN_, WARPS = WARPS_, STAGES = STAGES_;
  static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_, CAUSAL = CAUSAL_;
  static constexpr bool VECTOR = VECTOR_;  // 16-byte accesses; else element by element, for any alignment and head dim
  static constexpr bool ASYNC = VECTOR && HAS_ASYNC_COPY;

  static constexpr int THREADS = WARPS * 32;
  static constexpr int ROW_BYTES = D * 2;
  static constexpr int CHUNKS = D / 8;                 // 16-byte chunks in a row
  static constexpr int ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr int MI = BM / WARPS / 16;           // 16-row fragments of a warp
  static constexpr int KQ = D / 16, NS = BN / 8, NO = D / 8, KV = BN / 16;
  static constexpr int Q_BYTES = BM * ROW_BYTES, TILE_BYTES = BN * ROW_BYTES;
  static constexpr int PASSES = BN / ROWS_PER_PASS;

  static_assert(BM % (WARPS * 16) == 0 && BN % 16 == 0 && D % 64 == 0, "tiles are made of 16x16 fragments and 128-byte rows");
  static_assert(THREADS % CHUNKS == 0 && BM % ROWS_PER_PASS == 0 && BN % ROWS_PER_PASS == 0, "all threads copy equally much");
  static_assert(STAGES == 1 || ASYNC, "only asynchronous copies can run a tile ahead");
};

// Byte offset of a 16-byte chunk in a tile. The low three bits of the chunk's index are XORed with those of the row, so that
// eight rows of one column of chunks fall on eight different groups of banks: ldmatrix and the stores are free of conflicts.
template <class C>
DEVICE u32 swizzled(int row, int chunk) {
  return (u32)(row * C::ROW_BYTES + ((chunk ^ (row & 7)) << 4));
}

// ---- copying tiles ------------------------------------------------------------------------------------------------------

// What one thread moves of every tile: chunk `chunk` of rows row0, row0 + ROWS_PER_PASS, ...
struct Share {
  int row0, chunk;
  int valid;  // of the chunk's eight elements, how many lie inside the head dimension
};

template <class C>
DEVICE Share share_of_thread(int thread, int head_dim) {
  Share share;
  share.row0 = (int)((u32)thread / C::CHUNKS);
  share.chunk = (int)((u32)thread % C::CHUNKS);
  int left = head_dim - share.chunk * 8;
  share.valid = left < 0 ? 0 : (left > 8 ? 8 : left);
  return share;
}

// From this thread's first chunk in a tile to its chunk in pass i. A pass moves by a multiple of eight rows, which leaves the
// swizzle alone, except where rows are so long that a pass has only four.
template <class C>
DEVICE u32 chunk_of_pass(u32 first, int i) {
  static_assert(C::ROWS_PER_PASS % 4 == 0, "");
  return (C::ROWS_PER_PASS % 8 != 0 && (i & 1) ? first ^ 64 : first) + i * C::ROWS_PER_PASS * C::ROW_BYTES;
}

template <class C>
DEVICE Chunk load_chunk(const char* source, int valid) {
  Chunk c = {0, 0, 0, 0};
  if (C::VECTOR) {
    if (valid) c = *(const Chunk*)source;
  } else {
    const u16* element = (const u16*)source;
    u32 word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < 8; e++)
      if (e < valid) word[e / 2] |= (u32)element[e] << (16 * (e & 1));
    c.x = word[0], c.y = word[1], c.z = word[2], c.w = word[3];
  }
  return c;
}

// A tile through registers: loads first, stores later, so that arithmetic can stand between them.
template <class C, int ROWS>
struct Staged {
  static constexpr int N = ROWS / C::ROWS_PER_PASS;
  Chunk chunk[N];

  template <class ROW_STRIDE>
  __device__ __forceinline__ void load(const char* source, ROW_STRIDE row_stride, int rows, const Share& share) {
#pragma unroll
    for (int i = 0; i < N; i++, source += (u32)C::ROWS_PER_PASS * row_stride)
      chunk[i] = load_chunk<C>(source, share.row0 + i * C::ROWS_PER_PASS < rows ? share.valid : 0);
  }
  __device__ __forceinline__ void store(u32 first) const {
#pragma unroll
    for (int i = 0; i < N; i++) store_shared(chunk_of_pass<C>(first, i), chunk[i]);
  }
};

// Rows from `rows` on become zero, not garbage: a probability of 0 times a NaN would still be NaN. `first` is the address of
// this thread's first chunk. Asynchronous copies leave chunks beyond the head dimension alone: those are zeroed once.
template <class C, int ROWS, bool BOUNDED, class ROW_STRIDE>
DEVICE void copy_tile(u32 first, const char* source, ROW_STRIDE row_stride, int rows, const Share& share) {
#if HAS_ASYNC_COPY
  if constexpr (C::ASYNC) {
    if (share.valid) {
#pragma unroll
      for (int i = 0; i < ROWS / C::ROWS_PER_PASS; i++, source += (u32)C::ROWS_PER_PASS * row_stride) {
        if (BOUNDED)
          copy_async_or_zero(chunk_of_pass<C>(first, i), source, share.row0 + i * C::ROWS_PER_PASS < rows);
        else
          copy_async(chunk_of_pass<C>(first, i), source);
      }
    }
    return;
  }
#endif
  Staged<C, ROWS> staged;
  staged.load(source, row_stride, rows, share);
  staged.store(first);
}

template <class C, int ROWS>
DEVICE void zero_tile(u32 first) {
#pragma unroll
  for (int i = 0; i < ROWS / C::ROWS_PER_PASS; i++) store_shared(chunk_of_pass<C>(first, i), Chunk{0, 0, 0, 0});
}

// ---- the arithmetic of one warp -----------------------------------------------------------------------------------------

// A warp owns MI * 16 rows. In each 16-row fragment a lane holds rows lane / 4 and lane / 4 + 8, and of every eight columns
// the two from 2 * (lane % 4) on; index [i][r] below is fragment i, row r of the two.
template <class C>
struct Warp {
  typedef typename C::T T;
  float o[C::MI][C::NO][4];
  float s[C::MI][C::NS][4];
  float top[C::MI][2];  // the maximum subtracted from the scores, times scale_log2
  float sum[C::MI][2];  // this lane's part of the sum of exponentials
  u32 q[C::Q_IN_REGISTERS ? C::MI : 1][C::Q_IN_REGISTERS ? C::KQ : 1][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < C::MI; i++) {
#pragma unroll
      for (int j = 0; j < C::NO; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[i][j][e] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; r++) top[i][r] = MINUS_INFINITY, sum[i][r] = 0.0f;
    }
  }

  __device__ __forceinline__ void keep_q(u32 q_lane) {
    if constexpr (C::Q_IN_REGISTERS) {
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int kk = 0; kk < C::KQ; kk++) load_matrices(q[i][kk], (q_lane ^ (kk << 5)) + i * 16 * C::ROW_BYTES);
    }
  }

  // S = Q K^T. Moving along the head dimension by 16 flips bits 5 and up of a swizzled address: one XOR.
  __device__ __forceinline__ void scores(u32 q_lane, u32 k_lane) {
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int j = 0; j < C::NS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][j][e] = 0.0f;
#pragma unroll
    for (int kk = 0; kk < C::KQ; kk++) {
      u32 a[C::MI][4];
#pragma unroll
      for (int i = 0; i < C::MI; i++) {
        if constexpr (C::Q_IN_REGISTERS) {
#pragma unroll
          for (int e = 0; e < 4; e++) a[i][e] = q[i][kk][e];
        } else {
          load_matrices(a[i], (q_lane ^ (kk << 5)) + i * 16 * C::ROW_BYTES);
        }
      }
#pragma unroll
      for (int j = 0; j < C::NS; j += 2) {
        u32 b[4];
        load_matrices(b, (k_lane ^ (kk << 5)) + j * 8 * C::ROW_BYTES);
#pragma unroll
        for (int i = 0; i < C::MI; i++) {
          mma<T>(s[i][j], a[i], b[0], b[1]);
          mma<T>(s[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // Scores become -inf from the first key that there is not or that a row may not see. Both limits count from this lane's
  // first column; each row sees one key more than the row above it.
  __device__ __forceinline__ void mask(int keys_left, int first_row_limit) {
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int limit = keys_left;
        if (C::CAUSAL) {
          int own = first_row_limit + i * 16 + r * 8;
          limit = own < limit ? own : limit;
        }
#pragma unroll
        for (int j = 0; j < C::NS; j++) {
          if (j * 8 >= limit) s[i][j][2 * r] = MINUS_INFINITY;
          if (j * 8 + 1 >= limit) s[i][j][2 * r + 1] = MINUS_INFINITY;
        }
      }
  }

  // S becomes exp2(scale_log2 S - top), unnormalised.
  template <bool MASKED>
  __device__ __forceinline__ void softmax(float scale_log2) {
#pragma unroll
    for (int i = 0; i < C::MI; i++) {
      float correction[2];
      bool grown = false;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float most = fmaxf(s[i][0][2 * r], s[i][0][2 * r + 1]);
#pragma unroll
        for (int j = 1; j < C::NS; j++) most = fmaxf(most, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
        most = fmaxf(most, shuffle_xor(most, 1));
        most = fmaxf(most, shuffle_xor(most, 2));
        float scaled = most * scale_log2;
        bool grows = scaled > top[i][r] + RESCALE_THRESHOLD;  // false while everything so far is masked
        correction[r] = grows ? exp2_approx(top[i][r] - scaled) : 1.0f;
        top[i][r] = grows ? scaled : top[i][r];
        grown |= grows;
      }
      // Rows that did not grow are multiplied by one: a row's result never depends on its neighbours in the warp.
      if (any_lane(grown)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          sum[i][r] *= correction[r];
#pragma unroll
          for (int j = 0; j < C::NO; j++) o[i][j][2 * r] *= correction[r], o[i][j][2 * r + 1] *= correction[r];
        }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float subtrahend = MASKED && top[i][r] == MINUS_INFINITY ? 0.0f : top[i][r];  // inf - inf would be NaN
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int j = 0; j < C::NS; j++) {
          s[i][j][2 * r] = exp2_approx(s[i][j][2 * r] * scale_log2 - subtrahend);
          s[i][j][2 * r + 1] = exp2_approx(s[i][j][2 * r + 1] * scale_log2 - subtrahend);
          even += s[i][j][2 * r], odd += s[i][j][2 * r + 1];
        }
        sum[i][r] += even + odd;
      }
    }
  }

  // O += P V.
  __device__ __forceinline__ void accumulate(u32 v_lane) {
#pragma unroll
    for (int kk = 0; kk < C::KV; kk++) {
      u32 a[C::MI][4];
#pragma unroll
      for (int i = 0; i < C::MI; i++) {
        a[i][0] = pack<T>(s[i][2 * kk][0], s[i][2 * kk][1]);
        a[i][1] = pack<T>(s[i][2 * kk][2], s[i][2 * kk][3]);
        a[i][2] = pack<T>(s[i][2 * kk + 1][0], s[i][2 * kk + 1][1]);
        a[i][3] = pack<T>(s[i][2 * kk + 1][2], s[i][2 * kk + 1][3]);
      }
#pragma unroll
      for (int j = 0; j < C::NO; j += 2) {
        u32 b[4];
        load_matrices_transposed(b, (v_lane ^ (j << 4)) + kk * 16 * C::ROW_BYTES);
#pragma unroll
        for (int i = 0; i < C::MI; i++) {
          mma<T>(o[i][j], a[i], b[0], b[1]);
          mma<T>(o[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
};

// ---- one block ----------------------------------------------------------------------------------------------------------

// Which output rows and which keys this block works on.
struct Work {
  int head, row0;   // head of all batches together
  int first, last;  // tiles first .. last - 1 of keys
};

// Causal row tiles differ in length: the longest go first, so that the short ones fill the gaps at the end. Heads are
// taken a section at a time, so that the K and V in flight fit the L2 cache; the last section may have heads too many.
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

template <class C>
struct Block {
  const AttentionParams& p;
  int first, last;             // as in Work
  Warp<C> warp;
  const char *k, *v;           // this thread's first chunk of the next K tile, of the V tile beside it
  u32 q_tile;                  // shared memory: Q, then stages of K and V
  u32 q_lane;                  // where this lane's ldmatrix rows of Q start

  static constexpr u32 STAGE_BYTES = 2 * C::TILE_BYTES;

  // Registers are full in the main loop: what takes a few instructions to find again is not kept across it.
  __device__ __forceinline__ Share share_again() const { return share_of_thread<C>(thread_again(), p.head_dim); }

  // This thread's first chunk of K's first stage.
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
    return q_tile + C::Q_BYTES + C::TILE_BYTES + swizzled<C>(lane & 15, lane >> 4);
  }

  // How many keys the block's first row sees.
  __device__ __forceinline__ int limit() const { return work_of_block<C>(p, block_again()).row0 + p.causal_offset + 1; }

  // Tiles that end beyond the last key, or beyond what the block's first row sees. Once false it stays so.
  __device__ __forceinline__ bool needs_mask(int n) const {
    return (n + 1) * C::BN > p.seq_k || (C::CAUSAL && (n + 1) * C::BN > limit());
  }

  // A warp all of whose rows end before this tile has nothing to compute in it.
  template <bool MASKED>
  __device__ __forceinline__ bool active(int n) const {
    return !(MASKED && C::CAUSAL) || n * C::BN < limit() + ((thread_again() >> 5) + 1) * C::MI * 16 - 1;
  }

  template <bool MASKED>
  __device__ __forceinline__ void masked_scores(int n, u32 stage) {
    warp.scores(opaque(q_lane), k_lane() + stage);
    if (MASKED) {
      const int thread = thread_again(), column = n * C::BN + 2 * (thread & 3);
      warp.mask(p.seq_k - column, limit() + (thread >> 5) * C::MI * 16 + ((thread & 31) >> 2) - column);
    }
  }

  __device__ __forceinline__ void next_tile() { k -= (u32)C::BN * p.k_row, v -= (u32)C::BN * p.v_row; }

  // Two stages: the next tile's K and V are on their way during the whole of this one. One barrier a tile: it publishes the
  // tile that has landed, and tells that every warp has left the stage about to be overwritten.
  template <bool MASKED>
  __device__ __forceinline__ void step_ahead(int n) {
#if HAS_ASYNC_COPY
    const u32 stage = n & 1 ? STAGE_BYTES : 0, other = STAGE_BYTES - stage;
    copy_async_wait<0>();
    sync_block();
    if (n > first) {
      next_tile();
      const Share share = share_again();
      copy_tile<C, C::BN, false>(chunk(share) + other, k, p.k_row, C::BN, share);
      copy_tile<C, C::BN, false>(chunk(share) + other + C::TILE_BYTES, v, p.v_row, C::BN, share);
      copy_async_commit();
    }
    if (active<MASKED>(n)) {
      masked_scores<MASKED>(n, stage);
      warp.template softmax<MASKED>(p.scale_log2);
      warp.accumulate(v_lane() + stage);
    }
#endif
  }

  // One stage: V travels while S = Q K^T runs, the next K while the softmax and P V run.
  template <bool MASKED>
  __device__ __forceinline__ void step_single(int n) {
    const bool computes = active<MASKED>(n);
#if HAS_ASYNC_COPY
    if constexpr (C::ASYNC) {
      copy_async_wait<0>();
      sync_block();  // K has landed; every warp has left V
      const Share share = share_again();
      copy_tile<C, C::BN, MASKED>(chunk(share) + C::TILE_BYTES, v, p.v_row, p.seq_k - n * C::BN, share);
      copy_async_commit();
      if (computes) masked_scores<MASKED>(n, 0);
      copy_async_wait<0>();
      sync_block();  // V has landed; every warp has left K
      if (n > first) {
        next_tile();
        const Share share = share_again();
        copy_tile<C, C::BN, false>(chunk(share), k, p.k_row, C::BN, share);
        copy_async_commit();
      }
      if (computes) {
        warp.template softmax<MASKED>(p.scale_log2);
        warp.accumulate(v_lane());
      }
      return;
    }
#endif
    const Share share = share_again();
    Staged<C, C::BN> next;
    next.load(v, p.v_row, p.seq_k - n * C::BN, share);
    sync_block();  // K has landed; every warp has left V
    if (computes) masked_scores<MASKED>(n, 0);
    next.store(chunk(share) + C::TILE_BYTES);
    if (n > first) {
      next_tile();
      next.load(k, p.k_row, C::BN, share);
    }
    if (computes) warp.template softmax<MASKED>(p.scale_log2);
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

  __device__ __forceinline__ void all_tiles(const char* q, int q_rows, const Share& share) {
    const u32 chunk = this->chunk(share);
    int n = last - 1;
    k += (i64)n * ((u32)C::BN * p.k_row), v += (i64)n * ((u32)C::BN * p.v_row);
    if (C::ASYNC && !share.valid) {
      zero_tile<C, C::BM>(chunk - C::Q_BYTES);
      for (int i = 0; i < 2 * C::STAGES; i++) zero_tile<C, C::BN>(chunk + i * C::TILE_BYTES);
    }
    copy_tile<C, C::BM, true>(chunk - C::Q_BYTES, q, p.q_row, q_rows, share);
    const u32 stage = C::STAGES == 2 && (n & 1) ? STAGE_BYTES : 0;
    copy_tile<C, C::BN, true>(chunk + stage, k, p.k_row, p.seq_k - n * C::BN, share);
#if HAS_ASYNC_COPY
    if constexpr (C::ASYNC) {
      if constexpr (C::STAGES == 2)
        copy_tile<C, C::BN, true>(chunk + stage + C::TILE_BYTES, v, p.v_row, p.seq_k - n * C::BN, share);
      copy_async_commit();
      if constexpr (C::Q_IN_REGISTERS) copy_async_wait<0>();
    }
#endif
    if constexpr (C::Q_IN_REGISTERS) {
      sync_block();
      warp.keep_q(q_lane);
    }
    for (; n >= first && needs_mask(n); n--) step<true>(n);
    for (; n >= first; n--) step<false>(n);
  }
};

// ---- the results --------------------------------------------------------------------------------------------------------

template <class C>
struct Results {
  const AttentionParams& p;
  int head, row0;  // this lane's first row
  int lane;
  u32 q_tile;      // the warp's own rows of Q's tile, free by now

  // Normalises O and gives each row's log-sum-exp, base 2: -inf for a row that saw no key, whose output is zero.
  __device__ __forceinline__ void normalise(Warp<C>& warp, float (&lse)[C::MI][2]) const {
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float sum = warp.sum[i][r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        lse[i][r] = sum == 0.0f ? MINUS_INFINITY : warp.top[i][r] + log2_approx(sum);
#pragma unroll
        for (int j = 0; j < C::NO; j++) warp.o[i][j][2 * r] *= inverse, warp.o[i][j][2 * r + 1] *= inverse;
      }
  }

  __device__ __forceinline__ void write_partial(const Warp<C>& warp, const float (&lse)[C::MI][2]) const {
    i64 all_rows = (i64)p.all_heads * p.seq_q, base = (i64)blockIdx.y * all_rows + (i64)head * p.seq_q;
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int row = row0 + i * 16 + r * 8;
        if (row >= p.seq_q) continue;
        float* out = p.partial_out + (base + row) * p.head_dim;
#pragma unroll
        for (int j = 0; j < C::NO; j++) {
          int column = j * 8 + (lane & 3) * 2;
          if (C::VECTOR) {
            if (column < p.head_dim) *(Pair*)(out + column) = Pair{warp.o[i][j][2 * r], warp.o[i][j][2 * r + 1]};
          } else {
            if (column < p.head_dim) out[column] = warp.o[i][j][2 * r];
            if (column + 1 < p.head_dim) out[column + 1] = warp.o[i][j][2 * r + 1];
          }
        }
        if ((lane & 3) == 0) p.partial_lse[base + row] = lse[i][r];
      }
  }

  __device__ __forceinline__ void write(const Warp<C>& warp, const float (&lse)[C::MI][2]) const {
    char* out = output_head(p, head);
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int local = (lane >> 2) + i * 16 + r * 8, row = row0 + i * 16 + r * 8;
        if (p.lse && (lane & 3) == 0 && row < p.seq_q)
          p.lse[(i64)head * p.seq_q + row] = lse[i][r] * LN_2;
#pragma unroll
        for (int j = 0; j < C::NO; j++) {
          u32 pair = pack<typename C::T>(warp.o[i][j][2 * r], warp.o[i][j][2 * r + 1]);
          if (C::VECTOR) {
            store_shared(q_tile + swizzled<C>(local, j) + (lane & 3) * 4, pair);
          } else if (row < p.seq_q) {
            int column = j * 8 + (lane & 3) * 2;
            u16* element = (u16*)(out + row * p.out_row) + column;
            if (column < p.head_dim) element[0] = (u16)pair;
            if (column + 1 < p.head_dim) element[1] = (u16)(pair >> 16);
          }
        }
      }
    if (C::VECTOR) {
      // Through shared memory, so that each lane stores 16 bytes and neighbours fill whole sectors.
      sync_warp();
      int warp_row0 = row0 - (lane >> 2);
#pragma unroll
      for (int index = lane; index < C::MI * 16 * C::CHUNKS; index += 32) {
        int local = index / C::CHUNKS, chunk = index % C::CHUNKS, row = warp_row0 + local;
        if (row < p.seq_q && chunk * 8 < p.head_dim)
          *(Chunk*)(out + row * p.out_row + chunk * 16) = load_shared(q_tile + swizzled<C>(local, chunk));
      }
    }
  }
};

// Grid: (heads of all batches, rounded up to whole sections if causal, * row_tiles; splits). Shared memory: Config::Q_BYTES + STAGES * 2 * TILE_BYTES.
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

// Joins the parts of a split computation: out = sum_i 2^(lse_i - max) out_i / sum_i 2^(lse_i - max). One warp a row,
// four a block.
template <class T>
DEVICE void attention_combine(const AttentionParams& p) {
  const int lane = (int)threadIdx.x & 31;
  const i64 rows = (i64)p.all_heads * p.seq_q, row = (i64)blockIdx.x * 4 + ((int)threadIdx.x >> 5);
  if (row >= rows) return;
  const float* lse = p.partial_lse + row;
  float top = MINUS_INFINITY, total = 0.0f;
#pragma unroll 4
  for (int i = 0; i < p.splits; i++) top = fmaxf(top, lse[i * rows]);
  const float subtrahend = top == MINUS_INFINITY ? 0.0f : top;
#pragma unroll 4
  for (int i = 0; i < p.splits; i++) total += exp2_approx(lse[i * rows] - subtrahend);
  const float inverse = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN part, which fmaxf ignores, makes the row NaN here

  const int head = (int)(row / p.seq_q), query = (int)(row - (i64)head * p.seq_q);
  u16* out = (u16*)(output_head(p, head) + query * p.out_row);
  for (int column = lane; column < p.head_dim; column += 32) {
    const float* part = p.partial_out + row * p.head_dim + column;
    float value = 0.0f;
#pragma unroll 4
    for (int i = 0; i < p.splits; i++) value += exp2_approx(lse[i * rows] - subtrahend) * part[i * rows * p.head_dim];
    out[column] = (u16)pack<T>(value * inverse, 0.0f);
  }
  if (p.lse && lane == 0) p.lse[row] = total == 0.0f ? MINUS_INFINITY : (top + log2_approx(total)) * LN_2;
}
