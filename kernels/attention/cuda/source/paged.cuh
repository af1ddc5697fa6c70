// How to find keys that are in pages: a cache whose pages belong to sequences in any order, which a table lists.
//
// Key j of a sequence is row j % page of the page in entry j / page of the sequence's row of the table. Only entries of
// existing keys are read, so the rest of a row may have any values.
//
//   Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023.
#pragma once
#include "scope.cuh"

// The page of an existing key.
DEVICE int page_of_key(const AttentionParams& p, const Scope& s, int key) {
  return p.block_table[s.batch * p.table_row + divide(key, p.page)];
}

// The bytes from the first page to a key whose page is known.
DEVICE i64 offset_of_key(const AttentionParams& p, int key, int page, i64 page_stride, u32 row_stride) {
  const int row = key - divide(key, p.page) * (int)p.page.divisor;
  return page * page_stride + (i64)((u64)(u32)row * row_stride);
}

DEVICE const char* first_k_page(const AttentionParams& p, const Scope& s) { return p.k + s.kv_head * p.k_head; }
DEVICE const char* first_v_page(const AttentionParams& p, const Scope& s) { return p.v + s.kv_head * p.v_head; }

// Like `copy_tile`, for tile n of keys. `first_page` is the address of this thread's chunk of the first page's first row. The
// table is read for several passes at once, so that these wait for it together.
template <class C, bool BOUNDED>
DEVICE void copy_paged_tile(const AttentionParams& p, const Scope& s, u32 first, const char* first_page, i64 page_stride,
                            u32 row_stride, int n, const Share& share) {
  constexpr int AT_ONCE = C::PASSES < 8 ? C::PASSES : 8;
  static_assert(C::PASSES % AT_ONCE == 0, "the passes must be a multiple of those at once");
#pragma unroll
  for (int pass = 0; pass < C::PASSES; pass += AT_ONCE) {
    const int key = n * C::BN + share.row0 + pass * C::ROWS_PER_PASS;
    int page[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const int at = key + i * C::ROWS_PER_PASS;
      page[i] = !BOUNDED || at < s.seq_k ? page_of_key(p, s, at) : 0;
    }
#if HAS_ASYNC_COPY
    if constexpr (C::ASYNC) {
      if (share.valid)
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
          const int at = key + i * C::ROWS_PER_PASS;
          const char* source = first_page + offset_of_key(p, at, page[i], page_stride, row_stride);
          if (BOUNDED)
            copy_async_or_zero(chunk_of_pass<C>(first, pass + i), source, at < s.seq_k);
          else
            copy_async(chunk_of_pass<C>(first, pass + i), source);
        }
      continue;
    }
#endif
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const int at = key + i * C::ROWS_PER_PASS;
      const char* source = first_page + offset_of_key(p, at, page[i], page_stride, row_stride);
      store_shared(chunk_of_pass<C>(first, pass + i), load_chunk<C>(source, !BOUNDED || at < s.seq_k ? share.valid : 0));
    }
  }
}

// Like `Staged::load`, for tile n of keys.
template <class C>
DEVICE void load_paged_tile(const AttentionParams& p, const Scope& s, Staged<C, C::BN>& staged, const char* first_page,
                            i64 page_stride, u32 row_stride, int n, const Share& share) {
#pragma unroll
  for (int i = 0; i < C::PASSES; i++) {
    const int key = n * C::BN + share.row0 + i * C::ROWS_PER_PASS;
    const bool inside = key < s.seq_k;
    const int page = inside ? page_of_key(p, s, key) : 0;
    const char* source = first_page + offset_of_key(p, key, page, page_stride, row_stride);
    staged.chunk[i] = load_chunk<C>(source, inside ? share.valid : 0);
  }
}
