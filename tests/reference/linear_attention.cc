#include "tests/reference/linear_attention.h"

#include <cmath>
#include <cstddef>

namespace attnops::reference {
namespace {

using Values = LinearAttention::Values;
using Decay = LinearAttention::Decay;

// One head of one sequence.
struct One {
  const LinearAttention& sizes;
  const LinearAttention::Inputs& inputs;
  std::int64_t sequence, head, batch, first, tokens;

  // Offsets of rows: of q and k, of a token's head, of v, of the state.
  std::int64_t Key(std::int64_t t) const {
    const std::int64_t group = sizes.heads / sizes.key_heads;
    return ((batch * sizes.tokens + first + t) * sizes.key_heads + head / group) * sizes.d;
  }
  std::int64_t Token(std::int64_t t) const {
    return (batch * sizes.tokens + first + t) * sizes.heads + head;
  }
  std::int64_t Value(std::int64_t t) const { return Token(t) * sizes.e; }
  std::int64_t State() const { return (sequence * sizes.heads + head) * sizes.d * sizes.e; }
  std::int64_t DecayAt(std::int64_t t, std::int64_t i) const {
    if (sizes.decay == Decay::kConstant) return head;
    return sizes.decay == Decay::kToken ? Token(t) : Token(t) * sizes.d + i;
  }

  double Lambda(std::int64_t t, std::int64_t i) const {
    return sizes.decay == Decay::kNone ? 1 : std::exp(inputs.log_decay[DecayAt(t, i)]);
  }
  double Mu(std::int64_t t, std::int64_t j) const {
    return inputs.log_decay_v.empty() ? 1 : std::exp(inputs.log_decay_v[Value(t) + j]);
  }

  Values StartState() const {
    Values state(sizes.d * sizes.e);
    for (std::size_t i = 0; i < state.size() && !inputs.initial_state.empty(); ++i) {
      state[i] = inputs.initial_state[State() + i];
    }
    return state;
  }
  // Calls f(i, j, at) for each element of a state.
  template <class F>
  void ForEachElement(const F& f) const {
    for (std::int64_t i = 0; i < sizes.d; ++i) {
      for (std::int64_t j = 0; j < sizes.e; ++j) f(i, j, i * sizes.e + j);
    }
  }
  void Advance(std::int64_t t, Values& state) const {
    ForEachElement([&](std::int64_t i, std::int64_t j, std::int64_t at) {
      state[at] =
          Lambda(t, i) * state[at] * Mu(t, j) + inputs.k[Key(t) + i] * inputs.v[Value(t) + j];
    });
  }
};

template <class F>
void ForEachHead(const LinearAttention& sizes, const LinearAttention::Inputs& inputs, const F& f) {
  const bool packed = !sizes.cu_seqlens.empty();
  for (std::int64_t s = 0; s < sizes.Sequences(); ++s) {
    const std::int64_t first = packed ? sizes.cu_seqlens[s] : 0;
    const std::int64_t end = packed ? sizes.cu_seqlens[s + 1] : sizes.tokens;
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      f(One{sizes, inputs, s, h, packed ? 0 : s, first, end - first});
    }
  }
}

}  // namespace

std::int64_t LinearAttention::Sequences() const {
  return cu_seqlens.empty() ? batch : static_cast<std::int64_t>(cu_seqlens.size()) - 1;
}

LinearAttention::Forward LinearAttention::Run(const Inputs& inputs) const {
  Forward result{Values(inputs.v.size()), Values(Sequences() * heads * d * e)};
  ForEachHead(*this, inputs, [&](const One& one) {
    Values state = one.StartState();
    for (std::int64_t t = 0; t < one.tokens; ++t) {
      one.Advance(t, state);
      one.ForEachElement([&](std::int64_t i, std::int64_t j, std::int64_t at) {
        result.out[one.Value(t) + j] += scale * inputs.q[one.Key(t) + i] * state[at];
      });
    }
    for (std::size_t i = 0; i < state.size(); ++i) result.state[one.State() + i] = state[i];
  });
  return result;
}

LinearAttention::Backward LinearAttention::RunBackward(const Inputs& inputs, const Values& d_out,
                                                       const Values& d_state) const {
  Backward result{Values(inputs.q.size()),           Values(inputs.k.size()),
                  Values(inputs.v.size()),           Values(inputs.log_decay.size()),
                  Values(inputs.log_decay_v.size()), Values(Sequences() * heads * d * e)};
  ForEachHead(*this, inputs, [&](const One& one) {
    std::vector<Values> states = {one.StartState()};
    for (std::int64_t t = 0; t < one.tokens; ++t) {
      states.push_back(states.back());
      one.Advance(t, states.back());
    }
    // The gradient of the state behind a token from what comes after it.
    Values later(d * e);
    for (std::size_t i = 0; i < later.size() && !d_state.empty(); ++i) {
      later[i] = d_state[one.State() + i];
    }
    for (std::int64_t t = one.tokens - 1; t >= 0; --t) {
      const std::int64_t key = one.Key(t), value = one.Value(t);
      one.ForEachElement([&](std::int64_t i, std::int64_t j, std::int64_t at) {
        const double g = later[at] + scale * inputs.q[key + i] * d_out[value + j];
        const double decayed = one.Lambda(t, i) * states[t][at] * one.Mu(t, j);
        result.dq[key + i] += scale * states[t + 1][at] * d_out[value + j];
        result.dk[key + i] += g * inputs.v[value + j];
        result.dv[value + j] += g * inputs.k[key + i];
        if (decay != Decay::kNone) result.d_log_decay[one.DecayAt(t, i)] += decayed * g;
        if (!inputs.log_decay_v.empty()) result.d_log_decay_v[value + j] += decayed * g;
        later[at] = one.Lambda(t, i) * g * one.Mu(t, j);
      });
    }
    for (std::size_t i = 0; i < later.size(); ++i) {
      result.d_initial_state[one.State() + i] = later[i];
    }
  });
  return result;
}

}  // namespace attnops::reference
