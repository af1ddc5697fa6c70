// How a block is divided into tiles, and how the tiles of K and V get into shared memory.
#pragma once
#include "params.cuh"

// The features of a kernel: none, or windows, packed heads and sequences of different lengths, with a kind of mask or with keys
// in pages. A boolean mask says which keys are seen; other masks are added to the scaled scores.
struct Plain {};
struct NoMask {};
struct BoolMask {};
struct HalfMask {};
struct BFloat16Mask {};
struct FloatMask {};
struct PagedKeys {};

template <class A, class B>
struct Same {
  static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
  static constexpr bool value = true;
};

template <class T_, int D_, int BM_, int BN_, int WARPS_, int STAGES_, bool Q_IN_REGISTERS_, bool CAUSAL_, bool VECTOR_,
          class MASK_ = Plain, int OUT_ = D_, bool SHAPED_ = false, bool DROPS_ = false>
struct Config {
  typedef MASK_ Mask;
  // Whether scores may be capped or fall with the distance, and V has a width of its own. A block then computes OUT columns of
  // the output; the grid's z says which.
  static constexpr bool SHAPED = SHAPED_;
  static constexpr bool DROPS = DROPS_;  // whether it has dropout
  static constexpr bool GENERAL = !Same<Mask, Plain>::value;
  // Whether it has registers to compute one row tile after the other, which is needed if sequences are longer than the host was
  // told.
  static constexpr bool REPEATS = GENERAL && (D_ <= 128 || BN_ <= 32);
  static constexpr bool PAGED = Same<Mask, PagedKeys>::value;
  static constexpr bool HAS_MASK = GENERAL && !PAGED && !Same<Mask, NoMask>::value;
  static constexpr bool SCALED = HAS_MASK || SHAPED;  // whether scores are scaled before the softmax
  typedef T_ T;
  static constexpr int D = D_, BM = BM_, BN = BN_, WARPS = WARPS_, STAGES = STAGES_;
  static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_, CAUSAL = CAUSAL_;
  static constexpr bool FLOAT8 = false;
  static constexpr bool VECTOR = VECTOR_;  // 16-byte accesses; else element by element, for any alignment and head dimension
  static constexpr bool ASYNC = VECTOR && HAS_ASYNC_COPY;

  static constexpr int THREADS = WARPS * 32;
  static constexpr int ROW_BYTES = D * 2, Q_ROW_BYTES = ROW_BYTES;
  static constexpr int CHUNKS = D / 8;                 // 16-byte chunks in a row
  static constexpr int ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr int MI = BM / WARPS / 16;           // 16-row fragments of a warp
  static constexpr int KQ = D / 16, NS = BN / 8, NO = OUT_ / 8, KV = BN / 16;
  static constexpr int Q_BYTES = BM * ROW_BYTES, TILE_BYTES = BN * ROW_BYTES;
  static constexpr int PASSES = BN / ROWS_PER_PASS;

  static_assert(BM % (WARPS * 16) == 0 && BN % 16 == 0 && D % 64 == 0, "BM must be a multiple of 16 WARPS, BN of 16, D of 64");
  static_assert(THREADS % CHUNKS == 0 && BM % ROWS_PER_PASS == 0 && BN % ROWS_PER_PASS == 0, "a pass must divide all tiles");
  static_assert(STAGES == 1 || ASYNC, "more than one stage needs asynchronous copies (sm_80 or newer)");
};

// The byte offset of a 16-byte chunk in a tile. The low three bits of the chunk's index are XORed with those of the row, so
// that eight rows of one column of chunks are in eight different groups of banks, and ldmatrix and stores have no conflicts.
template <class C>
DEVICE u32 swizzled(int row, int chunk) {
  const int flip = C::ROW_BYTES == 64 ? row >> 1 & 3 : row & 7;  // two rows of 64 bytes pass all banks once
  return (u32)(row * C::ROW_BYTES + ((chunk ^ flip) << 4));
}

// The address of a chunk further on in the same row, by a number of chunks known at compile time, from the address of a chunk of
// the first two. Rows whose length is a power of two need one XOR.
template <class C>
DEVICE u32 along(u32 address, int chunks) {
  if constexpr ((C::D & (C::D - 1)) == 0)
    return address ^ (chunks << 4);
  else
    return (address ^ ((chunks & 7) << 4)) + (chunks >> 3) * 128;
}

// What one thread moves of every tile: chunk `chunk` of rows row0, row0 + ROWS_PER_PASS, ...
struct Share {
  int row0, chunk;
  int valid;  // how many of the chunk's eight elements are inside the head dimension
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

// The address of this thread's chunk in pass i, from the address of its first chunk in the tile. A pass moves by a multiple of
// eight rows, which does not change the swizzle, except where rows are so long that a pass has only four, or two.
template <class C>
DEVICE u32 chunk_of_pass(u32 first, int i) {
  static_assert(C::ROWS_PER_PASS % 8 == 0 || 8 % C::ROWS_PER_PASS == 0, "the rows of a pass must divide 8, or be a multiple of it");
  return (first ^ ((u32)(i * C::ROWS_PER_PASS & 7) << 4)) + i * C::ROWS_PER_PASS * C::ROW_BYTES;
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

// Copies a tile through registers: loads first, stores later, so that arithmetic can come between them.
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

// Rows from `rows` on become zero, because a probability of 0 times a NaN would still be NaN. `first` is the address of this
// thread's first chunk. Asynchronous copies do not write chunks beyond the head dimension; those are zeroed once.
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

// Sums in registers: fragments of 16 rows, units of 8 columns.
template <int FRAGMENTS, int UNITS>
DEVICE void clear_columns(float (&c)[FRAGMENTS][UNITS][4]) {
#pragma unroll
  for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
    for (int j = 0; j < UNITS; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[f][j][i] = 0.0f;
}
// c += a b for the units j and j + 1.
template <class T, int FRAGMENTS, int UNITS>
DEVICE void mma_columns(float (&c)[FRAGMENTS][UNITS][4], const u32 (&a)[FRAGMENTS][4], const u32 (&b)[4], int j) {
#pragma unroll
  for (int f = 0; f < FRAGMENTS; f++) {
    mma<T>(c[f][j], a[f], b[0], b[1]);
    mma<T>(c[f][j + 1], a[f], b[2], b[3]);
  }
}
