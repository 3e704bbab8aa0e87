// attnops: fused attention operators for CPUs. The whole public interface.
#ifndef ATTNOPS_ATTNOPS_H_
#define ATTNOPS_ATTNOPS_H_

#include "attnops/error.h"             // IWYU pragma: export
#include "attnops/flao.h"              // IWYU pragma: export
#include "attnops/flao_fal.h"          // IWYU pragma: export
#include "attnops/linear_attention.h"  // IWYU pragma: export
#include "attnops/lrpe_rotate.h"       // IWYU pragma: export
#include "attnops/machine.h"           // IWYU pragma: export
#include "attnops/md_lrpe_cosine.h"    // IWYU pragma: export
#include "attnops/parallel.h"          // IWYU pragma: export
#include "attnops/precision.h"         // IWYU pragma: export
#include "attnops/rope.h"              // IWYU pragma: export
#include "attnops/rotary_options.h"    // IWYU pragma: export
#include "attnops/target.h"            // IWYU pragma: export
#include "attnops/tpa.h"               // IWYU pragma: export
#include "attnops/tpa_cache.h"         // IWYU pragma: export
#include "attnops/tpa_decode.h"        // IWYU pragma: export
#include "attnops/types.h"             // IWYU pragma: export
#include "attnops/version.h"           // IWYU pragma: export
#include "attnops/view.h"              // IWYU pragma: export

#endif  // ATTNOPS_ATTNOPS_H_
