#include "src/core/checks.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "src/core/overlap.h"

namespace attnops {
namespace {

bool AreSame(const Dims& a, const Dims& b) {
  bool same = a.rank() == b.rank();
  for (int i = 0; same && i < a.rank(); ++i) same = a[i] == b[i];
  return same;
}

bool IsKnown(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// Whether the bytes of all elements, and those from the first to the last one in memory, can be
// counted.
bool IsAddressable(const ConstTensorView& view) {
  using Wide = __int128;
  constexpr Wide kMost = std::numeric_limits<std::int64_t>::max();
  const Wide element = SizeOf(view.dtype());
  Wide elements = 1;
  Wide span = 1;
  for (int i = 0; i < view.rank(); ++i) {
    const Wide stride = view.stride(i);
    elements *= view.shape(i);
    span += (stride < 0 ? -stride : stride) * (view.shape(i) - 1);
    if (elements * element > kMost || span * element > kMost) return false;
  }
  return true;
}

bool IsEmpty(const ConstTensorView& view) {
  for (int i = 0; i < view.rank(); ++i) {
    if (view.shape(i) == 0) return true;
  }
  return false;
}

}  // namespace

std::string ToString(const Dims& dims) {
  std::ostringstream text;
  text << '(';
  for (int i = 0; i < dims.rank(); ++i) text << (i == 0 ? "" : ", ") << dims[i];
  text << ')';
  return text.str();
}

void CheckView(const char* op, const char* name, const ConstTensorView& view) {
  if (!IsKnown(view.dtype())) {
    Fail(op, name, " has no known type (", static_cast<int>(view.dtype()),
         "); it must be float32, float16 or bfloat16");
  }
  for (int i = 0; i < view.rank(); ++i) {
    if (view.shape(i) < 0) {
      Fail(op, name, " has a negative size; its shape is ", ToString(view.shape()));
    }
  }
  if (IsEmpty(view)) return;
  if (!IsAddressable(view)) {
    Fail(op, name, " has more elements than memory can hold; its shape is ", ToString(view.shape()),
         ", its strides are ", ToString(view.strides()));
  }
  if (view.data() == nullptr) {
    Fail(op, name, " has no data; its shape is ", ToString(view.shape()));
  }
  const int last = view.rank() - 1;
  if (last >= 0 && view.shape(last) > 1 && view.stride(last) != 1) {
    Fail(op, name, " must have a contiguous last axis (stride 1); its strides are ",
         ToString(view.strides()));
  }
}

void CheckOutput(const char* op, const char* name, const TensorView& view) {
  CheckView(op, name, view);
  if (IsEmpty(view)) return;
  // Sorted by stride, each axis must step over all that the smaller ones span.
  struct Axis {
    std::int64_t stride;
    std::int64_t size;
  };
  std::vector<Axis> axes;
  for (int i = 0; i < view.rank(); ++i) {
    if (view.shape(i) > 1) axes.push_back({std::abs(view.stride(i)), view.shape(i)});
  }
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t span = 1;
  for (const Axis& axis : axes) {
    if (axis.stride < span) {
      Fail(op, name, " must not overlap itself; its shape is ", ToString(view.shape()),
           ", its strides are ", ToString(view.strides()));
    }
    span += axis.stride * (axis.size - 1);
  }
}

void CheckApart(const char* op, const char* name, const TensorView& view, const char* other_name,
                const ConstTensorView& other) {
  if (ShareMemory(view, other)) Fail(op, name, " must not share memory with ", other_name);
}

namespace {

// The same elements at the same addresses.
bool AreSameView(const ConstTensorView& a, const ConstTensorView& b) {
  bool same = a.data() == b.data() && a.dtype() == b.dtype() && AreSame(a.shape(), b.shape());
  for (int i = 0; same && i < a.rank(); ++i) same = a.shape(i) <= 1 || a.stride(i) == b.stride(i);
  return same;
}

}  // namespace

void CheckApartOrSame(const char* op, const char* name, const TensorView& view,
                      const char* other_name, const ConstTensorView& other) {
  if (!AreSameView(view, other) && ShareMemory(view, other)) {
    Fail(op, name, " must be ", other_name, " itself or not share memory with it");
  }
}

void CheckRank(const char* op, const char* name, const ConstTensorView& view, int rank,
               const char* axes) {
  if (view.rank() != rank) {
    Fail(op, name, " must have ", rank, " axes ", axes, "; its shape is ", ToString(view.shape()));
  }
  CheckView(op, name, view);
}

void CheckAxis(const char* op, const char* name, const ConstTensorView& view, int axis,
               const char* what, const char* other_name, std::int64_t expected) {
  if (view.shape(axis) != expected) {
    Fail(op, name, " has ", view.shape(axis), " ", what, "; ", other_name, " has ", expected);
  }
}

void CheckShape(const char* op, const char* name, const ConstTensorView& view,
                const Dims& expected) {
  if (!AreSame(view.shape(), expected)) {
    Fail(op, name, " must have the shape ", ToString(expected), "; it has ",
         ToString(view.shape()));
  }
}

void CheckSameShape(const char* op, const char* name, const ConstTensorView& view,
                    const char* other_name, const ConstTensorView& other) {
  if (!AreSame(view.shape(), other.shape())) {
    Fail(op, name, " must have the shape of ", other_name, ", ", ToString(other.shape()),
         "; it has ", ToString(view.shape()));
  }
}

void CheckSameType(const char* op, const char* name, const ConstTensorView& view,
                   const char* other_name, const ConstTensorView& other) {
  if (view.dtype() != other.dtype()) {
    Fail(op, name, " must have the type of ", other_name, ", ", Name(other.dtype()), "; it is ",
         Name(view.dtype()));
  }
}

void CheckTheta(const char* op, const ConstTensorView& theta, const char* x_name, DType dtype,
                std::int64_t heads) {
  if (theta.rank() != 2) {
    Fail(op, "theta must have 2 axes (heads, angles); its shape is ", ToString(theta.shape()));
  }
  CheckView(op, "theta", theta);
  if (theta.dtype() != dtype && theta.dtype() != DType::kFloat32) {
    Fail(op, "theta must be float32 or have the type of ", x_name, ", ", Name(dtype), "; it is ",
         Name(theta.dtype()));
  }
  if (theta.shape(0) != heads && theta.shape(0) != 1) {
    Fail(op, "theta has ", theta.shape(0), " heads; ", x_name, " has ", heads, " (expected ", heads,
         " or 1)");
  }
}

void CheckOffset(const char* op, std::int64_t offset) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  if (offset < -kLimit || offset > kLimit) {
    Fail(op, "offset must be within ±", kLimit, "; it is ", offset);
  }
}

SoftmaxAxis CheckActivation(const char* op, const char* act_name, const char* dim_name,
                            const Activation& act, int rank, int sequence_axis) {
  const int kind = static_cast<int>(act.kind);
  if (kind < 0 || kind > static_cast<int>(Activation::Kind::kSoftmax)) {
    Fail(op, act_name, " is no known activation (", kind, ")");
  }
  if (act.kind != Activation::Kind::kSoftmax) return SoftmaxAxis::kNone;
  const int dim = act.dim < 0 ? act.dim + rank : act.dim;
  if (dim == rank - 1) return SoftmaxAxis::kFeatures;
  if (dim == sequence_axis) return SoftmaxAxis::kSequence;
  Fail(op, dim_name, " of the softmax must be ", rank - 1, " (features) or ", sequence_axis,
       " (sequence) for ", rank, " axes; it is ", act.dim);
}

}  // namespace attnops
