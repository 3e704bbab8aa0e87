// Bad input of every kind: an Error that names operator and argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attnops/md_lrpe_cosine.h"
#include "tests/support/errors.h"
#include "tests/support/guarded_tensor.h"

namespace attnops::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kBf16 = DType::kBFloat16;
constexpr std::int64_t kLimit = std::int64_t{1} << 31;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

enum class Pass { kForward, kBackward, kForwardWithTable, kBackwardWithTable };
using Passes = std::vector<Pass>;

const Passes kAllPasses = {Pass::kForward, Pass::kBackward, Pass::kForwardWithTable,
                           Pass::kBackwardWithTable};
const Passes kOnTheFly = {Pass::kForward, Pass::kBackward};
const Passes kWithTable = {Pass::kForwardWithTable, Pass::kBackwardWithTable};
const Passes kForwards = {Pass::kForward, Pass::kForwardWithTable};
const Passes kBackwards = {Pass::kBackward, Pass::kBackwardWithTable};

// A good call, to be spoilt. x is (2,2,7,6) with a grid of 2×3 behind 1 token, theta (2,3) and the
// table (2,5,3,2). The tensors are larger than that, so that a spoilt view never leaves them.
struct Call {
  Call() {
    for (GuardedTensor* input : {&x_memory, &theta_memory, &d_out_memory, &table_memory}) {
      input->Fill(std::vector<double>(kSize, 1));
    }
  }

  void Run(Pass pass) const {
    switch (pass) {
      case Pass::kForward:
        return MdLrpeCosine(x, theta, out, options);
      case Pass::kBackward:
        return MdLrpeCosineBackward(x, theta, d_out, dx, options);
      case Pass::kForwardWithTable:
        return MdLrpeCosineWithTable(x, table, out, options);
      case Pass::kBackwardWithTable:
        return MdLrpeCosineBackwardWithTable(x, table, d_out, dx, options);
    }
  }

  static constexpr std::int64_t kSize = 1000;
  GuardedTensor x_memory{kF32, {kSize}};
  GuardedTensor theta_memory{kF32, {kSize}};
  GuardedTensor d_out_memory{kF32, {kSize}};
  GuardedTensor table_memory{kF32, {kSize}};
  GuardedTensor out_memory{kF32, {kSize}};
  GuardedTensor dx_memory{kF32, {kSize}};
  ConstTensorView x{x_memory.view().data(), kF32, {2, 2, 7, 6}};
  ConstTensorView theta{theta_memory.view().data(), kF32, {2, 3}};
  ConstTensorView d_out{d_out_memory.view().data(), kF32, {2, 2, 7, 12}};
  ConstTensorView table{table_memory.view().data(), kF32, {2, 5, 3, 2}};
  TensorView out{out_memory.view().data(), kF32, {2, 2, 7, 12}};
  TensorView dx{dx_memory.view().data(), kF32, {2, 2, 7, 6}};
  MdLrpeCosineOptions options = {{2, 3}, 1, 0, {}};
};

using Spoil = std::function<void(Call&)>;

void ExpectErrors(const Passes& passes, const char* what, const std::string& word,
                  const Spoil& spoil) {
  for (const Pass pass : passes) {
    SCOPED_TRACE(what + std::string(", pass ") + std::to_string(static_cast<int>(pass)));
    Call call;
    spoil(call);
    ExpectErrorNaming("md_lrpe_cosine", word, [&] { call.Run(pass); });
    EXPECT_TRUE(call.out_memory.Untouched());
    EXPECT_TRUE(call.dx_memory.Untouched());
  }
}

void ExpectGood(const Passes& passes, const Spoil& change) {
  for (const Pass pass : passes) {
    Call call;
    change(call);
    EXPECT_NO_THROW(call.Run(pass)) << static_cast<int>(pass);
  }
}

// The shape of x and with it of everything that follows it.
void Reshape(Call& c, const Dims& shape) {
  Dims doubled = shape;
  if (shape.rank() > 0) doubled[shape.rank() - 1] *= 2;
  c.x = {c.x.data(), kF32, shape};
  c.dx = {c.dx.data(), kF32, shape};
  c.d_out = {c.d_out.data(), kF32, doubled};
  c.out = {c.out.data(), kF32, doubled};
}

// Everything but theta and the table in another type.
void Retype(Call& c, DType dtype) {
  c.x = {c.x.data(), dtype, c.x.shape()};
  c.dx = {c.dx.data(), dtype, c.dx.shape()};
  c.d_out = {c.d_out.data(), dtype, c.d_out.shape()};
  c.out = {c.out.data(), dtype, c.out.shape()};
}

