#ifndef DML_OPS_OP_DISTILLATION_C
#define DML_OPS_OP_DISTILLATION_C

#include "ops/op_loss.h"

#include "graph/node.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_shape.h"
#include "ops/op_softmax.h"

#include <string.h>

static bool dml__distillation_fits(const dml_node *student, const dml_node *teacher, const dml_node *labels,
                                   float temperature, float alpha)
{
    dml__error *error = &dml__node_context(student)->error;
    char student_text[DML_SHAPE_TEXT], teacher_text[DML_SHAPE_TEXT];
    if (!(temperature > 0 && temperature - temperature == 0))
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "distillation: its temperature is %g; it must be finite and above 0", (double)temperature);
    else if (!(alpha > 0 && alpha <= 1))
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "distillation: its alpha is %g; it must be above 0 and at most 1", (double)alpha);
    else if (!labels && alpha < 1)
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "distillation: there are no labels; without them its alpha must be 1, not %g",
                  (double)alpha);
    else if (student->dtype != DML_F32 || teacher->dtype != DML_F32 || student->shape.ndim < 1 ||
             !student->batched || !teacher->batched || !dml_shape_equal(&student->shape, &teacher->shape))
        dml__fail(error, DML_ERROR_SHAPE,
                  "distillation: the student's logits are %s %s%s and the teacher's %s %s%s; they must be "
                  "rows of f32 of one shape",
                  dml_dtype_name(student->dtype), dml_shape_format(&student->shape, student_text),
                  student->batched ? "" : " for the whole batch", dml_dtype_name(teacher->dtype),
                  dml_shape_format(&teacher->shape, teacher_text),
                  teacher->batched ? "" : " for the whole batch");
    return error->status == DML_OK;
}

static dml_node *dml__softened(dml_node *logits, float temperature)
{
    return temperature == 1 ? logits : dml_affine(logits, 1 / temperature, 0);
}

/* What each part is of the whole; NULL when one of them is refused. */
static dml_node *dml__distillation_parts(dml_node *student, dml_node *teacher, dml_node *labels,
                                         const dml_distillation_options *o, float temperature, float alpha)
{
    dml_cross_entropy_options of_labels;
    dml_loss_options of_teacher;
    dml_node *hard = NULL;
    memset(&of_labels, 0, sizeof of_labels);
    memset(&of_teacher, 0, sizeof of_teacher);
    of_labels.reduction = of_teacher.reduction = o->reduction;
    of_labels.sample_weights = of_teacher.sample_weights = o->sample_weights;
    if (alpha < 1) {
        hard = dml_softmax_cross_entropy_with(student, labels, &of_labels);
        hard = hard ? dml_affine(hard, 1 - alpha, 0) : NULL;
        if (!hard) return NULL;
    }
    dml_node *wanted = dml_softmax(dml__softened(dml_stop_gradient(teacher), temperature), -1);
    dml_node *soft =
        dml_kl_divergence(dml_log_softmax(dml__softened(student, temperature), -1), wanted, &of_teacher);
    soft = soft ? dml_affine(soft, alpha * temperature * temperature, 0) : NULL;
    return soft && hard ? dml_add(soft, hard) : soft;
}

DML_API dml_node *dml_distillation(dml_node *student, dml_node *teacher, dml_node *labels,
                                   const dml_distillation_options *options)
{
    dml_distillation_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    const float temperature = o.temperature != 0 ? o.temperature : 1;
    const float alpha = o.alpha != 0 ? o.alpha : 0.5f;
    dml_node *one = student ? student : teacher ? teacher : labels;
    if (!one || dml__node_context(one)->error.status != DML_OK) return NULL;
    if (!student || !teacher) {
        dml__fail(&dml__node_context(one)->error, DML_ERROR_ARGUMENT,
                  "distillation: the %s's logits are NULL", student ? "teacher" : "student");
        return NULL;
    }
    if (!dml__distillation_fits(student, teacher, labels, temperature, alpha)) return NULL;
    dml_node *last = student->graph->last;
    dml_node *loss = dml__distillation_parts(student, teacher, labels, &o, temperature, alpha);
    if (!loss) dml__graph_drop_after(student->graph, last);
    return loss;
}

#endif
