// The bits of a sequence's results do not depend on the batch it is in: neither on the other
// sequences nor on how many there are, nor on the number of heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/flao_case.h"
#include "tests/ops/flao_fal_case.h"
#include "tests/ops/lrpe_rotate_case.h"
#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/ops/tpa_case.h"
#include "tests/ops/tpa_decode_case.h"

namespace attnops::testing {
namespace {

struct Range {
  std::int64_t begin, count;
};

// Some sequences and heads of a problem.
struct Part {
  Range batches, heads;

  std::string Describe() const {
    const auto text = [](const Range& range) {
      return std::to_string(range.count) + " from " + std::to_string(range.begin);
    };
    return "batches: " + text(batches) + ", heads: " + text(heads);
  }
};

ConstTensorView Slice(const ConstTensorView& view, int axis, const Range& range) {
  Dims shape = view.shape();
  shape[axis] = range.count;
  const auto* data = static_cast<const std::byte*>(view.data());
  return {data + range.begin * view.stride(axis) * SizeOf(view.dtype()), view.dtype(), shape,
          view.strides()};
}

// The tensors of a part; axis 0 has the batches.
ConstTensorView PartOf(const GuardedTensor& tensor, const Part& part, int head_axis) {
  return Slice(Slice(tensor.view(), 0, part.batches), head_axis, part.heads);
}
ConstTensorView ThetaOf(const GuardedTensor& theta, const Part& part) {
  return theta.shape()[0] == 1 ? theta.view() : Slice(theta.view(), 0, part.heads);
}

// A result of a part, to be written.
struct Output {
  std::string name;
  int head_axis;
  GuardedTensor tensor;
  std::vector<std::uint32_t> bits;  // of all of it, once they are needed

  Output(const std::string& name, const GuardedTensor& whole, const Part& part, int head_axis)
      : name(name),
        head_axis(head_axis),
        tensor(whole.dtype(), PartOf(whole, part, head_axis).shape()) {}

  // The bits of one sequence and head, after the call.
  std::vector<std::uint32_t> Of(std::int64_t batch, std::int64_t head) {
    if (bits.empty()) bits = tensor.Bits();
    const Dims& shape = tensor.shape();
    std::int64_t inner = 1, middle = 1;
    for (int i = head_axis + 1; i < shape.rank(); ++i) inner *= shape[i];
    for (int i = 1; i < head_axis; ++i) middle *= shape[i];
    std::vector<std::uint32_t> result;
    for (std::int64_t i = 0; i < middle; ++i) {
      const auto first = bits.begin() + ((batch * middle + i) * shape[head_axis] + head) * inner;
      result.insert(result.end(), first, first + inner);
    }
    return result;
  }
};

using Outputs = std::vector<Output>;

// run(part) gives for every part what it gives in the whole of B sequences and H heads. Parts have
// fewer sequences and, if heads are independent, fewer heads.
void ExpectInvariance(std::int64_t B, std::int64_t H, const std::string& description,
                      const std::function<Outputs(const Part&)>& run,
                      bool independent_heads = true) {
  SCOPED_TRACE(description);
  Outputs whole = run({{0, B}, {0, H}});
  for (const std::int64_t batches : {std::int64_t{1}, std::int64_t{2}, B}) {
    for (const std::int64_t heads : {std::int64_t{1}, std::int64_t{2}, H}) {
      if (batches > B || heads > H || (batches == B && heads == H)) continue;
      if (heads < H && !independent_heads) continue;
      const Part part = {{B - batches, batches}, {(H - heads) / 2, heads}};
      Outputs outputs = run(part);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        bool same = true;
        for (std::int64_t b = 0; b < batches; ++b) {
          for (std::int64_t h = 0; h < heads; ++h) {
            same = same &&
                   outputs[i].Of(b, h) == whole[i].Of(part.batches.begin + b, part.heads.begin + h);
          }
        }
        EXPECT_TRUE(same) << outputs[i].name << " has other bits; " << part.Describe();
      }
    }
  }
}

TEST(BatchInvariance, LrpeRotate) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const std::int64_t theta_heads : {1, 12}) {
        const RotateSpec spec = {.dtype = dtype,
                                 .batch = 5,
                                 .length = 300,
                                 .heads = 12,
                                 .features = 34,
                                 .theta_heads = theta_heads,
                                 .theta_features = 17,
                                 .offset = 1'000'003,
                                 .act = act};
        const RotateCase c(spec);
        ExpectInvariance(5, 12, spec.Describe(), [&](const Part& part) {
          Outputs outputs;
          outputs.emplace_back("out", c.x, part, 2);
          outputs.emplace_back("dx", c.x, part, 2);
          const ConstTensorView x = PartOf(c.x, part, 2), theta = ThetaOf(c.theta, part);
          LrpeRotate(x, theta, outputs[0].tensor.view(), spec.Options());
          LrpeRotateBackward(x, theta, PartOf(c.d_out, part, 2), outputs[1].tensor.view(),
                             spec.Options());
          return outputs;
        });
      }
    }
  }
}

