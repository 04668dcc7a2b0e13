// One update of a layer of neurons, h + W2 gelu(W1 LN[h, messages] + b1) + b2, with its gradients.
//
// A thread takes some networks at a time, about a hundred neurons, and does all steps before it takes the next, so that
// intermediate values stay in its cache. The standardised rows and the values before the GELU are kept for the backward
// pass. Sums over networks are taken in an order that only depends on the number of threads.
//
// The scale and shift of the norm are moved into W1 and b1, so that rows are only standardised:
// W1 (s x + t) + b1 = (W1 s) x + (W1 t + b1).
//
// Called by neuron_update.py.

#include "panels.hpp"

namespace {

struct Update {
  int64_t batch, neurons, channels, hidden, gates, neighbours;
  const int64_t* num_behind;  // neurons of each neighbour
  const float* state;         // (batch, neurons, channels)
  const float* const* weights;  // for each neighbour (batch, gates, 2 neurons, neurons behind): signed, then absolute
  const float* const* behind;   // for each neighbour (batch, neurons behind, channels)
  const float *scale, *shift, *w1, *b1, *w2, *b2;

  int64_t seen() const { return channels * (1 + 2 * neighbours); }
  int64_t width() const { return channels / gates; }
  int64_t most_behind() const { return neighbours ? *std::max_element(num_behind, num_behind + neighbours) : 0; }
  // Networks taken at once: the same for any number of threads, because values are kept in this order.
  int64_t at_once() const { return std::max<int64_t>(1, std::min(TILE / neurons, (batch + 3) / 4)); }
  int64_t num_tiles() const { return (batch + at_once() - 1) / at_once(); }
};

// An odd number of rows in a panel: rows of different panels then do not compete for the same lines of the cache.
Panels take_panels(int64_t rows, int64_t columns) { return {scratch.take((rows | 1) * padded(columns)), rows | 1}; }
int64_t size_of_panels(int64_t rows, int64_t columns) { return (rows | 1) * padded(columns); }

// The connection between one network's neurons and one neighbour through one gate.
struct Messages {
  Panels weights, behind, flipped, part, behind_gradient, weight_gradient;
  static int64_t size(const Update& u) {
    const int64_t n = 2 * u.neurons, m = u.most_behind(), c = u.width();
    return size_of_panels(n, m) + 2 * size_of_panels(m, c) + size_of_panels(padded(c), m) + size_of_panels(n, c) +
           size_of_panels(n, m);
  }
  explicit Messages(const Update& u)
      : weights(take_panels(2 * u.neurons, u.most_behind())), behind(take_panels(u.most_behind(), u.width())),
        flipped(take_panels(padded(u.width()), u.most_behind())), part(take_panels(2 * u.neurons, u.width())),
        behind_gradient(take_panels(u.most_behind(), u.width())),
        weight_gradient(take_panels(2 * u.neurons, u.most_behind())) {}
};

struct Link {
  int64_t m, column;  // position of its signed messages in a neuron's inputs; the absolute ones `channels` later
  const float *weights, *behind;
  int64_t weight_offset, behind_offset, neighbour;
};

template <typename Work>
void for_each_link(const Update& u, int64_t network, Work work) {
  for (int64_t k = 0; k < u.neighbours; k++)
    for (int64_t g = 0; g < u.gates; g++) {
      const int64_t m = u.num_behind[k];
      const int64_t weights = (network * u.gates + g) * 2 * u.neurons * m;
      const int64_t behind = network * m * u.channels + g * u.width();
      work(Link{m, (1 + 2 * k) * u.channels + g * u.width(), u.weights[k] + weights, u.behind[k] + behind, weights, behind, k});
    }
}

// Inputs of the neurons of some networks: their states and the sums of the messages.
void see(const Update& u, int64_t first, int64_t last, const Messages& b, Panels x) {
  const int64_t n = u.neurons, C = u.channels, c = u.width();
  pack(u.state + first * n * C, (last - first) * n, C, x);
  for (int64_t network = first; network < last; network++)
    for_each_link(u, network, [&](const Link& link) {
      pack(link.weights, 2 * n, link.m, b.weights);
      pack(link.behind, C, link.m, c, b.behind);
      for (int sign = 0; sign < 2; sign++) {
        const int64_t row = (network - first) * n, column = link.column + sign * C;
        const Panels weights = b.weights.from(sign * n);
        if (c % W == 0) {
          multiply(n, c, link.m, weights, b.behind, x.from(row, column));
        } else {
          multiply(n, c, link.m, weights, b.behind, b.part);
          for (int64_t j = 0; j < c; j++)
            for (int64_t r = 0; r < n; r++) *x.at(row + r, column + j) = *b.part.at(r, j);
        }
      }
    });
}

void see_backward(const Update& u, int64_t first, int64_t last, const Messages& b, Panels gradient,
                  float* const* weight_gradients, float* const* behind_gradients) {
  const int64_t n = u.neurons, C = u.channels, c = u.width();
  for (int64_t network = first; network < last; network++)
    for_each_link(u, network, [&](const Link& link) {
      const int64_t m = link.m;
      float* weight_gradient = weight_gradients[link.neighbour] + link.weight_offset;
      pack(link.weights, 2 * n, m, b.weights);
      pack_transposed(link.behind, C, m, c, b.flipped);
      for (int sign = 0; sign < 2; sign++) {
        const int64_t row = (network - first) * n, column = link.column + sign * C;
        const Panels part = c % W ? b.part : gradient.from(row, column);
        if (c % W)
          for (int64_t j = 0; j < padded(c); j++)
            for (int64_t r = 0; r < n; r++) *part.at(r, j) = j < c ? *gradient.at(row + r, column + j) : 0.0f;
        if (m % W == 0) {
          multiply(n, m, c, part, b.flipped, Target(weight_gradient + sign * n * m, m));
        } else {
          multiply(n, m, c, part, b.flipped, b.weight_gradient);
          unpack(b.weight_gradient, n, m, weight_gradient + sign * n * m, m);
        }
        multiply_transposed(m, c, n, b.weights.from(sign * n), part, b.behind_gradient, sign);
      }
      unpack(b.behind_gradient, m, c, behind_gradients[link.neighbour] + link.behind_offset, C);
    });
}

// Rows minus their means, divided by their deviations; R at a time.
template <int R>
inline void standardize_rows(int64_t columns, float* x, int64_t panel, float* inverse) {
  V s[R] = {}, squares[R] = {};
  float mean[R];
  for (int64_t c = 0; c < columns; c += W)
    for (int r = 0; r < R; r++) {
      const float* p = x + c / W * panel + r * W;
      s[r] += load(p) + load(p + LANES);
    }
  for (int r = 0; r < R; r++) mean[r] = sum(s[r]) / columns;
  for (int64_t c = 0; c < columns; c += W)
    for (int r = 0; r < R; r++) {
      const float* p = x + c / W * panel + r * W;
      const V a = load(p) - mean[r], b = load(p + LANES) - mean[r];
      squares[r] += a * a + b * b;
    }
  for (int r = 0; r < R; r++) inverse[r] = 1.0f / std::sqrt(sum(squares[r]) / columns + EPSILON);
  for (int64_t c = 0; c < columns; c += W)
    for (int r = 0; r < R; r++) {
      float* p = x + c / W * panel + r * W;
      store(p, (load(p) - mean[r]) * inverse[r]);
      store(p + LANES, (load(p + LANES) - mean[r]) * inverse[r]);
    }
}

void standardize(int64_t rows, int64_t columns, Panels x, float* inverse) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) standardize_rows<4>(columns, x.at(r, 0), x.rows * W, inverse + r);
  for (; r < rows; r++) standardize_rows<1>(columns, x.at(r, 0), x.rows * W, inverse + r);
}

