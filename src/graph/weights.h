/* weights.h: the parameters of a graph, all in one flat vector w that belongs to the graph: reached, copied,
   saved and loaded without a trainer.

   Trained parameters lie in w in the order in which the graph first uses them; behind them lie those that
   aren't trained, for which there is neither a gradient nor an optimizer's state. w is laid out, and filled
   with initial values, by the first compile or the first call below that needs it; from then on the graph
   takes no new parameter. A parameter that no op uses has no place in w. */
#ifndef DML_GRAPH_WEIGHTS_H
#define DML_GRAPH_WEIGHTS_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

/* Elements of w, and how many of them, at its start, are trained. */
DML_API size_t dml_graph_parameter_count(const dml_graph *graph);
DML_API size_t dml_graph_trained_count(const dml_graph *graph);

/* The parameters in the order of their first use: how many, and each; NULL past the last. */
DML_API int dml_graph_parameters(const dml_graph *graph);
DML_API dml_node *dml_graph_parameter(const dml_graph *graph, int i);

/* Where a parameter begins in w, in elements; 0 before w is laid out. */
DML_API size_t dml_parameter_offset(const dml_node *parameter);

/* Whether a parameter is trained; a frozen one gets no gradient and no update. It has to be said before w is
   laid out, else DML_ERROR_STATE; DML_ERROR_ARGUMENT for a node that is no parameter, and where a norm's
   running statistic, also a frozen norm's, is to be trained. */
DML_API bool dml_parameter_trained(const dml_node *parameter);
DML_API dml_status dml_parameter_train(dml_node *parameter, bool trained);

/* Says that a step reaches only some rows of a parameter (those of its first dimension): a table that is
   looked up. An update then leaves the rows whose gradient is zero throughout as they are, with their state:
   no momentum moves them and nothing decays them until they are met again. (So it is lazy, as PyTorch's
   SparseAdam; without momentum and decay, sgd and adagrad do the same for any parameter.) lars and lamb,
   which look at whole parameters, don't mind this.

   What it saves: on a device that shares the host's memory, where dml_embedding and dml_embedding_bag alone
   read the parameter, a step touches no row of it, of its gradient and of its state that isn't looked up. It
   does when something needs all of the gradient (a strategy, DML_ADD, clip_norm, clip_value, a moving
   average, dml_trainer_put), and on other devices, with the same result. DML_ERROR_ARGUMENT for a node that
   is no parameter, or one without dimensions. To be said before the graph is compiled to train. */
DML_API bool dml_parameter_sparse(const dml_node *parameter);
DML_API dml_status dml_parameter_set_sparse(dml_node *parameter, bool sparse);

/* Copies one parameter's values out or in. `count` is its number of elements, else DML_ERROR_SHAPE.
   DML_ERROR_STATE for one that no op uses, and for writing while programs predict on other threads. */
DML_API dml_status dml_parameter_read(dml_node *parameter, float *to, size_t count);
DML_API dml_status dml_parameter_write(dml_node *parameter, const float *from, size_t count);

/* Elements [begin, end) of w on the host: w itself where the device shares the host's memory, else a copy
   that is brought up to date, and that dml_graph_put brings back to the device after a change. NULL, with the
   error recorded, for a range that isn't there. The first call may allocate the copy, later ones don't. */
DML_API float *dml_graph_get(dml_graph *graph, size_t begin, size_t end);
DML_API dml_status dml_graph_put(dml_graph *graph, size_t begin, size_t end);

/* Writes every parameter under its name, as safetensors (https://github.com/huggingface/safetensors: a
   length, a JSON header, little-endian data), to a file: aside, synced, then renamed, so that a crash leaves
   the old file or the new one (a symbolic link there is replaced, not followed). DML_ERROR_IO with a sentence
   when it can't be written. dml_graph_store writes the same into memory: *bytes is how many it takes; a NULL
   `to` only asks, and a `capacity` that is too small is DML_ERROR_MEMORY. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_save(dml_graph *graph, const char *path);
#endif
DML_API dml_status dml_graph_store(dml_graph *graph, void *to, size_t capacity, size_t *bytes);

/* Reads what any of dml_graph_save, dml_trainer_save and Python's safetensors wrote: each parameter of the
   graph must be there by name, of its shape, as F32, or BF16 or F16, which become F32; tensors of the file
   that begin with "dml." are a trainer's, others that the graph doesn't have are an error. The file goes
   straight to w, so loading takes little more than w. DML_ERROR_IO when it can't be read; DML_ERROR_FORMAT
   when it is no such file, is damaged or of another model, with what differs: w is then unchanged.
   DML_ERROR_STATE while programs predict on other threads. `name` is what errors call the bytes. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_load(dml_graph *graph, const char *path);
#endif
DML_API dml_status dml_graph_load_memory(dml_graph *graph, const char *name, const void *bytes, size_t size);

/* Reads what of the file fits, as for a pretrained body under another head: a parameter of whose name and
   shape the file has a tensor takes it on, every other stays as it is, and so does what the file has besides.
   dml_parameter_loaded says which were taken: whether the last file that was loaded into the graph, by
   whatever call, had the parameter. Errors are those of dml_graph_load for damage, and for a tensor that fits
   but isn't F32, BF16 or F16; DML_ERROR_FORMAT too when no parameter is there; DML_ERROR_STATE where other
   ranks have parts of w (dml_trainer_gather). w is then unchanged. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_load_matching(dml_graph *graph, const char *path);
#endif
DML_API dml_status dml_graph_load_matching_memory(dml_graph *graph, const char *name, const void *bytes,
                                                  size_t size);
DML_API bool dml_parameter_loaded(const dml_node *parameter);

#endif
