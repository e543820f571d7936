/* platform.h: what every other file stands on: version, linkage, compiler and OS differences. */
#ifndef DML_BASE_PLATFORM_H
#define DML_BASE_PLATFORM_H

/* clock_gettime, sched_getaffinity and the sockets are POSIX or GNU, which -std=c99 hides. This takes effect
   when the header comes before any system header; elsewhere compile with -D_GNU_SOURCE. */
#if (defined(DML_IMPLEMENTATION) || defined(DML__SEPARATE)) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

/* On Windows, mingw's own printf, which knows %zu and %lld; Microsoft's older ones don't. In the
   implementation this too takes effect when the header comes before any system header. */
#if defined(__MINGW32__) && (defined(DML_IMPLEMENTATION) || defined(DML__SEPARATE))
#ifndef __USE_MINGW_ANSI_STDIO
#define __USE_MINGW_ANSI_STDIO 1
#endif
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DML_VERSION_MAJOR 0
#define DML_VERSION_MINOR 1
#define DML_VERSION "0.1.0"

/* Linkage. A public function is `DML_API`; define DML_STATIC to keep the whole library inside one
   translation unit. A function shared between the library's own files is `DML__LOCAL`: static in the
   amalgamated headers, external when src/ is built file by file (DML__SEPARATE). */
#ifdef __cplusplus
#define DML__EXTERN_C extern "C"
#else
#define DML__EXTERN_C extern
#endif
#if defined(__GNUC__)
#define DML__UNUSED __attribute__((unused))
#define DML__NOINLINE __attribute__((noinline))
#define DML__PREFETCH(address) __builtin_prefetch(address)
#if defined(__MINGW32__) && !defined(__clang__)
#define DML__PRINTF(position, first) __attribute__((format(gnu_printf, position, first)))
#else
#define DML__PRINTF(position, first) __attribute__((format(printf, position, first)))
#endif
#else
#define DML__UNUSED
#define DML__NOINLINE
#define DML__PREFETCH(address) (void)(address)
#define DML__PRINTF(position, first)
#endif
#ifdef DML_STATIC
#define DML_API DML__UNUSED static
#else
#define DML_API DML__EXTERN_C
#endif
#ifdef DML__SEPARATE
#define DML__LOCAL DML__EXTERN_C
#else
#define DML__LOCAL DML__UNUSED static
#endif

/* Around code in which no loop is worth the passes of -O2: argument checks, plans, tasks that call kernels,
   and everything above the kernels. gcc's -Og takes a third of their time. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define DML__DRIVERS_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"Og\")")
#define DML__DRIVERS_END _Pragma("GCC pop_options")
#else
#define DML__DRIVERS_BEGIN
#define DML__DRIVERS_END
#endif

/* Around all function bodies. g++ takes for a mistake what its own <immintrin.h> leaves undefined on purpose
   (_mm512_undefined_ps); gcc, which compiles the same as C, doesn't. clang, under a sanitizer, tells of
   loops that it can't unroll. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__cplusplus)
#define DML__BODIES_BEGIN                                                                                    \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")                     \
        _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define DML__BODIES_END _Pragma("GCC diagnostic pop")
#elif defined(__clang__)
#define DML__BODIES_BEGIN                                                                                    \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wpass-failed\"")
#define DML__BODIES_END _Pragma("clang diagnostic pop")
#else
#define DML__BODIES_BEGIN
#define DML__BODIES_END
#endif

/* Around kernels, whose loops are written as they shall run: without the passes of -O2 that leave them as
   they are, gcc takes a quarter less time for them. (-fgcse, which takes constants out of loops, and
   -ftree-dominator-opts are worth theirs.) */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 8 && defined(__OPTIMIZE__)
#define DML__KERNELS_BEGIN                                                                                   \
    _Pragma("GCC push_options")                                                                              \
        _Pragma("GCC optimize(\"no-tree-pre,no-code-hoisting,no-tree-sink,no-schedule-insns2\")")            \
            _Pragma("GCC optimize(\"no-tree-vrp,no-thread-jumps,no-tree-slp-vectorize\")")                   \
                _Pragma("GCC optimize(\"no-tree-loop-vectorize,no-tree-pta,no-tree-ccp,no-tree-reassoc\")")  \
                    _Pragma("GCC optimize(\"no-tree-dse,no-store-merging,no-cse-follow-jumps\")")            \
                        _Pragma("GCC optimize(\"no-rerun-cse-after-loop,no-peephole2\")")
#define DML__KERNELS_END _Pragma("GCC pop_options")
#else
#define DML__KERNELS_BEGIN
#define DML__KERNELS_END
#endif

/* For the public headers, which a C++ program may compile with -Wold-style-cast. */
#ifdef __cplusplus
#define DML__CAST(type, value) static_cast<type>(value)
#else
#define DML__CAST(type, value) ((type)(value))
#endif

#if defined(__cplusplus) || defined(__GNUC__)
#define DML__RESTRICT __restrict
#else
#define DML__RESTRICT restrict
#endif

/* The entry points carry the version and the switches in their link name, so that two translation units
   compiled with different ones fail to link instead of corrupting memory. */
#if defined(DML_NO_THREADS) && defined(DML_NO_STDIO)
#define DML__ABI(name) name##_v0_1_no_threads_no_stdio
#elif defined(DML_NO_THREADS)
#define DML__ABI(name) name##_v0_1_no_threads
#elif defined(DML_NO_STDIO)
#define DML__ABI(name) name##_v0_1_no_stdio
#else
#define DML__ABI(name) name##_v0_1
#endif

/* Checks of the library's own invariants; never of a caller's input, which gets a status. */
#ifndef DML_ASSERT
#include <assert.h>
#define DML_ASSERT(condition) assert(condition)
#endif

#endif
