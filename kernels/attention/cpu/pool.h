// Runs tasks on threads that stay: those of an OpenMP runtime that is in the process already, or our own.
//
// PyTorch's OpenMP threads spin for a while after each parallel region. A second pool beside them would compete with that
// spinning for the same cores, and so would they with ours; so when PyTorch's runtime can be found, its threads do our work too.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// The entry point that GCC calls for `#pragma omp parallel`, part of libgomp's stable ABI.
using GompParallel = void(void (*body)(void*), void* data, unsigned threads, unsigned flags);

using Body = void(void*);

class Pool {
 public:
  static Pool& instance() {
    // Never destroyed: the workers may still wait when the process exits, and a joinable std::thread must not be destroyed.
    static Pool* pool = new Pool;
    return *pool;
  }

  // Calls body(data) once on each of `threads` threads, the caller's included, and returns when all are done.
  void run(int threads, Body* body, void* data) {
    std::lock_guard<std::mutex> one_at_a_time(busy_);
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = body;
      data_ = data;
      wanted_ = threads - 1;
      remaining_ = threads - 1;
      ++generation_;
    }
    wake_.notify_all();
    body(data);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return remaining_ == 0; });
  }

 private:
  void grow(int workers) {
    while (static_cast<int>(workers_.size()) < workers) {
      const int index = static_cast<int>(workers_.size());
      workers_.emplace_back([this, index] { work(index); });
      workers_.back().detach();
    }
  }

  void work(int index) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (index >= wanted_) continue;
      Body* body = body_;
      void* data = data_;
      lock.unlock();
      body(data);
      lock.lock();
      if (--remaining_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  Body* body_ = nullptr;
  void* data_ = nullptr;
  int wanted_ = 0, remaining_ = 0;
  uint64_t generation_ = 0;
};

inline std::atomic<GompParallel*>& borrowed() {
  static std::atomic<GompParallel*> entry{nullptr};
  return entry;
}
inline void borrow(GompParallel* entry) { borrowed() = entry; }

// Calls f(0) .. f(count - 1), each once, on up to `threads` threads; which thread takes which index is decided as they go.
template <typename F>
void parallel(int threads, int64_t count, F&& f) {
  struct Shared {
    std::atomic<int64_t> next;
    int64_t count;
    F& f;
  } shared{{0}, count, f};
  Body* body = [](void* data) {
    Shared& s = *static_cast<Shared*>(data);
    for (int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.count;) s.f(i);
  };
  const int team = static_cast<int>(std::min<int64_t>(threads, count));
  GompParallel* gomp = borrowed();
  if (team <= 1) {
    body(&shared);
  } else if (gomp != nullptr) {
    gomp(body, &shared, static_cast<unsigned>(team), 0);
  } else {
    Pool::instance().run(team, body, &shared);
  }
}
