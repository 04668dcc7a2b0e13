// Matrix products of panels, normalisation and threads, shared by the compiled layers.
//
// Matrices between the steps of a layer are stored in panels of 16 columns: (r, c) at
// ((c / 16) * rows + r) * 16 + c % 16. All products then access memory in order, whichever side is transposed.
// Matrices from outside are row-major.

#pragma once

#include <algorithm>
#include <new>
#include <type_traits>
#include <vector>

#include "vectors.hpp"

namespace {

// Permutes the values of two vectors; compilers older than GCC 12 lack the builtin.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define NF_SHUFFLE __builtin_shufflevector
#endif
#endif

constexpr int W = 16;        // columns of a panel: two vectors
constexpr int ROWS = 6;      // rows of a register block: 6 x 2 sums, 2 columns and 1 row fill the 16 registers of AVX2
constexpr int DEPTH = 320;   // terms of a sum taken at once: a panel of them fits in the first cache
constexpr int TILE = 96;     // entries taken at once
constexpr float EPSILON = 1e-5f;

inline int64_t padded(int64_t n) { return padded<W>(n); }
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

template <typename... Rest>
inline V polynomial(V x, float first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) return splat(first);
  else return polynomial(x, rest...) * x + first;
}

// x Phi(x) and its slope Phi(x) + x phi(x). Phi - 1/2 and the slope - 1/2 are odd: ratios of polynomials of x^2 with one
// denominator, fitted on [-5.6, 5.6] to errors of 3e-8 and 5e-8; rounding adds 1.5e-7. Beyond they are 0 or 1.
constexpr float GELU_END = 5.6f;
struct GeluRatio {
  V x, u, inverse;
  explicit GeluRatio(V value)
      : x(value), u(value * value),
        inverse(1.0f / polynomial(u, 1.0f, 2.697960890e-1f, 3.356832451e-2f, 2.486991764e-3f, 1.171562173e-4f,
                                  3.082025766e-6f, 2.297666957e-8f)) {}
  V of(V numerator) const {
    const V odd = x * inverse * numerator + 0.5f;
    return x > GELU_END ? splat(1.0f) : x < -GELU_END ? V{} : odd;
  }
  V cumulative() const {
    return of(polynomial(u, 3.989421386e-1f, 4.114345151e-2f, 5.425369930e-3f, 2.644985998e-4f, 1.096182218e-5f,
                         1.613096158e-7f, 3.979688319e-10f));
  }
  V slope() const {
    return of(polynomial(u, 7.978843708e-1f, -5.069481447e-2f, 1.486839605e-2f, -2.958147291e-4f, 3.159624846e-5f,
                         -3.080596266e-7f, 6.473231522e-9f, -3.434374356e-11f));
  }
};

void gelu(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += LANES) {
    const V value = load(x + i);
    store(y + i, value * GeluRatio(value).cumulative());
  }
}

