// Encodes queries with a rotary position encoding and differentiates through it.
#include <attnops/attnops.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr int kBatch = 2, kTokens = 128, kHeads = 8, kFeatures = 64;
  std::vector<float> x(kBatch * kTokens * kHeads * kFeatures);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::vector<float> out(x.size()), d_out(x.size(), 1.0f), dx(x.size());
  std::vector<float> theta(kFeatures / 2);
  for (std::size_t j = 0; j < theta.size(); ++j) {
    theta[j] = std::pow(10000.0f, -static_cast<float>(j) / static_cast<float>(theta.size()));
  }

  const attnops::Dims shape = {kBatch, kTokens, kHeads, kFeatures};
  const attnops::ConstTensorView x_view(x.data(), shape);
  const attnops::ConstTensorView theta_view(theta.data(), {1, kFeatures / 2});
  const attnops::LrpeRotateOptions options = {.offset = 1'000'000,
                                              .act = attnops::Activation::Silu()};
  try {
    attnops::LrpeRotate(x_view, theta_view, {out.data(), shape}, options);
    attnops::LrpeRotateBackward(x_view, theta_view, {d_out.data(), shape}, {dx.data(), shape},
                                options);
  } catch (const attnops::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("on %s: out[0] = %g, dx[0] = %g\n", attnops::GetTarget().c_str(), out[0], dx[0]);
  return 0;
}
