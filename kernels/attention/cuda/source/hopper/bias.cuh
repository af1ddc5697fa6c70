// A mask that is the same for all rows: one number (bias) for each key, which the producer's warp reads once per tile of keys.
#pragma once
#include "hopper/schedule.cuh"

// Element `at` of a mask, as the number to add to a scaled score; minus infinity where there is no element.
template <class M>
DEVICE float bias_at(const char* at, bool there) {
  if constexpr (M::BYTES == 1)
    return load_global_or_zero<u8>(at, there) ? 0.0f : MINUS_INFINITY;
  else if constexpr (M::BYTES == 2)
    return there ? unpack<typename M::T>(load_global_or_zero<u16>(at, there)) : MINUS_INFINITY;
  else
    return there ? __int_as_float((int)load_global_or_zero<u32>(at, there)) : MINUS_INFINITY;
}

// The biases of one tile of keys, spread over a warp: lane l has those of keys l, l + 32 and so on.
template <class C>
struct FetchedBias {
  static constexpr int LANES = 32, EACH = (C::KEYS + LANES - 1) / LANES;
  float own[EACH];

  // Reads the biases. `row` is the mask's only row; keys from seq_k on are hidden.
  __device__ __forceinline__ void fetch(const char* row, i64 step, int first, int seq_k, int lane) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int within = i * LANES + lane, key = first + within;
      own[i] = bias_at<typename C::Mask>(row + key * step, within < C::KEYS && key < seq_k);
    }
  }
  // Whether any key of the tile is seen. All lanes of the warp must call it.
  __device__ __forceinline__ bool seen() const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < EACH; i++) any |= own[i] != MINUS_INFINITY;
    return any_lane(any);
  }
  // Writes the biases to a tile's place; after them, for each lane that asks, whether any of the keys is seen.
  __device__ __forceinline__ void store(u32 to, bool seen, int lane) const {
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (C::KEYS % LANES == 0 || i * LANES + lane < C::KEYS)
        store_shared(to + (i * LANES + lane) * 4, (u32)__float_as_int(own[i]));
    if (lane < C::BIAS_SEEN_WORDS) store_shared(to + (C::KEYS + lane) * 4, (u32)seen);
  }
};

// A consumer's view of such biases: of every eight columns, the two that its lane holds.
template <class C>
struct KeyBias {
  MaskPlace<C> place;
  u32 from;  // address of this lane's biases in stage 0

  __device__ __forceinline__ void begin(u32 tiles, int lane) { place.count = 0, from = tiles + 8 * (lane & 3); }
  __device__ __forceinline__ u32 tile() const { return from + place.stage() * C::MASK_TILE_BYTES; }
  __device__ __forceinline__ bool seen() const { return uniform((int)load_shared_word(tile() + C::KEYS * 4)) != 0; }

  // The lane's scores become scale score + bias, in units of the natural exponent. Returns 0: what overwrites the biases later is
  // not a copy but stores of the producer, and stores do not overtake loads.
  __device__ __forceinline__ u32 add_to(float (&score)[C::SCORE_REGISTERS], float scale) const {
    const u32 biases = tile();
#pragma unroll
    for (int i = 0; i < C::KEYS / 8; i++) {
      const Pair pair = load_shared_pair(biases + 32 * i);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float &a = score[4 * i + 2 * r], &b = score[4 * i + 2 * r + 1];
        a = fused(a, scale, pair.x);
        b = fused(b, scale, pair.y);
      }
    }
    return 0;
  }
};
