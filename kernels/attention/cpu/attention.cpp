// Forward attention on the CPU: out = softmax(scale * Q K^T) V, tiled, with an online softmax.
//
// One task is one (batch, KV head, block of query rows). The query rows of all heads that share a KV head are one list, so a
// packed block of K and V serves them all. For each block of keys a task packs K into panels [keys / NR][D][NR] and V into rows
// of fp32, and for each strip of MR query rows computes scores, softmax and the product with V while the scores are in L1.
// The recurrence is that of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
//
// Inputs and output are fp32, bf16 or fp16; all arithmetic is fp32.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "pool.h"
#include "simd.h"

namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kRows = VL == 16 ? 12 : 6;  // MR: what fits the register file beside two panel vectors and a broadcast
constexpr int kPanel = 2 * VL;            // NR
constexpr int kMaxKeys = 256;             // keys in a block: a strip of scores stays in L1
constexpr int kPad = VL;                  // keeps rows of a strip off the same cache sets
constexpr int kScoreStride = kMaxKeys + kPad;
constexpr int kRowStride = kMaxHeadDim + kPad;  // known at compile time: twelve row addresses must not need registers
constexpr int kMaxRows = 288;  // query rows of a task: many enough that packing K and V costs little
static_assert(kMaxRows % kRows == 0 && kMaxKeys % kPanel == 0);

enum Dtype : int { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

}  // namespace

// Strides count elements; the last dimension of every tensor is contiguous. `lse`, when not null, is contiguous [B, H, S_q].
struct AttentionProblem {
  const void* q;  // [batch, heads, seq_q, head_dim]
  const void* k;  // [batch, kv_heads, seq_k, head_dim]
  const void* v;  // [batch, kv_heads, seq_k, head_dim]
  void* out;      // [batch, heads, seq_q, head_dim]
  float* lse;
  int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];  // batch, head, sequence
  int64_t batch, heads, kv_heads, seq_q, seq_k, head_dim;
  float scale;
  int32_t causal, dtype, threads;
};

