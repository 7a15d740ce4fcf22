# Fails if an object compiled for one instruction set shares functions with other objects.
#
#   cmake -DNM=nm -DOBJECTS="avx2.cpp.o;scalar.cpp.o" -P check_linkage.cmake
#
# Of an inline function or template emitted in several objects the linker keeps one copy. If that is
# the AVX-512 one, code meant for a plain machine dies of an illegal instruction.
list(FILTER OBJECTS INCLUDE REGEX "/(scalar|amx|(avx|neon)[a-z0-9]*)\\.cpp\\.o(bj)?$")
if(NOT OBJECTS)
  message(FATAL_ERROR "no object of an instruction set to check: expected scalar.cpp.o and others")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [Wu] [^\n]*" shared "${symbols}")
  if(shared)
    list(JOIN shared "\n" shared)
    message(FATAL_ERROR "${object} must give these internal linkage (an anonymous namespace), or not "
            "use them:\n${shared}")
  endif()
endforeach()
