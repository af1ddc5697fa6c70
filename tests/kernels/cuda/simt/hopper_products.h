// Products of warpgroups (wgmma.m64nNk16, and k32 of elements of eight bits) on the CPU: asked for by 128 threads, carried out in order, at once or late.
#pragma once
#include "hopper_block.h"

namespace simt {

// Where what has this address lies: pieces of 16 bytes change places within eight rows of 128.
inline u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }

struct Matrix {  // what a descriptor says
  u32 start, leading, stride;
};

inline Matrix matrix_of(u64 descriptor) {
  if (descriptor >> 62 != 1) fail("a matrix that is not swizzled in 128 bytes");
  if (descriptor >> 49 & 7) fail("a matrix that does not begin where its swizzle does");
  const auto field = [&](int at) { return (u32)(descriptor >> at & 0x3fff) << 4; };
  return {field(0) + window, field(16), field(32)};
}

// An element, from the lowest bits.
inline float number_of(u32 bits, Kind kind) {
  return kind == Kind::FLOAT8 ? float8_to_float((u8)bits) : kind == Kind::BFLOAT ? bfloat_to_float((u16)bits) : half_to_float((u16)bits);
}

// The elements of 16 bytes, whose number is returned.
inline int read_piece(float* to, u32 address, Kind kind) {
  u16 bits[8];
  std::memcpy(bits, shared_bytes(swizzled(address), 16), 16);
  const int count = 16 / element_bytes(kind);
  for (int i = 0; i < count; i++) to[i] = number_of(count == 8 ? bits[i] : bits[i / 2] >> 8 * (i % 2), kind);
  return count;
}

// Byte `at` of a row of a matrix whose rows lie in 128 bytes each, eight of them to a group.
inline u32 across(const Matrix& m, int row, int at) { return m.start + row / 8 * m.stride + row % 8 * 128 + at; }

// Element (k, column) of a matrix that is read along its rows of 64 elements, eight rows to a group.
inline u32 along(const Matrix& m, int k, int column) {
  return m.start + column / 64 * m.leading + k / 8 * m.stride + k % 8 * 128 + column % 64 * 2;
}

// c += a b, each sum in the order of k; a has 64 rows of 16, b 16 rows of n, c 64 rows of n.
inline void accumulate_rows(float* c, const float* a, const float* b, int n) {
  for (int row = 0; row < 64; row++)
    for (int first = 0; first < n; first += 8) {
      float sum[8];
      std::memcpy(sum, c + row * n + first, sizeof sum);
      for (int k = 0; k < 16; k++)
        for (int i = 0; i < 8; i++) sum[i] += a[row * 16 + k] * b[k * n + first + i];
      std::memcpy(c + row * n + first, sum, sizeof sum);
    }
}

// The same for elements of eight bits. As on the chip, what is added is first cut off 13 bits below the largest of it.
inline void accumulate_rows_of_float8(float* c, const float* a, const float* b, int n) {
  constexpr int DEPTH = 32, BITS = 13;
  for (int row = 0; row < 64; row++)
    for (int column = 0; column < n; column++) {
      float terms[DEPTH + 1], largest = 0, sum = 0;
      for (int k = 0; k < DEPTH; k++) terms[k] = a[row * DEPTH + k] * b[k * n + column];
      terms[DEPTH] = c[row * n + column];
      for (float term : terms) largest = std::max(largest, std::fabs(term));
      const float unit = std::ldexp(1.0f, std::ilogb(largest) - BITS);
      for (float term : terms) sum += largest > 0 && std::isfinite(largest) ? std::trunc(term / unit) * unit : term;
      c[row * n + column] = sum;
    }
}

// What a product reads: whole groups of eight rows of 128 bytes, as copies write them.
template <class Each>
inline void for_each_range(const Product& p, Each each) {
  const auto groups = [&](u32 address, const Matrix& m, int count) {
    for (int i = 0; i < count; i++) each(Range{(address & ~1023u) + i * m.stride, (address & ~1023u) + i * m.stride + 1024});
  };
  const Matrix b = matrix_of(p.b);
  if (!in_registers(p.left)) groups(matrix_of(p.a).start, matrix_of(p.a), p.left == Left::ACROSS ? 64 / 8 : 16 / 8);
  if (right_is_across(p.left)) {
    groups(b.start, b, p.n / 8);
  } else {
    for (int chunk = 0; chunk < p.n / 64; chunk++) groups(b.start + chunk * b.leading, b, 16 / 8);
  }
}

