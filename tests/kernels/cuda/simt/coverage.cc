// Which rows and keys the blocks of a launch take, for the problems on standard input: one line each of
// all_heads row_tiles section seq_q seq_k causal causal_offset splits tiles_per_split blocks.
// Prints "ok" for a problem whose every visible pair of row and key is taken exactly once, else what is wrong.
#include <cstdio>
#include <vector>

#include "fa2.cuh"

typedef Config<Half, 64, 64, 64, 4, 1, true, true, true> Causal;
typedef Config<Half, 64, 64, 64, 4, 1, true, false, true> Full;

static Divisor divisor(u32 d) {  // independent of the host's own: exact for the small dividends here
  Divisor made = {d, 0, 0};
  if (d == 1) return made;
  while ((2u << made.shift) < d) made.shift++;
  made.multiplier = (u32)((((u64)1 << (32 + made.shift)) + d - 1) / d);
  return made;
}

template <class C>
static const char* judge(const AttentionParams& p, int blocks, int splits) {
  std::vector<int> taken((size_t)p.all_heads * p.row_tiles.divisor * ((p.seq_k + C::BN - 1) / C::BN));
  const int tiles = (p.seq_k + C::BN - 1) / C::BN;
  for (int split = 0; split < splits; split++)
    for (int block = 0; block < blocks; block++) {
      simt::block_index.x = block, simt::block_index.y = split;
      const Work w = work_of_block<C>(p, block);
      if (w.head >= p.all_heads) continue;
      if (w.row0 % C::BM || w.row0 >= p.seq_q) return "a row tile outside the problem";
      for (int n = w.first; n < w.last; n++) {
        if (n >= tiles) return "a tile of keys outside the problem";
        taken[((size_t)w.head * p.row_tiles.divisor + w.row0 / C::BM) * tiles + n]++;
      }
    }
  for (int head = 0; head < p.all_heads; head++)
    for (int r = 0; r < (int)p.row_tiles.divisor; r++)
      for (int n = 0; n < tiles; n++) {
        const int last_row = ((r + 1) * C::BM < p.seq_q ? (r + 1) * C::BM : p.seq_q) - 1;
        const bool needed = !C::CAUSAL || n * C::BN <= last_row + p.causal_offset;
        const int times = taken[((size_t)head * p.row_tiles.divisor + r) * tiles + n];
        if (times != (needed ? 1 : 0)) return needed ? "a tile missing or taken twice" : "a tile taken in vain";
      }
  return "ok";
}

int main() {
  int all_heads, row_tiles, section, seq_q, seq_k, causal, offset, splits, per_split, blocks;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d", &all_heads, &row_tiles, &section, &seq_q, &seq_k, &causal, &offset,
                    &splits, &per_split, &blocks) == 10) {
    AttentionParams p = {};
    p.all_heads = all_heads, p.seq_q = seq_q, p.seq_k = seq_k, p.causal_offset = offset;
    p.row_tiles = divisor(row_tiles), p.section = divisor(section), p.section_tiles = divisor(section * row_tiles);
    p.splits = splits, p.tiles_per_split = per_split;
    std::puts(causal ? judge<Causal>(p, blocks, splits) : judge<Full>(p, blocks, splits));
  }
  return 0;
}
