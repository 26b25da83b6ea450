# SPDX-License-Identifier: Apache-2.0
# Language level, warnings, sanitizers and the one function that declares a folder's library.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Lines in backtraces; variables are in the debug preset's. A quarter less time to compile.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

option(ORRERY_TESTS "Build the tests" ON)
option(ORRERY_BENCH "Build the benchmarks" OFF)
option(ORRERY_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(ORRERY_WERROR "Warnings are errors" OFF)
option(ORRERY_LONG_TESTS "Run the tests of more than ten minutes too" OFF)
option(ORRERY_MPI "Span several hosts by MPI when it is found" ON)
option(ORRERY_GUI "Build orrery-gui when Qt 6 with Charts and Svg is found" ON)
option(ORRERY_PYTHON "Build the module for Python when pybind11 is found" ON)
option(ORRERY_CUDA "Build what needs the CUDA toolkit when it is found" ON)
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100 CACHE STRING "GPUs that kernels are compiled for; native: those of this machine")
set(ORRERY_SANITIZE "" CACHE STRING "Comma-separated sanitizers, for example address,undefined")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# Costs are doubles whose bits must not depend on the compiler: no fused multiply-add behind our back.
set(host_only $<COMPILE_LANGUAGE:C,CXX>)
add_compile_options("$<${host_only}:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-missing-field-initializers;-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<${host_only}:-Wno-restrict>)  # wrong about std::string in GCC 12 (bug 105651)
endif()
if(ORRERY_WERROR)
  add_compile_options($<${host_only}:-Werror> "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()
if(ORRERY_FUZZ)  # libFuzzer sees the libraries: it is told of their edges and comparisons
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(ORRERY_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")  # a quarter less time to compile
  add_compile_options(-fsanitize=${ORRERY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ORRERY_SANITIZE})
endif()

# orrery_library(NAME SOURCES... DEPENDS targets...): folder = library = namespace.
function(orrery_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(orrery_${name} STATIC ${ARG_SOURCES})
  add_library(orrery::${name} ALIAS orrery_${name})
  target_include_directories(orrery_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(orrery_${name} PUBLIC ${ARG_DEPENDS})
endfunction()
