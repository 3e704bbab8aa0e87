// A decode loop of tensor product attention: a cache with room for all tokens grows by one at each
// step, is written in place and read without a copy.
#include <attnops/attnops.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 8, kRank = 4, kFeatures = 64, kCapacity = 256;

// (B,capacity,features), of which the first tokens are in use.
class Cache {
 public:
  explicit Cache(std::int64_t features)
      : features_(features), data_(static_cast<std::size_t>(kBatch * kCapacity * features)) {}

  float* token(std::int64_t batch, std::int64_t position) {
    return data_.data() + (batch * kCapacity + position) * features_;
  }
  // The tokens so far: batches stay a whole capacity apart.
  attnops::ConstTensorView view(std::int64_t tokens) const {
    return {data_.data(), {kBatch, tokens, features_}, {kCapacity * features_, features_, 1}};
  }

 private:
  std::int64_t features_;
  std::vector<float> data_;
};

// Stands for a model's projection of the token at a position.
void Project(std::int64_t position, int seed, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = std::sin(static_cast<float>(seed + 1) * static_cast<float>(position * 31 + i));
  }
}

}  // namespace

int main() {
  Cache ak(kHeads), av(kHeads), bk(kFeatures), bv(kFeatures);
  std::vector<float> aq(kBatch * kHeads * kRank), bq(kBatch * kRank * kFeatures);
  std::vector<float> out(kBatch * kHeads * kFeatures);
  try {
    for (std::int64_t position = 0; position < kCapacity; ++position) {
      for (std::int64_t b = 0; b < kBatch; ++b) {
        Project(position, 0, ak.token(b, position), kHeads);
        Project(position, 1, av.token(b, position), kHeads);
        Project(position, 2, bk.token(b, position), kFeatures);
        Project(position, 3, bv.token(b, position), kFeatures);
      }
      Project(position, 4, aq.data(), kBatch * kHeads * kRank);
      Project(position, 5, bq.data(), kBatch * kRank * kFeatures);
      const std::int64_t tokens = position + 1;
      attnops::TpaDecode({aq.data(), {kBatch, 1, kHeads, kRank}}, ak.view(tokens), av.view(tokens),
                         {bq.data(), {kBatch, 1, kRank, kFeatures}}, bk.view(tokens),
                         bv.view(tokens), {out.data(), {kBatch, 1, kHeads, kFeatures}});
    }
  } catch (const attnops::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%d tokens on %s: out[0] = %g\n", static_cast<int>(kCapacity),
              attnops::GetTarget().c_str(), out[0]);
  return 0;
}
