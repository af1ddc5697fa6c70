// The same work in two entries; the second then spins for a share of the time that its work took. All blocks fit on the
// device at once, so the kernel as a whole takes that share longer.
__device__ void work(float* out, const float* x, int n, int rounds) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float value = x[i];
    for (int r = 0; r < rounds; ++r) value = value * 0.999f + 0.001f;
    out[i] = value;
  }
}

extern "C" __global__ void plain_work(float* out, const float* x, int n, int rounds) { work(out, x, n, rounds); }

extern "C" __global__ void work_and_spin(float* out, const float* x, int n, int rounds) {
  const long long began = clock64();
  work(out, x, n, rounds);
  __syncthreads();  // stores and loads of the whole block are done
  const long long until = began + (clock64() - began) * 102 / 100;
  while (clock64() < until) {}
}