template <int R>
inline void standardize_rows_backward(int64_t columns, const float* x, const float* inverse, float* g, int64_t panel) {
  V s[R] = {}, products[R] = {};
  float mean[R], slope[R];
  for (int64_t c = 0; c < columns; c += W)
    for (int r = 0; r < R; r++) {
      const int64_t at = c / W * panel + r * W;
      const V a = load(g + at), b = load(g + at + LANES);
      s[r] += a + b;
      products[r] += a * load(x + at) + b * load(x + at + LANES);
    }
  for (int r = 0; r < R; r++) mean[r] = sum(s[r]) / columns, slope[r] = sum(products[r]) / columns;
  for (int64_t c = 0; c < columns; c += W)
    for (int r = 0; r < R; r++)
      for (int h = 0; h < W; h += LANES) {
        const int64_t at = c / W * panel + r * W + h;
        store(g + at, (load(g + at) - mean[r] - load(x + at) * slope[r]) * inverse[r]);
      }
}

// Converts the gradient of the standardised rows x to that of the rows before standardisation.
void standardize_backward(int64_t rows, int64_t columns, Panels x, const float* inverse, Panels g) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    standardize_rows_backward<4>(columns, x.at(r, 0), inverse + r, g.at(r, 0), g.rows * W);
  for (; r < rows; r++) standardize_rows_backward<1>(columns, x.at(r, 0), inverse + r, g.at(r, 0), g.rows * W);
}

