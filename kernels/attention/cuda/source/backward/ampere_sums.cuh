// How the backward pass by mma.sync sums dQ: each block adds its keys' share of a tile of queries to float32 sums in global
// memory, in the order of the registers. Another kernel converts the sums to 16-bit rows.
#pragma once
#include "backward/problem.cuh"
#include "small/exchange.cuh"

#if __CUDA_ARCH__ >= 900
#define HAS_VECTOR_ADDITIONS 1
#else
#define HAS_VECTOR_ADDITIONS 0
#endif

#ifdef SIMT_SHIM
DEVICE void add_float(float* to, float x) { *to += x; }
DEVICE void add_four(float* to, const float (&x)[4]) {
  for (int i = 0; i < 4; i++) to[i] += x[i];
}
#else
DEVICE void add_float(float* to, float x) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory"); }
#if HAS_VECTOR_ADDITIONS
DEVICE void add_four(float* to, const float (&x)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
#endif
#endif

// How the warps of a block share a tile of dQ, which is QUERIES x D: each has FRAGMENTS times 16 rows of COLUMNS columns.
template <class T_, int D_, int QUERIES_, int WARPS_>
struct AmpereSums {
  typedef T_ T;
  static constexpr int D = D_, QUERIES = QUERIES_, WARPS = WARPS_, THREADS = WARPS * 32;
  static constexpr int FRAGMENTS = QUERIES / 32 * (D / 32) < WARPS ? 1 : 2, ROWS = FRAGMENTS * 16;
  static constexpr int ROW_WARPS = QUERIES / ROWS, COLUMN_WARPS = WARPS / ROW_WARPS, COLUMNS = D / COLUMN_WARPS;
  static constexpr int UNITS = COLUMNS / 8, WARP_FLOATS = FRAGMENTS * UNITS * 128;
  static_assert(WARPS % ROW_WARPS == 0 && UNITS % 4 == 0, "a lane writes four units, so UNITS must be a multiple of 4");

  DEVICE_MEMBER static int row(int warp) { return warp % ROW_WARPS * ROWS; }
  DEVICE_MEMBER static int column(int warp) { return warp / ROW_WARPS * COLUMNS; }
  // One addition of a warp writes 128 or 512 contiguous bytes.
  DEVICE_MEMBER static float* place(float* tile, int warp, int unit, int lane) {
    return tile + warp * WARP_FLOATS + unit * 128 + lane * (HAS_VECTOR_ADDITIONS ? 4 : 1);
  }
  DEVICE_MEMBER static void add(float* tile, int warp, int lane, const float (&c)[FRAGMENTS][UNITS][4]) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
      for (int j = 0; j < UNITS; j++) {
        float* to = place(tile, warp, f * UNITS + j, lane);
#if HAS_VECTOR_ADDITIONS
        add_four(to, c[f][j]);
#else
#pragma unroll
        for (int i = 0; i < 4; i++) add_float(to + i * 32, c[f][j][i]);
#endif
      }
  }
  DEVICE_MEMBER static void load(float (&x)[4], const float* from) {
#if HAS_VECTOR_ADDITIONS
    const Chunk c = *(const Chunk*)from;
    x[0] = __int_as_float((int)c.x), x[1] = __int_as_float((int)c.y), x[2] = __int_as_float((int)c.z), x[3] = __int_as_float((int)c.w);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = from[i * 32];
#endif
  }
};

// Writes four units, which are 32 columns of 16 rows; each lane of a quad writes eight columns. `base` is the address of the
// head's first row.
template <class T>
DEVICE void write_units(const float (&x)[4][4], char* base, i64 row_bytes, int row0, int rows, int column0, int columns, int lane,
                        float factor) {
  const int column = column0 + (lane & 3) * 8;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = row0 + r * 8 + (lane >> 2);
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; j++) words[j] = pack<T>(x[j][2 * r] * factor, x[j][2 * r + 1] * factor);
    const Chunk chunk = gathered(Chunk{words[0], words[1], words[2], words[3]}, lane);
    if (row < rows && column < columns) *(Chunk*)(base + row * row_bytes + column * 2) = chunk;
  }
}

// Grid: query tiles of all heads. A block has as many warps as the kernel that added the sums.
template <class S>
DEVICE void backward_ampere_convert(const BackwardParams& p) {
  const int thread = (int)threadIdx.x, warp = thread >> 5, lane = thread & 31;
  const int item = (int)blockIdx.x, head_of_all = divide(item, p.tiles), tile = item - head_of_all * (int)p.tiles.divisor;
  const int batch = divide(head_of_all, p.heads), head = head_of_all - batch * (int)p.heads.divisor;
  float* from = p.sums + (i64)item * (S::QUERIES * S::D);
  char* base = p.dq + batch * p.at_dq.batch + head * p.at_dq.head;
#pragma unroll
  for (int f = 0; f < S::FRAGMENTS; f++)
#pragma unroll
    for (int four = 0; four < S::UNITS; four += 4) {
      float x[4][4];
#pragma unroll
      for (int j = 0; j < 4; j++) S::load(x[j], S::place(from, warp, f * S::UNITS + four + j, lane));
      write_units<typename S::T>(x, base, p.at_dq.row, tile * S::QUERIES + S::row(warp) + f * 16, p.seq_q,
                                 S::column(warp) + four * 8, p.head_dim, lane, p.scale);
    }
}
