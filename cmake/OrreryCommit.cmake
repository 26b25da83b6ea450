# SPDX-License-Identifier: Apache-2.0
# Run by each build: writes the commit that is built into HEADER, where that does not say so already. Empty
# outside a git checkout.
execute_process(COMMAND git -C "${SOURCE}" rev-parse --short HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
else()
  execute_process(COMMAND git -C "${SOURCE}" diff --quiet HEAD RESULT_VARIABLE changed ERROR_QUIET)
  if(changed)
    string(APPEND commit "+")
  endif()
endif()
file(CONFIGURE OUTPUT "${HEADER}" CONTENT "#define ORRERY_COMMIT \"${commit}\"\n")
