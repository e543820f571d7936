/* reference_loss.h: the losses of a batch in float64 (included by reference_ops.h). */
#ifndef DML_TESTS_GRAPH_REFERENCE_LOSS_H
#define DML_TESTS_GRAPH_REFERENCE_LOSS_H

/* How the attributes of these ops begin; their files have the rest. */
typedef struct reference_cross_entropy {
    int reduction;
    float smoothing;
    bool ignores, class_weights;
    int32_t ignored;
} reference_cross_entropy;

typedef struct reference_loss {
    float p, q;
    int reduction, unit;
} reference_loss;

static void reference_element_loss(const dml_node *node, int rows, double *const *in, double *out)
{
    const reference_loss *o = (const reference_loss *)node->attributes;
    const size_t n = reference_count(node->input[0], rows);
    const size_t each = node->inputs > 2 ? n / reference_count(node->input[2], rows) : n;
    const formula_exact *formula = formula_named(node->op->name);
    double total = 0, divisor = 0;
    for (size_t i = 0; i < n; i++) {
        const double weight = node->inputs > 2 ? in[2][i / each] : 1;
        total += weight * formula->of(in[0][i], in[1][i], 0, (double)o->p, (double)o->q);
        divisor += weight / o->unit;
    }
    *out = o->reduction == 1 ? total : divisor == 0 ? 0 : total / divisor;
}

static void reference_softmax_cross_entropy(const dml_node *node, int samples, double *const *in, double *out)
{
    const reference_cross_entropy *o = (const reference_cross_entropy *)node->attributes;
    const float *of_class = o->class_weights ? (const float *)(const void *)(o + 1) : NULL;
    const dml_shape *shape = &node->input[0]->shape;
    const size_t classes = (size_t)shape->dims[shape->ndim - 1];
    const size_t rows = reference_count(node->input[0], samples) / classes;
    const bool labelled = node->input[1]->dtype == DML_I32;
    double total = 0, divisor = 0;
    for (size_t r = 0; r < rows; r++) {
        const double *logits = in[0] + r * classes;
        const double weight =
            node->inputs > 2 ? in[2][r / (rows / reference_count(node->input[2], samples))] : 1;
        const int label = labelled ? (int)in[1][r] : 0;
        double largest = logits[0], sum = 0, loss = 0;
        if (labelled && o->ignores && label == o->ignored) continue;
        for (size_t c = 1; c < classes; c++) largest = logits[c] > largest ? logits[c] : largest;
        for (size_t c = 0; c < classes; c++) sum += exp(logits[c] - largest);
        for (size_t c = 0; c < classes; c++) {
            const double target = labelled ? (int)c == label : in[1][r * classes + c];
            const double q = target * (1 - (double)o->smoothing) + (double)o->smoothing / (double)classes;
            loss += (of_class ? (double)of_class[c] : 1) * q * (log(sum) + largest - logits[c]);
        }
        total += weight * loss;
        divisor += weight * (labelled && of_class ? (double)of_class[label] : 1);
    }
    *out = o->reduction == 1 ? total : divisor == 0 ? 0 : total / divisor;
}

#endif
