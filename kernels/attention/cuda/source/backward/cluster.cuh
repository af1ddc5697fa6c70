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
// Arrives at the other block's barrier, for products that have read shared memory and have ended. It orders nothing else: a release
// in the scope of the cluster would first wait for every addition to global memory that the warp has started.
DEVICE void barrier_arrive_in_peer(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_peer(barrier)) : "memory");
}
// All threads of both blocks meet. It orders nothing either: a fence publishes barriers just initialised, and messages that are under
// way stay so. Whoever must have them waits at their barriers.
DEVICE void sync_cluster() { asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory"); }

#endif  // SIMT_SHIM
