// Fits sine networks to images, one network at a time, with all its data in the first two caches.
//
// The points of an image are taken in tiles; for each tile, the network is run forward and backward before the next
// tile is started. Activations are stored [point][neuron], so that the three products of a layer (forward, backward,
// weight gradient) are sums of (scalar times vector of neurons) and need no transposed activations. The arithmetic of
// a network only depends on its own data, not on the batch or the number of threads.
//
// Called by inr/engines.py.

#include <cstdlib>

#include "vectors.hpp"

namespace {

constexpr int TILE = 48;  // points
constexpr int ROWS = 6;   // rows of a register block: 6 x 2 sums, 2 columns and 1 row fill the 16 registers of AVX2
constexpr int OUTER = 6;
constexpr int MAX_LAYERS = 16;

// sin and cos together: x = r + n pi with |r| <= pi/2, then a polynomial (errors 5e-9 and 5e-8), then the sign (-1)^n.
inline void sine_cosine(V x, V& sine, V& cosine) {
  const V shifted = x * 0.318309886183790672f + 12582912.0f;  // rounds to an integer, whose parity is the last bit
  const V n = shifted - 12582912.0f;
  const V r = (x - n * 3.140625f) - n * 0.000967653589793f;
  const V s = r * r;
  const I sign = (I)shifted << 31;
  const V odd = r + r * s * (((2.60005334e-6f * s - 1.98066145e-4f) * s + 8.33301728e-3f) * s - 1.66666571e-1f);
  const V even = 1.0f + s * (((2.31943757e-5f * s - 1.38559267e-3f) * s + 4.16639894e-2f) * s - 4.99999323e-1f);
  sine = (V)((I)odd ^ sign);
  cosine = (V)((I)even ^ sign);
}

// C[r][:] = start[:] + sum_k A[r][k] B[k][:] for R rows and NV vectors of columns.
template <int R, int NV>
inline void multiply_block(const float* A, int lda, const float* B, int ldb, const float* start, float* C, int ldc, int K) {
  V sum[R][NV];
  for (int j = 0; j < NV; j++) {
    const V first = start ? load(start + j * LANES) : V{};
    for (int r = 0; r < R; r++) sum[r][j] = first;
  }
  for (int k = 0; k < K; k++) {
    V b[NV];
    for (int j = 0; j < NV; j++) b[j] = load(B + k * ldb + j * LANES);
    for (int r = 0; r < R; r++) {
      const V a = splat(A[r * lda + k]);
      for (int j = 0; j < NV; j++) sum[r][j] += a * b[j];
    }
  }
  for (int r = 0; r < R; r++)
    for (int j = 0; j < NV; j++) store(C + r * ldc + j * LANES, sum[r][j]);
}

template <int NV>
inline void multiply_columns(const float* A, int lda, const float* B, int ldb, const float* start, float* C, int ldc,
                             int rows, int K) {
  int r = 0;
  for (; r + ROWS <= rows; r += ROWS) multiply_block<ROWS, NV>(A + r * lda, lda, B, ldb, start, C + r * ldc, ldc, K);
  for (; r + 2 <= rows; r += 2) multiply_block<2, NV>(A + r * lda, lda, B, ldb, start, C + r * ldc, ldc, K);
  for (; r < rows; r++) multiply_block<1, NV>(A + r * lda, lda, B, ldb, start, C + r * ldc, ldc, K);
}

inline void multiply(const float* A, int lda, const float* B, int ldb, const float* start, float* C, int ldc, int rows,
                     int K, int columns) {
  int j = 0;
  for (; j + 2 * LANES <= columns; j += 2 * LANES)
    multiply_columns<2>(A, lda, B + j, ldb, start ? start + j : nullptr, C + j, ldc, rows, K);
  for (; j < columns; j += LANES)
    multiply_columns<1>(A, lda, B + j, ldb, start ? start + j : nullptr, C + j, ldc, rows, K);
}

// G[k][:] += sum_r A[r][k] D[r][:] for R values of k and NV vectors of columns.
template <int R, int NV>
inline void outer_block(const float* A, int lda, const float* D, int ldd, float* G, int ldg, int rows) {
  V sum[R][NV] = {};
  for (int t = 0; t < rows; t++) {
    V d[NV];
    for (int j = 0; j < NV; j++) d[j] = load(D + t * ldd + j * LANES);
    for (int r = 0; r < R; r++) {
      const V a = splat(A[t * lda + r]);
      for (int j = 0; j < NV; j++) sum[r][j] += a * d[j];
    }
  }
  for (int r = 0; r < R; r++)
    for (int j = 0; j < NV; j++) store(G + r * ldg + j * LANES, load(G + r * ldg + j * LANES) + sum[r][j]);
}

template <int NV>
inline void outer_columns(const float* A, int lda, const float* D, int ldd, float* G, int ldg, int rows, int K) {
  int k = 0;
  for (; k + OUTER <= K; k += OUTER) outer_block<OUTER, NV>(A + k, lda, D, ldd, G + k * ldg, ldg, rows);
  for (; k + 2 <= K; k += 2) outer_block<2, NV>(A + k, lda, D, ldd, G + k * ldg, ldg, rows);
  for (; k < K; k++) outer_block<1, NV>(A + k, lda, D, ldd, G + k * ldg, ldg, rows);
}

inline void outer(const float* A, int lda, const float* D, int ldd, float* G, int ldg, int rows, int K, int columns) {
  int j = 0;
  for (; j + 2 * LANES <= columns; j += 2 * LANES) outer_columns<2>(A, lda, D + j, ldd, G + j, ldg, rows, K);
  for (; j < columns; j += LANES) outer_columns<1>(A, lda, D + j, ldd, G + j, ldg, rows, K);
}

struct Network {
  int layers, in[MAX_LAYERS], out[MAX_LAYERS], stride[MAX_LAYERS];  // stride: out, padded to whole vectors
  int64_t weight[MAX_LAYERS], bias[MAX_LAYERS], size;               // offsets in the padded parameters, weights [in][out]
  float omega;