namespace {

size_t element_size(int dtype) { return dtype == kFloat32 ? 4 : 2; }

const void* offset(const void* base, int64_t elements, int dtype) {
  return static_cast<const char*>(base) + elements * static_cast<int64_t>(element_size(dtype));
}

// One row of `n` elements to fp32, times `scale`.
void widen(const void* src, int dtype, float* dst, int64_t n, float scale) {
  if (dtype == kFloat32) {
    const float* s = static_cast<const float*>(src);
    for (int64_t i = 0; i < n; ++i) dst[i] = s[i] * scale;
  } else if (dtype == kBfloat16) {
    const uint16_t* s = static_cast<const uint16_t*>(src);
    for (int64_t i = 0; i < n; ++i) dst[i] = from_bfloat16(s[i]) * scale;
  } else {
    const uint16_t* s = static_cast<const uint16_t*>(src);
    for (int64_t i = 0; i < n; ++i) dst[i] = from_float16(s[i]) * scale;
  }
}

void narrow(const float* src, float scale, int dtype, void* dst, int64_t n) {
  if (dtype == kFloat32) {
    float* d = static_cast<float*>(dst);
    for (int64_t i = 0; i < n; ++i) d[i] = src[i] * scale;
  } else if (dtype == kBfloat16) {
    uint16_t* d = static_cast<uint16_t*>(dst);
    for (int64_t i = 0; i < n; ++i) d[i] = to_bfloat16(src[i] * scale);
  } else {
    uint16_t* d = static_cast<uint16_t*>(dst);
    for (int64_t i = 0; i < n; ++i) d[i] = to_float16(src[i] * scale);
  }
}

// scores[R][kPanel] = q[R][D] . panel[D][kPanel]
template <int R>
void score_tile(const float* __restrict q, const float* __restrict panel, int head_dim, float* __restrict scores) {
  vf acc[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = splat(0.0f);
  for (int d = 0; d < head_dim; ++d, panel += kPanel) {
    const vf k0 = load(panel), k1 = load(panel + VL);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vf a = splat(q[r * kRowStride + d]);
      acc[r][0] += a * k0;
      acc[r][1] += a * k1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    store(scores + r * kScoreStride, acc[r][0]);
    store(scores + r * kScoreStride + VL, acc[r][1]);
  }
}

// out[R][NV * VL] = rescale[R] * out + p[R][keys] . v[keys][NV * VL]
template <int R, int NV>
void value_tile(const float* __restrict p, const float* __restrict v, int64_t v_stride, int keys, const float* __restrict rescale,
                float* __restrict out) {
  vf acc[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) acc[r][j] = load(out + r * kRowStride + j * VL) * splat(rescale[r]);
  for (int i = 0; i < keys; ++i, v += v_stride) {
    vf row[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) row[j] = load(v + j * VL);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vf a = splat(p[r * kScoreStride + i]);
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) acc[r][j] += a * row[j];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) store(out + r * kRowStride + j * VL, acc[r][j]);
}

using ScoreTile = void(const float*, const float*, int, float*);
using ValueTile = void(const float*, const float*, int64_t, int, const float*, float*);

struct Tiles {
  ScoreTile* score[kRows + 1];
  ValueTile* value1[kRows + 1];
  ValueTile* value2[kRows + 1];
};

template <int R>
void fill(Tiles& tiles) {
  tiles.score[R] = score_tile<R>;
  tiles.value1[R] = value_tile<R, 1>;
  tiles.value2[R] = value_tile<R, 2>;
  if constexpr (R > 1) fill<R - 1>(tiles);
}

const Tiles& tiles() {
  static const Tiles table = [] {
    Tiles t{};
    fill<kRows>(t);
    return t;
  }();
  return table;
}

// K block [keys][D] -> panels [keys / NR][D][NR], zero beyond the last key.
void pack_keys(const AttentionProblem& a, const void* src, int keys, float* panels) {
  const int head_dim = static_cast<int>(a.head_dim);
  const int padded = round_up(head_dim, VL);
  alignas(64) float rows[VL][kMaxHeadDim];
  for (int first = 0; first < keys; first += VL) {
    const float* line[VL];
    const int here = std::min(VL, keys - first);
    const bool in_place = a.dtype == kFloat32 && head_dim % VL == 0;
    for (int j = 0; j < VL; ++j) {
      if (j < here) {
        const void* row = offset(src, (first + j) * a.k_strides[2], a.dtype);
        if (in_place) {
          line[j] = static_cast<const float*>(row);
          continue;
        }
        widen(row, a.dtype, rows[j], head_dim, 1.0f);
        std::fill(rows[j] + head_dim, rows[j] + padded, 0.0f);
      } else {
        std::fill(rows[j], rows[j] + padded, 0.0f);
      }
      line[j] = rows[j];
    }
    float* panel = panels + static_cast<int64_t>(first / kPanel) * kPanel * head_dim + first % kPanel;
    for (int d = 0; d < head_dim; d += VL) {
      vf block[VL];
      for (int j = 0; j < VL; ++j) block[j] = load(line[j] + d);
      transpose(block);
      const int width = std::min(VL, head_dim - d);
      for (int i = 0; i < width; ++i) store(panel + (d + i) * kPanel, block[i]);
    }
  }
  // A panel of which only the first half holds keys: the other half must not carry over what an earlier block left there.
  if (keys % kPanel != 0 && keys % kPanel <= VL) {
    float* panel = panels + static_cast<int64_t>(keys / kPanel) * kPanel * head_dim + VL;
    for (int d = 0; d < head_dim; ++d) store(panel + d * kPanel, splat(0.0f));
  }
}

struct Softmax {
  float max[kMaxRows];  // running maximum of the scores, in units of log2(e)
  float sum[kMaxRows];
};

// Scores [width] of one row to probabilities relative to the running maximum; returns the factor for what was summed before.
float soften(float* scores, int width, float& running_max, float& running_sum) {
  vf peak = splat(-std::numeric_limits<float>::infinity());
  for (int j = 0; j < width; j += VL) peak = maximum(peak, load(scores + j));
  const float block_max = horizontal_max(peak);
  const float next = std::max(running_max, block_max);
  // All keys so far at minus infinity: subtract nothing, so that they get weight 0 and not NaN.
  const float base = next == -std::numeric_limits<float>::infinity() ? 0.0f : next;
  vf total = splat(0.0f);
  for (int j = 0; j < width; j += VL) {
    const vf p = exp2_nonpositive(load(scores + j) - splat(base));
    store(scores + j, p);
    total += p;
  }
  const float rescale = std::exp2(running_max - base);
  running_sum = running_sum * rescale + horizontal_sum(total);
  running_max = next;
  return rescale;
}

// What one thread needs for a task; allocated once per thread and reused by every call.
struct Scratch {
  alignas(64) float q[kMaxRows * kRowStride];
  alignas(64) float out[kMaxRows * kRowStride];
  alignas(64) float panels[kMaxKeys * kMaxHeadDim];
  alignas(64) float values[kMaxKeys * kMaxHeadDim];
  alignas(64) float scores[kRows * kScoreStride];
  Softmax softmax;
  int64_t limit[kMaxRows];  // keys that a row may see
};

Scratch& scratch() {
  thread_local std::unique_ptr<Scratch> mine(new Scratch);
  return *mine;
}

struct Work {
  const AttentionProblem& a;
  int64_t rows_per_group;  // query rows that share one KV head
  int64_t blocks;          // of query rows, per KV head
  int rows_per_block;
  int keys_per_block;
};

// Where query row `row` of KV head (b, kv) lies.
struct RowAddress {
  int64_t head, position;
};
RowAddress address(const Work& w, int64_t kv, int64_t row) {
  return {kv * (w.a.heads / w.a.kv_heads) + row / w.a.seq_q, row % w.a.seq_q};
}

void strip(const Work& w, Scratch& s, int first_row, int rows, int64_t first_key, int keys, const float* values, int64_t v_stride) {
  const AttentionProblem& a = w.a;
  const int head_dim = static_cast<int>(a.head_dim);
  const int padded = round_up(head_dim, VL);
  int64_t limit = 0;
  for (int r = first_row; r < first_row + rows; ++r) limit = std::max(limit, s.limit[r]);
  const int seen = static_cast<int>(std::min<int64_t>(keys, limit - first_key));
  if (seen <= 0) return;
  for (int j = 0; j < seen; j += kPanel)
    tiles().score[rows](s.q + first_row * kRowStride, s.panels + static_cast<int64_t>(j) * head_dim, head_dim, s.scores + j);
  const int width = round_up(seen, VL);
  float rescale[kRows];
  for (int r = 0; r < rows; ++r) {
    float* row = s.scores + r * kScoreStride;
    const int64_t visible = std::clamp<int64_t>(s.limit[first_row + r] - first_key, 0, seen);
    std::fill(row + visible, row + width, -std::numeric_limits<float>::infinity());
    rescale[r] = soften(row, width, s.softmax.max[first_row + r], s.softmax.sum[first_row + r]);
  }
  float* out = s.out + first_row * kRowStride;
  int d = 0;
  for (; d + 2 * VL <= padded; d += 2 * VL) tiles().value2[rows](s.scores, values + d, v_stride, seen, rescale, out + d);
  if (d < padded) tiles().value1[rows](s.scores, values + d, v_stride, seen, rescale, out + d);
}

void task(const Work& w, int64_t index) {
  const AttentionProblem& a = w.a;
  Scratch& s = scratch();
  const int head_dim = static_cast<int>(a.head_dim);
  const int padded = round_up(head_dim, VL);
  const int64_t pair = index % (a.batch * a.kv_heads), batch = pair / a.kv_heads, kv = pair % a.kv_heads;
  // Last blocks first: under a causal mask they are the longest, and the long ones must not start last.
  const int64_t first = (w.blocks - 1 - index / (a.batch * a.kv_heads)) * w.rows_per_block;
  const int rows = static_cast<int>(std::min<int64_t>(w.rows_per_block, w.rows_per_group - first));

  constexpr float kLog2E = 1.4426950408889634f;
  int64_t limit = 0;
  for (int r = 0; r < rows; ++r) {
    const RowAddress at = address(w, kv, first + r);
    const void* src = offset(a.q, batch * a.q_strides[0] + at.head * a.q_strides[1] + at.position * a.q_strides[2], a.dtype);
    widen(src, a.dtype, s.q + r * kRowStride, head_dim, a.scale * kLog2E);
    std::fill(s.out + r * kRowStride, s.out + r * kRowStride + padded, 0.0f);
    s.softmax.max[r] = -std::numeric_limits<float>::infinity();
    s.softmax.sum[r] = 0.0f;
    s.limit[r] = a.causal ? std::min(a.seq_k, at.position + 1) : a.seq_k;
    limit = std::max(limit, s.limit[r]);
  }

  const void* k = offset(a.k, batch * a.k_strides[0] + kv * a.k_strides[1], a.dtype);
  const void* v = offset(a.v, batch * a.v_strides[0] + kv * a.v_strides[1], a.dtype);
  const bool values_in_place = a.dtype == kFloat32 && head_dim % VL == 0;
  const int strips = (rows + kRows - 1) / kRows;
  for (int64_t key = 0; key < limit; key += w.keys_per_block) {
    const int keys = static_cast<int>(std::min<int64_t>(w.keys_per_block, limit - key));
    pack_keys(a, offset(k, key * a.k_strides[2], a.dtype), keys, s.panels);
    const float* values = s.values;
    int64_t v_stride = padded;
    if (values_in_place) {
      values = static_cast<const float*>(offset(v, key * a.v_strides[2], a.dtype));
      v_stride = a.v_strides[2];
    } else {
      for (int j = 0; j < keys; ++j) {
        widen(offset(v, (key + j) * a.v_strides[2], a.dtype), a.dtype, s.values + j * padded, head_dim, 1.0f);
        std::fill(s.values + j * padded + head_dim, s.values + (j + 1) * padded, 0.0f);
      }
    }
    // Strips of nearly equal height: 16 rows are 8 + 8 and not 12 + 4, which would starve the second tile of independent sums.
    for (int i = 0; i < strips; ++i) {
      const int from = rows * i / strips, to = rows * (i + 1) / strips;
      strip(w, s, from, to - from, key, keys, values, v_stride);
    }
  }

  for (int r = 0; r < rows; ++r) {
    const RowAddress at = address(w, kv, first + r);
    const int64_t where = batch * a.out_strides[0] + at.head * a.out_strides[1] + at.position * a.out_strides[2];
    narrow(s.out + r * kRowStride, 1.0f / s.softmax.sum[r], a.dtype, const_cast<void*>(offset(a.out, where, a.dtype)), head_dim);
    if (a.lse != nullptr)
      a.lse[(batch * a.heads + at.head) * a.seq_q + at.position] = s.softmax.max[r] / kLog2E + std::log(s.softmax.sum[r]);
  }
}

Work divide(const AttentionProblem& a) {
  const int64_t rows = a.heads / a.kv_heads * a.seq_q;
  // Large blocks share the packing of K and V among more rows; but every thread should get at least two tasks.
  const int64_t pairs = a.batch * a.kv_heads;
  int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t wanted = (2 * int64_t{a.threads} + pairs - 1) / pairs;
  blocks = std::max(blocks, std::min(wanted, (rows + 2 * kRows - 1) / (2 * kRows)));
  const int64_t height = (rows + blocks - 1) / blocks;
  blocks = (rows + height - 1) / height;
  return {a, rows, blocks, static_cast<int>(height), a.head_dim <= 128 ? kMaxKeys : kMaxKeys / 2};
}

}  // namespace

extern "C" {

// 0 on success, 1 when memory ran out. Arguments are trusted: the caller has checked shapes, strides and dtypes.
int attention_forward(const AttentionProblem* problem) noexcept {
  try {
    const Work work = divide(*problem);
    const int64_t count = work.blocks * problem->batch * problem->kv_heads;
    std::atomic<bool> out_of_memory{false};
    parallel(problem->threads, count, [&](int64_t index) {
      try {
        task(work, index);
      } catch (const std::bad_alloc&) {
        out_of_memory = true;
      }
    });
    return out_of_memory ? 1 : 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// Lends a GOMP_parallel whose threads run the tasks from now on; null goes back to threads of our own.
void attention_use_openmp(void* gomp_parallel) noexcept { borrow(reinterpret_cast<GompParallel*>(gomp_parallel)); }

int attention_vector_width(void) noexcept { return VL; }
int attention_max_head_dim(void) noexcept { return kMaxHeadDim; }
int64_t attention_problem_size(void) noexcept { return sizeof(AttentionProblem); }
}