inline bool meet(const Range& a, const Range& b) { return a.from < b.to && b.from < a.to; }

inline void check_landed(const Product& p) {
  for_each_range(p, [](const Range& read) {
    for (const Box& box : running->boxes)
      if (meet(read, {box.to, box.to + box.bytes})) fail("a product reads where a copy is under way");
  });
}

// By the first `count` products of a warpgroup that are under way.
inline void check_not_read(const Range& written, const Warpgroup& group, size_t count) {
  for (size_t i = 0; i < count; i++)
    for_each_range(group.products[i], [&](const Range& read) {
      if (meet(read, written)) fail("a copy overwrites what a product under way reads");
    });
}
inline void check_not_read(const Range& written) {
  for (const Warpgroup& group : running->warpgroups) check_not_read(written, group, group.products.size());
}
void check_places_are_read() {
  const Warpgroup& group = running->warpgroups[(size_t)current / 128];
  const auto count = (size_t)(group.asked[current % 128] - group.ended);
  for (const auto& [at, size] : running->places) check_not_read({at, at + size}, group, count);
}

inline Held& held_for(Warpgroup& group, int thread, const float* d) {
  for (Held& held : group.held[thread])
    if (held.at == d) return held;
  fail("an accumulator that nobody holds");
}

// The pieces of 16 bytes that a product reads.
inline void note_reads(const Product& p, int warpgroup, i64 number) {
  const auto note = [&](u32 address) { races::product_reads(warpgroup, number, shared_bytes(swizzled(address), 16), 16); };
  const auto rows = [&](const Matrix& m, int count) {
    for (int row = 0; row < count; row++)
      for (int at = 0; at < 32; at += 16) note(across(m, row, at));
  };
  const auto columns = [&](const Matrix& m, int count) {
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < count; column += 8) note(along(m, k, column));
  };
  if (p.left == Left::ACROSS) rows(matrix_of(p.a), 64);
  if (p.left == Left::ALONG) columns(matrix_of(p.a), 64);
  right_is_across(p.left) ? rows(matrix_of(p.b), p.n) : columns(matrix_of(p.b), p.n);
}

// Carries out the warpgroup's first product. A thread's registers are two rows, of every eight columns two.
inline void multiply_first(Warpgroup& group) {
  static __thread float left[64 * 32], right[32 * 256], sums[64 * 256];
  float *const a = left, *const b = right, *const c = sums;
  const Product p = group.products.front();
  check_landed(p);
  const int n = p.n, depth = depth_of(p.kind);
  const Matrix mb = matrix_of(p.b);
  float piece[16];
  if (right_is_across(p.left))
    for (int column = 0; column < n; column++)
      for (int at = 0; at < 32; at += 16) {
        const int count = read_piece(piece, across(mb, column, at), p.kind), k = at / 16 * count;
        for (int i = 0; i < count; i++) b[(k + i) * n + column] = piece[i];
      }
  else
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < n; column += 8) read_piece(b + k * n + column, along(mb, k, column), p.kind);
  if (p.left == Left::ACROSS)
    for (int row = 0; row < 64; row++)
      for (int at = 0; at < 32; at += 16) read_piece(a + row * depth + at / element_bytes(p.kind), across(matrix_of(p.a), row, at), p.kind);
  if (p.left == Left::ALONG)
    for (int k = 0; k < 16; k++)
      for (int row = 0; row < 64; row += 8) {
        read_piece(piece, along(matrix_of(p.a), k, row), p.kind);
        for (int i = 0; i < 8; i++) a[(row + i) * 16 + k] = piece[i];
      }
  const auto row_of = [](int thread) { return thread / 32 * 16 + thread % 32 / 4; };  // its other row is eight below
  for (int thread = 0; thread < 128; thread++) {
    const int row = row_of(thread), place = thread % 4 * 2;
    if (in_registers(p.left))
      for (int i = 0, in_word = depth / 8; i < 4; i++)
        for (int e = 0; e < in_word; e++)
          a[(row + i % 2 * 8) * depth + i / 2 * depth / 2 + thread % 4 * in_word + e] =
              number_of(p.rows[thread][i] >> 32 / in_word * e, p.kind);
    const float* held = held_for(group, thread, p.d[thread]).values.data();
    for (int r = 0; r < 2; r++) {
      float* to = c + (row + 8 * r) * n + place;
      for (int eight = 0; eight < n / 8; eight++)
        for (int e = 0; e < 2; e++) to[8 * eight + e] = p.accumulate ? held[4 * eight + 2 * r + e] : 0.0f;
    }
  }
  if (p.kind == Kind::FLOAT8)
    accumulate_rows_of_float8(c, a, b, n);
  else
    accumulate_rows(c, a, b, n);
  for (int thread = 0; thread < 128; thread++) {
    Held& held = held_for(group, thread, p.d[thread]);
    float* values = held.values.data();
    for (int r = 0; r < 2; r++) {
      const float* from = c + (row_of(thread) + 8 * r) * n + thread % 4 * 2;
      for (int eight = 0; eight < n / 8; eight++)
        for (int e = 0; e < 2; e++) values[4 * eight + 2 * r + e] = from[8 * eight + e];
    }
    if (--held.products) continue;
    std::memcpy(held.at, held.values.data(), held.values.size() * 4);
    group.held[thread].erase(group.held[thread].begin() + (&held - group.held[thread].data()));
  }
  group.products.pop_front();
  group.ended++;
}

