# Compiles a .cu file into an object and keeps what the assembler says of every kernel: registers,
# spills and shared memory, which tests/python/test_cuda_object_code.py holds against a budget.
#
#   cmake -DNVCC= -DSOURCE= -DOBJECT= -DDEPENDENCIES= -DREPORT= -DFLAGS=<list> -P compile.cmake
execute_process(
  COMMAND ${NVCC} ${FLAGS} -Xptxas -v -MD -MF ${DEPENDENCIES} -c ${SOURCE} -o ${OBJECT}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE failed)
file(WRITE ${REPORT} "${output}")
if(failed)
  file(REMOVE ${OBJECT})
  message(FATAL_ERROR "${output}")
endif()
