// A mask given as a tensor: each lane loads eight columns, the quad exchanges them, and they are added to the scaled scores.
#pragma once
#include "hopper/schedule.cuh"

// After the call, registers a, b, c, d of lane i of a quad have what the i-th register of lanes 0, 1, 2, 3 had: a 4x4
// transpose.
DEVICE Chunk across_quad(u32 a, u32 b, u32 c, u32 d, int lane) {
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

// The mask of one tile of keys, for the two rows of a lane. Columns are in groups of 32: a lane loads eight neighbouring
// columns, and `own` turns a row's group into the columns of the lane's scores: 8 i + 2 (lane % 4) and the next, for i from 0
// to 3.
template <class M, int KEYS>
struct MaskTile {
  static constexpr int GROUPS = KEYS / 32, WORDS = 2 * M::BYTES;  // a lane's eight columns of a group
  static_assert(M::BYTES == 0 || KEYS % 32 == 0, "KEYS must be a multiple of 32: a quad fetches 32 columns");
  u32 words[2][GROUPS][WORDS];

  // Loads the mask. `row` has the addresses of the mask of both rows; columns from seq_k on become 0, and the problem's edge
  // hides them.
  __device__ __forceinline__ void fetch(const char* const (&row)[2], int column, int seq_k, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const int first = column + 32 * g + 8 * (lane & 3);
        const bool there = first < seq_k;
        const char* from = row[r] + (i64)first * M::BYTES;
        u32(&to)[WORDS] = words[r][g];
        if constexpr (M::BYTES == 1) {
          const Words w = load_global_or_zero<Words>(from, there);
          to[0] = w.x, to[1] = w.y;
        } else {
#pragma unroll
          for (int part = 0; part < WORDS / 4; part++) {
            const Chunk c = load_global_or_zero<Chunk>(from + 16 * part, there);
            to[4 * part] = c.x, to[4 * part + 1] = c.y, to[4 * part + 2] = c.z, to[4 * part + 3] = c.w;
          }
        }
      }
  }

  // Brings the mask of a later tile to the L2 cache; the lanes of a quad divide the lines of its two rows among them.
  static __device__ __forceinline__ void bring(const char* const (&row)[2], int column, int lane) {
    constexpr int LINE = 128, LINES = (KEYS * M::BYTES + LINE - 1) / LINE;
    static_assert(LINES <= 4, "a row of the mask has more lines than a quad has lanes");
    if ((lane & 3) < LINES)
#pragma unroll
      for (int r = 0; r < 2; r++) prefetch_global(row[r] + (i64)column * M::BYTES + (lane & 3) * LINE);
  }

  // The lane's scores become scale score + mask, in units of the natural exponent.
  template <class SCORES>
  __device__ __forceinline__ void add_to(SCORES& score, float scale, int lane) const {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        float bias[8];
        own(words[r][g], bias, lane);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float& s = score[16 * g + 4 * i + 2 * r + e];
            s = fused(s, scale, bias[2 * i + e]);
          }
      }
  }

  static __device__ __forceinline__ void own(const u32 (&w)[WORDS], float (&bias)[8], int lane) {
    if constexpr (M::BYTES == 1) {
      // Bytes in pairs: lane i has pairs 0 to 3 of its eight columns, and needs the i-th pair of each lane.
      const bool odd = lane & 1, high = lane & 2;
      u32 low = w[0], top = w[1];
      u32 other = shuffle_xor(high ? low : top, 2);
      if (high) low = other; else top = other;  // the pairs of this lane's half, from lanes i and i ^ 2
      const u32 give = odd ? (low & 0xffff) | top << 16 : low >> 16 | (top & 0xffff0000);
      other = shuffle_xor(give, 1);
      low = odd ? (other & 0xffff) | (low & 0xffff0000) : (low & 0xffff) | other << 16;
      top = odd ? other >> 16 | (top & 0xffff0000) : (top & 0xffff) | (other & 0xffff0000);
#pragma unroll
      for (int i = 0; i < 8; i++) bias[i] = (i < 4 ? low : top) & 0xffu << 8 * (i % 4) ? 0.0f : MINUS_INFINITY;
    } else if constexpr (M::BYTES == 2) {
      const Chunk c = across_quad(w[0], w[1], w[2], w[3], lane);
      const u32 pair[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < 8; i++) bias[i] = unpack<typename M::T>((u16)(pair[i / 2] >> 16 * (i % 2)));
    } else {
      const Chunk even = across_quad(w[0], w[2], w[4], w[6], lane), odd = across_quad(w[1], w[3], w[5], w[7], lane);
      const u32 pairs[8] = {even.x, odd.x, even.y, odd.y, even.z, odd.z, even.w, odd.w};
#pragma unroll
      for (int i = 0; i < 8; i++) bias[i] = __int_as_float((int)pairs[i]);
    }
  }
};
template <int KEYS>
struct MaskTile<NoTensor, KEYS> {};

// The same through shared memory: the place of a tile, and where in a tile this lane reads.
template <class C>
struct StagedMask {
  typedef typename C::Mask M;
  MaskPlace<C> place;
  u32 from;  // address in stage 0

  // `row` is the first of the warp's rows in a tile.
  __device__ __forceinline__ void begin(u32 tiles, int row, int lane) {
    place.count = 0;
    // 16-bit elements are read as four 8x8 matrices, two below each other and two side by side; eight lanes give the addresses
    // of each.
    const int own = M::BYTES == 2 ? lane & 15 : lane >> 2, column = M::BYTES == 2 ? lane / 16 * 8 : 2 * (lane & 3);
    from = tiles + (row + own) * C::MASK_ROW_BYTES + column * M::BYTES;
  }

  // The lane's scores become scale score + mask, in units of the natural exponent. Returns a number that depends on every load.
  __device__ __forceinline__ u32 add_to(float (&score)[C::SCORE_REGISTERS], float scale) const {
    const u32 tile = from + place.stage() * C::MASK_TILE_BYTES;
    if constexpr (M::BYTES == 2) {
#pragma unroll
      for (int i = 0; i < C::KEYS / 16; i++) {
        u32 pairs[4];
        load_matrices(pairs, tile + 32 * i);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float& s = score[8 * i + 2 * j + e];
            s = fused(s, scale, unpack<typename M::T>((u16)(pairs[j] >> 16 * e)));
          }
      }
    } else if constexpr (M::BYTES == 1) {
#pragma unroll
      for (int i = 0; i < C::KEYS / 8; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const u32 seen = load_shared_half(tile + r * 8 * C::MASK_ROW_BYTES + 8 * i);
          float &a = score[4 * i + 2 * r], &b = score[4 * i + 2 * r + 1];
          a = seen & 0xff ? a * scale : MINUS_INFINITY;
          b = seen & 0xff00 ? b * scale : MINUS_INFINITY;
        }
    } else {
#pragma unroll
      for (int i = 0; i < C::KEYS / 8; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const Pair pair = load_shared_pair(tile + r * 8 * C::MASK_ROW_BYTES + 32 * i);
          float &a = score[4 * i + 2 * r], &b = score[4 * i + 2 * r + 1];
          a = fused(a, scale, pair.x);
          b = fused(b, scale, pair.y);
        }
    }
    u32 read = 0;
#pragma unroll
    for (int i = 0; i < C::KEYS / 8; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) read ^= (u32)__float_as_int(score[4 * i + 2 * r]);
    return read;
  }
};

template <bool FIRST, class A, class B>
struct Either {
  typedef A Type;
};
template <class A, class B>
struct Either<false, A, B> {
  typedef B Type;
};