// Six tokens in a row behind one, theta (2,6) and the table (2,6,6,2).
void MakeLine(Call& c) {
  c.options.shape = {6};
  c.theta = {c.theta.data(), kF32, {2, 6}};
  c.table = {c.table.data(), kF32, {2, 6, 6, 2}};
}

TEST(MdLrpeCosineErrors, TheUnspoiltCallIsGood) {
  ExpectGood(kAllPasses, [](Call&) {});
  ExpectGood(kAllPasses, MakeLine);
  ExpectGood(kAllPasses, [](Call& c) { Retype(c, kBf16); });
  ExpectGood(kOnTheFly, [](Call& c) {
    Retype(c, kBf16);
    c.theta = {c.theta.data(), kBf16, {2, 3}};
  });
}

TEST(MdLrpeCosineErrors, X) {
  ExpectErrors(kAllPasses, "rank 3", "x", [](Call& c) { Reshape(c, {2, 7, 6}); });
  ExpectErrors(kAllPasses, "rank 5", "x", [](Call& c) { Reshape(c, {1, 2, 2, 7, 6}); });
  ExpectErrors(kAllPasses, "rank 0", "x", [](Call& c) { Reshape(c, {}); });
  ExpectErrors(kAllPasses, "negative size", "x", [](Call& c) { Reshape(c, {-2, 2, 7, 6}); });
  ExpectErrors(kAllPasses, "features not contiguous", "x", [](Call& c) {
    c.x = {c.x.data(), kF32, c.x.shape(), {168, 84, 12, 2}};
  });
  ExpectErrors(kAllPasses, "broadcast features", "x", [](Call& c) {
    c.x = {c.x.data(), kF32, c.x.shape(), {84, 42, 6, 0}};
  });
  ExpectErrors(kAllPasses, "reversed features", "x", [](Call& c) {
    c.x = {static_cast<const float*>(c.x.data()) + 5, c.x.shape(), {84, 42, 6, -1}};
  });
  ExpectErrors(kAllPasses, "null", "x", [](Call& c) { c.x = {nullptr, kF32, c.x.shape()}; });
}

// Another grid, with a theta and a table that fit it.
void Regrid(Call& c, const Dims& shape, std::int64_t l) {
  std::int64_t rows = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) rows += shape[axis];
  c.options.shape = shape;
  c.options.l = l;
  c.theta = {c.theta.data(), kF32, {2, 6}};
  c.table = {c.table.data(), kF32, {2, rows, 6, 2}};
}

TEST(MdLrpeCosineErrors, ShapeAndPrefix) {
  const auto shape = [](const char* what, const std::string& word, const Dims& dims,
                        std::int64_t l) {
    ExpectErrors(kAllPasses, what, word, [&](Call& c) { Regrid(c, dims, l); });
  };
  shape("one token too few", "shape|x", {5}, 1);
  shape("one token too many", "shape|x", {7}, 1);
  shape("no prefix", "shape|x", {2, 3}, 0);
  shape("a longer prefix", "shape|x", {2, 3}, 2);
  shape("empty", "shape|x", {2, 0}, 6);
  shape("negative prefix", "l", {2, 4}, -1);
  shape("most negative prefix", "l", {2, 3}, kMin);
  shape("largest prefix", "shape|x|l", {2, 3}, kMax);
  ExpectErrors(kAllPasses, "wrong although x is empty", "shape|x", [](Call& c) {
    Reshape(c, {0, 2, 8, 6});
  });
  ExpectErrors(kAllPasses, "no axes", "shape", [](Call& c) { c.options.shape = {}; });
  // No table fits the rest.
  const auto no_table = [](const char* what, const std::string& word, const Dims& dims,
                           std::int64_t l) {
    ExpectErrors(kOnTheFly, what, word, [&](Call& c) { Regrid(c, dims, l); });
    ExpectErrors(kWithTable, what, word + "|table", [&](Call& c) {
      c.options.shape = dims;
      c.options.l = l;
    });
  };
  no_table("one negative size", "shape", {2, -3}, 13);
  no_table("two negative sizes", "shape", {-2, -3}, 1);
  no_table("a product that wraps to 4", "shape|x", {(std::int64_t{1} << 62) + 1, 2, 2}, 3);
  no_table("a product that wraps to 0", "shape|x", {std::int64_t{1} << 32, std::int64_t{1} << 32},
           7);
  no_table("the largest size", "shape|x", {kMax}, 1);
}

