// The two halves of a transformer block, x + MLP(norm(x)) and x + attention(norm(x)), with their gradients.
//
// A thread takes some entries (feed-forward) or one network (attention) at a time and does all steps before it takes
// the next, so that intermediate values stay in its cache and are never written to memory. Nothing is kept for the
// backward pass either: it computes the steps again from x. Sums over entries are taken in an order that only depends
// on the number of threads.
//
// Called by block.py.

#include "panels.hpp"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Feed-forward: groups of entries, each with W1 (E, C), b1 (E), W2 (C, E), b2 (C), and a scale and shift of the norm.

struct FeedForward {
  int64_t batch, entries, channels, hidden, groups;
  const int64_t* sizes;
  const float* x;
  const float *scale, *shift;
  const float* const* parameters;
};

// Some entries of one group, over all networks.
struct Tile {
  int64_t group, start, first, count, size;
  bool begins_group;
  int64_t entry(const FeedForward& f, int64_t r) const {
    const int64_t n = first + r;
    return n / size * f.entries + start + n % size;
  }
};

std::vector<Tile> tiles_of(const FeedForward& f) {
  std::vector<Tile> tiles;
  for (int64_t g = 0, start = 0; g < f.groups; start += f.sizes[g++])
    for (int64_t first = 0, all = f.batch * f.sizes[g]; first < all; first += TILE)
      tiles.push_back({g, start, first, std::min<int64_t>(TILE, all - first), f.sizes[g], first == 0});
  return tiles;
}

void feed_forward_tiles(const FeedForward& f, const Tile* tile, const Tile* end, float* y) {
  const int64_t C = f.channels, E = f.hidden;
  scratch.reserve(2 * E * C + TILE * (C + E));
  Panels w1{scratch.take(E * C), C}, w2{scratch.take(E * C), E}, x{scratch.take(TILE * C), TILE}, h{scratch.take(TILE * E), TILE};
  for (int64_t packed = -1; tile < end; tile++) {
    const int64_t g = tile->group, rows = tile->count;
    const float* const* p = f.parameters + 4 * g;
    if (packed != g) pack_transposed(p[0], E, C, w1), pack_transposed(p[2], C, E, w2), packed = g;
    for (int64_t r = 0; r < rows; r++)
      normalize(f.x + tile->entry(f, r) * C, C, f.scale + g * C, f.shift + g * C, x.at(r, 0), TILE * W);
    multiply(rows, E, C, x, w1, h, p[1]);
    for (int64_t c = 0; c < E; c += W) gelu(h.at(0, c), rows * W, h.at(0, c));
    multiply(rows, C, E, h, w2, x, p[3]);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t here = tile->entry(f, r) * C;
      for (int64_t c = 0; c < C; c += LANES) store(y + here + c, load(f.x + here + c) + load(x.at(r, c)));
    }
  }
}

struct GroupGradients {
  float *w1, *b1, *w2, *b2, *scale, *shift;
  static int64_t count(int64_t C, int64_t E) { return 2 * C * E + E + 3 * C; }
  static GroupGradients in(float* p, int64_t C, int64_t E) {
    return {p, p + E * C, p + E * C + E, p + 2 * E * C + E, p + 2 * E * C + E + C, p + 2 * E * C + E + 2 * C};
  }
  void clear(int64_t C, int64_t E) const {
    std::fill_n(w1, E * C, 0.0f), std::fill_n(b1, E, 0.0f), std::fill_n(w2, E * C, 0.0f), std::fill_n(b2, C, 0.0f);
    std::fill_n(scale, C, 0.0f), std::fill_n(shift, C, 0.0f);
  }
  void add(const GroupGradients& g, int64_t C, int64_t E) {
    add_to(w1, g.w1, E * C), add_to(b1, g.b1, E), add_to(w2, g.w2, E * C), add_to(b2, g.b2, C);
    add_to(scale, g.scale, C), add_to(shift, g.shift, C);
  }
};