  Network(int num_layers, const int32_t* widths, float omega) : layers(num_layers), size(0), omega(omega) {
    for (int l = 0; l < layers; l++) {
      in[l] = widths[l];
      out[l] = widths[l + 1];
      stride[l] = padded<LANES>(out[l]);
      weight[l] = size;
      bias[l] = size + int64_t(in[l]) * stride[l];
      size = bias[l] + stride[l];
    }
  }
  // Packed parameters (weights [out][in], then biases, layer by layer) to padded ones and back.
  void unpack(const float* packed, float* p) const {
    std::memset(p, 0, size * sizeof(float));
    for (int l = 0; l < layers; l++) {
      for (int o = 0; o < out[l]; o++)
        for (int i = 0; i < in[l]; i++) p[weight[l] + i * stride[l] + o] = *packed++;
      for (int o = 0; o < out[l]; o++) p[bias[l] + o] = *packed++;
    }
  }
  void pack(const float* p, float* packed) const {
    for (int l = 0; l < layers; l++) {
      for (int o = 0; o < out[l]; o++)
        for (int i = 0; i < in[l]; i++) *packed++ = p[weight[l] + i * stride[l] + o];
      for (int o = 0; o < out[l]; o++) *packed++ = p[bias[l] + o];
    }
  }
};

struct Workspace {
  float* memory;
  float *parameters, *gradient, *first, *second;      // padded parameters and the moments of the optimiser
  float *sines[MAX_LAYERS], *slopes[MAX_LAYERS];      // [point][neuron] of a tile: sin(omega z) and omega cos(omega z)
  float *transposed[MAX_LAYERS], *delta, *delta_next;  // weights [out][in, padded]; gradients of z

