// md_lrpe_cosine on strided views and in place.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/ops/md_lrpe_cosine_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

void CheckStrides(const CosineSpec& spec) {
  CosineCase c(spec);
  OnEveryTarget([&] { c.CheckAll(); });
}

CosineSpec Spec(DType dtype, const Activation& act, std::int64_t features = 19) {
  return {.dtype = dtype,
          .batch = 2,
          .heads = 3,
          .shape = {3, 7},
          .l = 2,
          .features = features,
          .theta_heads = 3,
          .extra = 1,
          .act = act};
}

// With less than a vector, whole vectors and one more, in turns.
template <typename Body>
void ForEachTypeAndPath(const Body& body) {
  static constexpr std::int64_t kFeatures[] = {3, 32, 65};
  std::size_t turn = 0;
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosinePaths) {
      body(Spec(dtype, act, kFeatures[turn % 3]));
      body(Spec(dtype, act, kFeatures[(turn + 1) % 3]));
      ++turn;
    }
  }
}

// Contiguous in the order of the axes, or with gaps.
Dims OfX(const CosineSpec& spec, const std::vector<int>& order, int row_gap, int axis_gap) {
  return PermutedStrides(spec.XShape(), order, row_gap, axis_gap);
}
Dims OfOut(const CosineSpec& spec, const std::vector<int>& order, int row_gap, int axis_gap) {
  return PermutedStrides(spec.OutShape(), order, row_gap, axis_gap);
}

// (B,L,H,D) seen as (B,H,L,D), order {0,2,1}, and every other order of the axes, the same or
// another for the results, with and without gaps.
TEST(MdLrpeCosineStrides, AxesInAnyOrder) {
  std::vector<int> order = {0, 1, 2};
  do {
    ForEachTypeAndPath([&](CosineSpec spec) {
      const std::vector<int> other = {order[2], order[0], order[1]};
      spec.x_strides = OfX(spec, order, 0, 0);
      spec.out_strides = OfOut(spec, order, 0, 0);
      spec.d_out_strides = OfOut(spec, other, 0, 0);
      spec.dx_strides = OfX(spec, order, 0, 0);
      CheckStrides(spec);
      spec.d_out_strides = OfOut(spec, order, 3, 5);
      spec.dx_strides = OfX(spec, other, 7, 1);
      spec.out_strides = OfOut(spec, other, 1, 2);
      CheckStrides(spec);
    });
  } while (std::next_permutation(order.begin(), order.end()));
}

// Slices of a larger buffer at every alignment: rows have a gap and do not start at a vector's
// boundary.
TEST(MdLrpeCosineStrides, SlicesOfALargerBuffer) {
  for (int shift = 1; shift < 20; shift += 5) {
    ForEachTypeAndPath([&](CosineSpec spec) {
      spec.shift = shift;
      spec.x_strides = OfX(spec, {0, 1, 2}, 1, 0);
      spec.d_out_strides = OfOut(spec, {0, 1, 2}, 16, 0);
      spec.out_strides = OfOut(spec, {0, 1, 2}, shift, 9);
      spec.dx_strides = OfX(spec, {0, 1, 2}, 3, 2);
      CheckStrides(spec);
    });
  }
}

// Every choice of broadcast axes of the inputs.
TEST(MdLrpeCosineStrides, BroadcastInputs) {
  for (int mask = 1; mask < 8; ++mask) {
    ForEachTypeAndPath([&](CosineSpec spec) {
      Dims x = OfX(spec, {0, 1, 2}, 0, 0);
      Dims d_out = OfOut(spec, {0, 1, 2}, 0, 0);
      for (int axis = 0; axis < 3; ++axis) (mask >> axis & 1 ? x : d_out)[axis] = 0;
      spec.x_strides = x;
      spec.d_out_strides = d_out;
      CheckStrides(spec);
    });
  }
}

// Every choice of reversed axes.
TEST(MdLrpeCosineStrides, NegativeStrides) {
  for (int mask = 1; mask < 8; ++mask) {
    ForEachTypeAndPath([&](CosineSpec spec) {
      Dims x = OfX(spec, {0, 1, 2}, 2, 0);
      Dims out = OfOut(spec, {0, 1, 2}, 2, 0);
      Dims dx = x;
      Dims d_out = out;
      for (int axis = 0; axis < 3; ++axis) {
        for (Dims* strides : {mask >> axis & 1 ? &x : &dx, mask >> axis & 1 ? &out : &d_out}) {
          (*strides)[axis] = -(*strides)[axis];
        }
      }
      spec.x_strides = x;
      spec.d_out_strides = d_out;
      spec.out_strides = out;
      spec.dx_strides = dx;
      CheckStrides(spec);
    });
  }
}

TEST(MdLrpeCosineStrides, Theta) {
  ForEachTypeAndPath([](CosineSpec spec) {
    for (const std::int64_t stride :
         {spec.ThetaFeatures() + 5, std::int64_t{0}, std::int64_t{-70}}) {
      spec.theta_strides = Dims{stride, 1};
      CheckStrides(spec);
    }
  });
}

// The heads and rows of a table, written and read: gaps, reversed, in the other order.
TEST(MdLrpeCosineStrides, Table) {
  ForEachTypeAndPath([](CosineSpec spec) {
    const Dims shape = spec.TableShape();
    const std::int64_t row = 2 * shape[2];
    for (const Dims& strides :
         {Dims{shape[1] * (row + 6), row + 6, 2, 1}, Dims{row, shape[0] * row, 2, 1},
          Dims{-shape[1] * row, row, 2, 1}, Dims{shape[1] * row + 1, -row, 2, 1}}) {
      spec.table_strides = strides;
      CheckStrides(spec);
    }
  });
}

