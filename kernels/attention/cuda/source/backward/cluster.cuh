// What two blocks of a cluster do to each other, each behind one function. Blocks 2n and 2n + 1 of a grid are a cluster.
#pragma once
#include "backward/instructions.cuh"

DEVICE int rank_in_cluster() { return block_again() & 1; }

#ifdef SIMT_SHIM
#include "simt_cluster.h"
#else

DEVICE u32 shared_address_in_cluster(const void* pointer) { return shared_address(pointer); }

// Returns the address at which this block sees what has this address in the other one.
DEVICE u32 address_in_peer(u32 address) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank_in_cluster() ^ 1));
  return there;
}
// Copies `bytes` of this block's shared memory into the other's, whose barrier counts them; asynchronous.
DEVICE void copy_to_peer(u32 to, u32 from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   address_in_peer(to)),
               "r"(from), "r"(bytes), "r"(address_in_peer(barrier))
               : "memory");
}
DEVICE void barrier_arrive_in_peer(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in_peer(barrier)) : "memory");
}
// As `barrier_wait`, for a barrier at which the other block arrives.
DEVICE void barrier_wait_for_peer(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "TRY: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE; bra TRY;\n"
      "DONE: }" ::"r"(barrier), "r"(parity) : "memory");
}
// All threads of both blocks meet.
DEVICE void sync_cluster() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

#endif  // SIMT_SHIM
