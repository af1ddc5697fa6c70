// Hopper's instructions that only the backward pass uses, each behind one function.
#pragma once
#include "hopper/instructions.cuh"

#ifdef SIMT_SHIM
#include "simt_backward.h"
#else

// Copies `bytes` from global to contiguous shared memory; the barrier counts the bytes.
DEVICE void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

// Adds `bytes` of floats in shared memory to floats in global memory; asynchronous.
DEVICE void add_floats(u64 to, u32 from, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
// Writes the floats to global memory instead of adding them; the same waits apply as for additions.
DEVICE void store_floats(u64 to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
DEVICE void additions_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until shared memory may be written again; the additions themselves may still be pending.
DEVICE void additions_have_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void additions_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Numbers in global memory, by which blocks tell each other which additions are done. Additions that start after a block has
// read a number come after those that were done before another block gave that number.
DEVICE void order_additions() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
DEVICE int acquired(const int* number) {
  int now;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(number) : "memory");
  return now;
}
// Returns the number.
DEVICE int look_at(const int* number) {
  const int now = acquired(number);
  order_additions();
  return now;
}
// Waits until the number is `own`.
DEVICE void await_turn(const int* turn, int own) {
  while (acquired(turn) != own) {
  }
  order_additions();
}
// Returns the number, and sets it to 1 if it is 0; only one block finds it 0.
DEVICE int claim(int* number) {
  int before;
  asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, 1;" : "=r"(before) : "l"(number) : "memory");
  order_additions();
  return before;
}
DEVICE void give_turn(int* turn, int next) {
  order_additions();
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

// Adds 1 to the number. Whoever reads that sees the additions too that were done before.
DEVICE void count_up(int* number) {
  order_additions();
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(number) : "memory");
}
// Waits a little, before a number is looked at again.
DEVICE void rest() { __nanosleep(100); }

// Makes what this thread has written to shared memory visible to products and copies that start after a barrier.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Stores four 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the row addresses of matrix i.
DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

DEVICE u64 load_shared_address(u32 address) {
  u64 x;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(address) : "memory");
  return x;
}
DEVICE void store_shared_address(u32 address, u64 x) { asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(x) : "memory"); }

#endif  // SIMT_SHIM