// W1 and b1 with the norm's scale and shift absorbed.
void fold_norm(const Update& u, float* w1, float* b1) {
  const int64_t D = u.seen();
  for (int64_t i = 0; i < u.hidden; i++) {
    V moved{};
    for (int64_t j = 0; j < D; j += LANES) {
      const V w = load(u.w1 + i * D + j);
      moved += w * load(u.shift + j);
      store(w1 + i * D + j, w * load(u.scale + j));
    }
    b1[i] = u.b1[i] + sum(moved);
  }
}

// Values kept for the backward pass, tile by tile, each in panels.
struct Kept {
  float *hidden, *x, *inverse;
  // From the first network of a tile; panels of x may have one row more than the tile.
  Kept(float* p, const Update& u, int64_t first)
      : hidden(p + first * u.neurons * u.hidden),
        x(p + u.batch * u.neurons * u.hidden + first * (u.neurons + 1) * u.seen()),
        inverse(p + u.batch * (u.neurons * u.hidden + (u.neurons + 1) * u.seen()) + first * u.neurons) {}
};

// `kept` may be null.
void update_tiles(const Update& u, const float* w1, const float* b1, int64_t tile, int64_t end, float* y, float* kept) {
  const int64_t n = u.neurons, C = u.channels, D = u.seen(), E = u.hidden, most = u.at_once() * n;
  scratch.reserve(E * D + E * C + size_of_panels(most, D) + 2 * most * E + most + Messages::size(u) + 16 * W);
  const Panels w1t{scratch.take(E * D), D}, w2t{scratch.take(E * C), E}, own_x = take_panels(most, D);
  float *own_hidden = scratch.take(most * E), *activated = scratch.take(most * E), *own_inverse = scratch.take(most);
  const Messages messages(u);
  pack_transposed(w1, E, D, w1t);
  pack_transposed(u.w2, C, E, w2t);
  for (; tile < end; tile++) {
    const int64_t first = tile * u.at_once(), last = std::min(first + u.at_once(), u.batch), rows = (last - first) * n;
    const Kept here_kept(kept, u, first);
    const Panels before{kept ? here_kept.hidden : own_hidden, rows}, after{activated, rows};
    const Panels x = kept ? Panels{here_kept.x, rows | 1} : own_x;
    see(u, first, last, messages, x);
    standardize(rows, D, x, kept ? here_kept.inverse : own_inverse);
    multiply(rows, E, D, x, w1t, before, b1);
    gelu(before.p, rows * E, after.p);
    const int64_t here = first * n * C;
    multiply(rows, C, E, after, w2t, Target(y + here, C), u.b2);
    for (int64_t i = 0; i < rows * C; i += LANES) store(y + here + i, load(y + here + i) + load(u.state + here + i));
  }
}

struct UpdateGradients {
  float *w1, *b1, *w2, *b2;
  static int64_t count(const Update& u) { return u.hidden * (u.seen() + u.channels + 1) + u.channels; }
  static UpdateGradients in(float* p, const Update& u) {
    float *b1 = p + u.hidden * u.seen(), *w2 = b1 + u.hidden;
    return {p, b1, w2, w2 + u.hidden * u.channels};
  }
};

