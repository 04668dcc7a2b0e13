// Trains and evaluates the small CNN of the zoo: three 3x3 convolutions of 16 channels with stride 2 and no padding, global
// average pooling, a dense layer. One network and one image at a time, all within the first two caches.
//
// Activations are stored [position][channel]: 16 channels are two vectors of AVX2, and the 3 x C values that a kernel's
// row touches are contiguous, so that convolutions need no copies of patches. The three products of a layer (forward,
// weight gradient, input gradient) are sums of (scalar times vector of channels) in blocks that fill the registers.
// The arithmetic of a network only depends on its own data, not on the other networks or the number of threads.
//
// Called by cnn/training.py.

#include <cstdlib>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "vectors.hpp"

namespace {

constexpr int WIDTH = 16;        // channels of each convolution: two vectors
constexpr int CONVOLUTIONS = 3;
constexpr int TAPS = 9;          // positions of a kernel
constexpr int BLOCK = 5;         // positions at once: 5 x 2 sums hide the latency, and 225 and 49 + 1 are multiples of 5
constexpr int OUTER = 6;         // weight gradients at once: 6 x 2 sums
typedef uint32_t U __attribute__((vector_size(4 * LANES)));

// A minimax quotient of polynomials on [-8, 8]; the relative error is 4e-7 in single precision.
inline V hyperbolic_tangent(V x) {
  x = x > 8.0f ? splat(8.0f) : x;
  x = x < -8.0f ? splat(-8.0f) : x;
  const V s = x * x;
  const V above = (((1.52304871e-08f * s + 2.18947171e-05f) * s + 0.00357160158f) * s + 0.134445012f) * s + 1.0f;
  const V below = (((8.52247638e-07f * s + 0.00034112978f) * s + 0.0261644572f) * s + 0.467778295f) * s + 1.0f;
  return x * above / below;
}

// Mixes 32 bits; dropout masks are hashes of their position, so that they can be computed in any order.
template <typename T>
inline T hash(T x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}
constexpr uint32_t STRIDE = 0x9e3779b9U;

// During its lifetime, subnormal numbers count as zero: dead networks are full of them, and they are slow.
struct FlushTiny {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  FlushTiny() { _mm_setcsr(before | 0x8040); }
  ~FlushTiny() { _mm_setcsr(before); }
#else
  FlushTiny() {}
#endif
};

struct Cnn {
  int channels, classes, columns;                            // columns: classes, padded to whole vectors
  int in[CONVOLUTIONS], width[CONVOLUTIONS], places[CONVOLUTIONS], first_place[CONVOLUTIONS + 1];
  int64_t weight[CONVOLUTIONS + 1], bias[CONVOLUTIONS + 1], size, entries;  // offsets in the padded parameters
  int* offsets[CONVOLUTIONS];                                // start of the patch of each output position

  explicit Cnn(const int32_t* shape) : channels(shape[2]), classes(shape[3]), columns(padded<LANES>(shape[3])), size(0), entries(0) {
    int height = shape[0], across = shape[1];
    first_place[0] = 0;
    for (int l = 0; l < CONVOLUTIONS; l++) {
      in[l] = l ? WIDTH : channels, width[l] = across;
      const int rows = (height - 3) / 2 + 1, cols = (across - 3) / 2 + 1;
      places[l] = rows * cols;
      first_place[l + 1] = first_place[l] + places[l];
      offsets[l] = static_cast<int*>(std::malloc(sizeof(int) * places[l]));
      for (int p = 0; offsets[l] && p < places[l]; p++) offsets[l][p] = (p / cols * 2 * across + p % cols * 2) * in[l];
      height = rows, across = cols;
      weight[l] = size, bias[l] = size + TAPS * in[l] * WIDTH, size = bias[l] + WIDTH;
      entries += (TAPS * in[l] + 1) * WIDTH;
    }
    weight[CONVOLUTIONS] = size, bias[CONVOLUTIONS] = size + WIDTH * columns, size = bias[CONVOLUTIONS] + columns;
    entries += (WIDTH + 1) * classes;
  }
  ~Cnn() { for (int* o : offsets) std::free(o); }

