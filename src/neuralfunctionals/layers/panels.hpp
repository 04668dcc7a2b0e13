// Matrix products of panels, normalisation and threads: what the compiled layers share.
//
// Matrices between the steps of a layer are stored in panels of 16 columns: (r, c) at
// ((c / 16) * rows + r) * 16 + c % 16. All products then walk through memory in order, whichever side is transposed.
// Matrices from outside are row-major. GCC's vector types and OpenMP, no other dependency.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

constexpr int LANES = 8;     // floats in a vector; the compiler splits it where registers are smaller
constexpr int W = 16;        // columns of a panel: two vectors
constexpr int ROWS = 6;      // rows of a register block: 6 x 2 sums, 2 columns and 1 row fill the 16 registers of AVX2
constexpr int DEPTH = 320;   // terms of a sum taken at once: a panel of them stays in the first cache
constexpr int TILE = 96;     // entries taken at once
constexpr float EPSILON = 1e-5f;
typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));

inline V load(const float* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline V splat(float x) { return x - V{}; }
inline int64_t padded(int64_t n) { return (n + W - 1) / W * W; }
inline V larger(V a, V b) { return a > b ? a : b; }
inline V magnitude(V x) { return (V)((I)x & 0x7fffffff); }
inline float sum(V v) {
  typedef float Half __attribute__((vector_size(2 * LANES)));
  Half a[2];
  std::memcpy(a, &v, sizeof a);
  a[0] += a[1];
  return (a[0][0] + a[0][2]) + (a[0][1] + a[0][3]);
}

// e^x for x <= 0: x = n log 2 + r, then a polynomial of r, then the exponent. Below e^-87 the result stays there.
inline V exponential(V x) {
  x = larger(x, splat(-87.0f));
  const V shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to an integer, found in the last bits
  const V n = shifted - 12582912.0f;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return (V)((I)p + ((I)shifted << 23));
}

// The normal distribution's cumulative Phi and density phi (Abramowitz and Stegun 7.1.26, error 7.5e-8).
inline void normal(V x, V& cumulative, V& density) {
    const V e = exponential(x * x * -0.5f);
  const V t = 1.0f / (1.0f + magnitude(x) * 0.231641888f);
  const V tail =
      e * t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
  cumulative = x > 0.0f ? 1.0f - tail : tail;
  density = e * 0.398942280f;
}

// Memory that a thread keeps from call to call: fresh pages would cost more than the arithmetic on them.
class Scratch {
 public:
  ~Scratch() { ::operator delete(memory_, std::align_val_t(64)); }
  void reserve(int64_t floats) {
    used_ = 0;
    if (floats <= size_) return;
    ::operator delete(memory_, std::align_val_t(64));
    memory_ = nullptr, size_ = 0;
    memory_ = static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t(64)));
    size_ = floats;
  }
  float* take(int64_t floats) {
    float* p = memory_ + used_;
    used_ += padded(floats);
    return p;
  }

 private:
  float* memory_ = nullptr;
  int64_t size_ = 0, used_ = 0;
};
thread_local Scratch scratch;

struct Panels {
  float* p;
  int64_t rows;
  float* at(int64_t r, int64_t c) const { return p + (c / W * rows + r) * W + c % W; }
  Panels from(int64_t r) const { return {p + r * W, rows}; }
  Panels from(int64_t r, int64_t c) const { return {at(r, c), rows}; }
};

// Where a product goes: panels or rows.
struct Target {
  float* p;
  int64_t row, panel;
  Target(Panels m) : p(m.p), row(W), panel(m.rows * W) {}
  Target(float* p, int64_t columns) : p(p), row(columns), panel(W) {}
};

// R rows and one panel of A B (or of A^T B: columns of A, at its stride 1), starting from a bias, from C or from zero.
// Never inlined: among other code GCC keeps the sums in memory, which costs half the speed. The loops over them are
// unrolled early for the same reason.
template <int R, bool TRANSPOSED>
[[gnu::noinline]] void multiply_block(const float* a, const float* b, int64_t depth, int64_t a_panel, float* c,
                                      int64_t c_row, const float* bias, bool add) {
  V s[R][2];
  if (add) {
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) s[r][0] = load(c + r * c_row), s[r][1] = load(c + r * c_row + LANES);
  } else {
    const V first = bias ? load(bias) : V{}, second = bias ? load(bias + LANES) : V{};
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) s[r][0] = first, s[r][1] = second;
  }
  if (TRANSPOSED) {
    for (int64_t k = 0; k < depth; k++, a += W, b += W) {
      const V b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) s[r][0] += a[r] * b0, s[r][1] += a[r] * b1;
    }
  } else {
    for (; depth > 0; depth -= W, a += a_panel) {
      const int here = depth < W ? depth : W;
      for (int k = 0; k < here; k++, b += W) {
        const V b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) s[r][0] += a[r * W + k] * b0, s[r][1] += a[r * W + k] * b1;
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) store(c + r * c_row, s[r][0]), store(c + r * c_row + LANES, s[r][1]);
}

