#include "attnops/version.h"

namespace attnops {

const char* Version() { return ATTNOPS_VERSION; }

}  // namespace attnops
