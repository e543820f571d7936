/* dialect.h: the words that the shared kernels are written in, in OpenCL C 1.2, CUDA and host C.

   - KERNEL(name) { ... }: a kernel of six buffers and a block of arguments, in groups of DML__GROUP_ITEMS
   items
   - BUFFER(i, type): buffer i at its offset, as GLOBAL type *; NULL when the launch gave none
   - INT(i), REAL(i): its integers and floats
   - ITEM: this item's number in its group
   - GROUP_X, GROUP_Y: the group's number along x and y
   - ELEMENT: GROUP_X * DML__GROUP_ITEMS + ITEM, for kernels with an item an element
   - LOCAL type name[n]; memory of the group; only at a kernel's outermost scope
   - LOCAL_QUADS float name[n]; the same, of which QUAD_AT(p) reads four floats x, y, z, w at once, a QUAD,
   where p is a multiple of four from its beginning
   - BARRIER(); all items of a group, or none, come here; never after a return
   - UNROLL: before a loop over an array that lies in registers
   - HELPER: before a function; where it uses ITEM, GROUP_X, GROUP_Y or BARRIER its parameters begin with
     HERE_PARAMETER, and its arguments with HERE, both of which bring their comma
   - SHARED type *: a pointer to LOCAL memory
   - MULTIPLY_HIGH(a, b): the upper half of the product of two unsigned
   - RECIPROCAL(x): 1 / x of at least 1, and RECIPROCAL_ROOT(x): 1 / sqrt(x), within two of their last bits
   - WARP_OTHER(x, reach): what x is in the item whose number differs by the bit `reach`, 1 to 16; all items
   come here. Only where it is there (CUDA, host C)
   - BITS_OF(x), FLOAT_OF(u): the bits of a float, and back
   - WIDE: a 64-bit integer, for offsets: one tensor may hold more than 2^31 bytes

   Where an item is a processor core (host C, OpenCL devices that are CPUs), SOLO_KERNEL is defined:

   - SOLO_KERNEL(name): a kernel in groups of one item
   - SOLO_LOCAL type x[n]; memory of its own, since such a device may have little of LOCAL
   - VECTOR, VECTOR_LANES: as many floats as it adds at once, and how many these are
   - VECTOR_OF(x): x in each lane
   - VECTOR_LOAD(p): those at p, in memory of its own; VECTOR_STORE(p, v)
   - VECTOR_READ(p): those at p in GLOBAL memory; VECTOR_WRITE(p, v)
   - VECTOR_ADD_PRODUCT(v, x, w): v + x w of a float x; VECTOR_ADD_PRODUCTS(v, u, w): v + u w lane by lane
   - VECTOR_MOST(v, w): the larger of two lanes, not the NaN; VECTOR_EXP(v): of each lane

   Where a kernel NAME_solo does what NAME_team does, ops launch NAME (gpu/kernel_list.h).

   All sizes along x and y are below 2^31 (the hosts see to it), so indices are unsigned; offsets are WIDE. */
#ifndef DML_GPU_DIALECT_H
#define DML_GPU_DIALECT_H

#ifdef __CUDACC__ /* whose host has added the offsets: kernels had done so again at each use */
#define BUFFER(i, type) ((type *)buffer##i)
#else
#define BUFFER(i, type) ((GLOBAL type *)(buffer##i ? buffer##i + arguments.offset[i] : 0))
#endif
#define INT(i) (arguments.integer[i])
#define REAL(i) (arguments.real[i])
#define ELEMENT ((unsigned)GROUP_X * DML__GROUP_ITEMS + (unsigned)ITEM)

#if defined(__OPENCL_VERSION__)

