// lrpe_rotate on strided views and in place.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/ops/lrpe_rotate_case.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

// One activation for each way through a kernel.
const std::vector<Activation> kPaths = {Activation::None(), Activation::Silu(),
                                        Activation::Softmax(-1), Activation::Softmax(1)};

void CheckBothPasses(const RotateSpec& spec) {
  RotateCase c(spec);
  OnEveryTarget([&] {
    c.CheckForward();
    c.CheckBackward();
  });
}

RotateSpec Spec(DType dtype, const Activation& act, std::int64_t features = 38) {
  return {.dtype = dtype,
          .batch = 3,
          .length = 35,
          .heads = 2,
          .features = features,
          .theta_heads = 2,
          .theta_features = features / 2,
          .offset = 11,
          .act = act};
}

template <typename Body>
void ForEachTypeAndPath(const Body& body) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kPaths) {
      for (const std::int64_t features : {6, 64, 130}) body(Spec(dtype, act, features));
    }
  }
}

// (B,H,N,D) seen as (B,N,H,D) and every other order of the axes, the same or another for the
// result, with and without gaps.
TEST(LrpeRotateStrides, AxesInAnyOrder) {
  std::vector<int> order = {0, 1, 2};
  do {
    ForEachTypeAndPath([&](RotateSpec spec) {
      const std::vector<int> other = {order[2], order[0], order[1]};
      spec.x_strides = PermutedStrides(spec.Shape(), order, 0, 0);
      spec.d_out_strides = PermutedStrides(spec.Shape(), other, 0, 0);
      spec.out_strides = PermutedStrides(spec.Shape(), order, 0, 0);
      CheckBothPasses(spec);
      spec.d_out_strides = PermutedStrides(spec.Shape(), order, 3, 5);
      spec.out_strides = PermutedStrides(spec.Shape(), other, 7, 1);
      CheckBothPasses(spec);
    });
  } while (std::next_permutation(order.begin(), order.end()));
}

// Slices of a larger buffer at every alignment: rows have a gap and do not start at a vector's
// boundary.
TEST(LrpeRotateStrides, SlicesOfALargerBuffer) {
  for (int shift = 0; shift < 20; shift += 3) {
    ForEachTypeAndPath([&](RotateSpec spec) {
      spec.shift = shift;
      spec.x_strides = PermutedStrides(spec.Shape(), {0, 1, 2}, 1, 0);
      spec.d_out_strides = PermutedStrides(spec.Shape(), {0, 1, 2}, 16, 0);
      spec.out_strides = PermutedStrides(spec.Shape(), {0, 1, 2}, shift, 9);
      CheckBothPasses(spec);
    });
  }
}

// Every choice of broadcast axes of the inputs.
TEST(LrpeRotateStrides, BroadcastInputs) {
  for (int mask = 1; mask < 8; ++mask) {
    ForEachTypeAndPath([&](RotateSpec spec) {
      Dims strides = PermutedStrides(spec.Shape(), {0, 1, 2}, 0, 0);
      Dims opposite = strides;
      for (int axis = 0; axis < 3; ++axis) (mask >> axis & 1 ? strides : opposite)[axis] = 0;
      spec.x_strides = strides;
      spec.d_out_strides = opposite;
      CheckBothPasses(spec);
    });
  }
}

// Every choice of reversed axes.
TEST(LrpeRotateStrides, NegativeStrides) {
  for (int mask = 1; mask < 8; ++mask) {
    ForEachTypeAndPath([&](RotateSpec spec) {
      Dims strides = PermutedStrides(spec.Shape(), {0, 1, 2}, 2, 0);
      Dims opposite = strides;
      for (int axis = 0; axis < 3; ++axis) {
        Dims& reversed = mask >> axis & 1 ? strides : opposite;
        reversed[axis] = -reversed[axis];
      }
      spec.x_strides = strides;
      spec.d_out_strides = opposite;
      spec.out_strides = opposite;
      CheckBothPasses(spec);
    });
  }
}

TEST(LrpeRotateStrides, Theta) {
  ForEachTypeAndPath([](RotateSpec spec) {
    for (const std::int64_t stride :
         {spec.theta_features + 5, std::int64_t{0}, std::int64_t{-70}}) {
      spec.theta_strides = Dims{stride, 1};
      CheckBothPasses(spec);
    }
    // (H,1): the stride of an axis of size 1 has no meaning.
    spec.theta_features = 1;
    for (const std::int64_t stride : {7, 1, 0, -3}) {
      spec.theta_strides = Dims{stride, 100};
      CheckBothPasses(spec);
    }
  });
}

