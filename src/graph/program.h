/* program.h: a program is a graph compiled for one output and a largest batch: the ops to run, in order, and
   where each tensor lies in one arena. Several programs of one graph (one to train, some to predict) share
   its parameters.

   After compiling, a run allocates nothing. */
#ifndef DML_GRAPH_PROGRAM_H
#define DML_GRAPH_PROGRAM_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

typedef struct dml_program dml_program;

/* What is looked for in every value and gradient, as soon as an op has made it. The first one found ends the
   run with DML_ERROR_NUMBER and a sentence: which op of which name, forward or backward, which element, how
   many there are, and the ranges of what the op was given; inputs and parameters are looked at first. It
   takes about twice the arena, since ops then work neither in place nor as one, and a third more time for a
   small convolutional network; much more on a device of its own memory, where all is read back. Results are
   the same bits. */
typedef enum dml_check {
    DML_CHECK_NOTHING,
    DML_CHECK_NAN,   /* NaNs: where masks of -infinity are in use */
    DML_CHECK_FINITE /* and infinities, from which NaNs often come */
} dml_check;

typedef struct dml_program_options {
    int batch;     /* the most samples of one run, at least 1: there is no default */
    bool training; /* also runs backward; the output must then be a scalar loss */
    /* The program runs on the thread that calls it, alone, with an arena, scratch and errors of its own: any
       number of such programs may run at once, each on one thread at a time, while nothing writes the graph's
       parameters. Their results are bitwise those of any other program with as many rows. Only for
       predicting, on the CPU (DML_ERROR_UNSUPPORTED). They are compiled and destroyed by the thread that uses
       the context. */
    bool own_thread;
    dml_check check; /* zero: nothing, which costs nothing; of programs in f32 alone */
    /* DML_F32 (0), DML_BF16 or DML_F16: mixed precision. All sums, the parameters and their gradients stay
       f32. On the CPU the factors of matrix products (dense layers, convolutions whose kernels have one
       pixel, others of at least 4 channels of a group, transposed ones of at least 4 filters of one) are
       rounded to these 16 bits, in forward and backward: bf16 is multiplied by AMX or AVX512-BF16 where there
       is one, on other processors the same products are made in f32. On CUDA cards from compute
       capability 8.0 on, tensor cores multiply the factors of dense layers, of matrix products and
       convolutions of some size and of attention, rounded likewise; smaller ones there, and OpenCL's devices,
       multiply in f32. What a training program keeps from forward for backward is stored in these 16 bits,
       which halves the memory of activations: forward reads a value as it was computed, backward as it was
       kept; a normalization reads it in forward, too, as it is kept. An input, what an op saves of its own,
       what attention, a cross-entropy, dml_clamp, dml_where, dml_sin, dml_cos, a max, min or dml_norm reads,
       and a value between whose use in forward and in backward nothing else runs stay f32. In f16, which has
       neither f32's largest numbers nor its smallest, factors and kept values from 65520 on are infinite;
       what dml_div, dml_log, dml_sqrt and dml_pow read stays f32, too, and what normalizations read counts as
       65504 at most, in training passes. */
    dml_dtype dtype;
    /* Nodes of the graph beside the output, whose values dml_program_read gives after a run: a model's other
       outputs, the terms of a loss, what a layer has made. The program computes them in the same pass, also
       where the output doesn't need them, and keeps them until the next run. Not inputs and parameters, nor
       what is only another shape of one. The array is read while compiling. */
    dml_node *const *watch; /* (watch_count) */
    int watch_count;
} dml_program_options;

/* Compiles what `output` and the watched nodes need. NULL for a NULL node; NULL, with the error on the
   context, for a batch below 1, a node that can't be watched, a training program whose output is not a scalar
   f32 or is a parameter, or when memory is short. The first compile of a graph lays out its parameters
   (graph/weights.h). */
DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options);
DML_API void dml_program_destroy(dml_program *program);

/* Device bytes of the program's arena: activations, their gradients and what ops keep between forward and
   backward; parameters and their gradients are not counted. */
DML_API size_t dml_program_bytes(const dml_program *program);

/* The inputs that a run wants, in the order of dml_input: how many, and each. */
DML_API int dml_program_inputs(const dml_program *program);
DML_API dml_node *dml_program_input(const dml_program *program, int i);

/* Arrays for a run, with how many they are, as two arguments of the functions that take them:
   dml_program_run(p, rows, DML_INPUTS(images, labels), output); at most 16, in C and C++. */
#define DML_INPUTS(...) DML__INPUT_LIST(__VA_ARGS__), 1 + DML__REST_COUNT_16(__VA_ARGS__)
#ifdef __cplusplus
struct dml__input_list {
    const void *at[16];
};
#define DML__INPUT_LIST(...) dml__input_list{ { __VA_ARGS__ } }.at
#else
#define DML__INPUT_LIST(...) ((const void *const[]){ __VA_ARGS__ })
#endif
#define DML__REST_COUNT_16(...)                                                                              \
    DML__ARGUMENT_17(__VA_ARGS__, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0)
#define DML__ARGUMENT_17(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count

/* Runs forward on `rows` samples, 1 .. batch, to predict: also a program that was compiled to train.
   inputs[i] holds `rows` samples for dml_program_input(i), and `count` is how many inputs there are, else
   DML_ERROR_ARGUMENT; `output`, when not NULL, receives the output (for each sample, if it has one for each).
   The inputs are aligned as arrays of their type are (else DML_ERROR_ARGUMENT), nobody writes them until the
   call returns, and the call doesn't: on the CPU they are read where they lie.
   Labels that are out of range are DML_ERROR_ARGUMENT, before anything is run. DML_ERROR_STATE, with nothing
   run, when another thread is in the program or, but for programs with a thread of their own, in its context,
   and while the parameters are being written. */
DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, int count,
                                   void *output);

/* values = what the last run, to predict or to train, made of a watched node, or of the output: (rows of that
   run, shape), or (shape) of a node that has no batch, as its dtype has it. Waits for the device. In training
   these are forward's values, before the update; of a batch in pieces, the last piece's. DML_ERROR_ARGUMENT
   for another node; DML_ERROR_STATE where there was no run yet, the last one failed or had no samples; or, as
   dml_program_run, with another thread in it. */
DML_API dml_status dml_program_read(dml_program *program, const dml_node *node, void *values);

/* The first error of a program with a thread of its own, since compiling or clearing it, but for another
   thread's being in the program; of any other program, its context's (dml_error). */
DML_API const char *dml_program_error(const dml_program *program);
DML_API dml_status dml_program_status(const dml_program *program);
DML_API void dml_program_clear_error(dml_program *program);

#endif
