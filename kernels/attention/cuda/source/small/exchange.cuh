// Joins the results that several parties (warps or warpgroups) have for the same rows from different keys.
//
// A party's output is divided into units of 8 floats per lane. Each party finishes some of the units: it leaves the others in
// shared memory, and picks up its own units from all other parties. The lane that leaves a unit and the lane that picks it up
// have the same number, so every access is 16 bytes per lane, with neighbouring lanes side by side, and without bank conflicts.
#pragma once
#include "small/scores.cuh"

template <int UNITS_, int UNITS_PER_ROW_, int PARTIES_, int LANES_>
struct Exchange {
  static constexpr int UNITS = UNITS_, UNITS_PER_ROW = UNITS_PER_ROW_, PARTIES = PARTIES_, LANES = LANES_;
  static constexpr int ROWS = UNITS / UNITS_PER_ROW;  // rows of which a lane holds some columns
  static constexpr int OWN = UNITS > PARTIES ? UNITS / PARTIES : 1;
  static constexpr int OWN_ROWS = OWN > UNITS_PER_ROW ? OWN / UNITS_PER_ROW : 1, OWN_PER_ROW = OWN / OWN_ROWS;
  static constexpr int UNIT_BYTES = LANES * 32, ROW_LANES = LANES / 4;  // the four lanes of a row share its state
  static constexpr int STATES = UNITS * PARTIES * UNIT_BYTES;
  static constexpr int BYTES = STATES + ROWS * PARTIES * ROW_LANES * 8;
  static_assert(UNITS % OWN == 0 && OWN % OWN_PER_ROW == 0, "each party must get the same number of units");

  // Whether a party has units to finish. If there are more parties than units, some have none.
  DEVICE_MEMBER static bool finishes(int party) { return party * OWN < UNITS; }

  DEVICE_MEMBER static Quad* place(char* memory, int unit, int party, int half, int lane) {
    return (Quad*)(memory + ((unit * PARTIES + party) * 2 + half) * (LANES * 16)) + lane;
  }
  DEVICE_MEMBER static Pair* state(char* memory, int row, int party, int lane) {
    return (Pair*)(memory + STATES) + (row * PARTIES + party) * ROW_LANES + (lane >> 2);
  }

  // Writes the units that other parties finish to shared memory, and the units of this party to `mine`. top and sum are those
  // of the lane's rows.
  DEVICE_MEMBER static void leave(char* memory, int party, int lane, const float (&units)[UNITS][8],
                                  const float (&top)[ROWS], const float (&sum)[ROWS], float (&mine)[OWN][8]) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      if (u / OWN == party) {
#pragma unroll
        for (int e = 0; e < 8; e++) mine[u % OWN][e] = units[u][e];
      } else {
#pragma unroll
        for (int half = 0; half < 2; half++)
          *place(memory, u, party, half, lane) =
              Quad{units[u][4 * half], units[u][4 * half + 1], units[u][4 * half + 2], units[u][4 * half + 3]};
      }
    }
    if ((lane & 3) == 0) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) *state(memory, r, party, lane) = Pair{top[r], sum[r]};
    }
  }

  // Must follow a barrier. `mine` becomes sum_i 2^(top_i - top) units_i / sum_i 2^(top_i - top) sum_i over all parties, for
  // each of the rows that this party finishes; `top` and `sum` become the row's.
  DEVICE_MEMBER static void pick_up(char* memory, int party, int lane, float (&mine)[OWN][8], float (&top)[OWN_ROWS],
                                    float (&sum)[OWN_ROWS]) {
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) {
      const int row = first_row(party) + n;
      float factor[PARTIES];  // this party's own first, then the others in a circle
      Pair states[PARTIES];
      top[n] = MINUS_INFINITY, sum[n] = 0.0f;
#pragma unroll
      for (int i = 0; i < PARTIES; i++) {
        states[i] = *state(memory, row, after(party, i), lane);
        top[n] = fmaxf(top[n], states[i].x);
      }
      const float subtrahend = top[n] == MINUS_INFINITY ? 0.0f : top[n];
#pragma unroll
      for (int i = 0; i < PARTIES; i++) {
        factor[i] = exp2_approx(states[i].x - subtrahend);
        sum[n] += factor[i] * states[i].y;
      }
      const float inverse = sum[n] == 0.0f ? 0.0f : 1.0f / sum[n];  // a row that saw no key is zero
#pragma unroll
      for (int i = 0; i < PARTIES; i++) factor[i] *= inverse;
#pragma unroll
      for (int m = n * OWN_PER_ROW; m < (n + 1) * OWN_PER_ROW; m++) {
#pragma unroll
        for (int e = 0; e < 8; e++) mine[m][e] *= factor[0];
#pragma unroll
        for (int i = 1; i < PARTIES; i++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const Quad other = *place(memory, party * OWN + m, after(party, i), half, lane);
            mine[m][4 * half] += factor[i] * other.x, mine[m][4 * half + 1] += factor[i] * other.y;
            mine[m][4 * half + 2] += factor[i] * other.z, mine[m][4 * half + 3] += factor[i] * other.w;
          }
      }
    }
  }

  DEVICE_MEMBER static int first_row(int party) { return party * OWN / UNITS_PER_ROW; }
  DEVICE_MEMBER static int after(int party, int i) {
    const int next = party + i;
    return next < PARTIES ? next : next - PARTIES;
  }
};

template <class T>
DEVICE Chunk packed(const float (&x)[8]) {
  return Chunk{pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7])};
}

// A quad of lanes holds 32 columns of a row; each lane has pairs, at 2 (lane % 4) of every eight columns. After a 4x4 transpose
// of pairs, each lane has the eight columns from 8 (lane % 4) on.
DEVICE Chunk gathered(Chunk c, int lane) {
  const bool odd = lane & 1, high = lane & 2;
  u32 other = shuffle_word(odd ? c.x : c.y, 1);
  if (odd) c.x = other; else c.y = other;
  other = shuffle_word(odd ? c.z : c.w, 1);
  if (odd) c.z = other; else c.w = other;
  other = shuffle_word(high ? c.x : c.z, 2);
  if (high) c.x = other; else c.z = other;
  other = shuffle_word(high ? c.y : c.w, 2);
  if (high) c.y = other; else c.w = other;
  return c;
}

DEVICE char* out_row(const SmallParams& p, const SmallBlock& b, int row) {
  return p.out + b.batch * p.out_batch + b.head * p.out_head + row * p.out_row;
}

// Natural logarithm of a row's sum of exponentials: -inf for a row that saw no key.
DEVICE void write_lse(const SmallParams& p, const SmallBlock& b, int row, float top, float sum) {
  p.lse[((i64)b.batch * p.heads + b.head) * p.seq_q + row] = sum == 0.0f ? MINUS_INFINITY : (top + log2_approx(sum)) * LN_2;
}
