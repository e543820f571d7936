/* dml.h - training and running neural networks from C.

   In exactly one source file of your program, best one of its own, since it takes seconds to compile:

       #define DML_IMPLEMENTATION
       #include "dml.h"

   and in any other just the #include. Build with -lm -lpthread. Include every dml header that you use in that
   one file (dml.h, then dml_comm.h): what they share is compiled once.

   Switches, the same in every file of a program:
     DML_IMPLEMENTATION  (one file) the function bodies
     DML_STATIC          every function is static: the library is private to this file
     DML_NO_THREADS      no threads: every pool has one worker, no background communication
     DML_NO_STDIO        no files: no checkpoints, data files, tables or progress lines
     DML_NO_AVX512, DML_NO_AVX   leaves those instruction sets out (the second: both)
     DML_ASSERT(c)       replaces assert() for the library's own invariants
     DML_OPENCL          dml_opencl.c is linked in: "opencl" devices
     DML_CUDA            dml_cuda.cu is linked in: "cuda" devices

   The manual is docs/guide.md; each function's reference is the comment at its declaration. */
#ifndef DML_H
#define DML_H

#include "base/platform.h"
#include "base/status.h"
#include "base/dtype.h"
#include "base/allocator.h"
#include "base/log.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "thread/pool.h"
#include "kernels/epilogue.h"
#include "kernels/gemm.h"
#include "kernels/bf16.h"
#include "kernels/conv2d.h"
#include "kernels/pool2d.h"
#include "kernels/slice2d.h"
#include "kernels/norm.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/loss.h"
#include "kernels/update.h"
#include "device/backend.h"
#include "device/context.h"
#include "graph/shape.h"
#include "graph/graph.h"
#include "graph/weights.h"
#include "graph/program.h"
#include "graph/print.h"
#include "ops/op_arithmetic.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_conv2d.h"
#include "ops/op_pool2d.h"
#include "ops/op_slice2d.h"
#include "ops/op_norm.h"
#include "ops/op_loss.h"
#include "train/optimizer.h"
#include "train/lbfgs.h"
#include "train/schedule.h"
#include "train/parameter_group.h"
#include "train/trainer.h"
#include "train/checkpoint.h"
#include "train/progress.h"
#include "train/idx.h"

#endif

#ifdef DML_IMPLEMENTATION

#include "base/status.c"
#include "base/error.c"
#include "base/dtype.c"
#include "base/memory.c"
#include "base/logger.c"
#include "base/clock.c"
#include "base/cpu.c"
#include "base/cpu_bf16.c"
#include "base/philox.c"
#include "base/os_thread.c"
#include "base/checksum.c"
#include "base/file.c"
#include "base/json.c"
#include "base/safetensors.c"
#include "base/safetensors_write.c"
#include "thread/pool.c"
#include "kernels/microkernel.c"
#include "kernels/microkernel_bf16.c"
#include "kernels/pack.c"
#include "kernels/finish.c"
#include "kernels/thin.c"
#include "kernels/product_range.c"
#include "kernels/product.c"
#include "kernels/gemm.c"
#include "kernels/bf16.c"
#include "kernels/conv2d_pass.c"
#include "kernels/conv2d_planes.c"
#include "kernels/conv2d_weights.c"
#include "kernels/conv2d_depthwise.c"
#include "kernels/conv2d.c"
#include "kernels/blocks.c"
#include "kernels/pool2d.c"
#include "kernels/slice2d.c"
#include "kernels/norm.c"
#include "kernels/elementwise.c"
#include "kernels/reduce.c"
#include "kernels/loss.c"
#include "kernels/update.c"
#include "device/backend.c"
#include "device/cpu.c"
#include "device/context.c"
#include "graph/shape.c"
#include "graph/graph.c"
#include "graph/weights.c"
#include "graph/weights_file.c"
#include "graph/op.c"
#include "graph/plan.c"
#include "graph/compile.c"
#include "graph/program.c"
#include "graph/print.c"
#include "ops/table.c"
#include "ops/op_arithmetic.c"
#include "ops/op_activation.c"
#include "ops/op_dense.c"
#include "ops/op_conv2d.c"
#include "ops/op_pool2d.c"
#include "ops/op_slice2d.c"
#include "ops/op_norm.c"
#include "ops/op_loss.c"
#include "train/optimizer.c"
#include "train/lbfgs.c"
#include "train/schedule.c"
#include "train/parameter_group.c"
#include "train/trainer_update.c"
#include "train/trainer.c"
#include "train/checkpoint.c"
#include "train/progress.c"
#include "train/idx.c"

#endif