void feed_forward_backward_tiles(const FeedForward& f, const Tile* tile, const Tile* end, const float* y_gradient,
                                 float* x_gradient, const GroupGradients* gradients, float* unowned) {
  const int64_t C = f.channels, E = f.hidden;
  scratch.reserve(3 * E * C + TILE * (3 * C + 2 * E));
  Panels w1t{scratch.take(E * C), C}, w1{scratch.take(E * C), E}, w2{scratch.take(E * C), C};
  Panels x{scratch.take(TILE * C), TILE}, y{scratch.take(TILE * C), TILE}, g_x{scratch.take(TILE * C), TILE};
  Panels h{scratch.take(TILE * E), TILE}, g_h{scratch.take(TILE * E), TILE};
  Moments moments[TILE];
  GroupGradients total = GroupGradients::in(unowned, C, E);
  for (int64_t packed = -1; tile < end; tile++) {
    const int64_t g = tile->group, rows = tile->count;
    const float* const* p = f.parameters + 4 * g;
    if (packed != g) pack_transposed(p[0], E, C, w1t), pack(p[0], E, C, w1), pack(p[2], C, E, w2), packed = g;
    if (tile->begins_group) total = gradients[g];
    for (int64_t r = 0; r < rows; r++) {
      const int64_t here = tile->entry(f, r) * C;
      moments[r] = normalize(f.x + here, C, f.scale + g * C, f.shift + g * C, x.at(r, 0), TILE * W);
      for (int64_t c = 0; c < C; c += W) std::memcpy(y.at(r, c), y_gradient + here + c, W * sizeof(float));
    }
    multiply(rows, E, C, x, w1t, h, p[1]);
    multiply(rows, E, C, y, w2, g_h);
    for (int64_t c = 0; c < E; c += W) gelu_backward(h.at(0, c), rows * W, h.at(0, c), g_h.at(0, c));
    multiply_transposed(C, E, rows, y, h, Target(total.w2, E), true);
    multiply_transposed(E, C, rows, g_h, x, Target(total.w1, C), true);
    multiply(rows, C, E, g_h, w1, g_x);
    add_rows(total.b2, rows, C, y);
    add_rows(total.b1, rows, E, g_h);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t here = tile->entry(f, r) * C;
      normalize_backward(g_x.at(r, 0), TILE * W, f.x + here, moments[r], C, f.scale + g * C, y_gradient + here,
                         x_gradient + here, total.scale, total.shift);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention. Axes are layers of neurons; at each meet T vectors over its n neurons, given by their entries (T, n).

struct Attention {
  int64_t batch, entries, channels, heads, norms, groups, axes;
  const int64_t *norm_sizes, *group_sizes;  // without groups, no attention between them
  const int64_t *num_vectors, *num_neurons;
  const int32_t* const* vectors;
  const float* x;
  const float *scale, *shift, *weight, *bias;

  int64_t width() const { return channels / heads; }
  int64_t most_vectors() const { return std::max(groups, *std::max_element(num_vectors, num_vectors + axes)); }
  int64_t most_values() const {
    int64_t most = padded(width()) * groups;
    for (int64_t a = 0; a < axes; a++) most = std::max(most, num_vectors[a] * padded(num_neurons[a] * width()));
    return most;
  }
  int64_t most_transposed() const {
    int64_t most = padded(width()) * padded(groups);
    for (int64_t a = 0; a < axes; a++)
      most = std::max(most, padded(num_vectors[a]) * padded(num_neurons[a] * width()));
    return most;
  }
};

// One head of attention: T vectors of n pieces of c values each, the pieces found in columns of some rows.
struct Head {
  int64_t T, n, c;
  const int32_t* entries;  // (T, n)
  int64_t column;          // of the head's first value
  int64_t transposed_rows() const { return padded(n * c); }
  float factor() const { return 1.0f / std::sqrt(float(n * c)); }
};

// Positions of eight values of each of eight vectors in the rows: pieces of S values at these offsets.
template <int S>
struct Pieces {
  int64_t at[8][LANES / S];
  int count;  // pieces of a vector; fewer after its last value
};

// Calls work(value, pieces) for every eight values of eight vectors from t on. Vectors past the last are replaced by it.
template <int S, typename Work>
inline void for_each_piece(const Head& h, int64_t t, int64_t panel, Work work) {
  const int32_t* entries[8];
  for (int r = 0; r < 8; r++) entries[r] = h.entries + std::min(t + r, h.T - 1) * h.n;
  int64_t neuron = 0, within = 0;
  for (int64_t value = 0; value < h.n * h.c; value += LANES) {
    Pieces<S> pieces;
    pieces.count = 0;
    for (int p = 0; p < LANES / S && neuron < h.n; p++, pieces.count++) {
      const int64_t column = h.column + within, offset = column / W * panel + column % W;
#pragma GCC unroll 8
      for (int r = 0; r < 8; r++) pieces.at[r][p] = offset + entries[r][neuron] * int64_t(W);
      if ((within += S) == h.c) within = 0, neuron++;
    }
    work(value, pieces);
  }
}

template <typename Work>
inline void with_piece_size(int64_t c, Work work) {
  if (c % LANES == 0) work(std::integral_constant<int, LANES>());
  else if (c % 4 == 0) work(std::integral_constant<int, 4>());
  else work(std::integral_constant<int, 1>());
}

typedef float Four __attribute__((vector_size(16)));
inline Four load_four(const float* p) { Four v; std::memcpy(&v, p, sizeof v); return v; }
inline void add_four(float* p, Four v) { v += load_four(p); std::memcpy(p, &v, sizeof v); }

template <int S>
inline V read(const float* rows, const Pieces<S>& from, int r) {
  if (S == LANES) return load(rows + from.at[r][0]);
#ifdef NF_SHUFFLE
  if (S == 4) {
    const Four first = load_four(rows + from.at[r][0]), second = from.count > 1 ? load_four(rows + from.at[r][1]) : Four{};
    return NF_SHUFFLE(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
  }
#endif
  float values[LANES] = {};
  for (int p = 0; p < LANES / S && p < from.count; p++)
    std::memcpy(values + p * S, rows + from.at[r][p], S * sizeof(float));
  return load(values);
}

template <int S>
inline void add(const float* values, float* rows, const Pieces<S>& to, int r) {
  if (S == LANES) return store(rows + to.at[r][0], load(rows + to.at[r][0]) + load(values));
  for (int p = 0; p < to.count; p++)
    if (S == 4) add_four(rows + to.at[r][p], load_four(values + 4 * p));
    else for (int k = 0; k < S; k++) rows[to.at[r][p] + k] += values[p * S + k];
}

// Copies vectors from rows: K of them as they are, L of them transposed.
template <int K, int L>
void gather(const Head& h, int64_t panel, const float* const (&rows)[K], const Panels (&vectors)[K],
            const float* const (&other_rows)[L], const Panels (&transposed)[L]) {
  with_piece_size(h.c, [&](auto size) {
    for (int64_t t = 0; t < h.T; t += 8) {
      const int count = std::min<int64_t>(8, h.T - t);
      for_each_piece<size.value>(h, t, panel, [&](int64_t value, const auto& from) {
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) {
          float* to = vectors[k].at(t, value);
          if (count == 8)
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) store(to + r * W, read(rows[k], from, r));
          else
            for (int r = 0; r < count; r++) store(to + r * W, read(rows[k], from, r));
        }
#pragma GCC unroll 4
        for (int k = 0; k < L; k++) {
          V block[8];
#pragma GCC unroll 8
          for (int r = 0; r < 8; r++) block[r] = read(other_rows[k], from, r);
          transpose(block);
          float* to = transposed[k].at(value, t);
#pragma GCC unroll 8
          for (int r = 0; r < 8; r++) store(to + r * W, block[r]);
        }
      });
    }
  });
}

// Adds vectors to rows.
template <int K>
void scatter(const Head& h, int64_t panel, const Panels (&vectors)[K], float* const (&rows)[K]) {
  with_piece_size(h.c, [&](auto size) {
    for (int64_t t = 0; t < h.T; t += 8) {
      const int count = std::min<int64_t>(8, h.T - t);
      for_each_piece<size.value>(h, t, panel, [&](int64_t value, const auto& to) {
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) {
          const float* from = vectors[k].at(t, value);
          for (int r = 0; r < count; r++) add(from + r * W, rows[k], to, r);
        }
      });
    }
  });
}

