// Hopper's own instructions, each behind one function: barriers that count bytes, tensor copies, warpgroups.
#pragma once
#include "device.cuh"

// A tensor map as cuTensorMapEncodeTiled made it on the host; a kernel takes it as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  char bytes[128];
};

#ifdef SIMT_SHIM
#include "simt_hopper.h"
#else

// ---- barriers in shared memory that count arrivals and bytes (mbarrier)

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers just initialised visible to the copy engine.
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives after x has been computed, and thus after the loads from shared memory that x depends on. A load that was issued earlier
// may otherwise read later: while it waits, a tensor copy that was started after the arrival can overwrite what it is to read.
// `popc >> 6` is always 0; ptxas does not know that, so the barrier's address depends on x.
DEVICE void barrier_arrive_after(u32 barrier, u32 x) {
  asm volatile(
      "{ .reg .b32 at; popc.b32 at, %1; shr.u32 at, at, 6; add.u32 at, at, %0;\n"
      "mbarrier.arrive.shared::cta.b64 _, [at]; }" ::"r"(barrier), "r"(x) : "memory");
}

// Arrives, and sets how many bytes must land before this phase can end.
DEVICE void barrier_arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase with this parity. A debug build (BOUNDED_WAITS) gives up after a number of tries and goes on,
// so that a deadlock shows as a wrong result. It does not trap, because a trap inside the pipeline makes ptxas serialise wgmma.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
#ifdef BOUNDED_WAITS
  asm volatile(
      "{ .reg .pred done, again; .reg .u32 tries; mov.u32 tries, 0;\n"
      "TRY: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE; add.u32 tries, tries, 1; setp.lt.u32 again, tries, %2; @again bra TRY;\n"
      "DONE: }" ::"r"(barrier), "r"(parity), "n"(BOUNDED_WAITS) : "memory");
#else
  asm volatile(
      "{ .reg .pred done;\n"
      "TRY: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE; bra TRY;\n"
      "DONE: }" ::"r"(barrier), "r"(parity) : "memory");
#endif
}

// ---- tensor copies (TMA)

DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Copies a box of the [batch, head, row, column] tensor to shared memory, in swizzled rows of 128 bytes. Elements outside of
// the tensor arrive as zeros, and their bytes count. `barrier` counts the bytes as they land.
DEVICE void copy_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}

// ---- warpgroups

// Makes what this thread has stored in shared memory visible to the wgmma that follow a barrier.
DEVICE void stores_before_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Makes registers that ordinary instructions wrote, and shared memory, ready for the wgmma that follow.
DEVICE void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the latest `pending` groups of this warpgroup have ended.
template <int pending>
DEVICE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Four numbers as elements of eight bits (e4m3), the first in the lowest; those beyond 448 become 448.
DEVICE u32 pack_float8(float a, float b, float c, float d) {
  u32 packed;
  asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high}; }"
      : "=r"(packed) : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

// Keeps the compiler from moving uses of accumulators before the wait, because it does not know that wgmma writes them late.
template <int N>
DEVICE void settled(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int COUNT>
DEVICE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
DEVICE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Named barriers: `threads` threads take part, some of which only arrive.
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Returns a value that is the same in all lanes of a warp, in a form from which the compiler knows this.
DEVICE int uniform(int x) { return __shfl_sync(~0u, x, 0); }
DEVICE u32 shuffle_xor(u32 x, int mask) { return __shfl_xor_sync(~0u, x, mask); }

// Only a hint: brings the line to the L2 cache.
DEVICE void prefetch_global(const char* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

template <class T>
DEVICE T load_global_or_zero(const char* from, bool there);

SPECIALISED Chunk load_global_or_zero<Chunk>(const char* from, bool there) {
  Chunk c;
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
      "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(c.x), "=&r"(c.y), "=&r"(c.z), "=&r"(c.w) : "l"(from), "r"((int)there));
  return c;
}
SPECIALISED Words load_global_or_zero<Words>(const char* from, bool there) {
  Words w;
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0;\n"
      "@p ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
      : "=&r"(w.x), "=&r"(w.y) : "l"(from), "r"((int)there));
  return w;
}

SPECIALISED u32 load_global_or_zero<u32>(const char* from, bool there) {
  u32 word;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
               : "=&r"(word) : "l"(from), "r"((int)there));
  return word;
}
SPECIALISED u16 load_global_or_zero<u16>(const char* from, bool there) {
  u16 half;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.b16 %0, [%1]; }"
               : "=&h"(half) : "l"(from), "r"((int)there));
  return half;
}
SPECIALISED u8 load_global_or_zero<u8>(const char* from, bool there) {
  u16 byte;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.u8 %0, [%1]; }"
               : "=&h"(byte) : "l"(from), "r"((int)there));
  return (u8)byte;
}

DEVICE void store_global(char* to, const Chunk& c) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w) : "memory");
}

#endif  // SIMT_SHIM

// ---- shared memory as wgmma sees it

// The address of a matrix in rows of 128 swizzled bytes, eight rows to a kilobyte. `chunk_bytes` is the distance from one
// 64-column chunk to the next, for a matrix that is read along its rows (V). For a matrix that is read across its rows (Q, K)
// the hardware ignores it.
DEVICE u32 matrix(u32 address, u32 chunk_bytes) { return address >> 4 | chunk_bytes >> 4 << 16; }

DEVICE u64 descriptor(u32 matrix) {
  constexpr u64 SWIZZLE_128_BYTES = 1ull << 62, EIGHT_ROWS = 1024 >> 4;
  return SWIZZLE_128_BYTES | EIGHT_ROWS << 32 | matrix;
}
