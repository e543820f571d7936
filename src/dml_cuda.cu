/* dml_cuda.cu - NVIDIA GPUs for dml.

   Compile it with nvcc for the cards you have, and link it with your program, DML_CUDA defined everywhere:

       nvcc -O2 -arch=native -c dml_cuda.cu
       cc -O2 -DDML_CUDA program.c dml_cuda.o -lcudart_static -lrt -ldl -lstdc++ -lm -lpthread

   (-L of CUDA's lib64 may be needed. A Hopper's matrix units, which own kernels use where cuBLASLt can't be
   opened, want -gencode arch=compute_90a,code=sm_90a in the place of -arch=native.) With the static runtime
   the program also starts where there is no driver, and then finds no device. "cuda:0" is the first device;
   dml_devices lists them. */
#include "dml.h"

#include "gpu/cuda_host.cu"
