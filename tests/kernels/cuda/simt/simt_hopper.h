// The other side of hopper/instructions.cuh: what only Hopper has, on a CPU. hopper_engine.cc has the machine.
//
// Where a copy will land is NaN from when it is asked for; so are accumulators until their product has ended. Operands of
// products are read when the product is carried out, not when it is asked for.
#pragma once
#include "simt_device.h"

#define __shared__ static thread_local
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#undef SHARED_MEMORY
#define SHARED_MEMORY(name) \
  char* name = simt::shared; \
  if (simt::SHARED_BASE % 1024) simt::fail("shared memory begins at no kilobyte")

using std::max;
using std::min;

namespace simt {

struct Map {  // how the tests' own libcuda writes a tensor map
  u64 magic, address, dtype, rank, sizes[4], strides[3], box[4], swizzle;
};
constexpr u64 MAP_MAGIC = 0x70616d726f736e65ull;
constexpr u64 MAP_UINT8 = 0, MAP_FLOAT32 = 7;  // as the driver numbers types and ways of swizzling
constexpr u64 MAP_NO_SWIZZLE = 0;

inline u32 element_bytes(const Map& map) { return map.dtype == MAP_UINT8 ? 1 : map.dtype == MAP_FLOAT32 ? 4 : 2; }
inline u32 row_bytes(const Map& map) { return (u32)map.box[0] * element_bytes(map); }

// How a product's first operand lies, and the second: across where the first is, and where the name says so.
enum class Left { ACROSS, ALONG, REGISTERS, REGISTERS_ACROSS };
inline bool in_registers(Left left) { return left == Left::REGISTERS || left == Left::REGISTERS_ACROSS; }
inline bool right_is_across(Left left) { return left == Left::ACROSS || left == Left::REGISTERS_ACROSS; }

enum class Kind { HALF, BFLOAT, FLOAT8 };  // of the elements of a product
inline int element_bytes(Kind kind) { return kind == Kind::FLOAT8 ? 1 : 2; }
inline int depth_of(Kind kind) { return 32 / element_bytes(kind); }

struct Asked {  // a product, as each of its threads asks for it
  int n;
  Kind kind;
  bool accumulate;
  Left left;
  u64 a, b;
};

void check_global(const char* at, size_t size, const char* complaint);

inline bool late_copies = false, late_products = false;
inline unsigned seed = 0;           // of the order of warps and copies; 0: in order
inline bool greedy_blocks = false;  // a block runs to its end before the next begins, unless it waits for one
inline size_t resident_blocks = 0;  // so many have begun and not ended at a time; 0: all

void let_other_blocks_run();
void perhaps_let_other_blocks_run();
void await_value(const int* at, int value);
int look_at_value(const int* at);
int claim_value(int* at);
void give_value(int* at, int value);
void count_value(int* at);
void rest();

void make_barrier(u32 barrier, u32 arrivals);
void publish_barriers();
void arrive(u32 barrier, i64 bytes);
void await_phase(u32 barrier, u32 parity);
void arrive_named(int id, int threads);
void meet_named(int id, int threads);

void copy_box(u32 to, const void* map, u32 barrier, int column, int row, int head, int batch);
void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier);
void add_floats(u64 to, u32 from, u32 bytes, bool stores = false);
void read_additions();
void end_additions();

void tell_products();  // what this thread wrote is there for copies and products
void end_loads();      // what this warp's loads read is in registers
void ask_product(const Asked& asked, float* d, const u32* rows);
void commit_products();
void await_products(int pending);
void check_settled(const float* d);

void give_registers(int count, bool more);

u32 address_in_cluster(const void* pointer);  // with the number of its block in the bits of an address that memory does not need
void send_to_peer(u32 to, u32 from, u32 bytes, u32 barrier);  // to the other block of a cluster; no bytes: an arrival
void meet_peer();

}  // namespace simt


