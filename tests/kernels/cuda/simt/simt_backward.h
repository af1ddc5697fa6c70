// The other side of backward/instructions.cuh and backward/wgmma.cuh, on a CPU.
//
// Additions to global memory read shared memory when they are asked for, or, as products do, when they are waited for. Those
// that have read need not have happened: not before they are waited for to the end.
#pragma once

DEVICE void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) { simt::copy_bytes(to, from, bytes, barrier); }

DEVICE void add_floats(u64 to, u32 from, u32 bytes) { simt::add_floats(to, from, bytes); }
DEVICE void store_floats(u64 to, u32 from, u32 bytes) { simt::add_floats(to, from, bytes, true); }
DEVICE void additions_commit() {}
DEVICE void additions_have_read() { simt::read_additions(); }
DEVICE void additions_done() { simt::end_additions(); }
DEVICE void await_turn(const int* turn, int own) { simt::await_value(turn, own); }
DEVICE int look_at(const int* number) { return simt::look_at_value(number); }
DEVICE int claim(int* number) { return simt::claim_value(number); }
DEVICE void give_turn(int* turn, int next) { simt::give_value(turn, next); }
DEVICE void order_additions() {}
DEVICE int acquired(const int* number) { return simt::look_at_value(number); }
DEVICE void count_up(int* number) { simt::count_value(number); }
DEVICE void rest() { simt::rest(); }

DEVICE void publish_shared() { simt::tell_products(); }

DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) { simt::store_matrices(address, {a, b, c, d}); }

DEVICE u64 load_shared_address(u32 address) {
  u64 x;
  simt::load_static(&x, address, 8);
  return x;
}
DEVICE void store_shared_address(u32 address, u64 x) { simt::store_static(address, &x, 8); }

template <class T, int N>
DEVICE void wgmma_turned(float (&d)[N / 2], u64 a, u64 b, int accumulate) {
  simt::ask_product({N, KIND<T>, accumulate != 0, simt::Left::ALONG, a, b}, d, nullptr);
}
template <class T, int N>
DEVICE void wgmma_across(float (&d)[N / 2], const u32* a, u64 b) {
  simt::ask_product({N, KIND<T>, true, simt::Left::REGISTERS_ACROSS, 0, b}, d, a);
}