// The stride of an axis of size 1 has no meaning, not even 0 in a result.
TEST(LrpeRotateStrides, AxesOfSizeOne) {
  for (const std::int64_t stride :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{-1}, std::int64_t{1} << 60}) {
    for (const Activation& act : kPaths) {
      for (int axis = 0; axis < 3; ++axis) {
        RotateSpec spec = Spec(DType::kFloat32, act);
        (axis == 0 ? spec.batch : axis == 1 ? spec.length : spec.heads) = 1;
        if (axis == 2) spec.theta_heads = 1;
        Dims strides = PermutedStrides(spec.Shape(), {0, 1, 2}, 0, 0);
        strides[axis] = stride;
        spec.x_strides = spec.d_out_strides = spec.out_strides = strides;
        CheckBothPasses(spec);
      }
    }
  }
}

TEST(LrpeRotateStrides, ThreeAxes) {
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kPaths) {
      RotateSpec spec = Spec(dtype, act);
      spec.heads = spec.theta_heads = 1;
      spec.three_axes = true;
      spec.x_strides = Dims{40, 3 * 40, 1};
      spec.d_out_strides = Dims{38, 0, 1};
      spec.out_strides = Dims{-39, 3 * 39, 1};
      CheckBothPasses(spec);
    }
  }
}

TEST(LrpeRotateStrides, InPlace) {
  const auto check = [](const RotateSpec& spec) {
    RotateCase c(spec);
    OnEveryTarget([&] {
      c.CheckForwardInPlace();
      c.CheckBackwardInPlaceOfX();
      c.CheckBackwardInPlaceOfDOut();
    });
  };
  for (const DType dtype : kAllTypes) {
    for (const Activation& act : kDistinctActivations) {
      for (const std::int64_t length : {1, 33, 257, 700}) {
        RotateSpec spec = Spec(dtype, act);
        spec.length = length;
        check(spec);
        spec.x_strides = PermutedStrides(spec.Shape(), {0, 2, 1}, 3, 0);
        spec.d_out_strides = PermutedStrides(spec.Shape(), {2, 1, 0}, 1, 4);
        check(spec);
      }
    }
  }
}

// Results of more than 4 MB are written past the caches where every row of them is aligned: they
// are right, and the same where an axis or the start is not aligned.
TEST(LrpeRotateStrides, LargeResultsAtAnyAlignment) {
  for (const DType dtype : kAllTypes) {
    RotateSpec spec = Spec(dtype, Activation::None(), 64);
    spec.batch = 2;
    spec.heads = spec.theta_heads = 4;
    spec.length = (std::int64_t{4} << 20) / (2 * 4 * 64 * SizeOf(dtype)) + 5;
    RotateCase c(spec);
    OnEveryTarget([&] {
      c.CheckForward();
      const std::vector<std::uint32_t> forward = c.out.Bits();
      c.CheckBackward();
      const std::vector<std::uint32_t> backward = c.out.Bits();
      for (const UnalignedLayout& layout : UnalignedLayouts(spec.Shape())) {
        SCOPED_TRACE(layout.name + " " + spec.Describe());
        GuardedTensor out(dtype, spec.Shape(), layout.strides, layout.shift);
        LrpeRotate(c.x.view(), c.theta.view(), out.view(), spec.Options());
        EXPECT_TRUE(out.AllWritten());
        EXPECT_TRUE(out.Bits() == forward);
        out.Poison();
        LrpeRotateBackward(c.x.view(), c.theta.view(), c.d_out.view(), out.view(), spec.Options());
        EXPECT_TRUE(out.AllWritten());
        EXPECT_TRUE(out.Bits() == backward);
      }
    });
  }
}

// Nothing, or the right thing: a theta whose features are not contiguous may be refused.
TEST(LrpeRotateStrides, ThetaWithGapsBetweenFeatures) {
  RotateSpec spec = Spec(DType::kFloat32, Activation::None());
  spec.theta_strides = Dims{2 * spec.theta_features, 2};
  RotateCase c(spec);
  try {
    c.Forward();
  } catch (const Error&) {
    EXPECT_TRUE(c.out.Untouched());
    return;
  }
  c.CheckForward();
}

}  // namespace
}  // namespace attnops::testing