  // Calls f(padded index, packed index) for all entries; packed: weights [out][in][row][column], then biases, by layer.
  template <typename F>
  void each(F f) const {
    int64_t packed = 0;
    for (int l = 0; l < CONVOLUTIONS; l++) {
      for (int o = 0; o < WIDTH; o++)
        for (int i = 0; i < in[l]; i++)
          for (int t = 0; t < TAPS; t++) f(weight[l] + (t * in[l] + i) * WIDTH + o, packed++);
      for (int o = 0; o < WIDTH; o++) f(bias[l] + o, packed++);
    }
    for (int o = 0; o < classes; o++)
      for (int i = 0; i < WIDTH; i++) f(weight[CONVOLUTIONS] + i * columns + o, packed++);
    for (int o = 0; o < classes; o++) f(bias[CONVOLUTIONS] + o, packed++);
  }
};

struct Workspace {
  float* memory;
  float *parameters, *gradient, *first, *second;                              // padded
  float *hidden[CONVOLUTIONS], *slopes[CONVOLUTIONS], *delta[CONVOLUTIONS];   // [position][channel]
  float *turned[CONVOLUTIONS], *pooled, *logits;                              // weights [tap][out][in]

  explicit Workspace(const Cnn& n) {
    const int64_t values = int64_t(n.first_place[CONVOLUTIONS]) * WIDTH, turn = TAPS * WIDTH * WIDTH;
    memory = static_cast<float*>(std::calloc(4 * n.size + 3 * values + (CONVOLUTIONS - 1) * turn + WIDTH + n.columns, sizeof(float)));
    if (!memory) return;
    float* p = memory;
    auto take = [&p](int64_t count) { float* start = p; p += count; return start; };
    parameters = take(n.size), gradient = take(n.size), first = take(n.size), second = take(n.size);
    for (int l = 0; l < CONVOLUTIONS; l++) {
      hidden[l] = take(n.places[l] * WIDTH), slopes[l] = take(n.places[l] * WIDTH), delta[l] = take(n.places[l] * WIDTH);
      turned[l] = l ? take(turn) : nullptr;
    }
    pooled = take(WIDTH), logits = take(n.columns);
  }
  ~Workspace() { std::free(memory); }
};

// Forward: out[p][:] = bias[:] + sum over the patch of p.
template <int R, int C>
inline void convolve_block(const float* in, const int* offsets, int row, const float* weight, const float* bias, float* out) {
  V sum[R][2];
  const float* patch[R];
  for (int r = 0; r < R; r++) patch[r] = in + offsets[r], sum[r][0] = load(bias), sum[r][1] = load(bias + LANES);
  for (int y = 0; y < 3; y++)
    for (int k = 0; k < 3 * C; k++, weight += WIDTH) {
      const V b0 = load(weight), b1 = load(weight + LANES);
      for (int r = 0; r < R; r++) {
        const V a = splat(patch[r][y * row + k]);
        sum[r][0] += a * b0, sum[r][1] += a * b1;
      }
    }
  for (int r = 0; r < R; r++) store(out + r * WIDTH, sum[r][0]), store(out + r * WIDTH + LANES, sum[r][1]);
}

// Backward: input gradient. Adds the part of one tap of the kernel, d[p] W^T, at the position of that tap in each patch.
template <int R>
inline void scatter_block(const float* d, const int* offsets, const float* turned, float* out) {
  V sum[R][2] = {};
  for (int k = 0; k < WIDTH; k++, turned += WIDTH) {
    const V b0 = load(turned), b1 = load(turned + LANES);
    for (int r = 0; r < R; r++) {
      const V a = splat(d[r * WIDTH + k]);
      sum[r][0] += a * b0, sum[r][1] += a * b1;
    }
  }
  for (int r = 0; r < R; r++) {
    float* to = out + offsets[r];
    store(to, load(to) + sum[r][0]), store(to + LANES, load(to + LANES) + sum[r][1]);
  }
}

// Calls f.template run<R>(p) for blocks of R positions until all are done.
template <typename F>
inline void in_blocks(int places, F f) {
  int p = 0;
  for (; p + BLOCK <= places; p += BLOCK) f.template run<BLOCK>(p);
  switch (places - p) {
    case 4: f.template run<4>(p); break;
    case 3: f.template run<3>(p); break;
    case 2: f.template run<2>(p); break;
    case 1: f.template run<1>(p); break;
  }
}

template <int C>
struct Convolve {
  const float* in; const int* offsets; int row; const float* weight; const float* bias; float* out;
  template <int R> void run(int p) const { convolve_block<R, C>(in, offsets + p, row, weight, bias, out + p * WIDTH); }
};
struct Scatter {
  const float* d; const int* offsets; const float* turned; float* out;
  template <int R> void run(int p) const { scatter_block<R>(d + p * WIDTH, offsets + p, turned, out); }
};

// Weight gradient: G[k][:] += sum_p patch[p][k] d[p][:] for R neighbouring k.
template <int R>
inline void outer_block(const float* in, const int* offsets, const float* d, int places, float* gradient) {
  V sum[R][2] = {};
  for (int p = 0; p < places; p++, d += WIDTH) {
    const V d0 = load(d), d1 = load(d + LANES);
    const float* patch = in + offsets[p];
    for (int r = 0; r < R; r++) {
      const V a = splat(patch[r]);
      sum[r][0] += a * d0, sum[r][1] += a * d1;
    }
  }
  for (int r = 0; r < R; r++, gradient += WIDTH)
    store(gradient, load(gradient) + sum[r][0]), store(gradient + LANES, load(gradient + LANES) + sum[r][1]);
}

inline void outer(const float* in, int channels, const int* offsets, int row, const float* d, int places, float* gradient) {
  for (int y = 0; y < 3; y++) {
    int k = 0;
    for (; k + OUTER <= 3 * channels; k += OUTER)
      outer_block<OUTER>(in + y * row + k, offsets, d, places, gradient + (y * 3 * channels + k) * WIDTH);
    for (; k < 3 * channels; k += 3)
      outer_block<3>(in + y * row + k, offsets, d, places, gradient + (y * 3 * channels + k) * WIDTH);
  }
}

struct Dropout {
  bool used;
  int32_t threshold;  // of 65536: smaller draws are dropped
  float scale;
  uint32_t key;
};

// In place: z becomes m act(z); slopes, unless null, m act'(z). The mask m is 0 or 1 / (1 - rate). One hash gives the
// draws of channel j (low half) and j + 8 (high half).
template <bool TANH>
void activate(float* z, float* slopes, int places, const Dropout& dropout, uint32_t first_place) {
  const U lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int p = 0; p < places; p++, z += WIDTH) {
    V mask[2] = {splat(dropout.scale), splat(dropout.scale)};
    if (dropout.used) {
      const U draw = hash<U>(((first_place + p) * LANES + lanes) * STRIDE + dropout.key);
      mask[0] = (V)((I)mask[0] & ((I)(draw & 0xffffU) >= dropout.threshold));
      mask[1] = (V)((I)mask[1] & ((I)(draw >> 16) >= dropout.threshold));
    }
    for (int j = 0; j < 2; j++) {
      const V x = load(z + j * LANES);
      const V h = TANH ? hyperbolic_tangent(x) : (V)((I)x & (x > 0.0f));
      store(z + j * LANES, h * mask[j]);
      if (slopes) store(slopes + j * LANES, TANH ? (1.0f - h * h) * mask[j] : (V)((I)mask[j] & (x > 0.0f)));
    }
    if (slopes) slopes += WIDTH;
  }
}

