// The other side of hopper/instructions.cuh: what only Hopper has, on a CPU. hopper_block.h decides when.
//
// Where a copy will land is NaN from when it is asked for; so are accumulators until their product has ended. Operands of
// products are read when the product is carried out, not when it is asked for.
#pragma once
#include "hopper_products.h"

#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#undef SHARED_MEMORY
#define SHARED_MEMORY(name) \
  char* name = simt::shared.data(); \
  if (simt::SHARED_BASE % 1024) simt::fail("shared memory begins at no kilobyte")

using std::max;
using std::min;

namespace simt {

inline Barrier& barrier_at(u32 address) {
  auto found = block.barriers.find(address);
  if (found == block.barriers.end()) fail("a barrier is used before it is initialised");
  return found->second;
}

inline void advance(u32 address, Barrier& b) {
  if (b.due || b.bytes) return;
  b.parity ^= 1, b.due = b.arrivals;
  races::phase_ended(address);
  wake(Wait::BARRIER, address, [&](const Waiting& w) {
    const bool over = w.parity != b.parity;
    if (over) races::see_phase((int)(&w - block.waiting.data()), address);
    return over;
  });
}

inline void arrive(u32 address, i64 bytes) {
  Barrier& b = barrier_at(address);
  if (b.due == 0) fail("a barrier has one arrival too many in a phase");
  races::arrive(current, address);
  b.bytes += bytes, b.due--;
  advance(address, b);
}

// Where row `row` of a box, and its 16-byte piece `piece`, lies: pieces change places within eight rows of 128 bytes.
inline u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }

inline void carry_out(const Box& box) {
  const races::Quiet quiet;
  const Map& m = box.map;
  u32 to = box.to;
  if (box.from) {
    for (u32 i = 0; i < box.bytes; i += 16) std::memcpy(shared_bytes(to + i, 16), box.from + i, 16);
    to += box.bytes;
  }
  for (i64 batch = box.at[3]; batch < box.at[3] + (i64)m.box[3]; batch++)
    for (i64 head = box.at[2]; head < box.at[2] + (i64)m.box[2]; head++)
      for (i64 row = box.at[1]; row < box.at[1] + (i64)m.box[1]; row++, to += row_bytes(m))
        for (i64 i = 0; i < (i64)m.box[0]; i++) {
          const i64 column = box.at[0] + i;
          const auto inside = [&](i64 x, int dimension) { return x >= 0 && x < (i64)m.sizes[dimension]; };
          u32 element = 0;
          const u32 size = element_bytes(m), place = to + (u32)i * size;
          if (inside(column, 0) && inside(row, 1) && inside(head, 2) && inside(batch, 3))
            std::memcpy(&element,
                        (const char*)m.address + column * size + row * (i64)m.strides[0] + head * (i64)m.strides[1] +
                            batch * (i64)m.strides[2],
                        size);
          std::memcpy(shared_bytes(m.swizzle == MAP_NO_SWIZZLE ? place : swizzled(place), size), &element, size);
        }
  Barrier& b = barrier_at(box.barrier);
  races::copy_landed(box.barrier, box.number);
  b.bytes -= box.bytes;
  advance(box.barrier, b);
}

// The copy is under way: what lies at its place is lost at once.
inline void start(Box box) {
  const races::Quiet quiet;
  barrier_at(box.barrier);
  box.number = races::copy_asked(current, shared_bytes(box.to, 16), box.bytes, box.barrier);
  check_not_read({box.to, box.to + box.bytes});
  for (u32 i = 0; i < box.bytes; i += 16) std::memset(shared_bytes(box.to + i, 16), 0xff, 16);
  if (late_copies)
    block.boxes.push_back(box);
  else
    carry_out(box);
}

struct Span {
  char* from;
  size_t size;
};
inline std::vector<Span> global_memory;  // what a kernel may write

inline void give_registers(int count, bool more) {
  const int had = block.registers[current];
  if (count % 8 || count < 24 || count > 256) fail("setmaxnreg takes multiples of 8 from 24 to 256");
  if (more ? count < had : count > had) fail("setmaxnreg goes the wrong way");
  while (count - had > block.free_registers) wait_elsewhere(Wait::REGISTERS, 0);
  block.free_registers -= count - had;
  block.registers[current] = count;
  wake(Wait::REGISTERS, 0, [](const Waiting&) { return true; });
}

