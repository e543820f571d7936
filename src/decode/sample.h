/* sample.h: a class is drawn from its scores, as language models write. */
#ifndef DML_DECODE_SAMPLE_H
#define DML_DECODE_SAMPLE_H

#include "base/platform.h"

typedef struct dml_sample_options {
    float temperature; /* scores are divided by it: less makes the likely likelier; 0: 1; DML_ZERO: the
                          largest */
    int top_k;         /* only the k largest are drawn; 0: all; 1: the largest, whatever the number */
    float top_p;       /* of these only the largest whose probabilities add up to this; 0 or 1: all. Source:
                          Holtzman et al., "The curious case of neural text degeneration", 2020, section 3.1 */
} dml_sample_options;

/* A class of 0 .. count - 1, drawn with the probabilities softmax(logits / temperature) gives those that are
   left by top_k and then top_p: the one in which `number`, uniform in [0, 1) (dml_random_uniform), falls when
   they lie one behind the other. Of equal logits at the edge those of lower classes are left. A NaN and
   -infinity are never drawn. NULL options: all defaults. -1 when there is nothing to draw, or for options
   that can't be: a temperature or top_p below 0 or NaN, a top_k below 0. */
DML_API int dml_sample(const float *logits, int count, const dml_sample_options *options, float number);

#endif
