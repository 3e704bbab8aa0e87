// A program that uses the installed package: rotates queries and keys, decodes from a state, and
// prints where it ran.
#include <attnops/attnops.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main() {
  const attnops::Dims shape = {1, 4, 2, 8};  // (B, N, H, D)
  std::vector<float> x(1 * 4 * 2 * 8, 1.0f), out(x.size()), theta = {1.0f, 0.1f, 0.01f, 0.001f};
  attnops::LrpeRotateOptions options;
  options.offset = 10;
  attnops::LrpeRotate({x.data(), shape}, {theta.data(), {1, 4}}, {out.data(), shape}, options);
  const double expected = std::cos(10.0) - std::sin(10.0);
  if (std::fabs(out[0] - expected) > 1e-5) return EXIT_FAILURE;

  // One sequence, a token at a time; without decay the state is the sum of k·vᵀ.
  std::vector<float> state(2 * 8 * 8, 0.0f);
  attnops::LinearAttentionOptions step;
  step.initial_state = attnops::ConstTensorView(state.data(), {1, 2, 8, 8});
  step.state = attnops::TensorView(state.data(), {1, 2, 8, 8});
  const attnops::Dims token = {1, 1, 2, 8};
  for (int n = 0; n < 4; ++n) {
    const float* row = x.data() + n * 16;
    attnops::LinearAttention({row, token}, {row, token}, {row, token}, {out.data(), token}, step);
  }
  if (state[0] != 4.0f) return EXIT_FAILURE;

  try {
    attnops::LrpeRotate({x.data(), shape}, {theta.data(), {3, 4}}, {out.data(), shape});
    return EXIT_FAILURE;
  } catch (const attnops::Error& error) {
    std::printf("as it should: %s\n", error.what());
  }
  std::printf("attnops %s on %s\n", attnops::Version(), attnops::GetTarget().c_str());
}