// A table that all heads share through a stride of 0, which only an input may have.
TEST(MdLrpeCosineStrides, BroadcastTable) {
  ForEachTypeAndPath([](CosineSpec spec) {
    const Dims shape = spec.TableShape();
    spec.theta_strides = Dims{0, 1};
    spec.table_strides = Dims{0, 2 * shape[2], 2, 1};
    CosineCase c(spec);
    c.table.Fill(c.Reference().Table(c.theta.Values()));
    OnEveryTarget([&] {
      c.CheckForward(Angles::kTable);
      c.CheckBackward(Angles::kTable);
    });
  });
}

// The stride of an axis of size 1 has no meaning, not even 0 in a result.
TEST(MdLrpeCosineStrides, AxesOfSizeOne) {
  for (const std::int64_t stride :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{-1}, std::int64_t{1} << 60}) {
    for (const Activation& act : kCosinePaths) {
      for (int axis = 0; axis < 4; ++axis) {
        CosineSpec spec = Spec(DType::kFloat32, act);
        if (axis == 0) spec.batch = 1;
        if (axis == 1) spec.heads = spec.theta_heads = 1;
        if (axis == 2) spec.shape = {1, 1};
        if (axis == 2) spec.l = 0;
        if (axis == 3) spec.features = 1;
        Dims x = OfX(spec, {0, 1, 2}, 0, 0);
        Dims out = OfOut(spec, {0, 1, 2}, 0, 0);
        x[axis] = stride;
        if (axis < 3) out[axis] = stride;
        spec.x_strides = spec.dx_strides = x;
        spec.d_out_strides = spec.out_strides = out;
        CheckStrides(spec);
      }
    }
  }
}

TEST(MdLrpeCosineStrides, GradientInPlaceOfX) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kCosineActivations) {
      for (const Dims& shape : {Dims{1}, Dims{5, 7}, Dims{257}, Dims{3, 4, 15}}) {
        CosineSpec spec = Spec(dtype, act);
        spec.shape = shape;
        for (const bool transposed : {false, true}) {
          if (transposed) spec.x_strides = OfX(spec, {0, 2, 1}, 3, 0);
          if (transposed) spec.d_out_strides = OfOut(spec, {2, 1, 0}, 1, 4);
          CosineCase c(spec);
          OnEveryTarget([&] {
            c.BuildTable();
            for (const Angles angles : kBothAngles) c.CheckBackwardInPlace(angles);
          });
        }
      }
    }
  }
}

// Results of more than 4 MB are written past the caches where every row of them is aligned: they
// are right, and the same where an axis or the start is not aligned.
TEST(MdLrpeCosineStrides, LargeResultsAtAnyAlignment) {
  for (const DType dtype : kAllTypes) {
    CosineSpec spec = Spec(dtype, Activation::None(), 64);
    spec.heads = spec.theta_heads = 4;
    spec.shape = {(std::int64_t{4} << 20) / (2 * 4 * 64 * SizeOf(dtype)) + 5};
    CosineCase c(spec);
    OnEveryTarget([&] {
      c.CheckForward();
      c.CheckBackward();
      for (const UnalignedLayout& layout : UnalignedLayouts(spec.OutShape())) {
        SCOPED_TRACE("forward, " + layout.name + " " + spec.Describe());
        GuardedTensor out(dtype, spec.OutShape(), layout.strides, layout.shift);
        MdLrpeCosine(c.x.view(), c.theta.view(), out.view(), spec.Options());
        EXPECT_TRUE(out.AllWritten());
        EXPECT_TRUE(out.Bits() == c.out.Bits());
      }
      for (const UnalignedLayout& layout : UnalignedLayouts(spec.XShape())) {
        SCOPED_TRACE("backward, " + layout.name + " " + spec.Describe());
        GuardedTensor dx(dtype, spec.XShape(), layout.strides, layout.shift);
        MdLrpeCosineBackward(c.x.view(), c.theta.view(), c.d_out.view(), dx.view(), spec.Options());
        EXPECT_TRUE(dx.AllWritten());
        EXPECT_TRUE(dx.Bits() == c.dx.Bits());
      }
    });
  }
}

// Nothing, or the right thing: a theta or table whose features are not contiguous may be refused.
TEST(MdLrpeCosineStrides, GapsBetweenTheFeaturesOfTheta) {
  CosineSpec spec = Spec(DType::kFloat32, Activation::None());
  spec.theta_strides = Dims{2 * spec.ThetaFeatures(), 2};
  CosineCase c(spec);
  try {
    c.Forward();
  } catch (const Error&) {
    EXPECT_TRUE(c.out.Untouched());
    return;
  }
  c.CheckForward();
}

TEST(MdLrpeCosineStrides, GapsBetweenTheFeaturesOfATable) {
  CosineSpec spec = Spec(DType::kFloat32, Activation::None());
  const Dims shape = spec.TableShape();
  spec.table_strides = Dims{shape[1] * shape[2] * 3, shape[2] * 3, 3, 1};
  CosineCase c(spec);
  c.table.Fill(c.Reference().Table(c.theta.Values()));
  try {
    c.Forward(Angles::kTable);
  } catch (const Error&) {
    EXPECT_TRUE(c.out.Untouched());
    return;
  }
  c.CheckForward(Angles::kTable);
}

}  // namespace
}  // namespace attnops::testing