#define GLOBAL __global
#define LOCAL __local
#define LOCAL_QUADS __local __attribute__((aligned(16)))
#define QUAD float4
#define QUAD_AT(p) (*(__local const float4 *)(p))
#define UNROLL __attribute__((opencl_unroll_hint))
#define SHARED __local
#define HERE_PARAMETER
#define HERE
#define HELPER static
HELPER float dml__tanh(float x)
{
    return fabs(x) > 9.02f ? copysign(1.0f, x) : tanh(x); /* PoCL's stays 2^-24 below 1 */
}
#define WIDE long
#define KERNEL(name)                                                                                         \
    __kernel __attribute__((reqd_work_group_size(DML__GROUP_ITEMS, 1, 1))) void dml__kernel_##name(          \
        __global char *buffer0, __global char *buffer1, __global char *buffer2, __global char *buffer3,      \
        __global char *buffer4, __global char *buffer5, const dml__kernel_arguments arguments)
#ifdef DML__SOLO_LANES /* 4, 8 or 16: the host's to say */
#define VECTOR_LANES DML__SOLO_LANES
#define VECTOR_NAME__(name, lanes) name##lanes
#define VECTOR_NAME_(name, lanes) VECTOR_NAME__(name, lanes)
#define VECTOR VECTOR_NAME_(float, VECTOR_LANES)
#define VECTOR_OF(x) ((VECTOR)(x))
#define VECTOR_LOAD(p) (*(const dml__vector_anywhere *)(p))
#define VECTOR_READ(p) (*(__global const dml__vector_anywhere *)(p))
#define VECTOR_STORE(p, v) (*(dml__vector_anywhere *)(p) = (v))
#define VECTOR_WRITE(p, v) (*(__global dml__vector_anywhere *)(p) = (v))
#define VECTOR_ADD_PRODUCT(sum, x, v) ((sum) + (x) * (v))
#define VECTOR_ADD_PRODUCTS(sum, u, v) ((sum) + (u) * (v))
#define VECTOR_MOST(u, v) fmax(u, v)
#define VECTOR_EXP(v) exp(v)
typedef VECTOR dml__vector_anywhere __attribute__((aligned(4))); /* PoCL splits what vload gives */
#define SOLO_LOCAL __attribute__((aligned(64)))
#define SOLO_KERNEL(name)                                                                                    \
    __kernel __attribute__((reqd_work_group_size(1, 1, 1))) void dml__kernel_##name(                         \
        __global char *buffer0, __global char *buffer1, __global char *buffer2, __global char *buffer3,      \
        __global char *buffer4, __global char *buffer5, const dml__kernel_arguments arguments)
#endif
#define ITEM ((int)get_local_id(0))
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define EXP(x) exp(x)
#define EXPM1(x) expm1(x)
#define LOG(x) log(x)
#define LOG1P(x) log1p(x)
#define TANH(x) dml__tanh(x)
#define ERF(x) erf(x)
#define ABS(x) fabs(x)
#ifdef DML__SOLO_LANES
#define MULTIPLY_HIGH(a, b) ((uint)((ulong)(a) * (b) >> 32)) /* PoCL's mul_hi takes ten times as long */
#else
#define MULTIPLY_HIGH(a, b) mul_hi(a, b)
#endif
#define SQRT(x) sqrt(x)
#define RECIPROCAL(x) (1.0f / (x))
#define RECIPROCAL_ROOT(x) rsqrt(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define POW(x, y) pow(x, y)
#define NOT_A_NUMBER NAN
#define MINUS_INFINITY (-INFINITY)
#define BITS_OF(x) as_uint(x)
#define FLOAT_OF(u) as_float(u)

#elif defined(__CUDACC__)

#define GLOBAL
#define LOCAL __shared__
#define LOCAL_QUADS __shared__ __align__(16)
#define QUAD float4
#define QUAD_AT(p) (*(const float4 *)(p))
#define UNROLL _Pragma("unroll")
#define SHARED
#define HERE_PARAMETER
#define HERE
#define HELPER static __device__ __forceinline__
#define WIDE long long
#define KERNEL(name)                                                                                         \
    static __global__ void __launch_bounds__(DML__GROUP_ITEMS)                                               \
        dml__kernel_##name(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,        \
                           char *buffer5, const dml__kernel_arguments arguments)
