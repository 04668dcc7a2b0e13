// Vectors of floats and their operations, shared by all compiled files. GCC's vector types, no other dependency.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 8;  // floats in a vector; the compiler splits it if registers are smaller
typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));

inline V load(const float* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline V splat(float x) { return x - V{}; }

// The next multiple of a number.
template <int N>
inline int64_t padded(int64_t n) { return (n + N - 1) / N * N; }

// One step of Adam on each value, whose gradient gets `decay` times the value in addition. The new part of the moments
// is 1 - beta; `rate` and `correction` hold the corrections of their bias.
struct Adam {
  float new_first, new_second, rate, correction, epsilon, decay;
  void step(int64_t count, const float* gradient, float* first, float* second, float* values) const {
    for (int64_t i = 0; i < count; i++) {
      const float g = gradient[i] + decay * values[i];
      first[i] += new_first * (g - first[i]);
      second[i] += new_second * (g * g - second[i]);
      values[i] -= rate * first[i] / (std::sqrt(second[i] * correction) + epsilon);
    }
  }
};

}  // namespace