inline float largest(V v) {
#ifdef NF_SHUFFLE
  v = larger(v, NF_SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = larger(v, NF_SHUFFLE(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  return std::max(v[0], v[1]);
#else
  float most = v[0];
  for (int i = 1; i < LANES; i++) most = std::max(most, v[i]);
  return most;
#endif
}

// Sets columns from T to the end of a vector to zero.
void softmax(int64_t T, float factor, Panels s) {
  for (int64_t r = 0; r < T; r++) {
    for (int64_t c = T; c % LANES; c++) *s.at(r, c) = -1e30f;
    V top = splat(-1e30f), total{};
    for (int64_t c = 0; c < T; c += LANES) top = larger(top, load(s.at(r, c)));
    const float most = largest(top);
    for (int64_t c = 0; c < T; c += LANES) {
      const V e = exponential((load(s.at(r, c)) - most) * factor);
      store(s.at(r, c), e);
      total += e;
    }
    for (int64_t c = T; c % LANES; c++) *s.at(r, c) = 0;
    const float inverse = 1.0f / sum(total);
    for (int64_t c = 0; c < T; c += LANES) store(s.at(r, c), load(s.at(r, c)) * inverse);
  }
}

// Converts the gradient of the softmax p to that of the scores.
void softmax_backward(int64_t T, float factor, Panels p, Panels g) {
  for (int64_t r = 0; r < T; r++) {
    V products{};
    for (int64_t c = 0; c < T; c += LANES) products += load(p.at(r, c)) * load(g.at(r, c));
    const float mean = sum(products);
    for (int64_t c = 0; c < T; c += LANES)
      store(g.at(r, c), load(p.at(r, c)) * (load(g.at(r, c)) - mean) * factor);
  }
}

struct HeadBuffers {
  float *q, *k, *v, *y, *k_transposed, *v_transposed, *p, *g;
  HeadBuffers(int64_t values, int64_t transposed, int64_t scores)
      : q(scratch.take(values)), k(scratch.take(values)), v(scratch.take(values)), y(scratch.take(values)),
        k_transposed(scratch.take(transposed)), v_transposed(scratch.take(transposed)), p(scratch.take(scores)),
        g(scratch.take(scores)) {}
};

// Adds to the rows y.
void attend(const Head& h, Panels qkv, int64_t channels, Panels y, const HeadBuffers& b) {
  const Panels q{b.q, h.T}, k{b.k_transposed, h.transposed_rows()}, v{b.v, h.T}, p{b.p, h.T}, out{b.y, h.T};
  const int64_t panel = qkv.rows * W, d = h.n * h.c;
  gather<2, 1>(h, panel, {qkv.p, qkv.at(0, 2 * channels)}, {q, v}, {qkv.at(0, channels)}, {k});
  multiply(h.T, h.T, d, q, k, p);
  softmax(h.T, h.factor(), p);
  multiply(h.T, d, h.T, p, v, out);
  scatter<1>(h, panel, {out}, {y.p});
}

// Adds to the rows qkv_gradient.
void attend_backward(const Head& h, Panels qkv, Panels y_gradient, int64_t channels, Panels qkv_gradient,
                     const HeadBuffers& b) {
  const Panels q{b.q, h.T}, k{b.k, h.T}, y{b.y, h.T}, p{b.p, h.T}, g{b.g, h.T}, v_gradient{b.v_transposed, h.T};
  const Panels k_transposed{b.k_transposed, h.transposed_rows()}, v_transposed{b.v_transposed, h.transposed_rows()};
  const int64_t panel = qkv.rows * W, d = h.n * h.c;
  gather<3, 2>(h, panel, {qkv.p, qkv.at(0, channels), y_gradient.p}, {q, k, y},
               {qkv.at(0, channels), qkv.at(0, 2 * channels)}, {k_transposed, v_transposed});
  multiply(h.T, h.T, d, q, k_transposed, p);
  softmax(h.T, h.factor(), p);
  multiply(h.T, h.T, d, y, v_transposed, g);
  softmax_backward(h.T, h.factor(), p, g);
  // Results overwrite values that are no longer needed.
  multiply_transposed(h.T, d, h.T, p, y, v_gradient, false);
  multiply(h.T, d, h.T, g, k, y);
  multiply_transposed(h.T, d, h.T, g, q, k, false);
  scatter<3>(h, panel, {y, k, v_gradient},
             {qkv_gradient.p, qkv_gradient.at(0, channels), qkv_gradient.at(0, 2 * channels)});
}

// Calls work(group, first, last) for the groups of some rows.
template <typename Work>
void for_each_group(const Attention& a, int64_t first, int64_t rows, Work work) {
  for (int64_t g = 0, start = 0; g < a.groups; start += a.group_sizes[g++]) {
    const int64_t from = std::max(start, first), to = std::min(start + a.group_sizes[g], first + rows);
    if (from < to) work(g, from - first, to - first);
  }
}

// Adds the sums of the rows of each group.
void pool(const Attention& a, int64_t first, int64_t rows, int64_t columns, Panels m, Panels pooled) {
  for_each_group(a, first, rows, [&](int64_t g, int64_t from, int64_t to) {
    for (int64_t c = 0; c < columns; c += LANES) {
      V s = load(pooled.at(g, c));
      for (int64_t r = from; r < to; r++) s += load(m.at(r, c));
      store(pooled.at(g, c), s);
    }
  });
}

// Adds its group's row to each row.
void spread(const Attention& a, int64_t first, int64_t rows, int64_t columns, Panels pooled, Panels m) {
  for_each_group(a, first, rows, [&](int64_t g, int64_t from, int64_t to) {
    for (int64_t c = 0; c < columns; c += LANES) {
      const V value = load(pooled.at(g, c));
      for (int64_t r = from; r < to; r++) store(m.at(r, c), load(m.at(r, c)) + value);
    }
  });
}

void divide_by_sizes(const Attention& a, int64_t columns, Panels pooled) {
  for (int64_t c = 0; c < columns; c += LANES)
    for (int64_t g = 0; g < a.groups; g++) store(pooled.at(g, c), load(pooled.at(g, c)) * (1.0f / a.group_sizes[g]));
}

// Scratch memory of a thread for one network.
struct AttentionBuffers {
  Panels qkv, y, qkv_gradient, pooled_x, pooled, pooled_y, pooled_gradient, w, plain_w, x, x_gradient;
  std::vector<int32_t> counted;
  HeadBuffers head;
  static const Attention& reserve(const Attention& a) {
    const int64_t T = a.most_vectors(), C = a.channels;
    scratch.reserve((7 * a.entries + 8 * a.groups + 6 * C + 2 * TILE) * C + 4 * a.most_values() +
                    2 * a.most_transposed() + 2 * T * padded(T));
    return a;
  }
  static Panels take(int64_t rows, int64_t columns) { return {scratch.take(rows * columns), rows}; }
  explicit AttentionBuffers(const Attention& a)
      : qkv(take(reserve(a).entries, 3 * a.channels)), y(take(a.entries, a.channels)),
        qkv_gradient(take(a.entries, 3 * a.channels)), pooled_x(take(a.groups, a.channels)),
        pooled(take(a.groups, 3 * a.channels)),
        pooled_y(take(a.groups, a.channels)), pooled_gradient(take(a.groups, 3 * a.channels)),
        w(take(a.channels, 3 * a.channels)), plain_w(take(3 * a.channels, a.channels)), x(take(TILE, a.channels)),
        x_gradient(take(TILE, a.channels)), counted(a.groups),
        head(a.most_values(), a.most_transposed(), a.most_vectors() * padded(a.most_vectors())) {
    for (int64_t g = 0; g < a.groups; g++) counted[g] = g;
    pack_transposed(a.weight, 3 * a.channels, a.channels, w);
    pack(a.weight, 3 * a.channels, a.channels, plain_w);
  }
};

// The norm of each entry, in order.
struct NormOfEntry {
  const Attention& a;
  int64_t norm = 0, left;
  explicit NormOfEntry(const Attention& a) : a(a), left(a.norm_sizes[0]) {}
  int64_t next() {
    while (left == 0) left = a.norm_sizes[++norm];
    left--;
    return norm * a.channels;
  }
};

void clear(Panels m, int64_t columns) { std::memset(m.p, 0, m.rows * columns * sizeof(float)); }

// Queries, keys and values, of all entries and of the means of the groups.
void project(const Attention& a, const float* x, AttentionBuffers& b) {
  const int64_t C = a.channels;
  NormOfEntry norms(a);
  clear(b.pooled_x, C);
  for (int64_t first = 0; first < a.entries; first += TILE) {
    const int64_t rows = std::min<int64_t>(TILE, a.entries - first);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t norm = norms.next();
      normalize(x + (first + r) * C, C, a.scale + norm, a.shift + norm, b.x.at(r, 0), TILE * W);
    }
    multiply(rows, 3 * C, C, b.x, b.w, b.qkv.from(first), a.bias);
    pool(a, first, rows, C, b.x, b.pooled_x);
  }
  divide_by_sizes(a, C, b.pooled_x);
  multiply(a.groups, 3 * C, C, b.pooled_x, b.w, b.pooled, a.bias);
}

template <typename Work>
void for_each_head(const Attention& a, Work work) {
  for (int64_t column = 0; column < a.channels; column += a.width())
    for (int64_t axis = 0; axis < a.axes; axis++)
      work(Head{a.num_vectors[axis], a.num_neurons[axis], a.width(), a.vectors[axis], column});
}

template <typename Work>
void for_each_head_between_groups(const Attention& a, const AttentionBuffers& b, Work work) {
  for (int64_t column = 0; column < a.channels; column += a.width())
    work(Head{a.groups, 1, a.width(), b.counted.data(), column});
}

void attention_network(const Attention& a, const float* x, float* y, AttentionBuffers& b) {
  const int64_t C = a.channels;
  project(a, x, b);
  clear(b.y, C);
  for_each_head(a, [&](const Head& head) { attend(head, b.qkv, C, b.y, b.head); });
  if (a.groups) {
    clear(b.pooled_y, C);
    for_each_head_between_groups(a, b, [&](const Head& head) { attend(head, b.pooled, C, b.pooled_y, b.head); });
    spread(a, 0, a.entries, C, b.pooled_y, b.y);
  }
  for (int64_t r = 0; r < a.entries; r++)
    for (int64_t c = 0; c < C; c += LANES) store(y + r * C + c, load(x + r * C + c) + load(b.y.at(r, c)));
}

struct AttentionGradients {
  float *weight, *bias, *scale, *shift;
  static int64_t count(const Attention& a) { return 3 * a.channels * (a.channels + 1) + 2 * a.norms * a.channels; }
  static AttentionGradients in(float* p, const Attention& a) {
    float *bias = p + 3 * a.channels * a.channels, *scale = bias + 3 * a.channels;
    return {p, bias, scale, scale + a.norms * a.channels};
  }
  void clear(const Attention& a) const {
    const int64_t C = a.channels;
    std::fill_n(weight, 3 * C * C, 0.0f), std::fill_n(bias, 3 * C, 0.0f);
    std::fill_n(scale, a.norms * C, 0.0f), std::fill_n(shift, a.norms * C, 0.0f);
  }
  void add(const AttentionGradients& g, const Attention& a) {
    add_to(weight, g.weight, 3 * a.channels * a.channels), add_to(bias, g.bias, 3 * a.channels);
    add_to(scale, g.scale, a.norms * a.channels), add_to(shift, g.shift, a.norms * a.channels);
  }
};

void attention_backward_network(const Attention& a, const float* x, const float* y_gradient, float* x_gradient,
                                const AttentionGradients& total, AttentionBuffers& b) {
  const int64_t C = a.channels;
  project(a, x, b);
  pack(y_gradient, a.entries, C, b.y);
  clear(b.qkv_gradient, 3 * C);
  for_each_head(a, [&](const Head& head) { attend_backward(head, b.qkv, b.y, C, b.qkv_gradient, b.head); });
  if (a.groups) {
    clear(b.pooled_y, C);
    pool(a, 0, a.entries, C, b.y, b.pooled_y);
    clear(b.pooled_gradient, 3 * C);
    for_each_head_between_groups(a, b, [&](const Head& head) {
      attend_backward(head, b.pooled, b.pooled_y, C, b.pooled_gradient, b.head);
    });
    multiply_transposed(3 * C, C, a.groups, b.pooled_gradient, b.pooled_x, Target(total.weight, C), true);
    add_rows(total.bias, a.groups, 3 * C, b.pooled_gradient);
    multiply(a.groups, C, 3 * C, b.pooled_gradient, b.plain_w, b.pooled_x);
    divide_by_sizes(a, C, b.pooled_x);
  }
  NormOfEntry norms(a);
  Moments moments[TILE];
  int64_t norm[TILE];
  for (int64_t first = 0; first < a.entries; first += TILE) {
    const int64_t rows = std::min<int64_t>(TILE, a.entries - first);
    for (int64_t r = 0; r < rows; r++) {
      norm[r] = norms.next();
      moments[r] = normalize(x + (first + r) * C, C, a.scale + norm[r], a.shift + norm[r], b.x.at(r, 0), TILE * W);
    }
    const Panels gradient = b.qkv_gradient.from(first);
    multiply_transposed(3 * C, C, rows, gradient, b.x, Target(total.weight, C), true);
    add_rows(total.bias, rows, 3 * C, gradient);
    multiply(rows, C, 3 * C, gradient, b.plain_w, b.x_gradient);
    spread(a, first, rows, C, b.pooled_x, b.x_gradient);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t here = (first + r) * C;
      normalize_backward(b.x_gradient.at(r, 0), TILE * W, x + here, moments[r], C, a.scale + norm[r], y_gradient + here,
                         x_gradient + here, total.scale + norm[r], total.shift + norm[r]);
    }
  }
}

}  // namespace

