// The other side of device.cuh: the same functions on a CPU, with one fiber for each thread of a block.
//
// What the chip does across the lanes of a warp (mma, ldmatrix, shuffles, votes) is computed once all 32 lanes have asked
// for it; lanes that ask for different things are an error. A copy is carried out at the last moment the program allows
// (when it is waited for) or at the first (when it is issued): a missing wait shows in one, a buffer that is overwritten
// too early in the other. Shared memory starts as NaN and every access to it is checked.
#pragma once
#undef _FORTIFY_SOURCE  // its longjmp takes a switch between fibers for a mistake

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#ifndef SIMT_ARCH
#error "define SIMT_ARCH as 750, 800 or 900: it selects the code path"
#endif
#define __CUDA_ARCH__ SIMT_ARCH
#define HAS_ASYNC_COPY (SIMT_ARCH >= 800)

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE static inline
#define SPECIALISED template <> inline
#define SHARED_MEMORY(name) char* name = simt::shared.data()

#include "simt_fibers.h"

namespace simt {

inline float half_to_float(u16 bits) {
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return (float)value;
}

inline float bfloat_to_float(u16 bits) {
  u32 wide = (u32)bits << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline u16 float_to_half(float x) {
  _Float16 value = (_Float16)x;
  u16 bits;
  std::memcpy(&bits, &value, 2);
  return bits;
}

inline u16 float_to_bfloat(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// mma.m16n8k16: the fragment layouts of the PTX manual, with group = lane / 4 and place = lane % 4.
inline void multiply(Lane* warp) {
  float A[16][16], B[16][8];
  for (int l = 0; l < 32; l++) {
    const int group = l / 4, place = l % 4;
    const bool bfloat = warp[l].bfloat;
    auto element = [bfloat](u32 word, int e) {
      u16 bits = (u16)(word >> (16 * e));
      return bfloat ? bfloat_to_float(bits) : half_to_float(bits);
    };
    for (int e = 0; e < 2; e++) {
      for (int r = 0; r < 4; r++) A[group + 8 * (r & 1)][place * 2 + 8 * (r >> 1) + e] = element(warp[l].a[r], e);
      for (int r = 0; r < 2; r++) B[place * 2 + 8 * r + e][group] = element(warp[l].b[r], e);
    }
  }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 4; i++) {
      const int row = l / 4 + 8 * (i >> 1), column = (l % 4) * 2 + (i & 1);
      float sum = warp[l].c[i];
      for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][column];
      warp[l].c[i] = sum;
    }
}

inline void load(Lane* warp, bool transposed) {
  for (int matrix = 0; matrix < 4; matrix++) {
    u16 rows[8][8];
    for (int r = 0; r < 8; r++) {
      const int by = matrix * 8 + r;
      const char* from = shared_bytes(warp[by].address, 16);
      races::access((int)(&warp[by] - lanes.data()), from, 16, false);
      std::memcpy(rows[r], from, 16);
    }
    for (int l = 0; l < 32; l++) {
      const int group = l / 4, place = (l % 4) * 2;
      const u16 low = transposed ? rows[place][group] : rows[group][place];
      const u16 high = transposed ? rows[place + 1][group] : rows[group][place + 1];
      warp[l].loaded[matrix] = (u32)low | (u32)high << 16;
    }
  }
}

// What a thread stores in shared memory, and what it loads from there.
inline void put(int thread, char* to, const void* from, size_t size) {
  const races::Quiet quiet;
  races::access(thread, to, size, true, std::memcmp(to, from, size) != 0);
  std::memcpy(to, from, size);
}
inline void get(void* to, const char* from, size_t size) {
  const races::Quiet quiet;
  races::access(current, from, size, false);
  std::memcpy(to, from, size);
}

inline void store(const Lane* warp) {
  for (int matrix = 0; matrix < 4; matrix++)
    for (int row = 0; row < 8; row++) {
      const int by = matrix * 8 + row;
      u32 words[4];
      for (int place = 0; place < 4; place++) words[place] = warp[row * 4 + place].a[matrix];
      put((int)(&warp[by] - lanes.data()), shared_bytes(warp[by].address, 16), words, 16);
    }
}

inline void answer(Lane* warp) {
  const races::Quiet quiet;
  const Request request = warp[0].request;
  for (int l = 1; l < 32; l++)
    if (warp[l].request != request) fail("lanes of a warp ask for different things");
  u32 words[32];
  bool any = false;
  for (int l = 0; l < 32; l++) words[l] = warp[l].word, any |= warp[l].flag;
  switch (request) {
    case Request::SHUFFLE:
      for (int l = 0; l < 32; l++) warp[l].word = words[l ^ warp[l].number];
      break;
    case Request::SHUFFLE_FROM:
      for (int l = 0; l < 32; l++) warp[l].word = words[warp[l].number & 31];
      break;
    case Request::FIRST:
      for (int l = 0; l < 32; l++) warp[l].word = words[0];
      break;
    case Request::ANY:
      for (int l = 0; l < 32; l++) warp[l].flag = any;
      break;
    case Request::SYNC: races::meet((int)(warp - lanes.data()), 32); break;
    case Request::MMA: multiply(warp); break;
    case Request::MATRICES: load(warp, false); break;
    case Request::MATRICES_TRANSPOSED: load(warp, true); break;
    case Request::STORE_MATRICES: store(warp); break;
    default: break;
  }
  for (int l = 0; l < 32; l++) warp[l].state = State::READY;
}

inline void land(const Copy& copy) {
  const races::Quiet quiet;
  char* to = shared_bytes(copy.to, 16);
  races::access(current, to, 16, true);
  if (copy.reads)
    std::memcpy(to, copy.from, 16);
  else
    std::memset(to, 0, 16);
}

// Warps run one after the other, each as far as it gets without the others.
inline void run_block(int threads) {
  prepare(threads);
  for (;;) {
    for (int w = 0; w < threads / 32; w++) {
      Lane* warp = &lanes[(last_warp_first ? threads / 32 - 1 - w : w) * 32];
      for (;;) {
        int count[5] = {0, 0, 0, 0, 0};
        for (int l = 0; l < 32; l++) {
          if (warp[l].state == State::READY) resume(warp[l]);
          count[(int)warp[l].state]++;
        }
        if (count[(int)State::AT_WARP] == 32)
          answer(warp);
        else if (count[(int)State::AT_BLOCK] == 32 || count[(int)State::DONE] == 32)
          break;
        else
          fail("lanes of a warp have parted");
      }
    }
    int waiting = 0;
    for (int i = 0; i < threads; i++) waiting += lanes[i].state == State::AT_BLOCK;
    if (waiting == 0) return races::end();
    if (waiting != threads) fail("not every thread reaches a barrier");
    races::meet(0, threads);
    for (int i = 0; i < threads; i++) lanes[i].state = State::READY;
  }
}

inline void launch(Index grid, int threads, size_t shared_size, std::function<void()> kernel) {
  body = kernel, grid_size = grid;
  lanes.resize(threads);
  for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
    for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
      for (block_index.x = 0; block_index.x < grid.x; block_index.x++) {
        shared.assign(shared_size, (char)0xff);  // NaN in every 16-bit format
        run_block(threads);
      }
}

}  // namespace simt

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define gridDim simt::grid_size