TEST(MdLrpeCosineErrors, Theta) {
  const auto theta = [](const char* what, DType dtype, const Dims& dims) {
    ExpectErrors(kOnTheFly, what, "theta", [&](Call& c) {
      c.theta = {c.theta.data(), dtype, dims};
    });
  };
  theta("rank 1", kF32, {3});
  theta("rank 3", kF32, {1, 2, 3});
  theta("3 heads", kF32, {3, 3});
  theta("no heads", kF32, {0, 3});
  theta("E·k < D", kF32, {2, 2});
  theta("no angles", kF32, {2, 0});
  theta("float16 with a float32 x", kF16, {2, 3});
  theta("negative size", kF32, {2, -3});
  ExpectErrors(kOnTheFly, "null", "theta", [](Call& c) { c.theta = {nullptr, kF32, {2, 3}}; });
  ExpectErrors(kOnTheFly, "float16 with a bfloat16 x", "theta", [](Call& c) {
    Retype(c, kBf16);
    c.theta = {c.theta.data(), kF16, {2, 3}};
  });
  ExpectErrors(kOnTheFly, "E·k < D in 1-d", "theta", [](Call& c) {
    MakeLine(c);
    c.theta = {c.theta.data(), kF32, {2, 5}};
  });
  ExpectGood(kOnTheFly, [](Call& c) { c.theta = {c.theta.data(), kF32, {1, 9}}; });
}

TEST(MdLrpeCosineErrors, TableAsInput) {
  const auto table = [](const char* what, DType dtype, const Dims& dims) {
    ExpectErrors(kWithTable, what, "table", [&](Call& c) {
      c.table = {c.table.data(), dtype, dims};
    });
  };
  table("rank 3", kF32, {5, 3, 2});
  table("rank 5", kF32, {1, 2, 5, 3, 2});
  table("3 heads", kF32, {3, 5, 3, 2});
  table("no heads", kF32, {0, 5, 3, 2});
  table("a row too few", kF32, {2, 4, 3, 2});
  table("a row too many", kF32, {2, 6, 3, 2});
  table("E·k < D", kF32, {2, 5, 2, 2});
  table("cosines only", kF32, {2, 5, 3, 1});
  table("cosines, sines and more", kF32, {2, 5, 3, 3});
  table("float16", kF16, {2, 5, 3, 2});
  table("bfloat16", kBf16, {2, 5, 3, 2});
  table("negative size", kF32, {2, 5, -3, 2});
  ExpectErrors(kWithTable, "null", "table", [](Call& c) {
    c.table = {nullptr, kF32, {2, 5, 3, 2}};
  });
  ExpectErrors(kWithTable, "of x's type", "table", [](Call& c) {
    Retype(c, kBf16);
    c.table = {c.table.data(), kBf16, {2, 5, 3, 2}};
  });
  ExpectErrors(kWithTable, "cosines apart from sines", "table", [](Call& c) {
    c.table = {c.table.data(), kF32, {2, 5, 3, 2}, {30, 6, 1, 3}};
  });
  ExpectGood(kWithTable, [](Call& c) { c.table = {c.table.data(), kF32, {1, 5, 9, 2}}; });
}

// What is wrong with a result of the right one's shape, by name, for out or dx.
std::vector<std::pair<const char*, TensorView>> WrongResults(const TensorView& good) {
  void* data = good.data();
  const std::int64_t d = good.shape(3);
  const Dims shape = good.shape();
  return {{"one row fewer", {data, kF32, {2, 2, 6, d}}},
          {"heads and length exchanged", {data, kF32, {2, 7, 2, d}}},
          {"half the features", {data, kF32, {2, 2, 7, d / 2}}},
          {"fewer axes", {data, kF32, {4, 7, d}}},
          {"another type", {data, kF16, shape}},
          {"features not contiguous", {data, kF32, shape, {28 * d, 14 * d, 2 * d, 2}}},
          {"null", {nullptr, kF32, shape}},
          {"broadcast batch", {data, kF32, shape, {0, 7 * d, d, 1}}},
          {"broadcast heads", {data, kF32, shape, {14 * d, 0, d, 1}}},
          {"broadcast sequence", {data, kF32, shape, {14 * d, 7 * d, 0, 1}}},
          {"rows overlap", {data, kF32, shape, {14 * d, 7 * d, d - 1, 1}}},
          {"batches overlap", {data, kF32, shape, {7 * d, 7 * d, d, 1}}}};
}

