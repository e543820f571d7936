/* kernels.cl: the shared kernels, compiled as OpenCL C 1.2, as CUDA and as host C; gpu/dialect.h has the
   words they are written in, gpu/kernel_list.h their names and launch shapes. */
#ifndef DML_GPU_KERNELS_CL
#define DML_GPU_KERNELS_CL

#include "gpu/arguments.h"
#include "gpu/dialect.h"
#include "gpu/elementwise.cl"
#include "gpu/formula.cl"
#include "gpu/tiles.cl"
#include "gpu/conv2d.cl"
#include "gpu/solo.cl"
#include "gpu/pool2d.cl"
#include "gpu/local2d.cl"
#include "gpu/slice2d.cl"
#include "gpu/reduce.cl"
#include "gpu/softmax.cl"
#include "gpu/loss.cl"
#include "gpu/update.cl"
#include "gpu/norm.cl"
#include "gpu/sample_norm.cl"
#include "gpu/sample_norm_solo.cl"
#include "gpu/embedding.cl"
#include "gpu/gather.cl"
#include "gpu/embedding_bag.cl"
#include "gpu/recurrent.cl"
#include "gpu/dropout.cl"
#include "gpu/attention.cl"
#include "gpu/attention_solo.cl"
#include "gpu/strided.cl"
#include "gpu/half.cl"

#endif
