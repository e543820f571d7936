/* dml_opencl.c - OpenCL devices for dml: GPUs, and CPUs through PoCL or Intel's runtime.

   Compile it beside your program, with DML_OPENCL defined everywhere:

       cc -O2 -DDML_OPENCL program.c dml_opencl.c -lm -lpthread -ldl

   It needs OpenCL's headers (CL/cl.h) to compile, and libOpenCL.so.1 when it runs; without that it finds no
   device. "opencl:0" is the first device, GPUs before CPUs; dml_devices lists them. */
#include "dml.h"

#include "gpu/opencl_host.c"
