// The other side of backward/cluster.cuh, on a CPU: blocks 2n and 2n + 1 take turns like others, and send each other messages.
#pragma once

DEVICE u32 shared_address_in_cluster(const void* pointer) { return simt::address_in_cluster(pointer); }
DEVICE void copy_to_peer(u32 to, u32 from, u32 bytes, u32 barrier) { simt::send_to_peer(to, from, bytes, barrier); }
DEVICE void barrier_arrive_in_peer(u32 barrier) { simt::send_to_peer(0, 0, 0, barrier); }
DEVICE void sync_cluster() { simt::meet_peer(); }