extern "C" {

int feed_forward(int64_t batch, int64_t entries, int64_t channels, int64_t hidden, int64_t groups, const int64_t* sizes,
                 const float* x, const float* scale, const float* shift, const float* const* parameters, int64_t threads,
                 float* y) {
  const FeedForward f{batch, entries, channels, hidden, groups, sizes, x, scale, shift, parameters};
  try {
    const std::vector<Tile> tiles = tiles_of(f);
    return in_parallel(tiles.size(), threads, [&](int64_t, int64_t first, int64_t last) {
      if (first < last) feed_forward_tiles(f, tiles.data() + first, tiles.data() + last, y);
    });
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// Gradients of the parameters, for each group: W1, b1, W2, b2, scale, shift.
int feed_forward_backward(int64_t batch, int64_t entries, int64_t channels, int64_t hidden, int64_t groups,
                          const int64_t* sizes, const float* x, const float* scale, const float* shift,
                          const float* const* parameters, int64_t threads, const float* y_gradient, float* x_gradient,
                          const GroupGradients* gradients) {
  const FeedForward f{batch, entries, channels, hidden, groups, sizes, x, scale, shift, parameters};
  try {
    const std::vector<Tile> tiles = tiles_of(f);
    for (int64_t g = 0; g < groups; g++) gradients[g].clear(channels, hidden);
    // The thread that starts a group writes to the group's gradients; those that continue it write to their own memory.
    std::vector<std::vector<float>> unowned(threads);
    const int status = in_parallel(tiles.size(), threads, [&](int64_t t, int64_t first, int64_t last) {
      if (first == last) return;
      if (!tiles[first].begins_group) unowned[t].resize(GroupGradients::count(channels, hidden));
      feed_forward_backward_tiles(f, tiles.data() + first, tiles.data() + last, y_gradient, x_gradient, gradients,
                                  unowned[t].data());
    });
    for (int64_t t = 0; t < threads; t++) {
      if (unowned[t].empty()) continue;
      GroupGradients total = gradients[tiles[tiles.size() * t / threads].group];
      total.add(GroupGradients::in(unowned[t].data(), channels, hidden), channels, hidden);
    }
    return status;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

int attention(int64_t batch, int64_t entries, int64_t channels, int64_t heads, int64_t norms, const int64_t* norm_sizes,
              int64_t groups, const int64_t* group_sizes, int64_t axes, const int64_t* num_vectors,
              const int64_t* num_neurons, const int32_t* const* vectors, const float* x, const float* scale,
              const float* shift, const float* weight, const float* bias, int64_t threads, float* y) {
  const Attention a{batch, entries, channels, heads, norms, groups, axes, norm_sizes, group_sizes,
                    num_vectors, num_neurons, vectors, x, scale, shift, weight, bias};
  const int64_t size = entries * channels;
  return in_parallel(batch, threads, [&](int64_t, int64_t first, int64_t last) {
    if (first == last) return;
    AttentionBuffers buffers(a);
    for (int64_t n = first; n < last; n++) attention_network(a, x + n * size, y + n * size, buffers);
  });
}

int attention_backward(int64_t batch, int64_t entries, int64_t channels, int64_t heads, int64_t norms,
                       const int64_t* norm_sizes, int64_t groups, const int64_t* group_sizes, int64_t axes,
                       const int64_t* num_vectors, const int64_t* num_neurons, const int32_t* const* vectors,
                       const float* x, const float* scale, const float* shift, const float* weight, const float* bias,
                       int64_t threads, const float* y_gradient, float* x_gradient, float* scale_gradient,
                       float* shift_gradient, float* weight_gradient, float* bias_gradient) {
  const Attention a{batch, entries, channels, heads, norms, groups, axes, norm_sizes, group_sizes,
                    num_vectors, num_neurons, vectors, x, scale, shift, weight, bias};
  const int64_t size = entries * channels;
  try {
    std::vector<std::vector<float>> own(threads);
    const int status = in_parallel(batch, threads, [&](int64_t t, int64_t first, int64_t last) {
      if (first == last) return;
      AttentionBuffers buffers(a);
      own[t].resize(AttentionGradients::count(a));
      for (int64_t n = first; n < last; n++)
        attention_backward_network(a, x + n * size, y_gradient + n * size, x_gradient + n * size,
                                   AttentionGradients::in(own[t].data(), a), buffers);
    });
    AttentionGradients total{weight_gradient, bias_gradient, scale_gradient, shift_gradient};
    total.clear(a);
    for (std::vector<float>& part : own)
      if (!part.empty()) total.add(AttentionGradients::in(part.data(), a), a);
    return status;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}
