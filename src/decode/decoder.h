/* decoder.h: a language model writes: one position after the other, each in the time that it takes alone. */
#ifndef DML_DECODE_DECODER_H
#define DML_DECODE_DECODER_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

typedef struct dml_decoder_options {
    int batch; /* texts side by side at most; 0: 1 */
    int chunk; /* positions that go through at once while a prompt is read; 0: a quarter of T, 128 at most */
    dml_dtype dtype; /* as of dml_program_options: what products may round their factors to */
} dml_decoder_options;

/* Of a net that was built to be trained on whole texts: `input` (T, ...) -> `output` (T, ...), whose row t
   depends on rows 0 .. t alone. The decoder is the same net, with the same parameters, for the next few
   positions: keys and values of those before are kept, so a position takes no longer than its own part. Its
   rows are those of the whole net up to rounding.

       dml_decoder *writer = dml_decoder_create(logits, letters, NULL);
       dml_decoder_feed(writer, 1, prompt, length, scores);
       for (int i = 0; i < 100; i++) {
           int32_t next = dml_sample(scores, 256, NULL, dml_random_uniform(&random, i));
           putchar(next);
           dml_decoder_feed(writer, 1, &next, 1, scores);
       }

   The net may be made of dense layers, embeddings, layer and RMS norms, arithmetic and activations, dropout,
   learned and rotary positions, causal attention (of shared heads, with a window), softmax and slices along
   other axes, and matmul with a matrix of parameters. NULL, with the error on the context, for a NULL node;
   DML_ERROR_ARGUMENT for a batch or chunk below 0, or nodes that don't depend on each other;
   DML_ERROR_UNSUPPORTED, with the node that stands in the way, for other nets, and for those with other
   inputs; DML_ERROR_MEMORY.

   Its nodes are added to the graph, in a scope "decoder.1" of their own, and stay there. It keeps
   2 x channels of keys and values x T floats a layer of attention and text. Trained parameters are used as
   they are at each call; what was kept was made of those of its time. The context, which closes it too, is
   used as by dml_program_run. */
typedef struct dml_decoder dml_decoder;
DML_API dml_decoder *dml_decoder_create(dml_node *output, dml_node *input,
                                        const dml_decoder_options *options);
DML_API void dml_decoder_destroy(dml_decoder *decoder);

/* The next `count` positions of `rows` texts: x (rows, count, ...), of which each position is a row of the
   input. last (rows, ...), if it isn't NULL, becomes the output's row at the last of them. Texts that are
   shorter than others can't be fed with them: what a batch has in common is how many positions it has had.

   DML_ERROR_ARGUMENT, with nothing fed: for rows not in 1 .. batch, or more of them than since the place was
   0, a count below 1, NULL or an index out of range. DML_ERROR_STATE: for more positions than T in all;
   dml_decoder_rewind makes room. After another failure the place is what it was. */
DML_API dml_status dml_decoder_feed(dml_decoder *decoder, int rows, const void *x, int count, float *last);

/* How many positions were fed. */
DML_API int dml_decoder_place(const dml_decoder *decoder);

/* Forgets all from `place` on, 0 .. dml_decoder_place, so that other positions can follow there: 0 begins
   another text, the length of a prompt another answer to it. DML_ERROR_ARGUMENT otherwise. */
DML_API dml_status dml_decoder_rewind(dml_decoder *decoder, int place);

#endif