// Runs the network up to its logits.
void forward(const Cnn& n, Workspace& w, const float* image, bool use_tanh, bool with_slopes, const Dropout& dropout, uint32_t place) {
  const float *input = image, *p = w.parameters;
  for (int l = 0; l < CONVOLUTIONS; l++) {
    const int row = n.width[l] * n.in[l];
    if (n.in[l] == WIDTH)
      in_blocks(n.places[l], Convolve<WIDTH>{input, n.offsets[l], row, p + n.weight[l], p + n.bias[l], w.hidden[l]});
    else if (n.in[l] == 1)
      in_blocks(n.places[l], Convolve<1>{input, n.offsets[l], row, p + n.weight[l], p + n.bias[l], w.hidden[l]});
    else
      in_blocks(n.places[l], Convolve<3>{input, n.offsets[l], row, p + n.weight[l], p + n.bias[l], w.hidden[l]});
    (use_tanh ? activate<true> : activate<false>)(w.hidden[l], with_slopes ? w.slopes[l] : nullptr, n.places[l], dropout,
                                                  place * n.first_place[CONVOLUTIONS] + n.first_place[l]);
    input = w.hidden[l];
  }
  const int last = CONVOLUTIONS - 1;
  V sum[2] = {};
  for (int q = 0; q < n.places[last]; q++)
    for (int j = 0; j < 2; j++) sum[j] += load(w.hidden[last] + q * WIDTH + j * LANES);
  for (int j = 0; j < 2; j++) store(w.pooled + j * LANES, sum[j] / float(n.places[last]));
  for (int o = 0; o < n.columns; o += LANES) {
    V z = load(p + n.bias[CONVOLUTIONS] + o);
    for (int i = 0; i < WIDTH; i++) z += w.pooled[i] * load(p + n.weight[CONVOLUTIONS] + i * n.columns + o);
    store(w.logits + o, z);
  }
}

