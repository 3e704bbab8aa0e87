// Angles as binary fractions of a turn.
//
// An angle position·theta matters modulo 2π only. With theta/(2π) modulo 1 held
// as a 64-bit fraction F, the product position·F in wrapping integer arithmetic
// is that angle modulo one turn: nothing is lost to the size of the position.
// F is within half a unit of 2^-64 turns, so a position of 2^32 is off by at
// most 2^-33 turns, 7.3e-10 radians.
#ifndef ATTNOPS_SRC_POSITIONS_TURNS_H_
#define ATTNOPS_SRC_POSITIONS_TURNS_H_

#include <cstdint>

namespace attnops {

// theta/(2π) modulo 1 in units of 2^-64, for any finite theta; 0 otherwise.
std::uint64_t TurnsFromTheta(float theta);

}  // namespace attnops

#endif  // ATTNOPS_SRC_POSITIONS_TURNS_H_