static inline float __int_as_float(int x) {
  float value;
  std::memcpy(&value, &x, 4);
  return value;
}

static inline int __float_as_int(float x) {
  int value;
  std::memcpy(&value, &x, 4);
  return value;
}

DEVICE float exp2_approx(float x) { return exp2f(x); }
DEVICE float log2_approx(float x) { return log2f(x); }
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE float rounded_product(float a, float b) {
  volatile float product = a * b;  // or the compiler may fuse it with what follows
  return product;
}
DEVICE u32 multiply_high(u32 x, u32 y) { return (u32)(((u64)x * y) >> 32); }

DEVICE u32 shuffle_xor(u32 x, int mask) {
  simt::lane().word = x;
  simt::lane().number = mask;
  simt::ask(simt::Request::SHUFFLE);
  return simt::lane().word;
}
DEVICE float shuffle_xor(float x, int mask) { return __int_as_float((int)shuffle_xor((u32)__float_as_int(x), mask)); }
DEVICE int shuffle(int x, int lane) {
  simt::lane().word = (u32)x;
  simt::lane().number = lane;
  simt::ask(simt::Request::SHUFFLE_FROM);
  return (int)simt::lane().word;
}
DEVICE bool any_lane(bool x) {
  simt::lane().flag = x;
  simt::ask(simt::Request::ANY);
  return simt::lane().flag;
}
DEVICE void sync_warp() { simt::ask(simt::Request::SYNC); }
DEVICE void sync_block() { simt::wait(simt::State::AT_BLOCK); }
DEVICE u32 opaque(u32 x) { return x; }
DEVICE int thread_again() { return (int)threadIdx.x; }
DEVICE int block_again() { return (int)blockIdx.x; }
DEVICE int blocks_again() { return (int)gridDim.x; }