inline Warpgroup& own_warpgroup() { return running->warpgroups[current / 128]; }

void ask_product(const Asked& asked, float* d, const u32* rows) {
  Warpgroup& group = own_warpgroup();
  const int thread = current % 128;
  const size_t place = (size_t)(group.asked[thread]++ - group.ended);
  if (place == group.products.size()) {
    group.products.emplace_back();
    static_cast<Asked&>(group.products.back()) = asked;
  }
  Product& p = group.products[place];
  if (p.n != asked.n || p.kind != asked.kind || p.a != asked.a || p.b != asked.b || p.accumulate != asked.accumulate ||
      p.left != asked.left)
    fail("threads of a warpgroup ask for different products");
  p.d[thread] = d, p.rows[thread] = rows;
  Held* mine = nullptr;
  for (Held& held : group.held[thread])
    if (held.at == d) mine = &held;
  if (!mine) {
    group.held[thread].push_back({d, 0, std::vector<float>(d, d + p.n / 2)});
    mine = &group.held[thread].back();
    std::memset(d, 0xff, (size_t)p.n / 2 * 4);
  }
  mine->products++;
  const i64 number = group.asked[thread] - 1;
  races::product_asked(current, current / 128, number);
  if (++p.asked == 128 && races::WATCHES) note_reads(p, current / 128, number);
  if (p.asked == 128 && !late_products) {
    multiply_first(group);
    wake(Wait::PRODUCTS, (u32)(current / 128), [&](const Waiting& w) { return w.until <= group.ended; });
  }
}

void commit_products() { own_warpgroup().groups[current % 128].push_back(own_warpgroup().asked[current % 128]); }

void await_products(int pending) {
  Warpgroup& group = own_warpgroup();
  const auto& groups = group.groups[current % 128];
  if (groups.size() <= (size_t)pending) return;
  const i64 until = groups[groups.size() - 1 - pending];
  races::see_products(current, current / 128, until);
  if (until > group.ended) wait_elsewhere(Wait::PRODUCTS, (u32)(current / 128), 0, until);
}

void check_settled(const float* d) {
  for (const Held& held : own_warpgroup().held[current % 128])
    if (held.at == d) fail("accumulators are used while a product is under way");
}

// Late products: those that somebody waits for, now that nothing else can be done.
inline bool end_products() {
  for (size_t g = 0; late_products && g < running->warpgroups.size(); g++) {
    Warpgroup& group = running->warpgroups[g];
    const auto ready = [&](const Waiting& w) { return w.until <= group.ended; };
    for (size_t i = g * 128; i < std::min((size_t)lane_count, g * 128 + 128); i++) {
      const Waiting w = running->waiting[i];
      if (lanes[i].state != State::ELSEWHERE || w.what != Wait::PRODUCTS) continue;
      bool any = false;
      while (group.ended < w.until && group.products.front().asked == 128) multiply_first(group), any = true;
      if (!any) continue;
      wake(Wait::PRODUCTS, (u32)g, ready);
      return true;
    }
  }
  return false;
}

}  // namespace simt
