/* weights_file.h: a graph's parameters as tensors of a file, for the files of this room and for checkpoints.
 */
#ifndef DML_GRAPH_WEIGHTS_FILE_H
#define DML_GRAPH_WEIGHTS_FILE_H

#include <string.h>

#include "base/safetensors.h"
#include "graph/node.h"

/* What files of the library's own have besides parameters begins with this. */
#define DML__OWN_TENSORS "dml."

static inline bool dml__is_own_name(const char *name)
{
    return strncmp(name, DML__OWN_TENSORS, strlen(DML__OWN_TENSORS)) == 0;
}

/* Fills `tensors` with dml_graph_parameters(graph) of them: every parameter, with its values in `w`. */
DML__LOCAL void dml__graph_tensors(const dml_graph *graph, const float *w, dml__tensor *tensors);

/* Whether the file, which sentences call `path`, has the tensor `name` as f32 of that shape; *found is then
   its number. */
DML__LOCAL dml_status dml__file_has(const dml__safetensors *file, const char *path, const char *name,
                                    const dml_shape *shape, int *found, dml__error *error);

/* What says in a file which part of a model that is cut it holds: "part 2/4, stage 1/3"; "" of a whole
   one, which says nothing. */
#define DML__PART "part"
#define DML__PART_KEY DML__OWN_TENSORS DML__PART
enum { DML__PART_BYTES = 32 };
DML__LOCAL const char *dml__part_text(const dml_graph *graph, char text[DML__PART_BYTES]);

/* DML_ERROR_FORMAT where the file has a tensor that no parameter takes. */
DML__LOCAL dml_status dml__find_stranger(const dml_graph *graph, const dml__safetensors *file,
                                         const char *path);

/* Whether the file holds each of the graph's parameters, and none that the graph hasn't. */
DML__LOCAL dml_status dml__graph_fits_file(const dml_graph *graph, const dml__safetensors *file,
                                           const char *path);

/* Reads what of the file fits into w. */
DML__LOCAL dml_status dml__graph_read_file(dml_graph *graph, dml__safetensors *file);

#endif
