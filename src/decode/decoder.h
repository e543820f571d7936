/* decoder.h: a language model writes: one position after the other, each in the time that it takes alone. */
#ifndef DML_DECODE_DECODER_H
#define DML_DECODE_DECODER_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

typedef struct dml_decoder_options {
    int batch; /* texts side by side at most; 0: 1 */
    int chunk; /* positions that go through at once while a prompt is read; 0: a quarter of T, 128 at most. Of
                  fewer than that eight do. */
    dml_dtype dtype; /* as of dml_program_options: what products may round their factors to */
    /* DML_F32 (0): parameters are read where they are. DML_I8: those that are multiplied with rows of 64
       elements or more are copied to 8 bits with a scale for each 64 (kernels/q8.h): the weights of dense
       layers, and 2-d parameters that are dml_matmul's second factor as they are, without another scale
       than 1. A position, which waits for reading them, takes about a third of the time; they take a quarter
       of the parameters' memory more. All else is read where it is: biases, norms, tables that are looked up.
       Sums stay f32's, and of products with copies only those of more than 12 rows round to what `dtype`
       says. On the CPU. */
    dml_dtype weights;
} dml_decoder_options;

/* Of a net that was built to be trained on whole texts: `input` (T, ...) -> `output` (T, ...), whose row t
   depends on rows 0 .. t alone. The decoder is the same net, with the same parameters, for the next few
   positions: keys and values of those before are kept, so a position takes no longer than its own part. Its
   rows are those of the whole net up to rounding.

       dml_decoder *writer = dml_decoder_create(logits, letters, NULL);
       dml_decoder_feed(writer, 1, prompt, length, scores);
       while (dml_decoder_place(writer, 0) < T) {
           const float number = dml_random_uniform(&random, dml_decoder_place(writer, 0));
           const int32_t next = dml_sample(scores, 256, NULL, number);
           putchar(next);
           dml_decoder_feed(writer, 1, &next, 1, scores);
       }

   The net may be made of dense layers, embeddings, layer and RMS norms, arithmetic and activations, dropout,
   learned positions (f32, T x width) and rotary ones, causal attention (also with a window and shared heads),
   of reshapes, permutes, slices, concats, softmaxes and reductions that leave the first axis alone,
   dml_stop_gradient, and dml_matmul with a matrix of parameters. Of T larger than it was trained with, the
   same file fits as long as no parameter has T rows. A step of dml_lstm is a net of one position, whose
   states are inputs and watched nodes, and needs no decoder.

   NULL, with the error on the context (but for a NULL node): DML_ERROR_ARGUMENT for a batch or chunk below 0,
   weights of another type, or nodes that don't depend on each other; DML_ERROR_UNSUPPORTED, with the node
   that stands in the way, for other nets, and for those with other inputs, and for weights in 8 bits on a
   device; DML_ERROR_MEMORY.

   It compiles the net, which lays out the graph's parameters: what has parameters is built before. Its nodes
   are in the graph, in scopes "decoder.1.1" and the like, and leave it with the decoder if they are still its
   last. It keeps 2 x channels of keys and values x T floats a layer of attention and text, on the device.
   Trained parameters are used as they are at each call, but for copies in 8 bits, which are made at the first
   one and after dml_decoder_take_weights; what was kept was made of those of its time. The context, which
   closes it too, is used as by dml_program_run. */
typedef struct dml_decoder dml_decoder;
DML_API dml_decoder *dml_decoder_create(dml_node *output, dml_node *input,
                                        const dml_decoder_options *options);
DML_API void dml_decoder_destroy(dml_decoder *decoder);

/* The next `count` positions of texts 0 .. rows - 1, each behind those that it has had: x (rows, count, ...),
   of which each position is a row of the input. last (rows, ...), if it isn't NULL, becomes the output's row
   at the last of them; it may be x.

   DML_ERROR_ARGUMENT, with nothing fed: for rows not in 1 .. batch, a count below 1, NULL or an index out of
   range. DML_ERROR_STATE: for more positions than T in all. After another failure the texts are what they
   were. As with any call of a context, an error stays until dml_clear_error. */
DML_API dml_status dml_decoder_feed(dml_decoder *decoder, int rows, const void *x, int count, float *last);

/* The same, and all (rows, count, ...) becomes the output's row at each of them: what the net makes of a text
   that is there, or which of the words that a smaller net guessed it would have written. The first time it
   compiles what gives them all, and takes memory for batch x chunk rows. A row is what dml_decoder_feed gives
   behind the same positions, up to rounding. `all` may not be x. DML_ERROR_ARGUMENT also where it is NULL. */
DML_API dml_status dml_decoder_feed_rows(dml_decoder *decoder, int rows, const void *x, int count,
                                         float *all);

/* Copies of weights in 8 bits are made anew of the graph's parameters at the next call, after these were
   trained, loaded or written: until then products go on with the old ones, beside new biases and tables. */
DML_API void dml_decoder_take_weights(dml_decoder *decoder);

/* How many positions a text has had. */
DML_API int dml_decoder_place(const dml_decoder *decoder, int text);

/* Forgets all of a text from `place` on, 0 .. dml_decoder_place, so that other positions can follow there: 0
   begins another text; the length of a prompt less one, and feeding its last position again, gives its scores
   for another answer. DML_ALL_TEXTS: of all that are further. Texts of different lengths are fed side by side
   with any positions behind the shorter ones, which are then rewound. DML_ERROR_ARGUMENT otherwise. */
#define DML_ALL_TEXTS (-1)
DML_API dml_status dml_decoder_rewind(dml_decoder *decoder, int text, int place);

/* Text `to` becomes what text `from` is: a prompt is read once for several answers, or a beam goes on from
   another's. DML_ERROR_ARGUMENT for a text that isn't in 0 .. batch - 1. */
DML_API dml_status dml_decoder_copy(dml_decoder *decoder, int from, int to);

#endif
