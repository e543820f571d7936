/* Losses against what PyTorch computed. */
#include "conformance.h"
#include "loss_cases.h"
enum { CASES = sizeof loss_cases / sizeof loss_cases[0] };

static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    static const float class_weights[] = { 0.5f, 1, 2, 0.25f };
    const float *n = c->number;
    dml_node *x = tensor[0], *t = tensor[1], *weights = c->tensors > 2 ? tensor[2] : NULL;
    dml_loss_options o = { .reduction = n[0] == 1 ? DML_LOSS_SUM : DML_LOSS_MEAN, .sample_weights = weights };
    if (strcmp(c->name, "entropy") == 0)
        return dml_softmax_cross_entropy_with(
            x, t,
            &(dml_cross_entropy_options){ .reduction = o.reduction,
                                          .sample_weights = weights,
                                          .label_smoothing = n[1],
                                          .ignores = n[2] == 1,
                                          .ignore_index = (int)n[3],
                                          .class_weights = n[4] == 1 ? class_weights : NULL });
    if (strcmp(c->name, "mse") == 0) return dml_mean_squared_error_with(x, t, &o);
    if (strcmp(c->name, "mae") == 0) return dml_mean_absolute_error(x, t, &o);
    if (strcmp(c->name, "kl") == 0) return dml_kl_divergence(x, t, &o);
    if (strcmp(c->name, "huber") == 0) return o.delta = n[1], dml_huber(x, t, &o);
    if (strcmp(c->name, "smooth_l1") == 0) return o.beta = n[1], dml_smooth_l1(x, t, &o);
    if (strcmp(c->name, "binary") == 0) return o.pos_weight = n[1], dml_binary_cross_entropy(x, t, &o);
    if (strcmp(c->name, "distillation") == 0)
        return dml_distillation(
            x, t, weights,
            &(dml_distillation_options){
                .temperature = n[1], .alpha = n[2], .sample_weights = c->tensors > 3 ? tensor[3] : NULL });
    if (strcmp(c->name, "hinge") == 0) return o.squared = n[1] == 1, dml_hinge(x, t, &o);
    return NULL;
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&loss_cases[c], c, build, 2e-6);
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/loss");
}