TEST(BatchInvariance, MdLrpeCosine) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const Dims& shape : {Dims{290}, Dims{17, 17}}) {
        const CosineSpec spec = {.dtype = dtype,
                                 .batch = 5,
                                 .heads = 12,
                                 .shape = shape,
                                 .l = 10,
                                 .features = 34,
                                 .theta_heads = 12,
                                 .act = act};
        CosineCase c(spec);
        c.BuildTable();
        ExpectInvariance(5, 12, spec.Describe(), [&](const Part& part) {
          Outputs outputs;
          for (const char* name : {"out", "out with a table"}) {
            outputs.emplace_back(name, c.out, part, 1);
          }
          for (const char* name : {"dx", "dx with a table"}) {
            outputs.emplace_back(name, c.dx, part, 1);
          }
          const ConstTensorView x = PartOf(c.x, part, 1), d_out = PartOf(c.d_out, part, 1);
          const ConstTensorView theta = ThetaOf(c.theta, part), table = ThetaOf(c.table, part);
          MdLrpeCosine(x, theta, outputs[0].tensor.view(), spec.Options());
          MdLrpeCosineWithTable(x, table, outputs[1].tensor.view(), spec.TableOptions());
          MdLrpeCosineBackward(x, theta, d_out, outputs[2].tensor.view(), spec.Options());
          MdLrpeCosineBackwardWithTable(x, table, d_out, outputs[3].tensor.view(),
                                        spec.TableOptions());
          return outputs;
        });
      }
    }
  }
}

// Both passes of flao or flao_fal. forward(q, k, v, g, out, options) and
// backward(q, k, v, g, d_out, dq, dk, dv, dg, kept) call it.
template <class Case, class Forward, class Backward>
Outputs RunAttention(const Case& c, const Part& part, Keep keep, const Forward& forward,
                     const Backward& backward) {
  Outputs outputs;
  const std::pair<const char*, const GuardedTensor*> wholes[] = {
      {"out", &c.out}, {"dq", &c.dq}, {"dk", &c.dk},  {"dv", &c.dv},
      {"dg", &c.dg},   {"kv", &c.kv}, {"qkv", &c.qkv}};
  for (const auto& [name, whole] : wholes) outputs.emplace_back(name, *whole, part, 1);
  const auto of = [&](const GuardedTensor& tensor) { return PartOf(tensor, part, 1); };
  const auto out = [&](std::size_t i) { return outputs[i].tensor.view(); };
  FlaoOptions options;
  FlaoKept kept;
  if (keep != Keep::kNone) {
    options.kv = out(5);
    kept.kv = out(5);
  }
  if (keep == Keep::kKvQkv) {
    options.qkv = out(6);
    kept.qkv = out(6);
  }
  forward(of(c.q), of(c.k), of(c.v), of(c.g), out(0), options);
  backward(of(c.q), of(c.k), of(c.v), of(c.g), of(c.d_out), out(1), out(2), out(3), out(4), kept);
  return outputs;
}

void ExpectFlaoInvariance(const FlaoSpec& spec, Keep keep) {
  const FlaoCase c(spec);
  ExpectInvariance(spec.batch, spec.heads, spec.Describe(), [&](const Part& part) {
    return RunAttention(
        c, part, keep, [](const auto&... args) { Flao(args...); },
        [](const auto&... args) { FlaoBackward(args...); });
  });
}