#define ITEM ((int)threadIdx.x)
#define GROUP_X ((int)blockIdx.x)
#define GROUP_Y ((int)(blockIdx.z * gridDim.y + blockIdx.y)) /* a grid's y ends at 65535, so z carries on */
#define BARRIER() __syncthreads()
#define WARP_OTHER(x, reach) __shfl_xor_sync(0xffffffffu, x, reach)
#define EXP(x) expf(x)
#define EXPM1(x) expm1f(x)
#define LOG(x) logf(x)
#define LOG1P(x) log1pf(x)
#define TANH(x) tanhf(x)
#define ERF(x) erff(x)
#define ABS(x) fabsf(x)
#define MULTIPLY_HIGH(a, b) __umulhi(a, b)
#define SQRT(x) sqrtf(x)
#define RECIPROCAL(x) __fdividef(1.0f, x)
#define RECIPROCAL_ROOT(x) rsqrtf(x)
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#define POW(x, y) powf(x, y)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define MINUS_INFINITY __int_as_float((int)0xff800000)
#define BITS_OF(x) ((unsigned)__float_as_int(x))
#define FLOAT_OF(u) __int_as_float((int)(u))

#else /* host C: src/gpu/host_device.c runs one group at a time */

#define GLOBAL
#define LOCAL static
#define LOCAL_QUADS static
#define QUAD dml__host_quad
#define QUAD_AT(p) (*(const dml__host_quad *)(p))
#define UNROLL
#define SHARED
#define HERE_PARAMETER const dml__host_item *self,
#define HERE self,
#define HELPER static
#define WIDE int64_t
#define KERNEL(name)                                                                                         \
    static void dml__kernel_##name(const dml__host_item *self, char *buffer0, char *buffer1, char *buffer2,  \
                                   char *buffer3, char *buffer4, char *buffer5,                              \
                                   const dml__kernel_arguments arguments)
#define SOLO_KERNEL(name) KERNEL(name)
#define SOLO_LOCAL static
#define VECTOR dml__host_vector
#define VECTOR_LANES DML__HOST_LANES
#define VECTOR_OF(x) dml__host_vector_of(x)
#define VECTOR_LOAD(p) dml__host_vector_load(p)
#define VECTOR_READ(p) dml__host_vector_load(p)
#define VECTOR_STORE(p, v) dml__host_vector_store(p, v)
#define VECTOR_WRITE(p, v) dml__host_vector_store(p, v)
#define VECTOR_ADD_PRODUCT(sum, x, v) dml__host_vector_add_product(sum, x, v)
#define VECTOR_ADD_PRODUCTS(sum, u, v) dml__host_vector_add_products(sum, u, v)
#define VECTOR_MOST(u, v) dml__host_vector_most(u, v)
#define VECTOR_EXP(v) dml__host_vector_exp(v)
#define ITEM (self->item)
#define GROUP_X (self->group_x)
#define GROUP_Y (self->group_y)
#define BARRIER() dml__host_barrier(self)
#define WARP_OTHER(x, reach) dml__host_other(self, x, reach)
#define EXP(x) expf(x)
#define EXPM1(x) expm1f(x)
#define LOG(x) logf(x)
#define LOG1P(x) log1pf(x)
#define TANH(x) tanhf(x)
#define ERF(x) erff(x)
#define ABS(x) fabsf(x)
#define MULTIPLY_HIGH(a, b) ((uint32_t)((uint64_t)(a) * (b) >> 32))
#define SQRT(x) sqrtf(x)
#define RECIPROCAL(x) (1.0f / (x))
#define RECIPROCAL_ROOT(x) (1.0f / sqrtf(x))
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#define POW(x, y) powf(x, y)
#define NOT_A_NUMBER NAN
#define MINUS_INFINITY (-INFINITY)
#define BITS_OF(x) dml__host_bits(x)
#define FLOAT_OF(u) dml__host_float(u)

#endif

#endif