// Cross-entropy of the logits, which become softmax - target times scale.
float cross_entropy(const Cnn& n, float* logits, int label, float scale) {
  float largest = logits[0], sum = 0;
  for (int o = 1; o < n.classes; o++) largest = logits[o] > largest ? logits[o] : largest;
  const float own = logits[label] - largest;
  for (int o = 0; o < n.classes; o++) sum += logits[o] = std::exp(logits[o] - largest);
  for (int o = 0; o < n.classes; o++) logits[o] = (logits[o] / sum - (o == label)) * scale;
  return std::log(sum) - own;
}

// Adds the gradient from the values now in the logits.
void backward(const Cnn& n, Workspace& w, const float* image) {
  const int last = CONVOLUTIONS - 1;
  const float* dense = w.parameters + n.weight[CONVOLUTIONS];
  float* g = w.gradient;
  float pooled[WIDTH];
  for (int i = 0; i < WIDTH; i++) {
    V sum = {};
    for (int o = 0; o < n.columns; o += LANES) {
      const V d = load(w.logits + o);
      float* to = g + n.weight[CONVOLUTIONS] + i * n.columns + o;
      store(to, load(to) + w.pooled[i] * d);
      sum += d * load(dense + i * n.columns + o);
    }
    pooled[i] = 0;
    for (int j = 0; j < LANES; j++) pooled[i] += sum[j] / n.places[last];
  }
  for (int o = 0; o < n.columns; o++) g[n.bias[CONVOLUTIONS] + o] += w.logits[o];
  for (int q = 0; q < n.places[last] * WIDTH; q += LANES)
    store(w.delta[last] + q, load(pooled + q % WIDTH) * load(w.slopes[last] + q));
  for (int l = last; l >= 0; l--) {
    const float* d = w.delta[l];
    const int row = n.width[l] * n.in[l];
    outer(l ? w.hidden[l - 1] : image, n.in[l], n.offsets[l], row, d, n.places[l], g + n.weight[l]);
    V bias[2] = {load(g + n.bias[l]), load(g + n.bias[l] + LANES)};
    for (int p = 0; p < n.places[l]; p++)
      for (int j = 0; j < 2; j++) bias[j] += load(d + p * WIDTH + j * LANES);
    for (int j = 0; j < 2; j++) store(g + n.bias[l] + j * LANES, bias[j]);
    if (!l) break;
    float* before = w.delta[l - 1];
    const int values = n.places[l - 1] * WIDTH;
    std::memset(before, 0, values * sizeof(float));
    for (int t = 0; t < TAPS; t++)
      in_blocks(n.places[l], Scatter{d, n.offsets[l], w.turned[l] + t * WIDTH * WIDTH, before + t / 3 * row + t % 3 * WIDTH});
    for (int i = 0; i < values; i += LANES) store(before + i, load(before + i) * load(w.slopes[l - 1] + i));
  }
}

void turn(const Cnn& n, Workspace& w) {
  for (int l = 1; l < CONVOLUTIONS; l++)
    for (int t = 0; t < TAPS; t++)
      for (int i = 0; i < WIDTH; i++)
        for (int o = 0; o < WIDTH; o++)
          w.turned[l][(t * WIDTH + o) * WIDTH + i] = w.parameters[n.weight[l] + (t * WIDTH + i) * WIDTH + o];
}

enum { SGD, ADAM, RMSPROP };
constexpr float EPSILON = 1e-7f;

