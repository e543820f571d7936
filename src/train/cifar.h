/* cifar.h: reads CIFAR-10's binary files: small colour images of ten kinds of things.

   A file is records one behind the other: a byte with the label, 0 .. 9, then 3 planes of 32 x 32 bytes, red,
   green and blue, each row by row from the top. The data set has six of 10000: data_batch_1.bin to
   data_batch_5.bin, and test_batch.bin. Source: A. Krizhevsky, "Learning multiple layers of features from
   tiny images", 2009; https://www.cs.toronto.edu/~kriz/cifar.html */
#ifndef DML_TRAIN_CIFAR_H
#define DML_TRAIN_CIFAR_H

#include "base/platform.h"
#include "base/status.h"
#include "device/context.h"

enum {
    DML_CIFAR_SIDE = 32,
    DML_CIFAR_PLANE = DML_CIFAR_SIDE * DML_CIFAR_SIDE,
    DML_CIFAR_RECORD = 1 + 3 * DML_CIFAR_PLANE,
    DML_CIFAR_CLASSES = 10
};

typedef struct dml_cifar {
    int count;                    /* at least 1 */
    const unsigned char *records; /* (count, DML_CIFAR_RECORD), labels below DML_CIFAR_CLASSES */
    void *block;                  /* private: what dml_cifar_free gives back */
} dml_cifar;

/* Reads a file of any number of records into memory of the context. On failure the sentence on the context
   names the file, and *out is empty. DML_ERROR_IO: it can't be read; DML_ERROR_FORMAT: it isn't a whole
   number of records, has a label past 9, or is still packed (.gz); DML_ERROR_MEMORY. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_cifar10_load(dml_context *context, const char *path, dml_cifar *out);
#endif

/* The same for `size` bytes in memory, called `name` in a failure's sentence. Nothing is copied: out->records
   points into `bytes`. */
DML_API dml_status dml_cifar10_parse(dml_context *context, const char *name, const void *bytes, size_t size,
                                     dml_cifar *out);

/* Gives the memory back and empties *cifar; an empty one, or a parsed one, is fine. Call it before dml_close.
 */
DML_API void dml_cifar_free(dml_context *context, dml_cifar *cifar);

/* How a picture is changed before it is learned from: moved by so many pixels, what comes in from outside
   being 0, then mirrored. Source: Lee et al., "Deeply-supervised nets", AISTATS 2015, section 4.2 (by -4 .. 4
   each way, which is a random part of the picture with 4 pixels around it). */
typedef struct dml_cifar_change {
    int down, right;
    bool mirrored;
} dml_cifar_change;

/* One record, changed, as a network is fed it: (x - mean) / deviation of each byte x, the planes as
   channels. */
DML_API void dml_cifar_image(const unsigned char *record /* (DML_CIFAR_RECORD) */, dml_cifar_change change,
                             float mean, float deviation, float *image /* (32, 32, 3) */);

/* The change by up to `most` pixels each way (0 to 2^20; others count as the nearest), with a mirror for half
   of the samples, that sample number `sample` gets in an epoch: from these numbers alone, so that it doesn't
   matter which rank has it. */
DML_API dml_cifar_change dml_cifar_random_change(uint64_t seed, uint32_t epoch, uint64_t sample, int most);

#endif