using std::fmaxf;
using std::max;
using std::min;

template <class T>
DEVICE u32 pack(float low, float high);
SPECIALISED u32 pack<Half>(float low, float high) {
  return (u32)simt::float_to_half(low) | (u32)simt::float_to_half(high) << 16;
}
SPECIALISED u32 pack<BFloat16>(float low, float high) {
  return (u32)simt::float_to_bfloat(low) | (u32)simt::float_to_bfloat(high) << 16;
}

template <class T>
DEVICE float unpack(u16 bits);
SPECIALISED float unpack<Half>(u16 bits) { return simt::half_to_float(bits); }
SPECIALISED float unpack<BFloat16>(u16 bits) { return simt::bfloat_to_float(bits); }

namespace simt {
inline void mma(bool bfloat, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Lane& self = lane();
  self.bfloat = bfloat;
  std::memcpy(self.a, a, 16);
  std::memcpy(self.c, c, 16);
  self.b[0] = b0, self.b[1] = b1;
  ask(Request::MMA);
  std::memcpy(c, lane().c, 16);
}
}  // namespace simt

template <class T>
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
SPECIALISED void mma<Half>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { simt::mma(false, c, a, b0, b1); }
SPECIALISED void mma<BFloat16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { simt::mma(true, c, a, b0, b1); }

DEVICE u32 shared_address(const void* pointer) {
  const size_t offset = (size_t)((const char*)pointer - simt::shared.data());
  if (offset <= simt::shared.size()) return simt::SHARED_BASE + (u32)offset;
  const u32 address = simt::STATIC_SHARED | (u32)(uintptr_t)pointer;
  simt::statics[address] = (char*)pointer;
  return address;
}
DEVICE void store_shared(u32 address, const Chunk& chunk) { simt::put(simt::current, simt::shared_bytes(address, 16), &chunk, 16); }
DEVICE void store_shared(u32 address, u32 word) { simt::put(simt::current, simt::shared_bytes(address, 4), &word, 4); }
DEVICE Chunk load_shared(u32 address) {
  Chunk chunk;
  simt::get(&chunk, simt::shared_bytes(address, 16), 16);
  return chunk;
}

DEVICE u32 load_shared_word(u32 address) {
  u32 word;
  simt::get(&word, simt::shared_bytes(address, 4), 4);
  return word;
}
DEVICE void store_shared(u32 address, const Pair& pair) { simt::put(simt::current, simt::shared_bytes(address, 8), &pair, 8); }
DEVICE Pair load_shared_pair(u32 address) {
  Pair pair;
  simt::get(&pair, simt::shared_bytes(address, 8), 8);
  return pair;
}
DEVICE Chunk load_fresh(const Chunk* global) {
  if ((uintptr_t)global % 16 != 0) simt::fail("misaligned load");
  return *global;
}
DEVICE float load_fresh(const float* global) { return *global; }
// Blocks run one after the other.
DEVICE u32 take_ticket(u32* counter, u32 last) {
  const u32 before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}

DEVICE void load_matrices(u32 (&r)[4], u32 address) {
  simt::lane().address = address;
  simt::ask(simt::Request::MATRICES);
  std::memcpy(r, simt::lane().loaded, 16);
}
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 address) {
  simt::lane().address = address;
  simt::ask(simt::Request::MATRICES_TRANSPOSED);
  std::memcpy(r, simt::lane().loaded, 16);
}

#if HAS_ASYNC_COPY
DEVICE void copy_async_or_zero(u32 shared, const char* global, bool copy) {
  if ((uintptr_t)global % 16 != 0) simt::fail("misaligned asynchronous copy");
  const simt::Copy issued = {shared, global, copy};
  if (simt::eager_copies)
    simt::land(issued);
  else
    simt::lane().open.push_back(issued);
}
DEVICE void copy_async(u32 shared, const char* global) { copy_async_or_zero(shared, global, true); }
DEVICE void copy_async_commit() {
  simt::lane().groups.push_back(std::move(simt::lane().open));
  simt::lane().open.clear();
}
template <int pending>
DEVICE void copy_async_wait() {
  auto& groups = simt::lane().groups;
  while (groups.size() > (size_t)pending) {
    for (const simt::Copy& copy : groups.front()) simt::land(copy);
    groups.erase(groups.begin());
  }
}
#endif
