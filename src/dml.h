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
#include "kernels/half.h"
#include "kernels/conv2d.h"
#include "kernels/local2d.h"
#include "kernels/pool2d.h"
#include "kernels/slice2d.h"
#include "kernels/norm.h"
#include "kernels/row_norm.h"
#include "kernels/group_norm.h"
#include "kernels/embedding.h"
#include "kernels/embedding_bag.h"
#include "kernels/recurrent.h"
#include "kernels/dropout.h"
#include "kernels/strided.h"
#include "kernels/attention.h"
#include "kernels/rotary.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/cross_entropy.h"
#include "kernels/reduce_axis.h"
#include "kernels/softmax.h"
#include "kernels/gather.h"
#include "kernels/update.h"
#include "device/backend.h"
#include "device/context.h"
#include "device/profile.h"
#include "graph/shape.h"
#include "graph/graph.h"
#include "graph/weights.h"
#include "graph/program.h"
#include "graph/print.h"
#include "graph/clone.h"
#include "ops/op_arithmetic.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_matmul.h"
#include "ops/op_conv2d.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_local2d.h"
#include "ops/op_pool2d.h"
#include "ops/op_slice2d.h"
#include "ops/op_norm.h"
#include "ops/op_sample_norm.h"
#include "ops/op_embedding.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_recurrent.h"
#include "ops/op_dropout.h"
#include "ops/op_rotary.h"
#include "ops/op_attention.h"
#include "ops/op_shape.h"
#include "ops/op_reduce.h"
#include "ops/op_softmax.h"
#include "ops/op_gather.h"
#include "ops/op_loss.h"
#include "ops/op_custom.h"
#include "train/optimizer.h"
#include "train/lbfgs.h"
#include "train/schedule.h"
#include "train/parameter_group.h"
#include "train/trainer.h"
#include "train/checkpoint.h"
#include "train/gradient_check.h"
#include "train/lr_finder.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/cifar.h"
#include "train/idx.h"

#endif

#ifdef DML_IMPLEMENTATION

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(_M_FP_FAST) ||                        \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "dml.h: compile the file with DML_IMPLEMENTATION without -ffast-math or -Ofast: results would be wrong"
#endif