TEST(BatchInvariance, Flao) {
  for (const DType dtype : kFlaoTypes) {
    for (const Keep keep : kAllKeeps) {
      ExpectFlaoInvariance(
          {.dtype = dtype, .batch = 5, .heads = 12, .n = 70, .m = 130, .d = 17, .e = 20}, keep);
    }
  }
}

// Long enough to be cut into pieces.
TEST(BatchInvariance, FlaoOfALongSequence) {
  for (const DType dtype : kFlaoTypes) {
    ExpectFlaoInvariance(
        {.dtype = dtype, .batch = 2, .heads = 12, .n = 4096, .m = 4096, .d = 8, .e = 8},
        Keep::kNone);
    ExpectFlaoInvariance(
        {.dtype = dtype, .batch = 5, .heads = 2, .n = 2500, .m = 3100, .d = 8, .e = 8},
        Keep::kKvQkv);
  }
}

void ExpectFlaoFalInvariance(const FlaoFalSpec& spec, Keep keep) {
  const FlaoFalCase c(spec);
  ExpectInvariance(spec.batch, spec.heads, c.spec().Describe(), [&](const Part& part) {
    FlaoFalOptions options = c.Options();
    if (options.theta) options.theta = ThetaOf(c.theta, part);
    return RunAttention(
        c, part, keep,
        [&](const auto& q, const auto& k, const auto& v, const auto& g, const auto& out,
            const FlaoOptions& kept) { FlaoFal(q, k, v, g, out, options, kept); },
        [&](const auto& q, const auto& k, const auto& v, const auto& g, const auto& d_out,
            const auto& dq, const auto& dk, const auto& dv, const auto& dg, const FlaoKept& kept) {
          FlaoFalBackward(q, k, v, g, d_out, dq, dk, dv, dg, options, kept);
        });
  });
}

FlaoFalSpec FlaoFalSpecOf(DType dtype, Lrpe lrpe, std::int64_t batch, std::int64_t heads,
                          std::int64_t n, std::int64_t m) {
  return {.dtype = dtype,
          .batch = batch,
          .heads = heads,
          .n = n,
          .m = m,
          .d = 8,
          .e = 12,
          .q_act = Activation::Softmax(-1),
          .k_act = Activation::Softmax(2),
          .v_act = Activation::Silu(),
          .g_act = Activation::Softmax(2),
          .lrpe = lrpe,
          .theta_heads = lrpe == Lrpe::kNone ? 1 : heads};
}

TEST(BatchInvariance, FlaoFal) {
  for (const DType dtype : kAllTypes) {
    for (const Lrpe lrpe : {Lrpe::kNone, Lrpe::kCosine, Lrpe::kRotate}) {
      for (const Keep keep : kAllKeeps) {
        ExpectFlaoFalInvariance(FlaoFalSpecOf(dtype, lrpe, 5, 12, 70, 130), keep);
      }
    }
  }
}

TEST(BatchInvariance, FlaoFalOfALongSequence) {
  for (const DType dtype : kAllTypes) {
    ExpectFlaoFalInvariance(FlaoFalSpecOf(dtype, Lrpe::kRotate, 2, 12, 4096, 4096), Keep::kNone);
    ExpectFlaoFalInvariance(FlaoFalSpecOf(dtype, Lrpe::kCosine, 5, 2, 2500, 3100), Keep::kKvQkv);
  }
}

// How many heads there are decides in which order a score's factors are multiplied.
TEST(BatchInvariance, TpaDecode) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t heads : {1, 2, 12}) {
      for (const std::int64_t m : {70, 3000}) {
        const TpaSpec spec = {
            .dtype = dtype, .batch = 5, .m = m, .heads = heads, .rank = 3, .d = 17, .e = 20};
        const TpaCase c(spec);
        for (const TpaSplit split : kTpaSplits) {
          const auto run = [&](const Part& part) {
            Outputs outputs;
            outputs.emplace_back("out", c.out, part, 2);
            const auto of = [&](const GuardedTensor& tensor) {
              return Slice(tensor.view(), 0, part.batches);
            };
            TpaDecodeOptions options;
            options.split = split;
            TpaDecode(of(c.aq), of(c.ak), of(c.av), of(c.bq), of(c.bk), of(c.bv),
                      outputs[0].tensor.view(), options);
            return outputs;
          };
          ExpectInvariance(5, heads, spec.Describe(), run, false);
        }
      }
    }
  }
}

