// Checks of arguments and the texts of their errors.
#ifndef ATTNOPS_SRC_CORE_CHECKS_H_
#define ATTNOPS_SRC_CORE_CHECKS_H_

#include <cstdint>
#include <sstream>
#include <string>

#include "attnops/error.h"
#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops {

// Throws Error with "<op>: " and the texts, joined.
template <typename... Texts>
[[noreturn]] void Fail(const char* op, const Texts&... texts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << texts);
  throw Error(text.str());
}

// "(2, 3, 4)"
std::string ToString(const Dims& dims);

// An input or output of an operator: a known type, no negative size, no more elements than memory
// can hold, a data pointer unless it is empty, and a contiguous last axis if there are elements.
void CheckView(const char* op, const char* name, const ConstTensorView& view);

// An output: CheckView, and no two of its elements share memory.
void CheckOutput(const char* op, const char* name, const TensorView& view);

// An output shares no memory with another tensor of the call.
void CheckApart(const char* op, const char* name, const TensorView& view, const char* other_name,
                const ConstTensorView& other);
// The output shares no memory with the other tensor or is that tensor: same address, shape and
// strides.
void CheckApartOrSame(const char* op, const char* name, const TensorView& view,
                      const char* other_name, const ConstTensorView& other);

// CheckView, and this many axes; `axes` names them: "(B,H,N,D)".
void CheckRank(const char* op, const char* name, const ConstTensorView& view, int rank,
               const char* axes);

// An axis has `expected` elements, as many `what` ("heads") as the argument `other_name`.
void CheckAxis(const char* op, const char* name, const ConstTensorView& view, int axis,
               const char* what, const char* other_name, std::int64_t expected);

// An output or a kept tensor has the shape `expected`.
void CheckShape(const char* op, const char* name, const ConstTensorView& view,
                const Dims& expected);

void CheckSameShape(const char* op, const char* name, const ConstTensorView& view,
                    const char* other_name, const ConstTensorView& other);
void CheckSameType(const char* op, const char* name, const ConstTensorView& view,
                   const char* other_name, const ConstTensorView& other);

// theta (heads or 1, angles), float32 or of the type `dtype` of the operator's tensor `x_name`.
void CheckTheta(const char* op, const ConstTensorView& theta, const char* x_name, DType dtype,
                std::int64_t heads);

// Positions are exact for offsets within ±2^31.
void CheckOffset(const char* op, std::int64_t offset);

// The axis of a softmax.
enum class SoftmaxAxis { kNone, kFeatures, kSequence };

// Which axis a softmax runs along: an error unless `act` (an argument called `act_name`) is one of
// its kinds, and its dim (called `dim_name`) is the last axis or `sequence_axis` of a tensor of
// `rank` axes.
SoftmaxAxis CheckActivation(const char* op, const char* act_name, const char* dim_name,
                            const Activation& act, int rank, int sequence_axis);

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_CHECKS_H_