DML__BODIES_BEGIN
DML__DRIVERS_BEGIN
#include "base/clock.c"
#include "base/status.c"
#include "base/error.c"
#include "base/memory.c"
#include "base/logger.c"
#include "base/cpu.c"
#include "base/cpu_bf16.c"
DML__DRIVERS_END
#include "base/dtype.c"
#include "base/float16.c"
#include "base/philox.c"
#include "base/os_thread.c"
#include "base/checksum.c"
DML__DRIVERS_BEGIN
#include "base/file.c"
#include "base/json.c"
#include "base/safetensors_header.c"
#include "base/safetensors.c"
#include "base/safetensors_write.c"
DML__DRIVERS_END
#include "thread/pool.c"
DML__KERNELS_BEGIN
#include "kernels/microkernel.c"
#include "kernels/microkernel_bf16.c"
#include "kernels/pack.c"
#include "kernels/pack_pairs.c"
#include "kernels/finish.c"
#include "kernels/thin.c"
#include "kernels/product_plan.c"
#include "kernels/product_range.c"
#include "kernels/rounded.c"
#include "kernels/product.c"
#include "kernels/gemm.c"
#include "kernels/half.c"
#include "kernels/bf16.c"
#include "kernels/conv2d_pass_plan.c"
#include "kernels/conv2d_pass.c"
#include "kernels/conv2d_planes.c"
#include "kernels/conv2d_weights_plan.c"
#include "kernels/conv2d_weights_lanes.c"
#include "kernels/conv2d_weights.c"
DML__KERNELS_END
#include "kernels/conv2d_depthwise_line.c"
DML__KERNELS_BEGIN
#include "kernels/conv2d_depthwise.c"
#include "kernels/conv2d_ring_line.c"
#include "kernels/conv2d_ring.c"
#include "kernels/conv2d_tall.c"
#include "kernels/conv2d_patches.c"
#include "kernels/conv2d_product.c"
#include "kernels/conv2d.c"
#include "kernels/blocks.c"
DML__KERNELS_END
#include "kernels/pool2d.c"
DML__KERNELS_BEGIN
#include "kernels/slice2d.c"
#include "kernels/norm.c"
#include "kernels/norm_loops.c"
#include "kernels/row_norm.c"
#include "kernels/group_norm.c"
#include "kernels/embedding.c"
#include "kernels/embedding_bag.c"
#include "kernels/dropout.c"
#include "kernels/strided.c"
DML__KERNELS_END
#include "kernels/attention_pair.c"
#include "kernels/attention.c"
DML__KERNELS_BEGIN
#include "kernels/rotary.c"
#include "kernels/reduce.c"
#include "kernels/broadcast.c"
#include "kernels/formula.c"
DML__KERNELS_END
#include "kernels/reduce_axis.c"
#include "kernels/softmax.c"
DML__KERNELS_BEGIN
#include "kernels/gather.c"
#include "kernels/elementwise.c"
#include "kernels/local2d.c"
DML__KERNELS_END
#include "kernels/cross_entropy.c"
DML__KERNELS_BEGIN
#include "kernels/recurrent.c"
#include "kernels/update.c"
DML__KERNELS_END
DML__DRIVERS_BEGIN
#include "device/backend.c"
#include "device/cpu.c"
#include "device/context.c"
#include "device/profile.c"
#include "graph/shape.c"
#include "graph/graph.c"
#include "graph/names.c"
#include "graph/weights.c"
#include "graph/weights_file.c"
#include "graph/op.c"
#include "graph/plan.c"
#include "graph/chain.c"
#include "graph/gradient_rows.c"
#include "graph/narrow.c"
#include "graph/in_place.c"
#include "graph/compile.c"
#include "graph/finite.c"
#include "graph/program.c"
#include "graph/print.c"
#include "graph/clone.c"
#include "ops/table.c"
#include "ops/op_formula.c"
#include "ops/op_arithmetic.c"
#include "ops/op_activation.c"
#include "ops/op_dense.c"
#include "ops/op_matmul.c"
#include "ops/op_conv2d.c"
#include "ops/op_conv1d.c"
#include "ops/op_conv_transpose2d.c"
#include "ops/op_custom.c"
#include "ops/op_local2d.c"
#include "ops/op_pool2d.c"
#include "ops/op_slice2d.c"
#include "ops/op_norm.c"
#include "ops/op_sample_norm.c"
#include "ops/op_embedding.c"
#include "ops/op_embedding_bag.c"
#include "ops/op_recurrent_gpu.c"
#include "ops/op_recurrent.c"
#include "ops/op_dropout.c"
#include "ops/op_rotary.c"
#include "ops/op_attention.c"
#include "ops/op_shape.c"
#include "ops/op_cross_entropy.c"
#include "ops/op_distillation.c"
#include "ops/op_reduce.c"
#include "ops/op_softmax.c"
#include "ops/op_gather.c"
#include "ops/op_loss.c"
#include "train/update_rows.c"
#include "train/optimizer.c"
#include "train/lbfgs.c"
#include "train/schedule.c"
#include "train/parameter_group.c"
#include "train/loss_scale.c"
#include "train/trainer_update.c"
#include "train/trainer_own.c"
#include "train/trainer_late.c"
#include "train/trainer_fetch.c"
#include "train/trainer_away.c"
#include "train/trainer_alike.c"
#include "train/trainer_backward.c"
#include "train/trainer.c"
#include "train/checkpoint.c"
#include "train/gradient_check.c"
#include "train/lr_finder.c"
#include "train/metrics.c"
#include "train/progress.c"
#include "train/cifar.c"
#include "train/idx.c"
DML__DRIVERS_END
DML__BODIES_END

#endif
