# Adds the CUDA kernels to the operator library, as AERO_CUDA says. Needs nvcc and the CUDA runtime's
# static library, but neither a driver nor CMake's own CUDA language: that of 3.25 refuses C++20.
if(NOT AERO_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "AERO_CUDA must be AUTO, ON or OFF, got ${AERO_CUDA}")
endif()
set(AERO_HAS_CUDA OFF CACHE INTERNAL "Whether the operator library holds the CUDA kernels")
if(AERO_CUDA STREQUAL "OFF" OR (AERO_CUDA STREQUAL "AUTO" AND AERO_SANITIZE))
  return()
endif()
if(AERO_CUDA STREQUAL "AUTO")
  # torch.version.cuda, without the seconds that an import takes.
  file(STRINGS ${TORCH_DIRECTORY}/version.py torch_cuda REGEX "^cuda[ :=]")
  if(NOT torch_cuda)
    message(FATAL_ERROR "AERO_CUDA=AUTO cannot tell whether ${TORCH_DIRECTORY} has CUDA: its version.py "
            "has no line that begins with cuda; say AERO_CUDA=ON or AERO_CUDA=OFF")
  endif()
  if(NOT torch_cuda MATCHES "= *['\"][0-9]")
    message(STATUS "aero: no CUDA kernels, the installed PyTorch has no CUDA (AERO_CUDA=ON compiles them)")
    return()
  endif()
endif()

find_program(AERO_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(AERO_NVCC)
  # A wrapper or a link in the search path may lie outside the toolkit; nvcc itself knows where it is.
  execute_process(COMMAND ${AERO_NVCC} --dryrun -c ${CMAKE_SOURCE_DIR}/kernels/cuda/none.cu
                  ERROR_VARIABLE nvcc_plan OUTPUT_QUIET)
  string(REGEX MATCH "#\\$ TOP=([^\n]*)" nvcc_top "${nvcc_plan}")
  set(CUDA_TOOLKIT "${CMAKE_MATCH_1}")
  find_library(AERO_CUDART cudart_static HINTS ${CUDA_TOOLKIT}/lib64 ${CUDA_TOOLKIT}/lib
               PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE})
endif()
if(NOT AERO_NVCC OR NOT AERO_CUDART)
  if(AERO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AERO_CUDA=ON needs the CUDA toolkit: nvcc (${AERO_NVCC}) and libcudart_static.a "
            "(${AERO_CUDART}); put nvcc in PATH or set CUDA_HOME")
  endif()
  message(STATUS "aero: no CUDA kernels, nvcc was not found")
  return()
endif()
# An older nvcc does not know the newest GPUs, which then run PTX.
execute_process(COMMAND ${AERO_NVCC} --list-gpu-code OUTPUT_VARIABLE nvcc_targets)
set(CUDA_ARCHITECTURES)
foreach(architecture IN LISTS AERO_CUDA_ARCHITECTURES)
  string(REGEX REPLACE "[af]$" "" listed "${architecture}") # sm_90a is not listed beside sm_90
  if(nvcc_targets MATCHES "sm_${listed}\n")
    list(APPEND CUDA_ARCHITECTURES ${architecture})
  elseif(AERO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AERO_CUDA_ARCHITECTURES: ${AERO_NVCC} does not know sm_${architecture}, only:\n${nvcc_targets}")
  endif()
endforeach()
message(STATUS "aero: CUDA kernels for ${CUDA_ARCHITECTURES}, compiled by ${AERO_NVCC}")
set(AERO_HAS_CUDA ON CACHE INTERNAL "")

# -fmad=false: where products and sums are fused is written down, so that the maximum's own score
# differs from it by exactly 0.
set(NVCC_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -I${CMAKE_SOURCE_DIR}
    -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC,-fvisibility=hidden)
# One PTX for all, which stays for what comes after: to make one takes longer than to assemble it for
# three architectures, and the passes use nothing newer. With a PTX of its own sm_100 spilled more.
foreach(architecture IN LISTS CUDA_ARCHITECTURES)
  list(APPEND NVCC_FLAGS -gencode=arch=compute_80,code=sm_${architecture})
endforeach()
list(APPEND NVCC_FLAGS -gencode=arch=compute_80,code=compute_80)

set(CUDA_OBJECTS)
file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS kernels/cuda/*.cu)
foreach(source IN LISTS CUDA_SOURCES)
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(
    OUTPUT ${object} BYPRODUCTS ${CMAKE_BINARY_DIR}/cuda/${name}.ptxas
    COMMAND ${CMAKE_COMMAND} -DNVCC=${AERO_NVCC} -DSOURCE=${source} -DOBJECT=${object}
            -DDEPENDENCIES=${object}.d -DREPORT=${CMAKE_BINARY_DIR}/cuda/${name}.ptxas
            "-DFLAGS=${NVCC_FLAGS}" -P ${CMAKE_SOURCE_DIR}/kernels/cuda/compile.cmake
    DEPENDS ${source} ${CMAKE_SOURCE_DIR}/kernels/cuda/compile.cmake
    DEPFILE ${object}.d VERBATIM COMMENT "Compiling ${name}.cu")
  list(APPEND CUDA_OBJECTS ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
# Objects of a target that links nothing are compiled at once, not after the libraries of aero_ops.
add_custom_target(aero_cuda_kernels DEPENDS ${CUDA_OBJECTS})

file(GLOB CUDA_LAUNCHERS CONFIGURE_DEPENDS kernels/cuda/*.cpp)
add_library(aero_cuda_launchers STATIC ${CUDA_LAUNCHERS})
target_link_libraries(aero_cuda_launchers PRIVATE aero_options)
target_include_directories(aero_cuda_launchers SYSTEM PRIVATE ${CUDA_TOOLKIT}/include)

target_compile_definitions(aero_torch_ops PRIVATE AERO_CUDA)
foreach(target aero_ops aero_kernel)
  add_dependencies(${target} aero_cuda_kernels)
  target_sources(${target} PRIVATE ${CUDA_OBJECTS})
  target_compile_definitions(${target} PRIVATE AERO_CUDA) # schemas.cpp
  # The runtime is our own copy: torch may bring none, or another version.
  target_link_libraries(${target} PRIVATE aero_cuda_launchers ${AERO_CUDART} rt dl pthread)
  target_link_options(${target} PRIVATE LINKER:--exclude-libs,libcudart_static.a)
endforeach()
