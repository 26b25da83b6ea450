# SPDX-License-Identifier: Apache-2.0
# A program of SimGrid's, another simulator, for a test or a benchmark beside ours, where Debian's
# libsimgrid-dev is installed. `user` knows where it is by the definition, which is empty elsewhere.
function(orrery_simgrid program source user definition)
  find_library(SIMGRID_LIBRARY simgrid)
  find_path(SIMGRID_INCLUDE simgrid/s4u.hpp)
  if(NOT SIMGRID_LIBRARY OR NOT SIMGRID_INCLUDE)
    target_compile_definitions(${user} PRIVATE ${definition}="")
    return()
  endif()
  add_executable(${program} ${source})
  target_include_directories(${program} SYSTEM PRIVATE ${SIMGRID_INCLUDE})
  target_link_libraries(${program} PRIVATE ${SIMGRID_LIBRARY})
  add_dependencies(${user} ${program})
  target_compile_definitions(${user} PRIVATE ${definition}="$<TARGET_FILE:${program}>")
endfunction()
