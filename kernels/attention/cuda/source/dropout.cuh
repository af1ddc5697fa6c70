// Dropout. Whether a weight is kept depends on the call's seed and offset, the sequence, the head of Q, the query and the key, and
// on nothing else: not on tiles, parts, passes, kernels or chips. The words are those of Philox 4x32-10:
//   Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
// Its counter has room for all but the offset, so its key is made of the seed and the offset by one more round of the same
// function. `kernels/attention/dropout.py` computes the same words.
#pragma once
#include "params.cuh"

// Read only by the kernels with dropout, behind the parameters of all.
struct Dropout {
  const u64* seed;   // seed and offset
  u32 least;         // a weight is kept if its word is at least this
  float keep_scale;  // what the weights that are kept are multiplied by
};
struct DroppingParams : AttentionParams {
  Dropout dropout;
};
DEVICE const Dropout& dropout_of(const AttentionParams& p) { return static_cast<const DroppingParams&>(p).dropout; }

struct DropoutKey {
  u32 low, high;
};

// Ten rounds on a counter.
DEVICE void philox(u32 (&counter)[4], DropoutKey key) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u32 high0 = multiply_high(0xD2511F53u, counter[0]), low0 = 0xD2511F53u * counter[0];
    const u32 high1 = multiply_high(0xCD9E8D57u, counter[2]), low1 = 0xCD9E8D57u * counter[2];
    counter[0] = high1 ^ counter[1] ^ key.low, counter[2] = high0 ^ counter[3] ^ key.high;
    counter[1] = low1, counter[3] = low0;
    key.low += 0x9E3779B9u, key.high += 0xBB67AE85u;
  }
}

DEVICE DropoutKey key_of_dropout(const Dropout& of) {
  const u64 seed = of.seed[0], offset = of.seed[1];
  u32 words[4] = {(u32)offset, (u32)(offset >> 32), 0, 0};
  philox(words, DropoutKey{(u32)seed, (u32)(seed >> 32)});
  return DropoutKey{words[0], words[1]};
}

// The words of a query for the keys first, first + 1, first + 8 and first + 9, which are those that a lane of mma has. `first` is
// even, and less than 8 behind a multiple of 16. `head` counts over all sequences.
DEVICE void dropout_words(u32 (&words)[4], const DropoutKey& key, int first, int query, int head) {
  words[0] = (u32)(first >> 4) * 4 + ((u32)first >> 1 & 3), words[1] = (u32)query, words[2] = (u32)head, words[3] = 0;
  philox(words, key);
}