template <bool TRANSPOSED>
inline void multiply_rows(int64_t rows, const float* a, const float* b, int64_t depth, int64_t a_panel, float* c,
                          int64_t c_row, const float* bias, bool add) {
  switch (rows) {
    case 6: return multiply_block<6, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 5: return multiply_block<5, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 4: return multiply_block<4, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 3: return multiply_block<3, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 2: return multiply_block<2, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 1: return multiply_block<1, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
  }
}

// C = A B + bias.
void multiply(int64_t rows, int64_t columns, int64_t depth, Panels a, Panels b, Target c, const float* bias = nullptr) {
  // In equal parts: a block of one or two rows would take as long as one of four.
  const int64_t blocks = (rows + ROWS - 1) / ROWS, parts = (depth + DEPTH - 1) / DEPTH;
  const int64_t part = padded((depth + parts - 1) / parts);
  for (int64_t k = 0; k < depth; k += part)
    for (int64_t j = 0; j < columns; j += W)
      for (int64_t n = 0; n < blocks; n++) {
        const int64_t i = rows * n / blocks, next = rows * (n + 1) / blocks;
        multiply_rows<false>(next - i, a.at(i, k), b.at(k, j), std::min(part, depth - k), a.rows * W,
                             c.p + i * c.row + j / W * c.panel, c.row, bias ? bias + j : nullptr, k > 0);
      }
}

// C = A^T B, or C += A^T B.
void multiply_transposed(int64_t rows, int64_t columns, int64_t depth, Panels a, Panels b, Target c, bool add) {
  for (int64_t j = 0; j < columns; j += W)
    for (int64_t i = 0, next; i < rows; i = next) {
      // A block must lie in one panel of A: 16 = 6 + 5 + 5.
      next = std::min({i + (i % W ? 5 : 6), (i / W + 1) * W, rows});
      multiply_rows<true>(next - i, a.at(0, i), b.at(0, j), depth, 0, c.p + i * c.row + j / W * c.panel, c.row, nullptr, add);
    }
}

// R x S scalar products of rows of A and B.
template <int R, int S>
inline void dot_block(const float* a, int64_t a_panel, const float* b, int64_t b_panel, int64_t depth, Panels c, int64_t i,
                      int64_t j) {
  V s[R][S] = {};
  for (; depth > 0; depth -= W, a += a_panel, b += b_panel)
    for (int half = 0; half < W; half += LANES) {
      V y[S];
      for (int n = 0; n < S; n++) y[n] = load(b + n * W + half);
      for (int m = 0; m < R; m++) {
        const V x = load(a + m * W + half);
        for (int n = 0; n < S; n++) s[m][n] += x * y[n];
      }
    }
  for (int m = 0; m < R; m++)
    for (int n = 0; n < S; n++) *c.at(i + m, j + n) = sum(s[m][n]);
}

// C = A B^T; depth counts whole panels, whose last columns must be zero.
void multiply_by_transposed(int64_t rows, int64_t columns, int64_t depth, Panels a, Panels b, Panels c) {
  int64_t i = 0;
  for (; i + 3 <= rows; i += 3) {
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) dot_block<3, 4>(a.at(i, 0), a.rows * W, b.at(j, 0), b.rows * W, depth, c, i, j);
    for (; j < columns; j++) dot_block<3, 1>(a.at(i, 0), a.rows * W, b.at(j, 0), b.rows * W, depth, c, i, j);
  }
  for (; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      dot_block<1, 1>(a.at(i, 0), a.rows * W, b.at(j, 0), b.rows * W, depth, c, i, j);
}

// Rows at some stride into panels; the last panel is filled up with zeros.
void pack(const float* from, int64_t stride, int64_t rows, int64_t columns, Panels to) {
  int64_t c = 0;
  for (; c + W <= columns; c += W)
    for (int64_t r = 0; r < rows; r++) std::memcpy(to.at(r, c), from + r * stride + c, W * sizeof(float));
  if (c == columns) return;
  std::memset(to.at(0, c), 0, rows * W * sizeof(float));
  for (int64_t r = 0; r < rows; r++) std::memcpy(to.at(r, c), from + r * stride + c, (columns - c) * sizeof(float));
}
void pack(const float* from, int64_t rows, int64_t columns, Panels to) { pack(from, columns, rows, columns, to); }

void unpack(Panels from, int64_t rows, int64_t columns, float* to, int64_t stride) {
  for (int64_t c = 0; c < columns; c += W)
    for (int64_t r = 0; r < rows; r++)
      std::memcpy(to + r * stride + c, from.at(r, c), std::min<int64_t>(W, columns - c) * sizeof(float));
}