// The queries and keys of some sequences and heads.
TpaQuery QueryOf(const TpaRanksCase& c, const Part& part) {
  return TpaQuery::Factors(PartOf(c.aq, part, 2), Slice(c.bq.view(), 0, part.batches));
}
TpaKeys KeysOf(const TpaRanksCase& c, const Part& part) {
  return {PartOf(c.ak, part, 2), PartOf(c.av, part, 2), Slice(c.bk.view(), 0, part.batches),
          Slice(c.bv.view(), 0, part.batches)};
}

TEST(BatchInvariance, Tpa) {
  for (const DType dtype : kTpaTypes) {
    // As many ranks as heads: axis 2 of all gradients has one size.
    const TpaRanksSpec spec = {.dtype = dtype,
                               .batch = 5,
                               .n = 70,
                               .m = 131,
                               .heads = 3,
                               .q_rank = 3,
                               .k_rank = 3,
                               .v_rank = 3,
                               .d = 17,
                               .e = 20};
    TpaRanksCase c(spec);
    c.Forward();
    ExpectInvariance(5, 3, spec.Describe(), [&](const Part& part) {
      Outputs outputs;
      outputs.emplace_back("out", c.out, part, 2);
      Tpa(QueryOf(c, part), KeysOf(c, part), outputs[0].tensor.view());
      return outputs;
    });
    // Gradients of b are sums over the heads.
    const auto backward = [&](const Part& part) {
      Outputs outputs;
      outputs.emplace_back("d_aq", c.d_aq, part, 2);
      outputs.emplace_back("d_bq", c.d_bq, part, 2);
      outputs.emplace_back("d_ak", c.d_ak, part, 2);
      outputs.emplace_back("d_av", c.d_av, part, 2);
      outputs.emplace_back("d_bk", c.d_bk, part, 2);
      outputs.emplace_back("d_bv", c.d_bv, part, 2);
      const TpaGradients to = {
          outputs[0].tensor.view(), outputs[1].tensor.view(), std::nullopt,
          outputs[2].tensor.view(), outputs[3].tensor.view(), outputs[4].tensor.view(),
          outputs[5].tensor.view()};
      TpaBackward(QueryOf(c, part), KeysOf(c, part), PartOf(c.out, part, 2), PartOf(c.lse, part, 1),
                  PartOf(c.d_out, part, 2), to);
      return outputs;
    };
    ExpectInvariance(5, 3, spec.Describe() + " backward", backward, false);
  }
}

// The number of heads chooses how scores are computed: parts have all of them.
TEST(BatchInvariance, TpaThroughRanks) {
  for (const DType dtype : kTpaTypes) {
    const TpaRanksSpec spec = {
        .dtype = dtype, .batch = 5, .n = 70, .m = 131, .heads = 34, .q_rank = 6, .d = 64, .e = 20};
    const TpaRanksCase c(spec);
    const auto run = [&](const Part& part) {
      Outputs outputs;
      outputs.emplace_back("out", c.out, part, 2);
      Tpa(QueryOf(c, part), KeysOf(c, part), outputs[0].tensor.view());
      return outputs;
    };
    ExpectInvariance(5, 34, spec.Describe(), run, false);
  }
}

TEST(BatchInvariance, TpaDecodeRanks) {
  for (const DType dtype : kTpaTypes) {
    for (const std::int64_t heads : {3, 34}) {
      const TpaRanksSpec spec = {
          .dtype = dtype, .batch = 5, .m = 700, .heads = heads, .q_rank = 6, .d = 24, .e = 20};
      const TpaRanksCase c(spec);
      for (const TpaSplit split : kTpaSplits) {
        const auto run = [&](const Part& part) {
          Outputs outputs;
          outputs.emplace_back("out", c.out, part, 2);
          TpaDecode(QueryOf(c, part), KeysOf(c, part), outputs[0].tensor.view(), {}, {}, {}, split);
          return outputs;
        };
        ExpectInvariance(5, heads, spec.Describe(), run, false);
      }
    }
  }
}

}  // namespace
}  // namespace attnops::testing
