// From the C interface's structs to the C++ ones, and from exceptions to error codes.
#ifndef ATTNOPS_SRC_C_CONVERT_H_
#define ATTNOPS_SRC_C_CONVERT_H_

#include <cstdint>
#include <new>
#include <optional>
#include <string>

#include "attnops/c.h"
#include "attnops/error.h"
#include "attnops/precision.h"
#include "attnops/rotary_options.h"
#include "attnops/types.h"
#include "attnops/view.h"

namespace attnops::c {

// Keeps the text for attnops_last_error and returns the status.
attnops_status Fail(attnops_status status, const char* text);

// Runs f; an exception becomes a status. None may leave a function of the C interface.
template <typename F>
attnops_status Guard(const F& f) {
  try {
    f();
    return ATTNOPS_OK;
  } catch (const Error& error) {
    return Fail(ATTNOPS_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return Fail(ATTNOPS_OUT_OF_MEMORY, "attnops: out of memory");
  } catch (const std::exception& error) {
    return Fail(ATTNOPS_INTERNAL_ERROR, error.what());
  } catch (...) {
    return Fail(ATTNOPS_INTERNAL_ERROR, "attnops: an exception of no known type");
  }
}

// Converts the arguments of one call. A bad one throws Error that names the operator and it.
class Arguments {
 public:
  explicit Arguments(const char* op) : op_(op) {}

  // What a pointer that must be given points to.
  template <typename T>
  T& Given(const char* name, T* pointer) const {
    if (pointer == nullptr) throw Error(std::string(op_) + ": " + name + " is NULL");
    return *pointer;
  }

  TensorView Output(const char* name, const attnops_tensor* tensor) const;
  ConstTensorView Input(const char* name, const attnops_tensor* tensor) const {
    return Output(name, tensor);
  }
  // Without a value for NULL.
  std::optional<TensorView> OptionalOutput(const char* name, const attnops_tensor* tensor) const;
  std::optional<ConstTensorView> OptionalInput(const char* name,
                                               const attnops_tensor* tensor) const;
  std::optional<IntegerView> OptionalIntegers(const char* name,
                                              const attnops_integers* integers) const;
  Dims Sizes(const char* name, const attnops_dims& dims) const;

  // The number of an enumeration whose last value is `last`.
  template <typename E>
  E Choice(const char* name, std::int32_t value, E last) const {
    if (value < 0 || value > static_cast<std::int32_t>(last)) {
      throw Error(std::string(op_) + ": " + name + " is " + std::to_string(value) +
                  ", which is no known choice");
    }
    return static_cast<E>(value);
  }
  DType Type(const char* name, std::int32_t dtype) const {
    return Choice(name, dtype, DType::kBFloat16);
  }
  Activation Act(const char* name, const attnops_activation& act) const {
    return {Choice(name, act.kind, Activation::Kind::kSoftmax), act.dim};
  }
  // Without a value for ATTNOPS_PRECISION_DEFAULT.
  std::optional<Precision> OptionalPrecision(std::int32_t precision) const;
  RotaryOptions Rotary(const attnops_rotary_options& options) const;

 private:
  std::int32_t Rank(const char* name, std::int32_t rank) const;

  const char* op_;
};

// Options that are NULL are all zero.
template <typename T>
const T& OrDefault(const T* options) {
  static const T zero = {};
  return options != nullptr ? *options : zero;
}

inline std::optional<double> OptionalNumber(const double* number) {
  return number != nullptr ? std::optional<double>(*number) : std::nullopt;
}

}  // namespace attnops::c

#endif  // ATTNOPS_SRC_C_CONVERT_H_
