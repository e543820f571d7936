# find_package(dml) gives the target dml::dml: the folder of dml.h and dml_comm.h, and what they link with. One
# source file of the program defines DML_IMPLEMENTATION before it includes them. To use GPUs, add
# ${dml_OPENCL_SOURCE} with -DDML_OPENCL, or ${dml_CUDA_SOURCE} with -DDML_CUDA, to the program.
include(CMakeFindDependencyMacro)
find_dependency(Threads)

get_filename_component(_dml_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(dml_OPENCL_SOURCE "${_dml_prefix}/share/dml/dml_opencl.c")
set(dml_CUDA_SOURCE "${_dml_prefix}/share/dml/dml_cuda.cu")

if(NOT TARGET dml::dml)
  add_library(dml::dml INTERFACE IMPORTED)
  set_target_properties(dml::dml PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_dml_prefix}/include")
  target_link_libraries(dml::dml INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
  if(UNIX)
    target_link_libraries(dml::dml INTERFACE m)
  endif()
endif()
unset(_dml_prefix)