// y may be x; the gradient becomes that of x.
void gelu_backward(const float* x, int64_t count, float* y, float* gradient) {
  for (int64_t i = 0; i < count; i += LANES) {
    const V value = load(x + i);
    const GeluRatio ratio(value);
    store(y + i, value * ratio.cumulative());
    store(gradient + i, load(gradient + i) * ratio.slope());
  }
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

// Destination of a product: panels or rows.
struct Target {
  float* p;
  int64_t row, panel;
  Target(Panels m) : p(m.p), row(W), panel(m.rows * W) {}
  Target(float* p, int64_t columns) : p(p), row(columns), panel(W) {}
};

// R rows and one panel (or half of one) of A B, or of A^T B: columns of A, at its stride 1. Starts from a bias, from C or
// from zero. Never inlined: among other code GCC keeps the sums in memory, which costs half the speed. The loops over
// them are unrolled early for the same reason.
template <int R, int VECTORS, bool TRANSPOSED>
[[gnu::noinline]] void multiply_block(const float* a, const float* b, int64_t depth, int64_t a_panel, float* c,
                                      int64_t c_row, const float* bias, bool add) {
  V s[R][VECTORS];
#pragma GCC unroll 2
  for (int v = 0; v < VECTORS; v++) {
    const V start = bias ? load(bias + v * LANES) : V{};
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) s[r][v] = add ? load(c + r * c_row + v * LANES) : start;
  }
  if (TRANSPOSED) {
    for (int64_t k = 0; k < depth; k++, a += W, b += W) {
      V row[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) row[v] = load(b + v * LANES);
#pragma GCC unroll 6
      for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) s[r][v] += a[r] * row[v];
    }
  } else {
    for (; depth > 0; depth -= W, a += a_panel) {
      const int here = depth < W ? depth : W;
      for (int k = 0; k < here; k++, b += W) {
        V row[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) row[v] = load(b + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
          for (int v = 0; v < VECTORS; v++) s[r][v] += a[r * W + k] * row[v];
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) store(c + r * c_row + v * LANES, s[r][v]);
}

template <int VECTORS, bool TRANSPOSED>
inline void multiply_rows(int64_t rows, const float* a, const float* b, int64_t depth, int64_t a_panel, float* c,
                          int64_t c_row, const float* bias, bool add) {
  switch (rows) {
    case 6: return multiply_block<6, VECTORS, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 5: return multiply_block<5, VECTORS, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 4: return multiply_block<4, VECTORS, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 3: return multiply_block<3, VECTORS, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 2: return multiply_block<2, VECTORS, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
    case 1: return multiply_block<1, VECTORS, TRANSPOSED>(a, b, depth, a_panel, c, c_row, bias, add);
  }
}

template <bool TRANSPOSED>
inline void multiply_part(int64_t rows, int64_t columns, const float* a, const float* b, int64_t depth, int64_t a_panel,
                          float* c, int64_t c_row, const float* bias, bool add) {
  if (columns > LANES) multiply_rows<2, TRANSPOSED>(rows, a, b, depth, a_panel, c, c_row, bias, add);
  else multiply_rows<1, TRANSPOSED>(rows, a, b, depth, a_panel, c, c_row, bias, add);
}

// C = A B + bias. Of a last panel of C, half is left alone if the columns end there.
void multiply(int64_t rows, int64_t columns, int64_t depth, Panels a, Panels b, Target c, const float* bias = nullptr) {
  // Equal parts, because a block of one or two rows would take as long as one of four.
  const int64_t blocks = (rows + ROWS - 1) / ROWS, parts = (depth + DEPTH - 1) / DEPTH;
  const int64_t part = padded((depth + parts - 1) / parts);
  for (int64_t k = 0; k < depth; k += part)
    for (int64_t j = 0; j < columns; j += W)
      for (int64_t n = 0; n < blocks; n++) {
        const int64_t i = rows * n / blocks, next = rows * (n + 1) / blocks;
        multiply_part<false>(next - i, columns - j, a.at(i, k), b.at(k, j), std::min(part, depth - k), a.rows * W,
                             c.p + i * c.row + j / W * c.panel, c.row, bias ? bias + j : nullptr, k > 0);
      }
}

// C = A^T B, or C += A^T B.
void multiply_transposed(int64_t rows, int64_t columns, int64_t depth, Panels a, Panels b, Target c, bool add) {
  // A panel of either side stays in the first cache; the loop runs over rows of C.
  for (int64_t panel = 0; panel < rows; panel += W) {
    const int64_t count = std::min<int64_t>(W, rows - panel), blocks = (count + ROWS - 1) / ROWS;
    for (int64_t j = 0; j < columns; j += W)
      for (int64_t n = 0; n < blocks; n++) {
        const int64_t i = panel + count * n / blocks, next = panel + count * (n + 1) / blocks;
        multiply_part<true>(next - i, columns - j, a.at(0, i), b.at(0, j), depth, 0, c.p + i * c.row + j / W * c.panel,
                            c.row, nullptr, add);
      }
  }
}

// Copies rows at some stride into panels; the last panel is padded with zeros.
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

// Transposes eight rows of eight values.
inline void transpose(V (&a)[8]) {
  static_assert(LANES == 8);
#ifdef NF_SHUFFLE
  V b[8];
#pragma GCC unroll 4
  for (int r = 0; r < 8; r += 2) {
    b[r] = NF_SHUFFLE(a[r], a[r + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[r + 1] = NF_SHUFFLE(a[r], a[r + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    const int r = n / 2 * 4 + n % 2;
    a[r] = NF_SHUFFLE(b[r], b[r + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    a[r + 2] = NF_SHUFFLE(b[r], b[r + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++) {
    const V top = NF_SHUFFLE(a[r], a[r + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    a[r + 4] = NF_SHUFFLE(a[r], a[r + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    a[r] = top;
  }
#else
  for (int r = 0; r < 8; r++)
    for (int c = 0; c < r; c++) { const float x = a[r][c]; a[r][c] = a[c][r]; a[c][r] = x; }
#endif
}

// The transpose of rows at some stride; columns beyond the last are not written.
void pack_transposed(const float* from, int64_t stride, int64_t rows, int64_t columns, Panels to) {
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    int64_t c = 0;
    for (; c + 8 <= columns; c += 8) {
      V block[8];
      for (int k = 0; k < 8; k++) block[k] = load(from + (r + k) * stride + c);
      transpose(block);
      for (int k = 0; k < 8; k++) store(to.at(c + k, r), block[k]);
    }
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

// Calls work(thread, first, last) on equal ranges; reports if a thread runs out of memory.
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