  explicit Workspace(const Network& n) {
    int64_t widest = 0, total = 4 * n.size;
    for (int l = 0; l < n.layers; l++) {
      const int64_t before = padded<LANES>(n.in[l]);
      widest = n.stride[l] > widest ? n.stride[l] : widest;
      widest = before > widest ? before : widest;
      total += 2 * TILE * n.stride[l] + n.out[l] * before;
    }
    total += 2 * TILE * widest;
    memory = static_cast<float*>(std::calloc(total + 16, sizeof(float)));
    float* p = memory;
    auto take = [&p](int64_t count) { float* start = p; p += count; return start; };
    if (!memory) return;
    parameters = take(n.size), gradient = take(n.size), first = take(n.size), second = take(n.size);
    for (int l = 0; l < n.layers; l++) {
      sines[l] = take(TILE * n.stride[l]), slopes[l] = take(TILE * n.stride[l]);
      transposed[l] = take(int64_t(n.out[l]) * padded<LANES>(n.in[l]));
    }
    delta = take(TILE * widest), delta_next = take(TILE * widest);
  }
  ~Workspace() { std::free(memory); }
};

// Sum of squared errors over all points; with_gradient adds that of `scale` times it to w.gradient.
double squared_error(const Network& n, Workspace& w, const float* points, const float* targets, int64_t num_points,
                     float scale, bool with_gradient) {
  const int last = n.layers - 1, dimension = n.in[0], channels = n.out[last];
  double error = 0;
  if (with_gradient) {
    std::memset(w.gradient, 0, n.size * sizeof(float));
    for (int l = 1; l < n.layers; l++)
      for (int o = 0; o < n.out[l]; o++)
        for (int i = 0; i < n.in[l]; i++) w.transposed[l][o * padded<LANES>(n.in[l]) + i] = w.parameters[n.weight[l] + i * n.stride[l] + o];
  }
  for (int64_t start = 0; start < num_points; start += TILE) {
    const int rows = num_points - start < TILE ? int(num_points - start) : TILE;
    const float* input = points + start * dimension;
    int width = dimension;
    for (int l = 0; l < n.layers; l++) {
      const float* p = w.parameters;
      multiply(input, width, p + n.weight[l], n.stride[l], p + n.bias[l], w.sines[l], n.stride[l], rows, n.in[l], n.stride[l]);
      if (l < last) {
        for (int i = 0; i < rows * n.stride[l]; i += LANES) {
          V sine, cosine;
          sine_cosine(load(w.sines[l] + i) * n.omega, sine, cosine);
          store(w.sines[l] + i, sine);
          store(w.slopes[l] + i, cosine * n.omega);
        }
      }
      input = w.sines[l], width = n.stride[l];
    }
    const float* target = targets + start * channels;
    std::memset(w.delta, 0, rows * n.stride[last] * sizeof(float));
    float tile_error = 0;
    for (int t = 0; t < rows; t++)
      for (int c = 0; c < channels; c++) {
        const float difference = w.sines[last][t * n.stride[last] + c] - target[t * channels + c];
        tile_error += difference * difference;
        w.delta[t * n.stride[last] + c] = 2 * scale * difference;
      }
    error += tile_error;
    if (!with_gradient) continue;
    float *delta = w.delta, *next = w.delta_next;
    for (int l = last; l >= 0; l--) {
      const float* before = l ? w.sines[l - 1] : points + start * dimension;
      const int before_stride = l ? n.stride[l - 1] : dimension;
      float* g = w.gradient;
      outer(before, before_stride, delta, n.stride[l], g + n.weight[l], n.stride[l], rows, n.in[l], n.stride[l]);
      for (int j = 0; j < n.stride[l]; j += LANES) {
        V sum = load(g + n.bias[l] + j);
        for (int t = 0; t < rows; t++) sum += load(delta + t * n.stride[l] + j);
        store(g + n.bias[l] + j, sum);
      }
      if (!l) break;
      multiply(delta, n.stride[l], w.transposed[l], before_stride, nullptr, next, before_stride, rows, n.out[l], before_stride);
      for (int i = 0; i < rows * before_stride; i += LANES) store(next + i, load(next + i) * load(w.slopes[l - 1] + i));
      float* swap = delta;
      delta = next, next = swap;
    }
  }
  return error;
}

}  // namespace

extern "C" {

// Trains each network in place. Stops a network before the update at which its mean squared error is at most
// stop_error, or as soon as the error is not finite. steps_taken (B,) counts updates, errors (B,) are final.
int fit_sirens(int64_t num_networks, int32_t num_layers, const int32_t* widths, float omega, int64_t num_points,
               const float* points, const float* targets, float* packed, int32_t num_steps, const float* rates,
               int32_t use_adam, float beta1, float beta2, float epsilon, double stop_error, int32_t* steps_taken,
               double* errors, const volatile int32_t* cancelled) {
  const Network n(num_layers, widths, omega);
  Workspace w(n);
  if (!w.memory) return 1;
  int64_t entries = 0;
  for (int l = 0; l < num_layers; l++) entries += int64_t(widths[l] + 1) * widths[l + 1];
  const int64_t values = num_points * widths[num_layers];
  for (int64_t b = 0; b < num_networks; b++) {
    const float* target = targets + b * values;
    n.unpack(packed + b * entries, w.parameters);
    std::memset(w.first, 0, 2 * n.size * sizeof(float));  // the second moments follow the first
    double error = INFINITY, power1 = 1, power2 = 1;
    int step = 0;
    for (; step < num_steps; step++) {
      if (*cancelled) return 2;
      error = squared_error(n, w, points, target, num_points, 1.0f / values, true) / values;
      if (!(error > stop_error) || !std::isfinite(error)) break;
      power1 *= beta1, power2 *= beta2;
      const float rate = rates[step];
      if (use_adam) {
        const Adam adam{1 - beta1, 1 - beta2, float(rate / (1 - power1)), float(1 / (1 - power2)), epsilon, 0};
        adam.step(n.size, w.gradient, w.first, w.second, w.parameters);
      } else {
        for (int64_t i = 0; i < n.size; i++) {
          w.first[i] = beta1 * w.first[i] + w.gradient[i];
          w.parameters[i] -= rate * w.first[i];
        }
      }
    }
    if (step == num_steps) error = squared_error(n, w, points, target, num_points, 0, false) / values;
    n.pack(w.parameters, packed + b * entries);
    errors[b] = error;
    steps_taken[b] = step;
  }
  return 0;
}

}  // extern "C"