void update_backward_tiles(const Update& u, const float* w1, int64_t tile, int64_t end, float* kept,
                           const float* y_gradient, float* state_gradient, float* const* weight_gradients,
                           float* const* behind_gradients, const UpdateGradients& total) {
  const int64_t n = u.neurons, C = u.channels, D = u.seen(), E = u.hidden, most = u.at_once() * n;
  scratch.reserve(E * D + E * C + size_of_panels(most, D) + size_of_panels(most, C) + 2 * most * E + Messages::size(u) +
                  16 * W);
  const Panels w1p{scratch.take(E * D), E}, w2p{scratch.take(E * C), C};
  const Panels storage = take_panels(most, D), y = take_panels(most, C);
  float *activated = scratch.take(most * E), *h_gradient = scratch.take(most * E);
  const Messages messages(u);
  pack(w1, E, D, w1p);
  pack(u.w2, C, E, w2p);
  for (; tile < end; tile++) {
    const int64_t first = tile * u.at_once(), last = std::min(first + u.at_once(), u.batch), rows = (last - first) * n;
    const Kept here(kept, u, first);
    const Panels h{activated, rows}, g_h{h_gradient, rows}, x{here.x, rows | 1}, x_gradient{storage.p, rows | 1};
    pack(y_gradient + first * n * C, rows, C, y);
    multiply(rows, E, C, y, w2p, g_h);
    gelu_backward(here.hidden, rows * E, h.p, g_h.p);
    multiply_transposed(C, E, rows, y, h, Target(total.w2, E), true);
    multiply_transposed(E, D, rows, g_h, x, Target(total.w1, D), true);
    add_rows(total.b2, rows, C, y);
    add_rows(total.b1, rows, E, g_h);
    multiply(rows, D, E, g_h, w1p, x_gradient);
    standardize_backward(rows, D, x, here.inverse, x_gradient);
    for (int64_t c = 0; c < C; c += W)
      for (int64_t r = 0; r < rows; r++)
        for (int64_t i = (first * n + r) * C + c, half = 0; half < W; half += LANES)
          store(state_gradient + i + half, load(y_gradient + i + half) + load(x_gradient.at(r, c) + half));
    see_backward(u, first, last, messages, x_gradient, weight_gradients, behind_gradients);
  }
}

}  // namespace

extern "C" {

int neuron_update(int64_t batch, int64_t neurons, int64_t channels, int64_t hidden_channels, int64_t gates,
                  int64_t neighbours, const int64_t* num_behind, const float* state, const float* const* weights,
                  const float* const* behind, const float* const* parameters, int64_t threads, float* y, float* kept) {
  const float* const* p = parameters;
  const Update u{batch, neurons, channels, hidden_channels, gates, neighbours, num_behind, state, weights,
                 behind, p[0], p[1], p[2], p[3], p[4], p[5]};
  try {
    std::vector<float> w1(hidden_channels * u.seen()), b1(hidden_channels);
    fold_norm(u, w1.data(), b1.data());
    return in_parallel(u.num_tiles(), threads, [&](int64_t, int64_t first, int64_t last) {
      if (first < last) update_tiles(u, w1.data(), b1.data(), first, last, y, kept);
    });
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// Gradients of the parameters: scale, shift, W1, b1, W2, b2.
int neuron_update_backward(int64_t batch, int64_t neurons, int64_t channels, int64_t hidden_channels, int64_t gates,
                           int64_t neighbours, const int64_t* num_behind, const float* state,
                           const float* const* weights, const float* const* behind, const float* const* parameters,
                           int64_t threads, float* kept, const float* y_gradient, float* state_gradient,
                           float* const* weight_gradients, float* const* behind_gradients, float* const* gradients) {
  const float* const* p = parameters;
  const Update u{batch, neurons, channels, hidden_channels, gates, neighbours, num_behind, state, weights,
                 behind, p[0], p[1], p[2], p[3], p[4], p[5]};
  try {
    std::vector<float> w1(hidden_channels * u.seen()), b1(hidden_channels);
    fold_norm(u, w1.data(), b1.data());
    std::vector<std::vector<float>> own(threads);
    const int status = in_parallel(u.num_tiles(), threads, [&](int64_t t, int64_t first, int64_t last) {
      if (first == last) return;
      own[t].resize(UpdateGradients::count(u));
      update_backward_tiles(u, w1.data(), first, last, kept, y_gradient, state_gradient, weight_gradients,
                            behind_gradients, UpdateGradients::in(own[t].data(), u));
    });
    std::vector<float> sums(UpdateGradients::count(u));
    for (const std::vector<float>& part : own) add_to(sums.data(), part.data(), part.size());
    const UpdateGradients total = UpdateGradients::in(sums.data(), u);
    const int64_t D = u.seen(), E = u.hidden;
    std::memset(gradients[0], 0, D * sizeof(float));
    std::memset(gradients[1], 0, D * sizeof(float));
    for (int64_t i = 0; i < E; i++)
      for (int64_t j = 0; j < D; j += LANES) {
        const V w = load(u.w1 + i * D + j), g = load(total.w1 + i * D + j);
        store(gradients[0] + j, load(gradients[0] + j) + w * g);
        store(gradients[1] + j, load(gradients[1] + j) + w * total.b1[i]);
        store(gradients[2] + i * D + j, g * load(u.scale + j) + total.b1[i] * load(u.shift + j));
      }
    std::memcpy(gradients[3], total.b1, E * sizeof(float));
    std::memcpy(gradients[4], total.w2, E * u.channels * sizeof(float));
    std::memcpy(gradients[5], total.b2, u.channels * sizeof(float));
    return status;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}