DEVICE int atomicAdd(int* counter, int more) {
  simt::let_other_blocks_run();
  const int before = *counter;
  *counter = before + more;
  return before;
}
DEVICE void __threadfence() {}

DEVICE void barrier_init(u32 barrier, u32 arrivals) { simt::make_barrier(barrier, arrivals); }
DEVICE void barrier_init_done() { simt::publish_barriers(); }
DEVICE void barrier_arrive(u32 barrier) { simt::arrive(barrier, 0); }
DEVICE void barrier_arrive_after(u32 barrier, u32) {
  simt::end_loads();
  simt::arrive(barrier, 0);
}
DEVICE void barrier_arrive_expecting(u32 barrier, u32 bytes) { simt::arrive(barrier, bytes); }
DEVICE void barrier_wait(u32 barrier, u32 parity) { simt::await_phase(barrier, parity); }

DEVICE void prefetch_map(const TensorMap&) {}

DEVICE void copy_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, int head, int batch) {
  simt::copy_box(to, &map, barrier, column, row, head, batch);
}

DEVICE void stores_before_products() { simt::tell_products(); }
DEVICE void warpgroup_fence() {}
DEVICE void warpgroup_commit() { simt::commit_products(); }
template <int pending>
DEVICE void warpgroup_wait() {
  simt::await_products(pending);
}
template <int N>
DEVICE void settled(float (&registers)[N]) {
  simt::check_settled(registers);
}

template <class T>
constexpr simt::Kind KIND = simt::Kind::HALF;
template <>
constexpr simt::Kind KIND<BFloat16> = simt::Kind::BFLOAT;
template <>
constexpr simt::Kind KIND<Float8> = simt::Kind::FLOAT8;

DEVICE u32 pack_float8(float a, float b, float c, float d) {
  return (u32)simt::float_to_float8(a) | (u32)simt::float_to_float8(b) << 8 | (u32)simt::float_to_float8(c) << 16 |
         (u32)simt::float_to_float8(d) << 24;
}

template <class T, int N>
DEVICE void wgmma_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "widths of wgmma for 16-bit elements");
  simt::ask_product({N, KIND<T>, accumulate != 0, simt::Left::ACROSS, a, b}, d, nullptr);
}
template <class T, int N>
DEVICE void wgmma_registers(float (&d)[N / 2], const u32* a, u64 b, int accumulate) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "widths of wgmma for 16-bit elements");
  constexpr bool EIGHT = KIND<T> == simt::Kind::FLOAT8;  // whose second operand cannot be read transposed
  simt::ask_product({N, KIND<T>, accumulate != 0, EIGHT ? simt::Left::REGISTERS_ACROSS : simt::Left::REGISTERS, 0, b}, d, a);
}

template <int COUNT>
DEVICE void fewer_registers() {
  simt::give_registers(COUNT, false);
}
template <int COUNT>
DEVICE void more_registers() {
  simt::give_registers(COUNT, true);
}

DEVICE void named_arrive(int id, int threads) { simt::arrive_named(id, threads); }
DEVICE void named_sync(int id, int threads) { simt::meet_named(id, threads); }

DEVICE int uniform(int x) { return (int)simt::first_lane((u32)x); }

template <class T>
DEVICE T load_global_or_zero(const char* from, bool there) {
  T found = {};
  if (!there) return found;
  if ((uintptr_t)from % sizeof(T)) simt::fail("misaligned load");
  simt::check_global(from, sizeof(T), "a load outside of every buffer");
  std::memcpy(&found, from, sizeof found);
  return found;
}

DEVICE void prefetch_global(const char* from) { simt::check_global(from, 1, "a prefetch outside of every buffer"); }

DEVICE void store_global(char* to, const Chunk& c) {
  if ((uintptr_t)to % 16) simt::fail("misaligned store");
  simt::check_global(to, 16, "a store outside of every buffer");
  std::memcpy(to, &c, 16);
}