TEST(MdLrpeCosineErrors, Result) {
  for (const auto& [what, wrong] : WrongResults(Call().out)) {
    const TensorView view = wrong;
    ExpectErrors(kForwards, what, "out", [&](Call& c) {
      c.out = {view.data() == nullptr ? nullptr : c.out.data(), view.dtype(), view.shape(),
               view.strides()};
    });
  }
  for (const auto& [what, wrong] : WrongResults(Call().dx)) {
    const TensorView view = wrong;
    ExpectErrors(kBackwards, what, "dx", [&](Call& c) {
      c.dx = {view.data() == nullptr ? nullptr : c.dx.data(), view.dtype(), view.shape(),
              view.strides()};
    });
  }
  ExpectErrors(kForwards, "out as large as x", "out", [](Call& c) {
    c.out = {c.out.data(), kF32, c.x.shape()};
  });
  ExpectErrors(kBackwards, "dx as large as d_out", "dx", [](Call& c) {
    c.dx = {c.dx.data(), kF32, c.d_out.shape()};
  });
}

TEST(MdLrpeCosineErrors, DOut) {
  const auto d_out = [](const char* what, DType dtype, const Dims& dims) {
    ExpectErrors(kBackwards, what, "d_out", [&](Call& c) {
      c.d_out = {c.d_out.data(), dtype, dims};
    });
  };
  d_out("one row fewer", kF32, {2, 2, 6, 12});
  d_out("as large as x", kF32, {2, 2, 7, 6});
  d_out("fewer axes", kF32, {4, 7, 12});
  d_out("another type", kBf16, {2, 2, 7, 12});
  ExpectErrors(kBackwards, "broadcast features", "d_out", [](Call& c) {
    c.d_out = {c.d_out.data(), kF32, c.d_out.shape(), {168, 84, 12, 0}};
  });
  ExpectErrors(kBackwards, "null", "d_out", [](Call& c) {
    c.d_out = {nullptr, kF32, c.d_out.shape()};
  });
}

TEST(MdLrpeCosineErrors, Offset) {
  for (const std::int64_t offset : {kLimit + 1, -kLimit - 1, kMax, kMin}) {
    SCOPED_TRACE(offset);
    for (const std::string& word :
         {std::string("offset"), std::to_string(offset).substr(offset < 0 ? 1 : 0)}) {
      ExpectErrors(kOnTheFly, "too far", word, [=](Call& c) {
        MakeLine(c);
        c.options.offset = offset;
      });
    }
  }
  for (const std::int64_t offset : {std::int64_t{1}, std::int64_t{-1}, kLimit + 1}) {
    SCOPED_TRACE(offset);
    ExpectErrors(kOnTheFly, "in 2-d", "offset", [=](Call& c) { c.options.offset = offset; });
    ExpectErrors(kWithTable, "with a table", "offset", [=](Call& c) {
      MakeLine(c);
      c.options.offset = offset;
    });
    ExpectErrors(kWithTable, "with a table in 2-d", "offset",
                 [=](Call& c) { c.options.offset = offset; });
  }
  for (const std::int64_t offset : {kLimit, -kLimit}) {
    ExpectGood(kOnTheFly, [=](Call& c) {
      MakeLine(c);
      c.options.offset = offset;
    });
  }
}

TEST(MdLrpeCosineErrors, SoftmaxAxis) {
  for (const int dim : {0, 1, -3, -4, 4, -5, 100, std::numeric_limits<int>::min()}) {
    SCOPED_TRACE(dim);
    ExpectErrors(kAllPasses, "softmax", "softmax|dim|act",
                 [=](Call& c) { c.options.act = Activation::Softmax(dim); });
  }
  for (const int dim : {2, 3, -1, -2}) {
    ExpectGood(kAllPasses, [=](Call& c) { c.options.act = Activation::Softmax(dim); });
  }
  // The other activations ignore it.
  ExpectGood(kAllPasses, [](Call& c) { c.options.act = {Activation::Kind::kSilu, 17}; });
}

// A good call of LrpeTable, to be spoilt: theta (2,3), a grid of 2×3 and d = 6.
struct TableCall {
  TableCall() { theta_memory.Fill(std::vector<double>(kSize, 1)); }

  void Run() const { LrpeTable(theta, shape, d, table, offset); }

