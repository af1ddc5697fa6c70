// The other side of backward/instructions.cuh and backward/wgmma.cuh, on a CPU.
//
// Additions to global memory read shared memory when they are asked for, or, as products do, when they are waited for.
#pragma once

namespace simt {

struct Addition {
  float* to;
  u32 from, bytes;
};

inline thread_local std::map<int, std::vector<Addition>> additions;  // of each thread, not yet carried out

inline void add(const Addition& one) {
  const races::Quiet quiet;
  for (u32 i = 0; i < one.bytes; i += 4) {
    float more;
    std::memcpy(&more, shared_bytes(one.from + i, 4), 4);
    one.to[i / 4] += more;
  }
}

inline void end_additions() {
  for (const Addition& one : additions[current]) add(one);
  additions[current].clear();
  races::see_additions(current);
}

}  // namespace simt

DEVICE void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  if (to % 16 || (uintptr_t)from % 16 || bytes % 16) simt::fail("a copy of bytes that are no whole pieces of 16");
  simt::Box box = {to, barrier, bytes, {}, {}, (const char*)from};
  simt::start(box);
}

DEVICE void add_floats(u64 to, u32 from, u32 bytes) {
  if (to % 16 || from % 16 || bytes % 16) simt::fail("an addition of bytes that are no whole pieces of 16");
  const simt::Addition one = {(float*)to, from, bytes};
  simt::races::addition_reads(simt::current, simt::shared_bytes(from, 16), bytes);
  if (simt::late_products)
    simt::additions[simt::current].push_back(one);
  else
    simt::add(one);
}
DEVICE void additions_commit() {}
DEVICE void additions_have_read() { simt::end_additions(); }
DEVICE void additions_done() { simt::end_additions(); }

DEVICE void publish_shared() { simt::races::fence(simt::current); }

DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
  simt::Lane& self = simt::lane();
  self.address = address, self.a[0] = a, self.a[1] = b, self.a[2] = c, self.a[3] = d;
  simt::ask(simt::Request::STORE_MATRICES);
}

DEVICE u64 load_shared_address(u32 address) {
  u64 x;
  simt::get(&x, simt::static_bytes(address, 8), 8);
  return x;
}
DEVICE void store_shared_address(u32 address, u64 x) { simt::put(simt::current, simt::static_bytes(address, 8), &x, 8); }

template <class T, int N>
DEVICE void wgmma_turned(float (&d)[N / 2], u64 a, u64 b, int accumulate) {
  simt::ask_product({N, 0, IS_BFLOAT<T>, accumulate != 0, simt::Left::ALONG, a, b, {}, {}}, d, nullptr);
}
