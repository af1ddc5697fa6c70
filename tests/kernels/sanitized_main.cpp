// Runs the kernel under a sanitizer, on its own threads, with every buffer exactly as long as it may be.
// Exits with 1 when an answer differs from a naive one in double precision.
#include <cstdio>
#include <random>
#include <vector>

#include "attention.cpp"

namespace {

struct Size {
  int64_t batch, heads, kv_heads, seq_q, seq_k, head_dim;
  int causal;
};

std::vector<double> widened(const std::vector<char>& data, int dtype) {
  std::vector<float> wide(data.size() / element_size(dtype));
  widen(data.data(), dtype, wide.data(), static_cast<int64_t>(wide.size()), 1.0f);
  return std::vector<double>(wide.begin(), wide.end());
}

std::vector<char> drawn(int64_t count, int dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<char> data(static_cast<size_t>(count) * element_size(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float x = normal(rng);
    narrow(&x, 1.0f, dtype, data.data() + i * static_cast<int64_t>(element_size(dtype)), 1);
  }
  return data;
}

struct Answer {
  std::vector<double> out, lse;
};

Answer naive(const Size& s, const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v, double scale) {
  Answer answer;
  std::vector<double> weights(static_cast<size_t>(s.seq_k));
  for (int64_t row = 0; row < s.batch * s.heads * s.seq_q; ++row) {
    const int64_t head = row / s.seq_q, position = row % s.seq_q;
    const int64_t kv = head / s.heads * s.kv_heads + head % s.heads / (s.heads / s.kv_heads);
    const int64_t keys = s.causal ? std::min(s.seq_k, position + 1) : s.seq_k;
    const double* one = q.data() + row * s.head_dim;
    double total = 0;
    for (int64_t j = 0; j < keys; ++j) {
      const double* key = k.data() + (kv * s.seq_k + j) * s.head_dim;
      double dot = 0;
      for (int64_t d = 0; d < s.head_dim; ++d) dot += one[d] * key[d];
      total += weights[static_cast<size_t>(j)] = std::exp(dot * scale);
    }
    answer.lse.push_back(std::log(total));
    for (int64_t d = 0; d < s.head_dim; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < keys; ++j) sum += weights[static_cast<size_t>(j)] * v[static_cast<size_t>((kv * s.seq_k + j) * s.head_dim + d)];
      answer.out.push_back(sum / total);
    }
  }
  return answer;
}

double furthest(const std::vector<double>& wanted, const std::vector<double>& found) {
  double error = wanted.size() == found.size() ? 0 : INFINITY;
  for (size_t i = 0; i < found.size(); ++i) error = std::max(std::isfinite(found[i]) ? std::abs(wanted[i] - found[i]) : INFINITY, error);
  return error;
}

constexpr int THREADS[] = {1, 3, 4};

// The worst error of the three numbers of threads.
double worst(const Size& s, int dtype, std::mt19937& rng) {
  const int64_t q_count = s.batch * s.heads * s.seq_q * s.head_dim, k_count = s.batch * s.kv_heads * s.seq_k * s.head_dim;
  const std::vector<char> q = drawn(q_count, dtype, rng), k = drawn(k_count, dtype, rng), v = drawn(k_count, dtype, rng);
  AttentionProblem a{};
  a.q = q.data(), a.k = k.data(), a.v = v.data();
  a.batch = s.batch, a.heads = s.heads, a.kv_heads = s.kv_heads, a.seq_q = s.seq_q, a.seq_k = s.seq_k, a.head_dim = s.head_dim;
  const auto strides = [&](int64_t* to, int64_t heads, int64_t seq) {
    to[0] = heads * seq * s.head_dim, to[1] = seq * s.head_dim, to[2] = s.head_dim;
  };
  strides(a.q_strides, s.heads, s.seq_q), strides(a.out_strides, s.heads, s.seq_q);
  strides(a.k_strides, s.kv_heads, s.seq_k), strides(a.v_strides, s.kv_heads, s.seq_k);
  a.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)), a.causal = s.causal, a.dtype = dtype;
  const Answer wanted = naive(s, widened(q, dtype), widened(k, dtype), widened(v, dtype), static_cast<double>(a.scale));
  double error = 0;
  for (const int threads : THREADS) {
    std::vector<char> out(q.size());
    std::vector<float> lse(static_cast<size_t>(s.batch * s.heads * s.seq_q));
    a.out = out.data(), a.lse = lse.data(), a.threads = threads;
    if (attention_forward(&a) != 0) return INFINITY;
    for (const double one : {furthest(wanted.out, widened(out, dtype)), furthest(wanted.lse, std::vector<double>(lse.begin(), lse.end()))})
      error = std::max(error, one);
  }
  return error;
}

}  // namespace

int main() {
  const Size sizes[] = {{1, 1, 1, 1, 1, 1, 0},      {1, 2, 1, 3, 5, 7, 1},     {2, 4, 2, 17, 33, 16, 0},   {1, 3, 3, 13, 300, 64, 1},
                        {1, 2, 2, 70, 257, 80, 0},  {1, 1, 1, 1, 130, 256, 0}, {2, 6, 2, 64, 64, 64, 1},   {1, 8, 1, 40, 19, 31, 0},
                        {1, 1, 1, 300, 31, 129, 1}, {3, 2, 1, 25, 16, 17, 1}};
  const double limits[] = {1e-5, 2e-2, 3e-3};
  std::mt19937 rng(20261121);
  int failures = 0;
  for (const Size& s : sizes)
    for (int dtype = 0; dtype < 3; ++dtype) {
      const double error = worst(s, dtype, rng);
      if (!(error <= limits[dtype])) {
        std::printf("q%ld k%ld d%ld dtype %d: %g\n", static_cast<long>(s.seq_q), static_cast<long>(s.seq_k), static_cast<long>(s.head_dim), dtype, error);
        ++failures;
      }
    }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