  static constexpr std::int64_t kSize = 300;
  GuardedTensor theta_memory{kF32, {kSize}};
  GuardedTensor table_memory{kF32, {kSize}};
  ConstTensorView theta{theta_memory.view().data(), kF32, {2, 3}};
  TensorView table{table_memory.view().data(), kF32, {2, 5, 3, 2}};
  Dims shape = {2, 3};
  std::int64_t d = 6;
  std::int64_t offset = 0;
};

void ExpectTableError(const char* what, const std::string& word,
                      const std::function<void(TableCall&)>& spoil) {
  SCOPED_TRACE(what);
  TableCall call;
  spoil(call);
  ExpectErrorNaming("lrpe_table", word, [&] { call.Run(); });
  EXPECT_TRUE(call.table_memory.Untouched());
}

TEST(MdLrpeCosineErrors, TheUnspoiltTableIsGood) {
  EXPECT_NO_THROW(TableCall().Run());
  TableCall line;
  line.shape = {5};
  line.d = 3;
  line.offset = kLimit;
  EXPECT_NO_THROW(line.Run());
  line.offset = -kLimit;
  EXPECT_NO_THROW(line.Run());
}

TEST(MdLrpeCosineErrors, ThetaOfATable) {
  const auto theta = [](const char* what, const Dims& dims) {
    ExpectTableError(what, "theta", [&](TableCall& c) { c.theta = {c.theta.data(), kF32, dims}; });
  };
  theta("rank 1", {3});
  theta("rank 3", {1, 2, 3});
  theta("negative size", {2, -3});
  ExpectTableError("null", "theta", [](TableCall& c) { c.theta = {nullptr, kF32, {2, 3}}; });
  ExpectTableError("E·k < d", "theta|d", [](TableCall& c) { c.d = 7; });
  ExpectTableError("E·k < d in 1-d", "theta|d", [](TableCall& c) {
    c.shape = {5};
    c.d = 4;
  });
  ExpectTableError("negative d", "d", [](TableCall& c) { c.d = -1; });
  ExpectTableError("the largest d", "theta|d", [](TableCall& c) { c.d = kMax; });
}

TEST(MdLrpeCosineErrors, ShapeOfATable) {
  ExpectTableError("no axes", "shape", [](TableCall& c) {
    c.shape = {};
    c.d = 0;
  });
  ExpectTableError("negative size", "shape", [](TableCall& c) { c.shape = {-2, 7}; });
  ExpectTableError("negative size in 1-d", "shape", [](TableCall& c) { c.shape = {-5}; });
}

TEST(MdLrpeCosineErrors, TableAsResult) {
  const auto table = [](const char* what, DType dtype, const Dims& dims) {
    ExpectTableError(what, "table", [&](TableCall& c) { c.table = {c.table.data(), dtype, dims}; });
  };
  table("rank 3", kF32, {5, 3, 2});
  table("rank 5", kF32, {1, 2, 5, 3, 2});
  table("3 heads", kF32, {3, 5, 3, 2});
  table("1 head for two", kF32, {1, 5, 3, 2});
  table("a row too few", kF32, {2, 4, 3, 2});
  table("a row for each token", kF32, {2, 6, 3, 2});
  table("another E", kF32, {2, 5, 4, 2});
  table("cosines only", kF32, {2, 5, 3, 1});
  table("bfloat16", kBf16, {2, 5, 3, 2});
  const auto strides = [](const char* what, const Dims& strides) {
    ExpectTableError(what, "table", [&](TableCall& c) {
      c.table = {c.table.data(), kF32, {2, 5, 3, 2}, strides};
    });
  };
  strides("cosines apart from sines", {30, 6, 1, 3});
  strides("broadcast heads", {0, 6, 2, 1});
  strides("broadcast rows", {30, 0, 2, 1});
  strides("rows overlap", {30, 5, 2, 1});
  ExpectTableError("null", "table", [](TableCall& c) { c.table = {nullptr, kF32, {2, 5, 3, 2}}; });
}

TEST(MdLrpeCosineErrors, OffsetOfATable) {
  for (const std::int64_t offset : {kLimit + 1, -kLimit - 1, kMax, kMin}) {
    SCOPED_TRACE(offset);
    ExpectTableError("too far", "offset", [=](TableCall& c) {
      c.shape = {5};
      c.d = 3;
      c.offset = offset;
    });
  }
  ExpectTableError("in 2-d", "offset", [](TableCall& c) { c.offset = 1; });
}

}  // namespace
}  // namespace attnops::testing
