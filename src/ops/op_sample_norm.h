/* op_sample_norm.h: normalization of each sample by its own numbers: layer, RMS and group norm. Training and
   predicting compute the same. */
#ifndef DML_OPS_OP_SAMPLE_NORM_H
#define DML_OPS_OP_SAMPLE_NORM_H

#include "graph/graph.h"

typedef struct dml_sample_norm_options {
    float epsilon;  /* added to the variance or mean square; 0: 1e-5, of dml_rms_norm 2^-23 (PyTorch's) */
    bool no_weight; /* the layer learns nothing */
    bool no_bias;   /* it learns no bias; dml_rms_norm has none */
} dml_sample_norm_options;

/* Normalizes along the last dimension of x: (..., C) -> the same, by

       y = weight (x - mean) / sqrt(variance + epsilon) + bias

   with mean and variance of each C numbers. The parameters (C) are "layer_norm_1.weight" (one at first) and
   ".bias" (zero). Source: Ba, Kiros, Hinton, "Layer normalization", 2016. NULL options: all defaults. */
DML_API dml_node *dml_layer_norm(dml_node *x, const dml_sample_norm_options *options);

/* (..., C) -> the same, y = weight x / sqrt(mean of x^2 + epsilon), with "rms_norm_1.weight" (C).
   Source: Zhang, Sennrich, "Root mean square layer normalization", NeurIPS 2019. */
DML_API dml_node *dml_rms_norm(dml_node *x, const dml_sample_norm_options *options);

/* As dml_layer_norm, with mean and variance over all pixels of a group of channels, the last dimension being
   cut into `groups` equal ones: (H, W, C), or any other dimensions before C, -> the same. As many groups as
   channels is instance normalization. DML_ERROR_ARGUMENT when C can't be cut so. The parameters (C) are
   "group_norm_1.weight" and ".bias". Source: Wu, He, "Group normalization", ECCV 2018. */
DML_API dml_node *dml_group_norm(dml_node *x, int groups, const dml_sample_norm_options *options);

/* The same on parameters of the caller's, each (C), or NULL for none; a bias needs a weight. */
DML_API dml_node *dml_layer_norm_with(dml_node *x, dml_node *weight, dml_node *bias,
                                      const dml_sample_norm_options *options);
DML_API dml_node *dml_rms_norm_with(dml_node *x, dml_node *weight, const dml_sample_norm_options *options);
DML_API dml_node *dml_group_norm_with(dml_node *x, int groups, dml_node *weight, dml_node *bias,
                                      const dml_sample_norm_options *options);

#endif