inline void arrive_named(int id, int threads) {
  if (id < 1 || id > 15) fail("named barriers are 1 to 15");
  NamedBarrier& b = block.named[id];
  if (b.arrived && b.threads != threads) fail("threads disagree about how many meet at a named barrier");
  b.threads = threads;
  races::arrive_named(current, id);
  if (++b.arrived < threads) return;
  b.arrived = 0;
  races::named_ended(id);
  wake(Wait::NAMED, (u32)id, [&](const Waiting& w) {
    races::see_named((int)(&w - block.waiting.data()), id);
    return true;
  });
}

}  // namespace simt

DEVICE int atomicAdd(int* counter, int more) {
  simt::let_other_blocks_run();
  const int before = *counter;
  *counter = before + more;
  return before;
}
DEVICE void __threadfence() {}

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  if (arrivals == 0 || barrier % 8) simt::fail("a barrier lies on 8 bytes and counts at least one arrival");
  if (!simt::block.barriers.emplace(barrier, simt::Barrier{arrivals, arrivals}).second) simt::fail("a barrier is made twice");
  simt::races::barrier_made(simt::current, barrier);
}
DEVICE void barrier_init_done() {}
DEVICE void barrier_arrive(u32 barrier) { simt::arrive(barrier, 0); }
DEVICE void barrier_arrive_expecting(u32 barrier, u32 bytes) { simt::arrive(barrier, bytes); }
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  if (simt::barrier_at(barrier).parity == parity)
    simt::wait_elsewhere(simt::Wait::BARRIER, barrier, parity);
  else
    simt::races::see_phase(simt::current, barrier);
}

DEVICE void prefetch_map(const TensorMap&) {}

DEVICE void copy_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, int head, int batch) {
  simt::Box box = {to, barrier, 0, {}, {column, row, head, batch}};
  std::memcpy(&box.map, &map, sizeof box.map);
  if (box.map.magic != simt::MAP_MAGIC) simt::fail("a copy by something that is no tensor map");
  const bool in_a_row = box.map.swizzle == simt::MAP_NO_SWIZZLE;
  if (!in_a_row && simt::row_bytes(box.map) != 128) simt::fail("a box whose rows are not as wide as their swizzle");
  if (to % 128) simt::fail("a box to an address that is no multiple of 128");
  box.bytes = simt::rows_of(box.map) * simt::row_bytes(box.map);
  simt::start(box);
}

DEVICE void stores_before_products() { simt::races::fence(simt::current); }
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
constexpr bool IS_BFLOAT = false;
template <>
constexpr bool IS_BFLOAT<BFloat16> = true;

template <class T, int N>
DEVICE void wgmma_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "widths of wgmma for 16-bit elements");
  simt::ask_product({N, 0, IS_BFLOAT<T>, accumulate != 0, simt::Left::ACROSS, a, b, {}, {}}, d, nullptr);
}
template <class T, int N>
DEVICE void wgmma_registers(float (&d)[N / 2], const u32* a, u64 b, int accumulate) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "widths of wgmma for 16-bit elements");
  simt::ask_product({N, 0, IS_BFLOAT<T>, accumulate != 0, simt::Left::REGISTERS, 0, b, {}, {}}, d, a);
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
DEVICE void named_sync(int id, int threads) {
  simt::NamedBarrier& b = simt::block.named[id & 15];
  const bool last = b.arrived + 1 == threads;
  simt::arrive_named(id, threads);
  if (last)
    simt::races::see_named(simt::current, id);
  else
    simt::wait_elsewhere(simt::Wait::NAMED, (u32)id);
}

DEVICE int uniform(int x) {
  simt::lane().word = (u32)x;
  simt::ask(simt::Request::FIRST);
  return (int)simt::lane().word;
}

template <class T>
DEVICE T load_global_or_zero(const char* from, bool there) {
  T found = {};
  if (!there) return found;
  if ((uintptr_t)from % sizeof(T)) simt::fail("misaligned load");
  for (const simt::Span& span : simt::global_memory)
    if (from >= span.from && from + sizeof(T) <= span.from + span.size) {
      std::memcpy(&found, from, sizeof found);
      return found;
    }
  simt::fail("a load outside of every buffer");
  return found;
}

DEVICE void prefetch_global(const char* from) {
  for (const simt::Span& span : simt::global_memory)
    if (from >= span.from && from < span.from + span.size) return;
  simt::fail("a prefetch outside of every buffer");
}

DEVICE void store_global(char* to, const Chunk& c) {
  if ((uintptr_t)to % 16) simt::fail("misaligned store");
  for (const simt::Span& span : simt::global_memory)
    if (to >= span.from && to + 16 <= span.from + span.size) {
      std::memcpy(to, &c, 16);
      return;
    }
  simt::fail("a store outside of every buffer");
}