// Eight rows of eight values at one stride, to eight rows at another.
inline void transpose_block(const float* from, int64_t stride, float* to, int64_t to_stride) {
  static_assert(LANES == 8);
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define NF_SHUFFLE __builtin_shufflevector
#endif
#endif
#ifdef NF_SHUFFLE
  V a[8], b[8];
  for (int r = 0; r < 8; r++) a[r] = load(from + r * stride);
  for (int r = 0; r < 8; r += 2) {
    b[r] = NF_SHUFFLE(a[r], a[r + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[r + 1] = NF_SHUFFLE(a[r], a[r + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int r = 0; r < 8; r += r % 2 ? 3 : 1) {
    a[r] = NF_SHUFFLE(b[r], b[r + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    a[r + 2] = NF_SHUFFLE(b[r], b[r + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int r = 0; r < 4; r++) {
    store(to + r * to_stride, NF_SHUFFLE(a[r], a[r + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store(to + (r + 4) * to_stride, NF_SHUFFLE(a[r], a[r + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
#else
  for (int r = 0; r < 8; r++)
    for (int c = 0; c < 8; c++) to[c * to_stride + r] = from[r * stride + c];
#endif
}

// The transpose of rows at some stride; columns beyond the last are not written.
void pack_transposed(const float* from, int64_t stride, int64_t rows, int64_t columns, Panels to) {
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    int64_t c = 0;
    for (; c + 8 <= columns; c += 8) transpose_block(from + r * stride + c, stride, to.at(c, r), W);
    for (; c < columns; c++)
      for (int64_t k = r; k < r + 8; k++) *to.at(c, k) = from[k * stride + c];
  }
  for (; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) *to.at(c, r) = from[r * stride + c];
}
void pack_transposed(const float* from, int64_t rows, int64_t columns, Panels to) {
  pack_transposed(from, columns, rows, columns, to);
}

void add_to(float* total, const float* part, int64_t count) {
  for (int64_t i = 0; i < count; i++) total[i] += part[i];
}

void add_rows(float* total, int64_t rows, int64_t columns, Panels m) {
  for (int64_t c = 0; c < columns; c += LANES) {
    V s = load(total + c);
    for (int64_t r = 0; r < rows; r++) s += load(m.at(r, c));
    store(total + c, s);
  }
}

struct Moments { float mean, inverse_deviation; };

// The normalised row, scaled and shifted, into panels.
Moments normalize(const float* x, int64_t channels, const float* scale, const float* shift, float* to, int64_t panel) {
  V s{}, squares{};
  for (int64_t c = 0; c < channels; c += LANES) s += load(x + c);
  const float mean = sum(s) / channels;
  for (int64_t c = 0; c < channels; c += LANES) { const V d = load(x + c) - mean; squares += d * d; }
  const float inverse = 1.0f / std::sqrt(sum(squares) / channels + EPSILON);
  for (int64_t c = 0; c < channels; c += W, to += panel)
    for (int h = 0; h < W; h += LANES)
      store(to + h, (load(x + c + h) - mean) * inverse * load(scale + c + h) + load(shift + c + h));
  return {mean, inverse};
}

// x_gradient = y_gradient + gradient of the norm; scale and shift gradients are added up.
void normalize_backward(const float* g, int64_t panel, const float* x, Moments m, int64_t channels, const float* scale,
                        const float* y_gradient, float* x_gradient, float* scale_gradient, float* shift_gradient) {
  V s{}, products{};
  const float* from = g;
  for (int64_t c = 0; c < channels; c += W, from += panel)
    for (int h = 0; h < W; h += LANES) {
      const V value = load(from + h), hat = (load(x + c + h) - m.mean) * m.inverse_deviation;
      store(scale_gradient + c + h, load(scale_gradient + c + h) + value * hat);
      store(shift_gradient + c + h, load(shift_gradient + c + h) + value);
      const V scaled = value * load(scale + c + h);
      s += scaled, products += scaled * hat;
    }
  const float mean = sum(s) / channels, slope = sum(products) / channels;
  for (int64_t c = 0; c < channels; c += W, g += panel)
    for (int h = 0; h < W; h += LANES) {
      const V hat = (load(x + c + h) - m.mean) * m.inverse_deviation;
      const V own = (load(g + h) * load(scale + c + h) - mean - hat * slope) * m.inverse_deviation;
      store(x_gradient + c + h, load(y_gradient + c + h) + own);
    }
}

// Calls work(thread, first, last) on equal ranges; a thread that finds no memory says so.
template <typename Work>
int in_parallel(int64_t count, int64_t threads, Work work) {
  int status = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(max : status)
  for (int64_t t = 0; t < threads; t++) {
    try {
      work(t, count * t / threads, count * (t + 1) / threads);
    } catch (const std::bad_alloc&) {
      status = 1;
    }
  }
  return status;
}

}  // namespace
