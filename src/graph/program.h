/* program.h: a program is a graph compiled for one output and a largest batch: the ops to run, in order, and
   where each tensor lies in one arena. Several programs of one graph (one to train, one to predict) share its
   parameters.

   After compiling, a run allocates nothing. */
#ifndef DML_GRAPH_PROGRAM_H
#define DML_GRAPH_PROGRAM_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

typedef struct dml_program dml_program;

typedef struct dml_program_options {
    int batch;     /* the most samples of one run, at least 1: there is no default */
    bool training; /* also runs backward; the output must then be a scalar loss */
} dml_program_options;

/* Compiles what `output` needs. NULL, with the error on the context, for a NULL node, a batch below 1, a
   training program whose output is not a scalar f32, or when memory is short. The first compile of a graph
   lays out its parameters and initialises them. */
DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options);
DML_API void dml_program_destroy(dml_program *program);

/* Device bytes of the program's arena: activations, their gradients and what ops keep between forward and
   backward; parameters and their gradients are not counted. */
DML_API size_t dml_program_bytes(const dml_program *program);

/* The inputs that a run wants, in the order of dml_input: how many, and each. */
DML_API int dml_program_inputs(const dml_program *program);
DML_API dml_node *dml_program_input(const dml_program *program, int i);

/* Runs forward on `rows` samples, 1 .. batch. inputs[i] holds `rows` samples for dml_program_input(i);
   `output`, when not NULL, receives the output (for each sample, if it has one for each). Labels that are out
   of range are DML_ERROR_ARGUMENT, before anything is run. */
DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, void *output);

#endif