// One step on the entries from start to stop; `decay` times the parameter is added to its gradient.
void update(Workspace& w, int64_t start, int64_t stop, int optimizer, float rate, float decay, double step) {
  if (optimizer == ADAM) {
    const float corrected = float(rate / (1 - std::pow(0.9, step))), correction = float(1 / (1 - std::pow(0.999, step)));
    const Adam adam{0.1f, 0.001f, corrected, correction, EPSILON, decay};
    return adam.step(stop - start, w.gradient + start, w.first + start, w.second + start, w.parameters + start);
  }
  for (int64_t i = start; i < stop; i++) {
    const float g = w.gradient[i] + decay * w.parameters[i];
    if (optimizer == RMSPROP) {
      w.second[i] = 0.9f * w.second[i] + 0.1f * g * g;
      w.parameters[i] -= rate * g / (std::sqrt(w.second[i]) + EPSILON);
    } else {
      w.parameters[i] -= rate * g;
    }
  }
}

}  // namespace

extern "C" {

// Trains one network in place on num_batches batches of the images listed in `order`. shape: height, width, channels,
// classes. state (3, N): packed parameters and the two moments of the optimiser, after `step` steps.
int train_cnn(const int32_t* shape, const float* images, const int32_t* labels, const int32_t* order, int64_t num_batches,
              int32_t batch_size, float* state, int64_t step, int32_t use_tanh, int32_t optimizer, float rate, float l2,
              float dropout_rate, uint32_t key) {
  const FlushTiny flush;
  const Cnn n(shape);
  Workspace w(n);
  if (!w.memory || !n.offsets[0] || !n.offsets[1] || !n.offsets[2]) return 1;
  n.each([&](int64_t i, int64_t j) {
    w.parameters[i] = state[j], w.first[i] = state[n.entries + j], w.second[i] = state[2 * n.entries + j];
  });
  const int64_t pixels = int64_t(shape[0]) * shape[1] * shape[2];
  Dropout dropout{dropout_rate > 0, int32_t(std::lround(dropout_rate * 65536)), 1 / (1 - dropout_rate), 0};
  for (int64_t batch = 0; batch < num_batches; batch++) {
    dropout.key = hash<uint32_t>(key + uint32_t(step) * STRIDE);
    std::memset(w.gradient, 0, n.size * sizeof(float));
    turn(n, w);
    for (int b = 0; b < batch_size; b++) {
      const int32_t source = order[batch * batch_size + b];
      const float* image = images + source * pixels;
      forward(n, w, image, use_tanh, true, dropout, b);
      cross_entropy(n, w.logits, labels[source], 1.0f / batch_size);
      backward(n, w, image);
    }
    step++;
    for (int l = 0; l <= CONVOLUTIONS; l++) {
      update(w, n.weight[l], n.bias[l], optimizer, rate, 2 * l2, double(step));
      update(w, n.bias[l], l < CONVOLUTIONS ? n.weight[l + 1] : n.size, optimizer, rate, 0, double(step));
    }
  }
  n.each([&](int64_t i, int64_t j) {
    state[j] = w.parameters[i], state[n.entries + j] = w.first[i], state[2 * n.entries + j] = w.second[i];
  });
  return 0;
}

// The mean cross-entropy and the accuracy on the images listed in `order`.
int evaluate_cnn(const int32_t* shape, const float* images, const int32_t* labels, const int32_t* order, int64_t count,
                 const float* packed, int32_t use_tanh, double* result) {
  const FlushTiny flush;
  const Cnn n(shape);
  Workspace w(n);
  if (!w.memory || !n.offsets[0] || !n.offsets[1] || !n.offsets[2]) return 1;
  n.each([&](int64_t i, int64_t j) { w.parameters[i] = packed[j]; });
  const int64_t pixels = int64_t(shape[0]) * shape[1] * shape[2];
  double loss = 0;
  int64_t right = 0;
  for (int64_t b = 0; b < count; b++) {
    const int label = labels[order[b]];
    forward(n, w, images + order[b] * pixels, use_tanh, false, Dropout{false, 0, 1, 0}, 0);
    int answer = 0;
    for (int o = 1; o < n.classes; o++) answer = w.logits[o] > w.logits[answer] ? o : answer;
    right += answer == label;
    loss += cross_entropy(n, w.logits, label, 0);
  }
  result[0] = loss / count, result[1] = double(right) / count;
  return 0;
}

}  // extern "C"
